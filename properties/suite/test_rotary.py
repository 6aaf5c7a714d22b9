"""Rotary tables and the module that caches them, compared with the reference."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from properties.laws import Subject

# The module's tables start with this many rows and then double.
ROWS = 2048
FLOATS = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


@given(
    length=st.sampled_from([0, 1, 2, 300, 5000, 40_000]),
    pairs=st.integers(1, 12),
    base=st.sampled_from([10_000.0, 500_000.0, 2.0]),
    itemsize=st.sampled_from([*FLOATS]),
)
def test_tables_are_those_of_the_reference_rounded_once(
    length: int, pairs: int, base: float, itemsize: int, subject: Subject
) -> None:
    from kernels import rotary_tables

    dtype = FLOATS[itemsize]
    got = rotary_tables(length, 2 * pairs, base=base, dtype=dtype, device=subject.device)
    want = reference.rotary_tables(length, 2 * pairs, base=base, dtype=torch.float64)
    # A float64 angle has three roundings: of the exponent, the power and the product.
    angles = 4 * torch.finfo(torch.float64).eps * torch.arange(length)[:, None]
    for x, y in zip(got, want, strict=True):
        assert x.dtype == dtype
        assert x.shape == (length, pairs)
        rounding = torch.finfo(dtype).eps / 2 * y.abs() + torch.finfo(torch.float64).eps
        assert ((x.cpu().double() - y).abs() <= angles + rounding).all()


@st.composite
def _calls(draw: st.DrawFn) -> dict[str, Any]:
    """A module and a call that often ends at the last row of its tables, or one later."""
    head_dim = draw(st.integers(2, 20) | st.sampled_from([32, 64]))
    part = st.integers(1, head_dim // 2).map(lambda pairs: 2 * pairs)
    packed = draw(st.booleans())
    count, tokens = st.integers(1, 3), st.integers(0, 6)
    lengths = draw(st.lists(tokens, min_size=1, max_size=3))
    if not packed:
        lengths = [draw(tokens)] * draw(count)
    ends = st.integers(0, 6) | st.sampled_from([ROWS, ROWS + 1, 2 * ROWS, 2 * ROWS + 1])
    offsets = [max(0, draw(ends) - length) for length in lengths]
    return {
        "module": {
            "head_dim": head_dim,
            "rotary_dim": draw(part if head_dim % 2 else st.none() | part),
            "base": draw(st.sampled_from([10_000.0, 300.0])),
            "interleaved": draw(st.booleans()),
        },
        "lengths": lengths,
        "packed": packed,
        "heads": draw(st.tuples(count, count)),
        "offsets": draw(st.sampled_from([min(offsets), offsets])),
        "inplace": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


@given(call=_calls())
def test_the_module_is_the_reference_with_tables_of_any_length(
    call: dict[str, Any], subject: Subject
) -> None:
    from kernels.layers import RotaryEmbedding

    options, lengths, device = call["module"], call["lengths"], subject.device
    generator = torch.Generator().manual_seed(call["seed"])
    batch, tokens = (1, sum(lengths)) if call["packed"] else (len(lengths), lengths[0])
    shapes = [(batch, tokens, heads, options["head_dim"]) for heads in call["heads"]]
    given = [torch.randint(-8, 9, shape, generator=generator).double() for shape in shapes]
    position: dict[str, Any] = {"seqlen_offsets": call["offsets"]}
    if isinstance(call["offsets"], list):
        position["seqlen_offsets"] = torch.tensor(call["offsets"])
    if call["packed"]:
        position["cu_seqlens"] = torch.tensor([0, *lengths]).cumsum(0)
    module = RotaryEmbedding(**options).to(device)
    there = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in position.items()}
    turned = module(*(x.float().to(device) for x in given), inplace=call["inplace"], **there)

    tables = reference.rotary_tables(
        2 * ROWS + 20,
        options["rotary_dim"] or options["head_dim"],
        base=options["base"],
        dtype=torch.float64,
    )
    for x, y in zip(given, turned, strict=True):
        want = reference.rotary_embedding(
            x, *tables, interleaved=options["interleaved"], **position
        )
        # The table, two products and a sum are rounded, each to 2^-24 of at most 8 + 8.
        assert ((y.cpu().double() - want).abs() <= 4 * 16 * 2**-24).all()
