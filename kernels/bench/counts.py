"""Bytes and operations of a problem: those of its definition, not of a kernel."""

from collections.abc import Callable

from torch import Tensor

from kernels.bench.inputs import Tensors
from kernels.bench.shapes import Shape


def linear_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """q, k, v, o; then q, k, v, do, dq, dk, dv. When decoding, the state, read and written."""
    width = 2 * shape.K + 2 * shape.V
    if backward:
        width += 4 * shape.K + 3 * shape.V
    return shape.vectors * width * itemsize + _states(shape)


def _states(shape: Shape) -> int:
    """Bytes of the states that decoding reads and writes, in float32."""
    return 2 * 4 * shape.B * shape.H * shape.K * shape.V if shape.form == "decode" else 0


def gated_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """Bytes of linear attention, and of g in float32; backward of g twice and dg."""
    gates = (3 if backward else 1) * shape.vectors * shape.K * 4
    return linear_bytes(shape, itemsize, backward) + gates


def bytes_with(floats: Callable[[Shape], int], rows: int = 0) -> Callable[..., int]:
    """Count the bytes of linear attention, and for each vector numbers in float32 and rows as long
    as a key: read forward, read again backward, and their gradients written."""

    def moved(shape: Shape, itemsize: int, backward: bool) -> int:
        extra = 4 * floats(shape) + rows * shape.K * itemsize
        return linear_bytes(shape, itemsize, backward) + (3 if backward else 1) * (
            shape.vectors * extra
        )

    return moved


def mamba2_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """x, y, and B and C of one group; then x, dy, dx, B, C, dB and dC. dt is float32."""
    groups = 2 * shape.vectors // shape.H * shape.K
    once = (2 * shape.vectors * shape.V + groups) * itemsize + 4 * shape.vectors
    if backward:
        once += (3 * shape.vectors * shape.V + 2 * groups) * itemsize + 8 * shape.vectors
    return once + _states(shape)


def elementwise_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """x, y; then x, dy, dx."""
    return (5 if backward else 2) * shape.vectors * shape.K * itemsize


def attention_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """q, k, v, o; then lse, written and read, and q, k, v, o, do, dq, dk, dv."""
    width, lse = 2 * shape.K + 2 * shape.V, 0
    if backward:
        width, lse = width + 4 * shape.K + 4 * shape.V, 2 * 4
    return shape.vectors * (width * itemsize + lse)


def sums_bytes(tokens: int = 1) -> Callable[[Shape, int, bool], int]:
    """x, and a row for each so many tokens; then their gradients."""

    def moved(shape: Shape, itemsize: int, backward: bool) -> int:
        once = (shape.vectors + shape.vectors // tokens) * shape.K * itemsize
        return 2 * once if backward else once

    return moved


def once_each(given: Tensors, output: Tensor, backward: bool) -> int:
    """Every input and the output; then both again, and gradients of all inputs but indices."""
    read, written = sum(x.nbytes for x in given.values()), output.nbytes
    gradients = sum(x.nbytes for x in given.values() if x.is_floating_point())
    return 2 * (read + written) + gradients if backward else read + written


def rotary_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """x, y and the tables; then dy, dx and the tables."""
    once = (2 * shape.vectors + max(shape.lengths)) * shape.K * itemsize
    return 2 * once if backward else once


def multiaxis_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """The bytes of `rotary_bytes`, and three positions of 8 bytes for each token."""
    positions = 3 * 8 * shape.vectors // shape.H
    return rotary_bytes(shape, itemsize, backward) + (2 * positions if backward else positions)


def linear_operations(shape: Shape, backward: bool) -> int:
    """Per element of the state and token: S and o; then S, dS, dq, dk, dv; 2 each."""
    return shape.vectors * shape.K * shape.V * (14 if backward else 4)


def gated_operations(shape: Shape, backward: bool) -> int:
    """The operations of `linear_operations`, and a decay for each S and dS."""
    return shape.vectors * shape.K * shape.V * (17 if backward else 5)


def delta_operations(shape: Shape, backward: bool) -> int:
    """Per element of the state and token: what it lacks, S and o; then S, dS, and the gradients of
    what it lacks, q, k twice and v."""
    return shape.vectors * shape.K * shape.V * (24 if backward else 7)


def elementwise_operations(shape: Shape, backward: bool) -> int:
    """Four products and sums per element; as many for each of two gradients."""
    return shape.vectors * shape.K * (24 if backward else 8)


def operations_of_pairs(scores: int = 1, sums: int = 1) -> Callable[[Shape, bool], int]:
    """Count, per pair, so many scores q·k and sums p·v; then each q·k and do·v, and the gradients
    of q, k and v."""

    def operations(shape: Shape, backward: bool) -> int:
        pairs = shape.H * sum(length * (length + 1) // 2 for length in shape.lengths)
        passes = 4 if backward else 1
        values = 3 if backward else 1
        return 2 * pairs * (passes * scores * shape.K + values * sums * shape.V)

    return operations


attention_operations = operations_of_pairs()


def rotary_operations(shape: Shape, backward: bool) -> int:
    """Four products and two sums for each pair of dims."""
    once = 6 * shape.vectors * (shape.K // 2)
    return 2 * once if backward else once


def append_bytes(shape: Shape, itemsize: int, backward: bool) -> int:
    """k and v, read and written."""
    return 2 * shape.vectors * (shape.K + shape.V) * itemsize


def no_operations(shape: Shape, backward: bool) -> int:
    """A copy has none."""
    return 0
