"""Rotary tables and the module that caches them, compared with the reference."""

import importlib
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from properties.laws import Subject
from properties.suite.layers.scalings import KINDS, factors
from reference.position.test_tables import LLAMA3, YARN

pytestmark = pytest.mark.ops("rotary_embedding")

# The module's tables start with this many rows and then double.
ROWS = 2048
FLOATS = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 100}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.0, 1.0],
    "long_factor": [1.0, 4.0, 64.0],
    "original_max_position_embeddings": 4096,
    "attention_factor": 1.2,
}
BAD_SCALINGS: list[Any] = [
    "yarn",
    {},
    {"factor": 2.0},
    {"rope_type": "mrope"},
    {"rope_type": ["yarn"]},
    YARN | {"beta": 1.0, 3: 1.0},
    {"rope_type": "default", "factor": 2.0},
    *({name: x for name, x in YARN.items() if name != key} for key in YARN),
    *({name: x for name, x in LLAMA3.items() if name != key} for key in LLAMA3),
    {name: x for name, x in LONGROPE.items() if name != "attention_factor"},
    *({name: x for name, x in LONGROPE.items() if name != key} for key in list(LONGROPE)[:4]),
    *(YARN | {"factor": bad} for bad in (0.0, -1.0, True, float("inf"), 10**400, "2", None)),
    *(DYNAMIC | {"original_max_position_embeddings": bad} for bad in (1, 99.5, 100.0, True, 2**63)),
    YARN | {"betafast": 1.0},
    YARN | {"truncate": 1},
    YARN | {"beta_fast": 0.5},
    YARN | {"mscale": -1.0},
    LLAMA3 | {"high_freq_factor": 1.0},
    *(LONGROPE | {"long_factor": bad} for bad in ([1.0, 2.0], [1, 0, 1], 2.0, ["1", 1, 1])),
    {"rope_type": "proportional", "partial_rotary_factor": 1.5},
]


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


# An example takes a millisecond, and some factors matter only together.
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(data=st.data(), itemsize=st.sampled_from([*FLOATS]))
def test_scaled_tables_are_those_of_the_reference(
    data: st.DataObject, itemsize: int, kind: str, subject: Subject
) -> None:
    from kernels import rotary_frequencies, rotary_tables

    pairs = data.draw(st.integers(1, 9), "pairs")
    scaling = data.draw(factors(kind, pairs), "scaling")
    base = data.draw(st.sampled_from([100.0, 10_000.0, 5e6]), "base")
    original = scaling.get("original_max_position_embeddings", 100)
    around = [original - 1, original, original + 1]
    tokens = data.draw(st.sampled_from([*around, 0, 2**20]), "tokens")
    options: dict[str, Any] = {"base": base, "scaling": scaling, "tokens": tokens}
    θ, factor = rotary_frequencies(2 * pairs, **options, device=subject.device)
    want, wanted = reference.rotary_frequencies(2 * pairs, **options)
    assert factor == pytest.approx(wanted, rel=1e-15)
    # A float64 frequency has the roundings of an exponent, a power and a few products.
    torch.testing.assert_close(θ.cpu(), want, rtol=8e-15, atol=0)

    dtype, length = FLOATS[itemsize], data.draw(st.sampled_from([*around, 40]), "length")
    if data.draw(st.booleans(), "tokens are those of the table"):
        want, wanted = reference.rotary_frequencies(2 * pairs, **options | {"tokens": length})
        del options["tokens"]
    got = rotary_tables(length, 2 * pairs, **options, dtype=dtype, device=subject.device)
    exact = reference.rotary_tables(length, 2 * pairs, **options, dtype=torch.float64)
    angles = 8e-15 * torch.arange(length)[:, None] * want
    for x, y in zip(got, exact, strict=True):
        assert x.dtype == dtype
        rounding = torch.finfo(dtype).eps / 2 * y.abs()
        exactly = wanted * (angles + 4 * torch.finfo(torch.float64).eps)
        assert ((x.cpu().double() - y).abs() <= rounding + exactly).all()


@given(
    itemsize=st.sampled_from([*FLOATS]),
    base=st.sampled_from([10_000.0, 500_000.0]),
    factor=st.sampled_from([1.0, 8.0]),
)
def test_tables_are_right_at_position_2_to_the_20(
    itemsize: int, base: float, factor: float, subject: Subject
) -> None:
    from kernels import rotary_tables

    dtype, scaling = FLOATS[itemsize], {"rope_type": "linear", "factor": factor}
    options: dict[str, Any] = {"base": base, "scaling": scaling}
    got = rotary_tables(2**20 + 1, 4, **options, dtype=dtype, device=subject.device)
    θ, _ = reference.rotary_frequencies(4, **options)
    for x, function in zip(got, (torch.cos, torch.sin), strict=True):
        want = function(2**20 * θ).to(dtype)
        tolerance = torch.finfo(dtype).eps + 2**20 * 4e-16
        assert ((x[-1].cpu() - want).abs().double() <= tolerance).all()


@given(
    length=st.integers(0, 40),
    pairs=st.integers(1, 9),
    # Where the logarithm of the largest scale lies: at 0 its inverse is the smallest normal number,
    # at 1 it is the largest number.
    place=st.sampled_from([None, -0.5, 0.5, 1.5]),
    center=st.integers(0, 20),
    itemsize=st.sampled_from([*FLOATS]),
)
def test_tables_of_xpos_are_those_of_the_reference_or_refused_where_it_refuses_them(
    length: int, pairs: int, place: float | None, center: int, itemsize: int, subject: Subject
) -> None:
    from kernels import xpos_tables

    dtype = FLOATS[itemsize]
    limits = torch.finfo(dtype)
    first, second = -math.log(limits.smallest_normal), math.log(limits.max)
    largest = 0.1 if place is None else first + place * (second - first)
    scale_base = max(1, center, length - 1 - center) * math.log(1.4 / 0.4) / largest
    options: dict[str, Any] = {"scale_base": scale_base, "center": center}
    try:
        reference.xpos_tables(length, 2 * pairs, **options, dtype=dtype)
    except ValueError:
        with pytest.raises(ValueError, match=r"^length: "):
            xpos_tables(length, 2 * pairs, **options, dtype=dtype, device=subject.device)
        return
    got = xpos_tables(length, 2 * pairs, **options, dtype=dtype, device=subject.device)
    want = reference.xpos_tables(length, 2 * pairs, **options, dtype=torch.float64)
    for x, y in zip(got, want, strict=True):
        assert x.dtype == dtype
        underflow = limits.smallest_normal * limits.eps
        # Each form rounds the logarithm of a scale, of up to `largest`, twice.
        rtol = limits.eps / 2 + 1e-13 + 4 * largest * 2.0**-53
        torch.testing.assert_close(x.cpu().double(), y, rtol=rtol, atol=underflow / 2 + 1e-13)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans())
def test_axes_are_those_of_the_reference(sections: list[int], interleaved: bool) -> None:
    from kernels import rotary_axes

    axes = rotary_axes(sum(sections), sections, interleaved=interleaved)
    assert axes.equal(reference.rotary_axes(sum(sections), sections, interleaved=interleaved))


@pytest.mark.parametrize("package", ["kernels", "reference"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rotary_frequencies", {"rotary_dim": 6}),
        ("rotary_frequencies", {"rotary_dim": 6, "scaling": YARN}),
        ("rotary_tables", {"length": 5, "rotary_dim": 6}),
        ("xpos_tables", {"length": 5, "rotary_dim": 6}),
        ("rotary_axes", {"pairs": 3, "sections": [1, 2]}),
        ("relative_buckets", {"queries": 4, "keys": 5}),
    ],
)
def test_what_a_caller_writes_to_its_table_changes_no_later_one(
    name: str, arguments: dict[str, Any], package: str
) -> None:
    function = getattr(importlib.import_module(package), name)

    def tables() -> list[torch.Tensor]:
        returned = function(**arguments)
        each = returned if isinstance(returned, tuple) else (returned,)
        return [x for x in each if isinstance(x, torch.Tensor)]

    want = [x.clone() for x in tables()]
    for x in tables():
        x.add_(1)
    assert all(map(torch.equal, tables(), want))


BAD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *(("scaling", (8, 6), {"scaling": scaling}) for scaling in BAD_SCALINGS),
    ("tokens", (8, 6), {"tokens": -1}),
    ("tokens", (8, 6), {"tokens": 2.5}),
    *(("length", (bad, 6), {}) for bad in (2.5, True, -1, "8")),
    *(("rotary_dim", (8, bad), {}) for bad in (6.0, 5, 0, None)),
    *(("base", (8, 6), {"base": bad}) for bad in (0.0, float("nan"), 10**400, "1e4", True)),
    ("base", (8, 6), {"base": 1.0, "scaling": YARN}),
    ("dtype", (8, 6), {"dtype": "float32"}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), BAD)
def test_bad_arguments_of_tables_are_refused_by_name_and_alike(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """A wrong type is a TypeError in the spec's tests, and so in kernels."""
    import kernels

    with pytest.raises((ValueError, TypeError), match=f"^{name}: ") as caught:
        reference.rotary_tables(*arguments, **options)
    with pytest.raises(caught.type, match=f"^{name}: "):
        kernels.rotary_tables(*arguments, **options)


@pytest.mark.parametrize("sections", [(2, 3), (), (7, -1), (3.0, 3), 6])
def test_sections_that_do_not_add_up_are_refused_by_name(sections: Any) -> None:
    import kernels

    with pytest.raises((ValueError, TypeError), match=r"^sections: ") as caught:
        reference.rotary_axes(6, sections)
    with pytest.raises(caught.type, match=r"^sections: "):
        kernels.rotary_axes(6, sections)
    for package in (kernels, reference):
        with pytest.raises(TypeError, match=r"^pairs: "):
            package.rotary_axes(6.0, (3, 3))


@pytest.mark.parametrize(
    ("length", "options", "name"),
    [
        (8, {"scale_base": 0.0}, "scale_base"),
        (2**20, {}, "length"),
        (8, {"dtype": torch.int8}, "dtype"),
        *((8, {"center": bad}, "center") for bad in (1.5, float("nan"), True)),
    ],
)
def test_scales_of_xpos_that_are_no_numbers_are_refused_by_name(
    length: int, options: dict[str, Any], name: str
) -> None:
    import kernels

    for package in (kernels, reference):
        with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
            package.xpos_tables(length, 6, **options)


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
