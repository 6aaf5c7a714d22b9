"""A tile is chosen, or refused, by the wider of the head dims of keys and of values."""

from typing import Any

import pytest

import kernels
from kernels.tiles import TABLE
from properties.case import Case
from properties.catalogue import OPS
from properties.tensors import build

_NARROW = {
    key: next(index for index, entry in enumerate(entries) if entry.max_dim < 256)
    for key, entries in TABLE.items()
    if {"K", "V"} <= set(OPS[key[0]].dims) and any(entry.max_dim < 256 for entry in entries)
}


@pytest.mark.parametrize(("op", "mode"), _NARROW, ids="-".join)
@pytest.mark.parametrize("wide", ["K", "V"])
def test_a_tile_that_is_too_narrow_is_refused(op: str, mode: str, wide: str) -> None:
    tile = _NARROW[op, mode]
    entry = TABLE[op, mode][tile]
    declared = OPS[op]
    dims = dict.fromkeys(declared.dims, 2) | {"B": 1, "K": 8, "V": 8}
    case = Case(
        op=op,
        mode=mode,
        dtype=str(entry.dtypes[0]).removeprefix("torch."),
        dims={**dims, wide: entry.max_dim + 1},
        lengths=(2,),
    )
    inputs = build(declared, case)
    call: Any = getattr(kernels, op)
    with pytest.raises(ValueError, match="tile"):
        call(**inputs.tensors, mode=mode, tile=tile)
