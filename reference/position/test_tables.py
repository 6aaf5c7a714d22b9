"""Tables against plain arithmetic, one pair and one position at a time.

Each scaling has a second derivation here, from wavelengths or from turns within the original
length, in the numbers of `math`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import reference
from reference.testing import assert_refused

Scaling = dict[str, Any]
Frequency = Callable[..., float]


def plain(p: int, d: int, base: float) -> float:
    return math.exp(-2 * p / d * math.log(base))


def of_default(p: int, d: int, base: float, tokens: int) -> float:
    return plain(p, d, base)


def of_linear(p: int, d: int, base: float, tokens: int, factor: float) -> float:
    """Positions are divided, not frequencies: r θ / factor = (r / factor) θ."""
    return 1 / (factor * math.pow(base, 2 * p / d))


def of_ntk(p: int, d: int, base: float, tokens: int, factor: float) -> float:
    """The base grows."""
    return plain(p, d, base * factor ** (d / (d - 2))) if d > 2 else 1.0


def of_dynamic(p: int, d: int, base: float, tokens: int, **scaling: Any) -> float:
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    extra = max(0, tokens - original)
    return of_ntk(p, d, base, tokens, 1 + factor * extra / original)


def of_yarn(p: int, d: int, base: float, tokens: int, **scaling: float) -> float:
    """The wavelength of the pair that turns β times in the original length is original / β."""

    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair(β: float) -> float:
        wavelength = original / β
        return d / 2 * math.log(wavelength / (2 * math.pi), base)

    low = pair(scaling.get("beta_fast", 32))
    high = pair(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    θ = plain(p, d, base)
    if p <= low:
        return θ
    if p >= high:
        return θ / factor
    return θ + (θ / factor - θ) * (p - low) / (high - low)


def of_llama3(
    p: int,
    d: int,
    base: float,
    tokens: int,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> float:
    θ = plain(p, d, base)
    wavelength = 2 * math.pi / θ
    longest = original_max_position_embeddings / low_freq_factor
    shortest = original_max_position_embeddings / high_freq_factor
    if wavelength >= longest:
        return θ / factor
    if wavelength <= shortest:
        return θ
    share = (1 / wavelength - 1 / longest) / (1 / shortest - 1 / longest)
    return θ / factor + share * (θ - θ / factor)


def of_longrope(
    p: int,
    d: int,
    base: float,
    tokens: int,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original_max_position_embeddings: int,
    **attention: float,
) -> float:
    short = tokens <= original_max_position_embeddings
    return plain(p, d, base) / (short_factor[p] if short else long_factor[p])


def of_proportional(
    p: int, d: int, base: float, tokens: int, partial_rotary_factor: float, factor: float = 1.0
) -> float:
    return plain(p, d, base) / factor if p + 1 <= partial_rotary_factor * d / 2 else 0.0


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.5, "original_max_position_embeddings": 100}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.25, 1.5],
    "long_factor": [1.0, 4.0, 64.0],
    "original_max_position_embeddings": 4096,
    "factor": 32,
}
# A scaling, the frequency of one pair, the dims of heads.
CASES: list[tuple[Scaling, Frequency, Sequence[int]]] = [
    ({"rope_type": "default"}, of_default, (2, 6, 64)),
    ({"rope_type": "linear", "factor": 4}, of_linear, (2, 6, 64)),
    ({"rope_type": "ntk", "factor": 4.0}, of_ntk, (2, 4, 6, 64)),
    (DYNAMIC, of_dynamic, (2, 4, 6, 64)),
    (YARN, of_yarn, (2, 6, 64, 128)),
    (YARN | {"truncate": False}, of_yarn, (2, 6, 64, 128)),
    (YARN | {"beta_fast": 8, "beta_slow": 2}, of_yarn, (6, 64)),
    # Some pairs, or all, turn less than beta_slow times: low and high are below 0 there.
    (YARN | {"original_max_position_embeddings": 20}, of_yarn, (6, 64)),
    (LLAMA3, of_llama3, (2, 6, 64, 128)),
    (LONGROPE, of_longrope, (6,)),
    ({"rope_type": "proportional", "partial_rotary_factor": 0.25}, of_proportional, (6, 16, 64)),
    (
        {"rope_type": "proportional", "partial_rotary_factor": 1.0, "factor": 8.0},
        of_proportional,
        (2, 6),
    ),
]


@pytest.mark.parametrize("base", [500.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("tokens", [0, 100, 101, 4096, 4097, 2**20])
@pytest.mark.parametrize(
    ("scaling", "frequency", "dims"), CASES, ids=lambda x: getattr(x, "__name__", str(x)[:60])
)
def test_each_frequency_follows_from_plain_arithmetic(
    scaling: Scaling, frequency: Frequency, dims: Sequence[int], tokens: int, base: float
) -> None:
    factors = {name: x for name, x in scaling.items() if name != "rope_type"}
    for d in dims:
        got, _ = reference.rotary_frequencies(d, base=base, scaling=scaling, tokens=tokens)
        want = [frequency(p, d, base, tokens, **factors) for p in range(d // 2)]
        assert got.dtype == torch.float64
        assert got.tolist() == pytest.approx(want, rel=1e-12, abs=0)


def test_frequencies_by_hand() -> None:
    # base 2^12 and 12 dims: θ = 1, 1/4, 1/16, 1/64, 1/256, 1/1024
    def frequencies(**scaling: Any) -> list[float]:
        θ, _ = reference.rotary_frequencies(12, base=2.0**12, scaling=scaling or None, tokens=300)
        return θ.tolist()

    def close(*want: float) -> Any:
        return pytest.approx(want, rel=1e-14)

    assert frequencies() == close(1, 1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 1024)
    linear = frequencies(rope_type="linear", factor=2)
    assert linear == close(1 / 2, 1 / 8, 1 / 32, 1 / 128, 1 / 512, 1 / 2048)
    # 32 ** (-p / 5) = 2 ** -p
    ntk = [1, 1 / 8, 1 / 64, 1 / 512, 1 / 4096, 1 / 32768]
    assert frequencies(rope_type="ntk", factor=32.0) == close(*ntk)
    # 300 tokens are 3 times the original length: 15.5 · 3 - 14.5 = 32
    original = {"original_max_position_embeddings": 100}
    assert frequencies(rope_type="dynamic", factor=15.5, **original) == close(*ntk)
    # Pair 1 has a wavelength of 8π, that is 512 / 8π = 20.4 turns; pair 3 has 128π, 1.27 turns.
    # With betas of 64/π and 4/π, pairs 1 and 3 begin and end the ramp, whose middle is pair 2.
    yarn = {"factor": 4, "beta_fast": 64 / math.pi, "beta_slow": 4 / math.pi, "truncate": False}
    ramp = frequencies(rope_type="yarn", original_max_position_embeddings=512, **yarn)
    assert ramp == close(1, 1 / 4, 5 / 8 / 16, 1 / 256, 1 / 1024, 1 / 4096)
    # 256 θ / 2π turns: 40.7, 10.2, 2.55, ...; smooth is (2.55 - 4/π) / (8/π - 4/π) and so on.
    llama3 = {"factor": 4, "low_freq_factor": 4 / math.pi, "high_freq_factor": 12 / math.pi}
    smooth = frequencies(rope_type="llama3", original_max_position_embeddings=256, **llama3)
    assert smooth == close(1, 1 / 4, 5 / 8 / 16, 1 / 256, 1 / 1024, 1 / 4096)
    third = frequencies(rope_type="proportional", partial_rotary_factor=0.34)
    assert third == [1, 1 / 4, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("scaling", "want"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 1.0),
        (YARN, 1 + 0.1 * math.log(16)),
        (YARN | {"factor": 0.5}, 1.0),
        # DeepSeek-V2 and V3 say both, and the cosines stay; their softmax scale has mscale².
        (YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        (YARN | {"mscale": 0.707}, 1 + 0.0707 * math.log(16)),
        (YARN | {"mscale": 0.0, "mscale_all_dim": 1.0}, 1 / (1 + 0.1 * math.log(16))),
        (YARN | {"attention_factor": 1.5, "mscale": 3.0}, 1.5),
        (LONGROPE, math.sqrt(1 + 5 / 12)),  # 32 = 2^5, 4096 = 2^12
        (LONGROPE | {"factor": 1.0}, 1.0),
        (LONGROPE | {"factor": None, "attention_factor": 1.19}, 1.19),
    ],
)
def test_the_attention_factor_multiplies_cosines_and_sines(scaling: Scaling, want: float) -> None:
    θ, factor = reference.rotary_frequencies(6, scaling=scaling)
    assert factor == pytest.approx(want, rel=1e-15)
    cos, sin = reference.rotary_tables(20, 6, scaling=scaling, dtype=torch.float64)
    angle = torch.arange(20)[:, None] * θ
    torch.testing.assert_close(torch.complex(cos, sin), torch.polar(want + 0 * angle, angle))


def test_dynamic_scaling_is_a_function_of_the_tokens_alone() -> None:
    def θ(tokens: int) -> list[float]:
        return reference.rotary_frequencies(8, scaling=DYNAMIC, tokens=tokens)[0].tolist()

    default = reference.rotary_frequencies(8)[0].tolist()
    assert θ(0) == θ(7) == θ(100) == default
    long = θ(1000)
    assert long != θ(101) != default
    assert θ(100) == default
    assert θ(1000) == long
    # Tables are as long as the tokens so far, unless these are stated.
    first, _ = reference.rotary_tables(1000, 8, scaling=DYNAMIC)
    longer, _ = reference.rotary_tables(4000, 8, scaling=DYNAMIC, tokens=1000)
    assert torch.equal(first, longer[:1000])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_angles_are_right_at_position_2_to_the_20(dtype: torch.dtype) -> None:
    # base 2^P gives θ_p = 2^-p, so that angles are exact in float64.
    positions = [2**20, 2**20 - 1, 15_962, 257]
    cos, sin = reference.rotary_tables(2**20 + 1, 6, base=8.0, dtype=dtype)
    angles = [[r * 2.0**-p for p in range(3)] for r in positions]
    for table, function in ((cos, math.cos), (sin, math.sin)):
        want = torch.tensor([[function(a) for a in row] for row in angles], dtype=torch.float64)
        assert table.dtype == dtype
        torch.testing.assert_close(table[positions], want.to(dtype), rtol=0, atol=1e-15)


def test_the_tables_are_those_of_the_head_dim_by_plain_arithmetic() -> None:
    cos, sin = reference.rotary_tables(50, 6, base=100.0, dtype=torch.float64)
    assert cos.shape == sin.shape == (50, 3)
    for r, p in [(0, 0), (1, 0), (1, 2), (17, 1), (49, 2)]:
        angle = r * 100.0 ** (-2 * p / 6)
        assert cos[r, p] == pytest.approx(math.cos(angle), rel=1e-14)
        assert sin[r, p] == pytest.approx(math.sin(angle), rel=1e-14, abs=1e-300)


def test_the_tables_are_computed_in_float64_and_cast_last() -> None:
    exact = reference.rotary_tables(100_000, 64, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tables = reference.rotary_tables(100_000, 64, dtype=dtype)
        for table, want in zip(tables, exact, strict=True):
            assert table.dtype == dtype
            assert torch.equal(table, want.to(dtype))


def test_xpos_by_hand() -> None:
    # Two dims: ζ = 0.4 / 1.4 = 2/7. At a distance of 2 from the center with a scale base of 1 the
    # scale is 4/49, and 49/4 before it.
    tables = reference.xpos_tables(5, 2, scale_base=1.0, center=2, dtype=torch.float64)
    cos, sin = reference.rotary_tables(5, 2, dtype=torch.float64)
    scale = torch.tensor([49 / 4, 7 / 2, 1, 2 / 7, 4 / 49], dtype=torch.float64)[:, None]
    wants = (scale * cos, scale * sin, cos / scale, sin / scale)
    torch.testing.assert_close(tables, wants, rtol=1e-14, atol=0)


def test_products_of_xpos_decay_with_the_distance_alone() -> None:
    cos_q, sin_q, cos_k, sin_k = reference.xpos_tables(30, 6, scale_base=4.0, dtype=torch.float64)
    x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k = torch.complex(x[:, :3], x[:, 3:])

    def product(i: int, j: int) -> torch.Tensor:
        there, here = torch.complex(cos_q[i], sin_q[i]), torch.complex(cos_k[j], sin_k[j])
        return torch.mul(q * there, (k * here).conj())

    torch.testing.assert_close(product(29, 20), product(9, 0), rtol=1e-12, atol=0)
    ζ = (torch.tensor([0, 1 / 3, 2 / 3], dtype=torch.float64) + 0.4) / 1.4
    decay = product(12, 0).abs() / (q * k.conj()).abs()
    torch.testing.assert_close(decay, ζ**3, rtol=1e-12, atol=0)


def test_sections_in_blocks_and_interleaved_by_hand() -> None:
    def axes(*sections: int, interleaved: bool = False) -> list[int]:
        return reference.rotary_axes(sum(sections), sections, interleaved=interleaved).tolist()

    assert axes(4, 3, 3) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert axes(4, 3, 3, interleaved=True) == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert axes(1, 3, 2, interleaved=True) == [0, 1, 2, 1, 2, 1]
    assert axes(0, 2, 2) == [1, 1, 2, 2]
    assert axes(2, 2, interleaved=True) == [0, 1, 0, 1]
    assert axes(3) == [0, 0, 0]
    # Qwen3-VL: height has pairs 1, 4, ... 58, width 2, 5, ... 59, and time all others.
    wide = axes(24, 20, 20, interleaved=True)
    assert wide == [p % 3 if p < 60 else 0 for p in range(64)]


BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("rotary_tables", {"length": -1}, ValueError, "length: -1, expected 0 or more"),
    ("rotary_tables", {"length": 2.0}, TypeError, "length: 2.0 (float), expected int"),
    ("rotary_tables", {"rotary_dim": 5}, ValueError, "rotary_dim: 5, expected an even number of"),
    ("rotary_tables", {"rotary_dim": 0}, ValueError, "rotary_dim: 0, expected an even number of"),
    ("rotary_tables", {"base": 0.0}, ValueError, "base: 0.0, expected a positive finite number"),
    ("rotary_tables", {"base": math.nan}, ValueError, "base: nan, expected a positive finite"),
    ("rotary_tables", {"dtype": torch.int32}, TypeError, "dtype: torch.int32, expected a floating"),
    ("rotary_tables", {"dtype": "float32"}, TypeError, "dtype: 'float32' (str), expected dtype"),
    ("rotary_tables", {"tokens": -1}, ValueError, "tokens: -1, expected 0 or more"),
    ("rotary_tables", {"scaling": "yarn"}, TypeError, "scaling: 'yarn' (str), expected Mapping"),
    ("xpos_tables", {"scale_base": 0.0}, ValueError, "scale_base: 0.0, expected a positive finite"),
    ("xpos_tables", {"length": 2**20}, ValueError, "length: 1048576 with center=0 and scale_base="),
]
BAD_SCALINGS: list[tuple[Scaling, type[Exception], str]] = [
    ({}, ValueError, "rope_type None, expected one of default, linear,"),
    ({"factor": 2.0}, ValueError, "rope_type None, expected one of"),
    ({"rope_type": "mrope"}, ValueError, "rope_type 'mrope', expected one of"),
    (
        {"rope_type": "default", "factor": 2.0},
        ValueError,
        "default with 'factor', expected nothing",
    ),
    ({"rope_type": 3}, TypeError, "rope_type 3, expected a str"),
    ({"rope_type": ["yarn"]}, TypeError, "rope_type ['yarn'], expected a str"),
    ({"rope_type": "linear"}, ValueError, "linear without factor"),
    ({"rope_type": "linear", "factor": 10**400}, ValueError, "linear with factor=1000"),
    ({"rope_type": "linear", "factor": 0.0}, ValueError, "linear with factor=0.0, expected a pos"),
    ({"rope_type": "linear", "factor": True}, TypeError, "linear with factor=True, expected a"),
    ({"rope_type": "ntk", "factor": math.inf}, ValueError, "ntk with factor=inf, expected a pos"),
    ({"rope_type": "ntk", "factor": None}, TypeError, "ntk with factor=None, expected a positive"),
    ({"rope_type": "dynamic", "factor": 2.0}, ValueError, "dynamic without original_max_position"),
    (DYNAMIC | {"original_max_position_embeddings": 99.5}, TypeError, "dynamic with original_max"),
    (YARN | {"betafast": 1.0}, ValueError, "yarn with 'betafast', expected factor, original_max"),
    (YARN | {"truncate": 1}, TypeError, "yarn with truncate=1, expected a bool"),
    (YARN | {"beta_fast": 0.5}, ValueError, "yarn with beta_fast=0.5 below beta_slow=1.0"),
    (LLAMA3 | {"high_freq_factor": 1.0}, ValueError, "llama3 with high_freq_factor=1.0, expected"),
    (LONGROPE | {"long_factor": [1.0, 2.0]}, ValueError, "longrope with 2 numbers in long_factor"),
    (LONGROPE | {"short_factor": [1, 0, 1]}, ValueError, "longrope with short_factor=[1, 0, 1]"),
    (LONGROPE | {"short_factor": [1, "0", 1]}, TypeError, "longrope with short_factor=[1, '0', 1]"),
    (LONGROPE | {"short_factor": 2.0}, TypeError, "longrope with short_factor=2.0, expected"),
    (LONGROPE | {"factor": None}, ValueError, "longrope without factor, expected it or attention"),
    (
        {"rope_type": "proportional", "partial_rotary_factor": 1.5},
        ValueError,
        "proportional with partial_rotary_factor=1.5, expected at most 1",
    ),
]


@pytest.mark.parametrize(("function", "arguments", "error", "message"), BAD)
def test_a_bad_argument_of_the_tables_is_named(
    function: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    bad = (arguments, error, message)
    assert_refused(bad, getattr(reference, function), length=8, rotary_dim=4)


@pytest.mark.parametrize(("scaling", "error", "message"), BAD_SCALINGS)
def test_a_scaling_that_cannot_be_is_refused(
    scaling: Scaling, error: type[Exception], message: str
) -> None:
    bad = ({"scaling": scaling}, error, f"scaling: {message}")
    assert_refused(bad, reference.rotary_tables, length=8, rotary_dim=6)


def test_yarn_refuses_a_base_without_an_order_of_wavelengths() -> None:
    with pytest.raises(ValueError, match=r"base: 1\.0, expected more than 1 with yarn"):
        reference.rotary_tables(8, 6, base=1.0, scaling=YARN)


@pytest.mark.parametrize(
    ("sections", "error", "message"),
    [
        ((2, 3), ValueError, "sections: (2, 3) add up to 5, expected pairs=6"),
        ((), ValueError, "sections: (), expected one count of pairs for each axis"),
        ((7, -1), ValueError, "sections: (7, -1), expected one count of pairs for each axis"),
        ((3.0, 3), TypeError, "sections: (3.0, 3), expected ints"),
        (6, TypeError, "sections: 6 (int), expected Sequence"),
    ],
)
def test_bad_sections_are_named(sections: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        reference.rotary_axes(6, sections)
    assert str(caught.value) == message
