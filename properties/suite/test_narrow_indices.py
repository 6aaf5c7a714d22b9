"""32-bit offsets in every kernel, found on small tensors because the simulator narrows indices.

The offset of a sequence, chunk or token must be 64 bits, as it passes 2^31 in a tensor of
gigabytes, even a contiguous one. Offsets within a tile fit into 32.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
import torch
from hypothesis import find, settings
from torch import Tensor

import properties.simulator as simulator
from kernels.cache import PagedCache
from kernels.tiles import TABLE
from properties.cases.case import Case
from properties.cases.sequences import dims_of, tensors_of
from properties.cases.tensors import differentiable_outputs, present, sizes
from properties.catalogue import OPS
from properties.catalogue.kinds import carries_states, has, is_delta
from properties.catalogue.op import Op, Option, Role
from properties.laws import Subject
from properties.targets.ours import MODES_WITH_KERNELS

# Bits of an index, and the sizes of a call. Twice the number of tokens exceeds these bits, and so
# do the offsets of a token, a batch row or a state; 128 rows of a token's heads, or a tile of 16 x
# 16, do not.
BITS = 12
TOKENS, SEQUENCES = 1100, 100
_SIZES = {"H": 2, "G": 1, "R": 2, "K": 3, "V": 4, "D": 8, "P": 3}
# A recurrence keeps 32 states of 16 x 16 for its backward pass. It loops over tokens, and the
# simulator runs its heads at once: so there are many heads and few tokens.
_RECURRENT_BITS, _RECURRENT_TOKENS, _RECURRENT_SEQUENCES = 14, 94, 14
# A state of channels alone is one row.
_RECURRENT_SIZES = {"H": 96, "G": 48, "R": 2, "K": 3, "V": 5, "D": 680}
_OTHER_SIZE = 4


@dataclass(frozen=True)
class Extent:
    """A call that is large in something.

    Args:
        sizes: of dims, if not `_SIZES`.
        batch: rows, or sequences of a pack.
        tokens: of each.
        packed: whether the sequences are packed.
        asks: what is given: every tensor, every tensor and option, or nothing.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    batch: int = 1
    tokens: int = 11
    packed: bool = False
    asks: Literal["tensors", "everything", "nothing"] = "tensors"
    bits: int = BITS


_MANY_HEADS = {"H": 40, "G": 20, "R": 2, "K": 1, "V": 1}
# If programs share a dim, a sum over it has a part for each, and the second part begins after 2^14
# rows. Smaller are 32 states of 16 x 32, and 64 rows of 2 heads of 33 channels.
_WIDE = Extent(batch=255, tokens=33, bits=15)
EXTENTS = {
    "tokens": Extent(tokens=TOKENS),
    "batch": Extent(batch=SEQUENCES),
    "sequences": Extent(batch=SEQUENCES, packed=True),
    "sequences-everything": Extent(batch=SEQUENCES, packed=True, asks="everything"),
    "sequences-nothing": Extent(batch=SEQUENCES, packed=True, asks="nothing"),
    # Offsets of a head's first row in tensors with a number for each row of each head.
    "heads": Extent(_MANY_HEADS, tokens=215, bits=14),
    "keys": replace(_WIDE, sizes={"K": 33, "H": 2, "G": 1, "R": 1}),
    "values": replace(_WIDE, sizes={"V": 33, "H": 2, "G": 1, "R": 1}),
    # Parts of a gradient that sums over tokens: a row of channels for each program.
    "channels": replace(_WIDE, sizes={"D": 70}, tokens=17),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "extent" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    wanted = [
        pytest.param(OPS[name], mode, extent, id=f"{name}-{mode}-{extent}")
        for name, mode in MODES_WITH_KERNELS
        for extent in EXTENTS
        if (not option("oracles_op") or name in option("oracles_op"))
        and (not option("oracles_mode") or mode in option("oracles_mode"))
        and _has(OPS[name], mode, extent)
    ]
    metafunc.parametrize(("op", "mode", "extent"), wanted)


def _has(op: Op, mode: str, extent: str) -> bool:
    match extent:
        case "heads":
            return "H" in {*op.dims, *op.sizes(_case(op, mode, "tokens"))}
        case "keys":
            # A program of a delta rule holds all keys.
            return carries_states(op) and not is_delta(op) and mode != "parallel"
        case "values":
            return mode in ("fused_recurrent", "fused_chunk")
        case "channels":
            return "D" in op.dims
    return bool(op.packed_by) or not EXTENTS[extent].packed


@pytest.fixture(autouse=True)
def simulated(subject: Subject) -> None:
    if subject.device.type != "cpu":
        pytest.skip("only the simulator has indices of fewer bits")


def _extent(mode: str, name: str) -> Extent:
    extent = EXTENTS[name]
    if mode != "fused_recurrent" or extent.bits != BITS:
        return extent
    if extent.batch == SEQUENCES:
        extent = replace(extent, batch=_RECURRENT_SEQUENCES)
    else:
        extent = replace(extent, tokens=_RECURRENT_TOKENS)
    return replace(extent, sizes=_RECURRENT_SIZES, bits=_RECURRENT_BITS)


def _case(op: Op, mode: str, name: str) -> Case:
    extent = _extent(mode, name)
    known = {**_SIZES, **extent.sizes} | {"B": 1 if extent.packed else extent.batch}
    if "G" not in extent.sizes and any(a.dims.split()[-1] == "G" for a in op.arguments):
        # A number for each token of a single head would not come far.
        known["G"] = 2
    dims = {d: known.get(d, _OTHER_SIZE) for d in op.dims}
    # DPLR has two rows for a token.
    rows = 2 if has(op, Role.LOW_RANK) else 1
    tokens = extent.tokens // rows if name == "tokens" else extent.tokens
    lengths = (tokens,) * (extent.batch if extent.packed else 1)
    case = op.full(mode, dims, lengths, packed=extent.packed)
    if mode == "parallel" and (op.name, mode) in TABLE:
        # The scores of a larger tile, 64 x 64 or a span of 256, have offsets of that many bits.
        case = replace(case, tile=len(TABLE[op.name, mode]) - 1)
    if extent.asks == "nothing":
        case = op.settle(replace(case, given=()))
    if extent.asks == "everything":
        case = _with_everything(op, case)
    if "seqlen_offsets" not in case.options or "position_ids" in case.given:
        return case
    # The first token's position fits, the last one's does not.
    return case.with_options(seqlen_offsets=2 ** (extent.bits - 1) - 5)


def _with_everything(op: Op, case: Case) -> Case:
    declared = {o.name: o for o in op.options if o.name in case.options}
    switched = {name: _switched(option, case) for name, option in declared.items()}
    return op.settle(replace(case, options=switched))


def _switched(option: Option, case: Case) -> object:
    return find(
        option.draw(case),
        lambda value: value != option.default,
        settings=settings(database=None, derandomize=True),
    )


def test_offsets_into_tensors_are_64_bits_wide(
    op: Op, mode: str, extent: str, subject: Subject
) -> None:
    case = _case(op, mode, extent)
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    # Boundaries and positions too, which a kernel must widen after loading.
    tables = {n: x.int() for n, x in inputs.tensors.items() if x.dtype == torch.int64}
    # An index that does not fit raises; it never becomes another one, which would change a result.
    with simulator.simulating(index_bits=_extent(mode, extent).bits):
        subject.run(op, case, inputs.with_tensors(tables), cotangents)


@pytest.mark.parametrize(("name", "mode"), MODES_WITH_KERNELS)
def test_the_place_of_every_token_row_and_state_is_beyond_an_index(name: str, mode: str) -> None:
    """For smaller offsets the test above would prove nothing."""
    op = OPS[name]
    farthest: dict[tuple[str, str], float] = {}
    for extent in EXTENTS:
        if not _has(op, mode, extent):
            continue
        case = _case(op, mode, extent)
        known = sizes(op, case)
        # Of integers there are few a sequence.
        floats = [a for a in present(op, case) if a.fill is None]
        declared = {a.name: a.dims.replace("#", "").split() for a in floats}
        declared |= {o.name: o.dims.split() for o in differentiable_outputs(op, case)}
        for tensor, dims in declared.items():
            for axis, dim in enumerate(dims[:-1]):
                stride = math.prod(known[d] for d in dims[axis + 1 :])
                place = (known[dim] - 1) * stride / 2 ** (_extent(mode, extent).bits - 1)
                farthest[tensor, dim] = max(place, farthest.get((tensor, dim), 0))
    # A token has few heads and channels in every tensor, and so does a state.
    many = {key: x for key, x in farthest.items() if key[1] in "BTSN" or key == ("lse", "H")}
    assert many
    assert {key: x for key, x in many.items() if x <= 1} == {}


@pytest.mark.parametrize("letters", ["BN", "TRC", "SPM", "HG", "KVDWZ"])
@pytest.mark.parametrize(("name", "mode"), MODES_WITH_KERNELS)
def test_offsets_from_strides_are_64_bits_wide(
    name: str, mode: str, letters: str, subject: Subject
) -> None:
    """Three of everything, with the largest allowed stride along one dim."""
    op = OPS[name]
    dims = {d: 3 if d in "BHG" else _SIZES.get(d, _OTHER_SIZE) for d in op.dims}
    if "M" in letters and "C" in dims:
        # Pages of one row, so that tables have three columns.
        dims["C"] = 1
    plain = replace(op.full(mode, dims, (3,), packed=False), dtype="float32")
    for case in (plain, _with_everything(op, plain)):
        _compare_stretched(op, case, letters, subject)


def _compare_stretched(op: Op, case: Case, letters: str, subject: Subject) -> None:
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    want = subject.run(op, case, inputs, cotangents)

    def stretched(name: str, x: Tensor) -> Tensor:
        axes = [i for i, d in enumerate(dims_of(op, name)) if d.removeprefix("#") in letters]
        if x.dim() < 2 or not axes:
            return x
        strides = [*x.select(axes[0], 0).contiguous().stride()]
        strides.insert(axes[0], 2 ** (BITS - 1) - 1)
        memory = x.new_zeros(max(x.shape[axes[0]], 4) * strides[axes[0]])
        return memory.as_strided(x.shape, strides).copy_(x)

    tensors = tensors_of(op, inputs).items()
    apart = inputs.with_tensors({n: stretched(n, x) for n, x in tensors})
    incoming = {n: stretched(n, x) for n, x in cotangents.items()}
    with simulator.simulating(index_bits=BITS):
        got = subject.run(op, case, apart, incoming)
    for result, x in want.items():
        assert torch.equal(got[result], x), result


@pytest.mark.parametrize("axis", range(4), ids=["sequences-pages", "tokens-rows", "heads", "dims"])
def test_offsets_into_a_cache_are_64_bits_wide(axis: int) -> None:
    """Three of everything, one of them with the largest allowed stride."""
    stride = 2 ** (BITS - 1) - 1

    def stretched(dim: int) -> Tensor:
        shape = (3, 3, 3, dim)
        strides = [*torch.empty(shape).select(axis, 0).contiguous().stride()]
        strides.insert(axis, stride)
        memory = torch.zeros(4 * stride)
        return memory.as_strided(shape, strides)

    k, v, k_pages, v_pages = (stretched(dim) for dim in (3, 4, 3, 4))
    k.copy_(torch.arange(81.0).view_as(k))
    v.copy_(torch.arange(108.0).view_as(v))
    table = torch.tensor([[2], [0], [1]])
    cache = PagedCache.from_pages(k_pages, v_pages, table, torch.zeros(3).long())
    with simulator.simulating(index_bits=BITS):
        cache.update(k[:, :1], v[:, :1])
        view = cache.update(k[:, 1:], v[:, 1:])
    assert torch.equal(view.k, k.flatten(0, 1)[None])
    assert torch.equal(view.v, v.flatten(0, 1)[None])
