"""Offsets of 32 bits in every kernel, seen on small tensors: the simulator gives them fewer bits.

What a program computes of the place of its sequence, chunk or token has to be of 64 bits, or passes
2^31 on a tensor of gigabytes, also where it is contiguous. What lies within a tile fits.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import properties.simulator as simulator
from kernels.cache import PagedCache
from properties.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.laws import Subject
from properties.sequences import dims_of, tensors_of
from properties.targets.ours import MODES_WITH_KERNELS

# Within 128 rows of 6 heads of 5 channels or of 56 features, or 32 states of 16 x 16, an offset is
# below 2^13; gates alone, one a head, have more elements, and a sum over tokens has more parts.
BITS = 14
TOKENS, SEQUENCES = 1500, 150
_SIZES = {"H": 6, "G": 3, "R": 1, "K": 3, "V": 5, "D": 56, "P": 3}
_OTHER_SIZE = 4
# Where programs share a dim, what is summed over it has a part for each of them, and the second one
# begins after 2^14 rows. Below are 32 states of 16 x 32, and 64 rows of 2 heads of 33 channels.
_PARTS = {"keys": {"K": 33, "H": 2, "G": 1}, "values": {"V": 33, "H": 2, "G": 1}}
_PARTS_BITS, _PARTS_LENGTH = 15, 110


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    cases = {
        f"{name}-{mode}-{many}": (
            _case(OPS[name], mode, many),
            _PARTS_BITS if many in _PARTS else BITS,
        )
        for name, mode in MODES_WITH_KERNELS
        for many in ("tokens", "batch", "sequences", *_PARTS)
        if (not option("op") or name in option("op"))
        and (not option("mode") or mode in option("mode"))
        and (many != "sequences" or OPS[name].packed_by)
        and (many not in _PARTS or _adds_parts(OPS[name], mode, many))
    }
    metafunc.parametrize(("case", "bits"), list(cases.values()), ids=list(cases))


@pytest.fixture(autouse=True)
def simulated(subject: Subject) -> None:
    if subject.device.type != "cpu":
        pytest.skip("only the simulator has indices of fewer bits")


def _case(op: Op, mode: str, many: str) -> Case:
    """With every tensor that the mode takes."""
    batch = 1 if many in ("tokens", "sequences") else SEQUENCES
    sizes = _SIZES | _PARTS.get(many, {}) | {"B": batch}
    dims = {d: sizes.get(d, _OTHER_SIZE) for d in op.dims}
    lengths = {"tokens": (TOKENS,), "batch": (11,), "sequences": (11,) * SEQUENCES}
    case = op.full(mode, dims, lengths.get(many, (_PARTS_LENGTH,)), packed=many == "sequences")
    if "seqlen_offsets" not in case.options:
        return case
    # The first token's place fits, the last one's does not.
    return replace(case, options={**case.options, "seqlen_offsets": 2 ** (BITS - 1) - 5})


def _adds_parts(op: Op, mode: str, dim: str) -> bool:
    """Whether what is summed over keys, over values, is cut among programs."""
    if dim == "values":
        return mode in ("fused_recurrent", "fused_chunk")
    # A program of a delta rule holds all keys.
    return op.name in ("linear_attn", "simple_gla", "gla") and mode != "parallel"


def test_what_grows_with_a_tensor_is_64_bits_wide(case: Case, bits: int, subject: Subject) -> None:
    op = OPS[case.op]
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    # Boundaries and places too: a kernel has to widen what it reads of them.
    tables = {n: x.int() for n, x in inputs.tensors.items() if x.dtype == torch.int64}
    inputs = inputs.with_tensors(tables)
    with simulator.simulating(index_bits=bits):
        subject.run(op, case, inputs, gradients_of)


@pytest.mark.parametrize("letters", ["B", "TS", "HG"])
@pytest.mark.parametrize(("name", "mode"), MODES_WITH_KERNELS)
def test_what_grows_with_a_stride_is_64_bits_wide(
    name: str, mode: str, letters: str, subject: Subject
) -> None:
    """Three of everything, as far apart along one dim as a stride may be."""
    op = OPS[name]
    sizes = {d: 3 if d in "BHG" else _SIZES.get(d, _OTHER_SIZE) for d in op.dims}
    case = replace(op.full(mode, sizes, (3,), packed=False), dtype="float32")
    inputs, gradients_of = subject.inputs(op, case), subject.cotangents(op, case)
    want = subject.run(op, case, inputs, gradients_of)

    def stretched(name: str, x: Tensor) -> Tensor:
        axes = [i for i, d in enumerate(dims_of(op, name)) if d in letters]
        if x.dim() < 3 or not axes:
            return x
        strides = [*x.select(axes[0], 0).contiguous().stride()]
        strides.insert(axes[0], 2 ** (BITS - 1) - 1)
        memory = x.new_zeros(4 * strides[axes[0]])
        return memory.as_strided(x.shape, strides).copy_(x)

    tensors = tensors_of(op, inputs).items()
    apart = inputs.with_tensors({n: stretched(n, x) for n, x in tensors})
    incoming = {n: stretched(n, x) for n, x in gradients_of.items()}
    with simulator.simulating(index_bits=BITS):
        got = subject.run(op, case, apart, incoming)
    for result, x in want.items():
        assert torch.equal(got[result], x), result


@pytest.mark.parametrize("axis", range(4), ids=["sequences-pages", "tokens-rows", "heads", "dims"])
def test_what_grows_with_a_cache_is_64_bits_wide(axis: int) -> None:
    """Three of everything, one of them as far apart as a stride may be."""
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
