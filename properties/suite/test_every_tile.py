"""Every entry of the tile table gives right numbers over several of its tiles.

A run of all laws draws few cases of a mode in one dtype, and so few of its tiles.
"""

from dataclasses import replace

import pytest

from kernels.tiles import TABLE, Entry
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.laws import LAWS, Subject

_ENTRIES = [
    pytest.param(op, mode, index, id=f"{op}-{mode}-{index}")
    for (op, mode), entries in TABLE.items()
    for index in range(len(entries))
]
_ROWS = {"B": 2, "H": 2, "G": 1, "R": 2}
_WIDTHS = ("K", "V", "D")


def _case(name: str, mode: str, index: int) -> Case:
    """Sequences longer than two tiles, in turn packed and in a batch; heads of several blocks."""
    op, entry = OPS[name], TABLE[name, mode][index]
    width = entry.max_dim // 2 + 4
    dims = {d: width if d in _WIDTHS else _ROWS.get(d, 4) for d in op.dims}
    packed = bool(op.packed_by) and index % 2 == 1
    lengths = (2 * entry.tokens + 3, *[5] * packed)
    case = op.full(mode, dims, lengths, packed=packed)
    return replace(case, dtype=_dtype(entry, index), tile=index)


def _dtype(entry: Entry, index: int) -> str:
    return str(entry.dtypes[index % len(entry.dtypes)]).removeprefix("torch.")


@pytest.mark.parametrize(("name", "mode", "index"), _ENTRIES)
def test_each_tile_gives_the_results_of_the_oracle(
    name: str, mode: str, index: int, subject: Subject
) -> None:
    op, case = OPS[name], _case(name, mode, index)
    if index not in subject.target.tiles(case):
        claimed = [replace(case, architecture=a) for a in subject.target.architectures(case)]
        admitted = [one for one in claimed if index in subject.target.tiles(one)]
        if not admitted:
            pytest.skip("no architecture of this device admits the tile")
        case = admitted[0]
    LAWS["differential"](op, case, subject)
