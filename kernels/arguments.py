"""Checks of an op's arguments, before anything is launched.

The checks of shapes, dtypes and devices are plain Python over metadata, so `torch.compile` traces
through them. `check_boundaries` reads data, so only the implementation of a custom op may call it.
"""

import reprlib
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

_FLOAT32 = torch.finfo(torch.float32)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# For the docstrings of ops.
BAD_BOUNDARIES = (
    "`cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not end at T"
)


def may_overlap(x: Tensor) -> bool:
    """Whether elements may share memory: a stride is no longer than what the shorter ones span."""
    dims = [(s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
    for i, (step, _) in enumerate(dims):
        # Not sorted, which torch.compile cannot.
        shorter = [(s, n) for j, (s, n) in enumerate(dims) if s < step or (s == step and j < i)]
        if step <= sum(s * (n - 1) for s, n in shorter):
            return True
    return False


def describe(x: object) -> str:
    """`float32[2, 7, 3, 5]` for a tensor, `'x' (str)` for anything else."""
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    return f"{reprlib.repr(x)} ({type(x).__name__})"


def bind_dims(**specs: tuple[Tensor | None, str]) -> dict[str, int]:
    """Match tensors against named dims and return the size of each name.

    Args:
        specs: argument name → (tensor, dims), for example `q=(q, "B T H K")`. A dim is a name,
            which must have one size throughout, or a number. A tensor that is None is passed over.

    Raises:
        TypeError: an argument is not a tensor.
        ValueError: a rank or a size differs; arguments live on different devices.
    """
    sizes: dict[str, int] = {}
    device = None
    for name, (x, spec) in specs.items():
        if x is None:
            continue
        dims = spec.split()
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {describe(x)}, expected a tensor [{', '.join(dims)}]")
        fits = x.dim() == len(dims)
        if fits:
            for dim, size in zip(dims, x.shape, strict=True):
                want = int(dim) if dim.isdigit() else sizes.setdefault(dim, size)
                fits = fits and want == size
        if not fits:
            known = ", ".join(f"{d}={sizes[d]}" for d in dims if d in sizes)
            raise ValueError(
                f"{name}: {describe(x)}, expected [{', '.join(dims)}]"
                + (f" with {known}" if known else "")
            )
        if device is None:
            device = x.device
        elif x.device != device:
            raise ValueError(f"{name}: on {x.device}, expected {device} like the other arguments")
    return sizes


def check_tensors(**arguments: object) -> None:
    """Refuse what is no tensor, such as None, which `bind_dims` passes over, with a TypeError."""
    for name, x in arguments.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {describe(x)}, expected a tensor")


def check_one_dtype(**tensors: Tensor | None) -> torch.dtype:
    """The float dtype that all tensors share.

    Raises:
        TypeError: a dtype is none of float32, bfloat16, float16, or differs from the first one's.
    """
    first = None
    for name, x in tensors.items():
        if x is None:
            continue
        check_dtype(name, x, *(FLOATS if first is None else (first,)))
        first = x.dtype
    assert first is not None
    return first


def check_dtype(name: str, x: Tensor | None, *allowed: torch.dtype) -> None:
    """Refuse a tensor whose dtype is none of `allowed` with a TypeError."""
    if x is not None and x.dtype not in allowed:
        names = " or ".join(str(d).removeprefix("torch.") for d in dict.fromkeys(allowed))
        raise TypeError(f"{name}: {describe(x)}, expected {names}")


def check_range(name: str, size: int, low: int, high: int) -> None:
    """Refuse a size outside `[low, high]` with a ValueError."""
    if not low <= size <= high:
        raise ValueError(f"{name}: {size}, expected {low} to {high}")


def check_size(name: str, size: int, least: int = 1) -> int:
    """Refuse anything but an int of 64 bits of at least `least`."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{name}: {describe(size)}, expected an int")
    if size < least:
        raise ValueError(f"{name}: {size}, expected at least {least}")
    if size >= 2**63:
        raise ValueError(f"{name}: {size}, expected at most 2^63 - 1")
    return size


def check_number(name: str, x: object, *, optional: bool = False) -> None:
    """Refuse anything but an int or a float, and None if optional, with a TypeError."""
    if optional and x is None:
        return
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        wanted = "a real number or None" if optional else "a real number"
        raise TypeError(f"{name}: {describe(x)}, expected {wanted}")


def is_finite(x: float) -> bool:
    """Whether a number is finite in float32, as kernels take it."""
    return -_FLOAT32.max <= x <= _FLOAT32.max


def is_normal(x: float) -> bool:
    """Whether a number is positive and normal in float32, which below holds 0 or fewer digits."""
    return _FLOAT32.smallest_normal <= x <= _FLOAT32.max


def check_choice(name: str, choice: object, *choices: str | None) -> None:
    """Refuse a str that is none of `choices` with a ValueError, and what is no str with a TypeError
    unless it is None and a choice.
    """
    typed = isinstance(choice, str) or (choice is None and None in choices)
    if not typed or choice not in choices:
        *others, last = map(repr, choices)
        error = ValueError if typed else TypeError
        raise error(f"{name}: {choice!r}, expected {', '.join(others)} or {last}")


def check_chunk_size(size: int) -> int:
    """Refuse a chunk size below 1, and return at most 2^30.

    That cuts sequences of up to 2^30 tokens alike, and its sum with their length fits in 32 bits.
    """
    return min(check_size("chunk_size", size), 2**30)


def check_groups(sizes: Mapping[str, int], heads: str = "q", groups: str = "k and v") -> None:
    """Refuse H heads that are no multiple of G with a ValueError; without G each head is its own.

    Args:
        heads, groups: the arguments with H and with G heads, for the message.
    """
    H, G = sizes["H"], sizes.get("G")
    if G is not None and (0 in (H, G) or H % G):
        wanted = f"a positive multiple of the {G} heads of {groups}"
        raise ValueError(f"{heads}: {H} heads, expected {wanted}")


def check_flags(**flags: bool) -> None:
    """Refuse anything but a bool with a TypeError: None would pass for False, and "no" for True."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name}: {describe(flag)}, expected a bool")


def check_cu_seqlens(
    name: str, cu_seqlens: Tensor | None, batch: int, device: torch.device
) -> Tensor | None:
    """Check the dtype, shape and device of `cu_seqlens [N+1]`, but not its values.

    Returns:
        `cu_seqlens`, contiguous and in int64, for which alone kernels are compiled; or None.

    Raises:
        TypeError: not an int32 or int64 tensor.
        ValueError: not one-dimensional, no sequence at all, another device, or `batch != 1`.
    """
    if cu_seqlens is None:
        return None
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: {describe(cu_seqlens)}, expected an int32 or int64 tensor [N+1]")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(f"{name}: {describe(cu_seqlens)}, expected [N+1] with N at least 1")
    if cu_seqlens.device != device:
        raise ValueError(f"{name}: on {cu_seqlens.device}, expected {device} like the tensors")
    if batch != 1:
        raise ValueError(
            f"{name}: given with batch size {batch}, expected B=1 for packed sequences"
        )
    return cu_seqlens.long().contiguous()


def count_sequences(batch: int, cu_seqlens: Tensor | None) -> int:
    """N: the rows of a dense batch, or the sequences that are packed into its one row."""
    return batch if cu_seqlens is None else cu_seqlens.shape[0] - 1


def check_boundaries(name: str, cu_seqlens: Tensor | None, tokens: int) -> int:
    """Check the values of `cu_seqlens`, and wait for the device.

    Returns:
        The length of the longest sequence; `tokens` for a dense batch, `cu_seqlens` None.

    Raises:
        ValueError: it does not start at 0, decreases somewhere, or does not end at `tokens`.
    """
    if cu_seqlens is None:
        return tokens
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0:
        raise ValueError(f"{name}: starts at {bounds[0]}, expected 0")
    for n, (start, stop) in enumerate(pairwise(bounds)):
        if stop < start:
            raise ValueError(
                f"{name}: decreases from {start} to {stop} at sequence {n}, "
                "expected boundaries that never decrease"
            )
    if bounds[-1] != tokens:
        raise ValueError(f"{name}: ends at {bounds[-1]}, expected the {tokens} tokens given")
    return max(stop - start for start, stop in pairwise(bounds))
