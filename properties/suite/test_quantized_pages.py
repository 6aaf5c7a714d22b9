"""Pages of 8 bits obey the laws of paged attention, with scales of every granularity."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kernels
import reference
from properties.cases.case import Case
from properties.cases.extents import ORDINARY
from properties.cases.layouts import OVERLAPPING
from properties.cases.strategies import cases
from properties.catalogue import OPS, Op
from properties.laws import LAWS, Subject

PAGED = OPS["paged_attention"]
EIGHT_BITS = (torch.int8, torch.float8_e4m3fn)
SCALES = ("k_scale", "v_scale")
# One for all pages, one a page, one a token and head.
GRANULARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda x: x[:1, :1, :1].expand(x.shape),
    "block": lambda x: x[:, :1, :1].expand(x.shape),
    "token and head": lambda x: x,
}


def quantized(dtype: torch.dtype, granularity: str) -> Op:
    """The op whose cases have pages of 8 bits."""

    def amend(
        case: Case, sizes: Mapping[str, int], tensors: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        tensors = dict(tensors)
        for name in ("k", "v"):
            x, scale = tensors[f"{name}_pages"].float(), tensors[f"{name}_scale"].float()
            top = 127.0 if dtype == torch.int8 else 448.0
            size = x.abs().amax().clamp(min=1e-3) if x.numel() else torch.tensor(1.0)
            tensors[f"{name}_pages"] = (x / size * top).to(dtype)
            # A weight times a small scale is subnormal in float16, though the output is not.
            scale = scale / top * 2.0 ** (0, -13, 6)[case.seed % 3]
            if name == "v" and case.seed % 4 == 1:
                # 0, the smallest subnormal number of float32, and a large one.
                scale.view(-1)[case.seed % 7 :: 7] = (0.0, 2.0**-149, 2.0**96)[case.seed // 4 % 3]
            tensors[f"{name}_scale"] = GRANULARITIES[granularity](scale)
        return tensors

    def settle(case: Case) -> Case:
        """Scales are given, in float32, and lie as they are."""
        case = PAGED.settle(case)
        given = tuple(a.name for a in PAGED.arguments if a.name in {*case.given, *SCALES})
        plain = {"k_pages", "v_pages", *SCALES}
        return replace(
            case,
            given=given,
            float32=tuple(dict.fromkeys((*case.float32, *SCALES))),
            layout="contiguous" if case.layout in OVERLAPPING else case.layout,
            layouts={n: x for n, x in case.layouts.items() if n not in plain},
            same={},
            earlier=None,
        )

    return replace(PAGED, amend=amend, settle=settle)


@pytest.mark.parametrize(
    "law",
    ["differential", "batch_invariance", "packing", "layout_invariance", "written_outputs"],
)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_law_holds_of_pages_of_eight_bits(
    dtype: torch.dtype, granularity: str, law: str, subject: Subject
) -> None:
    op = quantized(dtype, granularity)
    mode = PAGED.modes[0]

    # Keys of wide heads are multiplied slice by slice.
    each = [
        cases(op, mode, name, subject.target, longest=longest, widest=20, extents=extents)
        for name in ("float32", "bfloat16", "float16")
        for longest, extents in ((40, ORDINARY), (8, [frozenset({"wide"})]))
    ]

    @settings(max_examples=24 if law == "differential" else 6)
    @given(st.one_of(each))
    def holds(case: Case) -> None:
        LAWS[law](op, op.settle(case), subject)

    holds()


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_quantization_is_no_error(dtype: torch.dtype, subject: Subject) -> None:
    """With one key the output is its dequantized value, in every bit."""
    values = torch.arange(-120, 128, 8).to(dtype).to(subject.device).view(1, 1, 1, 31)
    scale = torch.full((1, 1, 1), 2.0**-5, device=subject.device)
    q = torch.ones(1, 1, 2, 31, device=subject.device)
    zero = torch.zeros(1, 1, dtype=torch.int32, device=subject.device)
    given = q, values, values, zero, zero[0] + 1
    for op in (kernels.paged_attention, reference.paged_attention):
        o, _ = op(*given, k_scale=scale, v_scale=scale)
        assert torch.equal(o[0, 0, 1], values.float().flatten() / 32)


@pytest.mark.parametrize(("code", "scale"), [(256.0, 2.0**-26), (2.0**-9, 2.0**24)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_weight_times_a_scale_is_no_16_bit_number(
    dtype: torch.dtype, code: float, scale: float, subject: Subject
) -> None:
    """The mean of equal values is each of them, whatever a scale is in float16."""
    values = torch.full((4, 16, 1, 8), code, device=subject.device).to(torch.float8_e4m3fn)
    scales = torch.full((4, 16, 1), scale, device=subject.device)
    q = torch.zeros(1, 1, 2, 8, dtype=dtype, device=subject.device)
    table = torch.arange(4, dtype=torch.int32, device=subject.device)[None]
    for num_splits in (1, 3):
        o, _ = kernels.paged_attention(
            q,
            values,
            values,
            table,
            table[0, :1] + 64,
            k_scale=scales,
            v_scale=scales,
            num_splits=num_splits,
        )
        assert (o == code * scale).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_attention_of_the_callers_reads_dequantized_tokens(
    dtype: torch.dtype, device: torch.device
) -> None:
    """Tokens are float32 then, whatever the dtype of the queries, as in the reference."""
    q, k, v = (torch.randn(1, 3, 2, 16, dtype=dtype, device=device) for _ in range(3))
    cache = kernels.QuantizedCache(1, 4, 4, 2, 16, 16, dtype=dtype, device=device)
    o, _ = cache.attend(q, k, v, attention=kernels.attention)
    model = reference.QuantizedCache(1, torch.int8)
    want, _ = model.attend(q.cpu(), k.cpu(), v.cpu())
    # Of one dtype too.
    torch.testing.assert_close(o.cpu(), want)
