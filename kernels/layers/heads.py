"""The checks of sizes that layers of grouped heads share."""

from math import isfinite

from torch import Tensor

from kernels.arguments import check_size, describe


def check_hidden(x: Tensor, hidden_size: int) -> tuple[int, int]:
    """Return B and T of hidden states, and refuse anything else with a ValueError."""
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != hidden_size:
        wanted = f"[B, T, hidden_size] with hidden_size = {hidden_size}"
        raise ValueError(f"x: {describe(x)}, expected {wanted}")
    return x.shape[0], x.shape[1]


def check_heads(*, num_heads: int, num_kv_heads: int | None, **sizes: int) -> int:
    """Return the number of key and value heads, which is that of the queries if it is None.

    Raises:
        TypeError: a size that is no int.
        ValueError: one of them is below 1, or the query heads form no groups.
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    sizes |= {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    for name, size in sizes.items():
        check_size(name, size)
    if num_heads % num_kv_heads:
        wanted = f"a divisor of num_heads = {num_heads}"
        raise ValueError(f"num_kv_heads: {num_kv_heads}, expected {wanted}")
    return num_kv_heads


def part_of(size: int, factor: float) -> int | None:
    """Return the integer that `factor · size` is but for rounding; None if there is no such one."""
    if not isfinite(factor):
        return None
    product = factor * size
    return round(product) if abs(round(product) - product) <= 1e-6 * abs(product) else None
