"""A batch as one pack of its rows, for kernels that take packed sequences alone."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from properties.catalogue.op import Function, Op


def unpackable(op: Op) -> tuple[str, ...]:
    """Parameters that mean something else in a pack than in a batch."""
    of_pairs = (argument.name for argument in op.arguments if "#B" in argument.dims.split())
    return (*of_pairs, "structure", "inplace")


def call_packed(
    function: Function, op: Op, given: Mapping[str, Any], needed: Collection[str]
) -> Any:
    """Call a function with the boundaries that it needs; return results as the call has them.

        x [B, ..., T, ...]  →  [1, ..., B T, ...],  boundaries 0, T, ..., B T

    Tensors of whole sequences, such as states, stay as they are.

    Args:
        needed: parameters of boundaries that have no default.

    Raises:
        ValueError: tensors of different batches or numbers of tokens.
    """
    queries = given.get(op.packed_by[0])
    if queries is not None:
        # Keys without boundaries of their own are packed as the queries are.
        own = {name: queries for name in needed if given.get(name) is None}
        return function(**{**given, **own})
    sizes, packed = _of_a_pack(op, given)
    device = next(iter(packed.values())).device
    bounds = {
        name: torch.arange(sizes["B"] + 1, device=device) * sizes.get(letter, sizes["T"])
        for name, letter in zip(op.packed_by, "TS", strict=False)
        if name in needed
    }
    returned = function(**{**given, **packed, **bounds})
    several = returned if isinstance(returned, tuple) else (returned,)
    dims = [output.dims.split() for output in op.outputs]
    # The caller refuses results beyond the op's outputs.
    dims += [[]] * (len(several) - len(dims))
    rows = tuple(
        _of_a_batch(y, own, ("T", *op.rows), sizes["B"])
        for y, own in zip(several, dims, strict=False)
    )
    return rows if isinstance(returned, tuple) else rows[0]


def _of_a_pack(op: Op, given: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The sizes of B, T and S, and the tensors that have tokens."""
    sizes: dict[str, int] = {}
    packed = {}
    for argument in op.arguments:
        x, dims = given.get(argument.name), argument.dims.split()
        if not isinstance(x, Tensor):
            continue
        for letter, size in zip(dims, x.shape, strict=False):
            if letter in ("B", "T", "S") and sizes.setdefault(letter, size) != size:
                shape = tuple(x.shape)
                raise ValueError(
                    f"{argument.name}: shape {shape}, expected {letter}={sizes[letter]}"
                )
        for axis, letter in enumerate(dims):
            if letter in ("T", "S"):
                packed[argument.name] = x.movedim(0, axis - 1).flatten(axis - 1, axis)[None]
    return sizes, packed


def _of_a_batch(y: Any, dims: list[str], tokens: Collection[str], batch: int) -> Any:
    axis = next((axis for axis, letter in enumerate(dims) if letter in tokens), None)
    if not isinstance(y, Tensor) or axis is None:
        return y
    # A wrong shape is for the caller to refuse.
    if y.dim() != len(dims) or len(y) != 1 or y.shape[axis] % batch:
        return y
    return y[0].unflatten(axis - 1, (batch, -1)).movedim(axis - 1, 0)
