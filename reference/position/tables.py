"""Cosines and sines of rotary embeddings, with every way to scale them to longer contexts."""

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from reference.arguments import checked

Frequencies = tuple[Tensor, float]


def default(rotary_dim: int, base: float, tokens: int) -> Frequencies:
    """θ_p = base ** (-2p / rotary_dim).

    Source: Su et al., RoFormer, arXiv 2104.09864, section 3.3.
    """
    pair = torch.arange(rotary_dim // 2, dtype=torch.float64)
    return base ** (-2 * pair / rotary_dim), 1.0


def linear(rotary_dim: int, base: float, tokens: int, *, factor: float) -> Frequencies:
    """θ_p / factor, which is position interpolation.

    Source: Chen et al., Extending Context Window via Positional Interpolation, arXiv 2306.15595.
    """
    θ, _ = default(rotary_dim, base, tokens)
    return θ / factor, 1.0


def ntk(rotary_dim: int, base: float, tokens: int, *, factor: float) -> Frequencies:
    """θ_p · factor ** (-p / (P - 1)): the first pair stays, the last one is divided by factor.

    This is the base times factor ** (rotary_dim / (rotary_dim - 2)). One pair alone stays.

    Source: Peng et al., YaRN, arXiv 2309.00071, section 3.1 (NTK-aware interpolation).
    """
    θ, _ = default(rotary_dim, base, tokens)
    last = max(rotary_dim // 2 - 1, 1)
    return θ * factor ** (-torch.arange(len(θ), dtype=torch.float64) / last), 1.0


def dynamic(
    rotary_dim: int, base: float, tokens: int, *, factor: float,
    original_max_position_embeddings: int,
) -> Frequencies:  # fmt: skip
    """`ntk` with a factor that grows with the tokens so far, and is 1 up to the original length.

        growth = factor · max(tokens, original) / original - (factor - 1)

    Source: Peng et al., YaRN, arXiv 2309.00071, section 3.3 (dynamic scaling), in the form that
        Hugging Face's models use.
    """
    longer = max(tokens, original_max_position_embeddings) / original_max_position_embeddings
    return ntk(rotary_dim, base, tokens, factor=factor * longer - (factor - 1))


def yarn(
    rotary_dim: int, base: float, tokens: int, *, factor: float,
    original_max_position_embeddings: int, beta_fast: float = 32.0, beta_slow: float = 1.0,
    mscale: float = 1.0, mscale_all_dim: float = 0.0, attention_factor: float | None = None,
    truncate: bool = True,
) -> Frequencies:  # fmt: skip
    """Fast pairs stay, slow ones are divided by the factor, and a ramp over pairs joins them.

        pair(β) = rotary_dim ln(original / 2πβ) / (2 ln base)    turns β times in the original
        low     = max(pair(beta_fast), 0)                        rounded down if `truncate`
        high    = min(pair(beta_slow), rotary_dim - 1)           rounded up if `truncate`
        ramp_p  = clamp((p - low) / (high - low), 0, 1)          a step if high <= low
        θ'_p    = (1 - ramp_p) θ_p + ramp_p θ_p / factor

    Cosines and sines are multiplied by `attention_factor`, which is by default

        m(mscale) / m(mscale_all_dim),    m(c) = 1 + 0.1 c ln(max(factor, 1))

    The ramp is linear in the pair, as in the code of the authors and of everybody since; in the
    paper it is linear in the turns.

    Source: Peng et al., YaRN, arXiv 2309.00071, sections 3.2 and 3.4; mscale as in DeepSeek-V2,
        arXiv 2405.04434.
    """
    if base <= 1:
        raise ValueError(f"base: {base}, expected more than 1 with yarn")
    if beta_fast < beta_slow:
        raise ValueError(f"scaling: yarn with beta_fast={beta_fast} below beta_slow={beta_slow}")
    θ, _ = default(rotary_dim, base, tokens)

    def turning(β: float) -> float:
        turns = original_max_position_embeddings / (2 * math.pi * β)
        return rotary_dim * math.log(turns) / (2 * math.log(base))

    low, high = turning(beta_fast), turning(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    pair = torch.arange(len(θ), dtype=torch.float64)
    ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
    if attention_factor is None:
        growth = 0.1 * math.log(max(factor, 1.0))
        attention_factor = (1 + mscale * growth) / (1 + mscale_all_dim * growth)
    return (1 - ramp) * θ + ramp * θ / factor, attention_factor


def llama3(
    rotary_dim: int, base: float, tokens: int, *, factor: float, low_freq_factor: float,
    high_freq_factor: float, original_max_position_embeddings: int,
) -> Frequencies:  # fmt: skip
    """Keep high frequencies, divide low ones by the factor, and interpolate between.

        turns_p  = original · θ_p / 2π
        smooth_p = clamp((turns_p - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
        θ'_p     = smooth_p θ_p + (1 - smooth_p) θ_p / factor

    Source: Meta, The Llama 3 Herd of Models, arXiv 2407.21783, and the code of Llama 3.1.
    """
    if high_freq_factor <= low_freq_factor:
        raise ValueError(
            f"scaling: llama3 with high_freq_factor={high_freq_factor}, "
            f"expected more than low_freq_factor={low_freq_factor}"
        )
    θ, _ = default(rotary_dim, base, tokens)
    turns = original_max_position_embeddings * θ / (2 * math.pi)
    smooth = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return smooth * θ + (1 - smooth) * θ / factor, 1.0


def longrope(
    rotary_dim: int, base: float, tokens: int, *, short_factor: Sequence[float],
    long_factor: Sequence[float], original_max_position_embeddings: int,
    factor: float | None = None, attention_factor: float | None = None,
) -> Frequencies:  # fmt: skip
    """θ_p / λ_p, with `short_factor` for λ up to the original length and `long_factor` past it.

    Cosines and sines are multiplied by `attention_factor`, by default

        sqrt(1 + ln(factor) / ln(original)), and 1 if factor <= 1

    Source: Ding et al., LongRoPE, arXiv 2402.13753, section 3; the attention factor as in Phi-3,
        arXiv 2404.14219.
    """
    θ, _ = default(rotary_dim, base, tokens)
    for name, each in (("short_factor", short_factor), ("long_factor", long_factor)):
        if len(each) != len(θ):
            raise ValueError(
                f"scaling: longrope with {len(each)} numbers in {name}, "
                f"expected {len(θ)}, one for each pair"
            )
    if attention_factor is None:
        if factor is None:
            raise ValueError("scaling: longrope without factor, expected it or attention_factor")
        growth = math.log(max(factor, 1.0))
        attention_factor = math.sqrt(1 + growth / math.log(original_max_position_embeddings))
    λ = long_factor if tokens > original_max_position_embeddings else short_factor
    return θ / torch.tensor(λ, dtype=torch.float64), attention_factor


def proportional(
    rotary_dim: int, base: float, tokens: int, *, partial_rotary_factor: float, factor: float = 1.0,
) -> Frequencies:  # fmt: skip
    """The fastest pairs turn as ever, the others not at all.

        θ'_p = θ_p / factor  if p < ⌊partial_rotary_factor · rotary_dim / 2⌋, else 0

    Unlike a smaller rotary_dim this leaves the frequencies and the partners of dims as they are.

    Source: Barbero et al., Round and Round We Go, arXiv 2410.06205, section 6 (p-RoPE).
    """
    if partial_rotary_factor > 1:
        raise ValueError(
            f"scaling: proportional with partial_rotary_factor={partial_rotary_factor}, "
            "expected at most 1"
        )
    θ, _ = default(rotary_dim, base, tokens)
    turning = torch.arange(len(θ)) < partial_rotary_factor * rotary_dim // 2
    return torch.where(turning, θ / factor, 0.0), 1.0


SCALINGS: Mapping[str, Callable[..., Frequencies]] = {
    scaling.__name__: scaling
    for scaling in (default, linear, ntk, dynamic, yarn, llama3, longrope, proportional)
}
_MAY_BE_ZERO = ("mscale", "mscale_all_dim", "partial_rotary_factor")


@checked
def rotary_frequencies(
    rotary_dim: int,
    *,
    base: float = 10000.0,
    scaling: Mapping[str, object] | None = None,
    tokens: int = 0,
) -> tuple[Float[Tensor, "P"], float]:
    """The angle by which each pair of dims turns from one position to the next.

    Without a scaling `θ_p = base ** (-2p / rotary_dim)`. A scaling is data as in the configuration
    of a model: `rope_type`, and the factors of this type.

        {"rope_type": "linear", "factor": 4.0}

    | rope_type | factors, those with a value being optional |
    |---|---|
    | default | |
    | linear | factor |
    | ntk | factor |
    | dynamic | factor, original_max_position_embeddings |
    | yarn | factor, original_max_position_embeddings, beta_fast=32, beta_slow=1, mscale=1, |
    | | mscale_all_dim=0, attention_factor=None, truncate=True |
    | llama3 | factor, low_freq_factor, high_freq_factor, original_max_position_embeddings |
    | longrope | short_factor, long_factor, original_max_position_embeddings, factor=None, |
    | | attention_factor=None |
    | proportional | partial_rotary_factor, factor=1 |

    The function of this name in `reference.position.tables` has the equation and the source.

    Args:
        rotary_dim: 2P, the number of dims of a head that are rotated; even.
        base: the wavelengths run from 2π towards 2π·base tokens.
        scaling: how frequencies are changed for contexts longer than the original one, or None.
        tokens: the tokens so far. `dynamic` and `longrope` scale by it, and by nothing else.

    Returns:
        frequencies: `[P]`, float64, in radians per token.
        attention_factor: multiplies cosines and sines.

    Raises:
        TypeError: an argument, or a factor of a scaling, of a wrong type.
        ValueError: a rotary_dim that is odd or below 2; a base that is not a positive finite
            number; negative tokens; a scaling of an unknown type, without a factor of its type,
            with another one, or with one out of its range.

    Source: Su et al., RoFormer, arXiv 2104.09864; the scalings state theirs.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise ValueError(f"rotary_dim: {rotary_dim}, expected an even number of at least 2")
    if not (math.isfinite(base) and base > 0):
        raise ValueError(f"base: {base}, expected a positive finite number")
    if tokens < 0:
        raise ValueError(f"tokens: {tokens}, expected 0 or more")
    factors = dict(scaling if scaling is not None else {"rope_type": "default"})
    kind = factors.pop("rope_type", None)
    if not isinstance(kind, str | None):
        raise TypeError(f"scaling: rope_type {kind!r}, expected a str")
    if kind not in SCALINGS:
        expected = f"expected one of {', '.join(SCALINGS)}"
        raise ValueError(f"scaling: rope_type {kind!r}, {expected}")
    _check(str(kind), factors)
    return SCALINGS[str(kind)](rotary_dim, base, tokens, **factors)


@checked
def rotary_tables(
    length: int,
    rotary_dim: int,
    *,
    base: float = 10000.0,
    scaling: Mapping[str, object] | None = None,
    tokens: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Float[Tensor, "R P"], Float[Tensor, "R P"]]:
    """Cosines and sines of the angle of each position and pair of dims.

        cos[r, p] = m cos(r θ_p),   sin[r, p] = m sin(r θ_p)

    with θ and m of `rotary_frequencies`. Computed in float64 and cast last: angles grow with the
    position, and rounding an angle of many turns is an error of its phase.

    Args:
        length: R, the number of positions (tokens), from 0 on.
        rotary_dim: 2P, the number of dims of a head that are rotated; even.
        base: the wavelengths run from 2π towards 2π·base tokens.
        scaling: as of `rotary_frequencies`.
        tokens: the tokens so far, by which some scalings scale; None means `length`.
        dtype: of the tables.
        device: of the tables.

    Returns:
        cos, sin: `[length, rotary_dim / 2]`.

    Raises:
        TypeError: an argument of a wrong type; a dtype that is not a float.
        ValueError: a negative length, and as of `rotary_frequencies`.

    Source: Su et al., RoFormer, arXiv 2104.09864, equation 15 and section 3.3.
    """
    if length < 0:
        raise ValueError(f"length: {length}, expected 0 or more")
    if not dtype.is_floating_point:
        raise TypeError(f"dtype: {dtype}, expected a floating point dtype")
    frequencies, factor = rotary_frequencies(
        rotary_dim, base=base, scaling=scaling, tokens=length if tokens is None else tokens
    )
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    cos, sin = factor * angle.cos(), factor * angle.sin()
    return cos.to(device, dtype), sin.to(device, dtype)


@checked
def xpos_tables(
    length: int,
    rotary_dim: int,
    *,
    base: float = 10000.0,
    scale_base: float = 512.0,
    center: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Float[Tensor, "R P"], Float[Tensor, "R P"], Float[Tensor, "R P"], Float[Tensor, "R P"]]:
    """The tables of xPos, with which products of queries and keys decay with their distance.

        ζ_p      = (2p / rotary_dim + γ) / (1 + γ),    γ = 0.4
        s[r, p]  = ζ_p ** ((r - center) / scale_base)
        queries:   s cos(r θ_p),  s sin(r θ_p)
        keys:      cos(r θ_p) / s,  sin(r θ_p) / s

    so that pair p of a query at i times a key at j has the factor ζ_p ** ((i - j) / scale_base).

    Args:
        length: R, the number of positions (tokens), from 0 on.
        rotary_dim: 2P, the number of dims of a head that are rotated; even.
        base: as of `rotary_tables`.
        scale_base: the tokens over which a product decays by ζ.
        center: the position whose scale is 1; half of the length keeps scales in range.
        dtype, device: of the tables.

    Returns:
        cos, sin of the queries, then cos, sin of the keys: each `[length, rotary_dim / 2]`.

    Raises:
        TypeError: an argument of a wrong type; a dtype that is not a float.
        ValueError: as of `rotary_tables`; a scale_base that is not a positive finite number; a
            length of which some scale is no normal number of the dtype.

    Source: Sun et al., A Length-Extrapolatable Transformer, arXiv 2212.10554, algorithm 1.
    """
    if not (math.isfinite(scale_base) and scale_base > 0):
        raise ValueError(f"scale_base: {scale_base}, expected a positive finite number")
    tables = rotary_tables(length, rotary_dim, base=base, dtype=torch.float64)
    if not dtype.is_floating_point:
        raise TypeError(f"dtype: {dtype}, expected a floating point dtype")
    γ = 0.4
    ζ = (2 * torch.arange(rotary_dim // 2, dtype=torch.float64) / rotary_dim + γ) / (1 + γ)
    scale = ζ ** ((torch.arange(length, dtype=torch.float64)[:, None] - center) / scale_base)
    limits = torch.finfo(dtype)
    both = torch.cat([scale, 1 / scale])
    if ((both < limits.smallest_normal) | (both > limits.max)).any():
        raise ValueError(
            f"length: {length} with center={center} and scale_base={scale_base}, expected scales "
            f"within the range of {dtype}"
        )
    of_queries, of_keys = ([m * table for table in tables] for m in (scale, 1 / scale))
    cos_q, sin_q, cos_k, sin_k = (x.to(device, dtype) for x in (*of_queries, *of_keys))
    return cos_q, sin_q, cos_k, sin_k


@checked
def rotary_axes(
    pairs: int, sections: Sequence[int], *, interleaved: bool = False
) -> Int64[Tensor, "P"]:
    """The axis whose position turns each pair, for positions of several axes.

    Images and videos have positions of several axes, such as time, height and width, and each axis
    turns a section of the pairs: in blocks

        0 0 0 0 1 1 1 2 2 2        sections (4, 3, 3), as in Qwen2-VL

    or interleaved, where the axes take turns until their sections are full:

        0 1 2 0 1 2 0 1 2 0        as in Qwen3-VL

    Args:
        pairs: P, half of the rotary dim.
        sections: the number of pairs of each axis.
        interleaved: axes take turns.

    Returns:
        axes: `[pairs]`, an axis for each pair.

    Raises:
        TypeError: an argument, or a section, of a wrong type.
        ValueError: no sections, a negative one, or sections that do not add up to the pairs.

    Source: Wang et al., Qwen2-VL, arXiv 2409.12191, section 2.1 (M-RoPE); Bai et al., Qwen3-VL,
        arXiv 2511.21631 (interleaved).
    """
    if any(type(n) is not int for n in sections):
        raise TypeError(f"sections: {sections!r}, expected ints")
    if not sections or min(sections) < 0:
        raise ValueError(f"sections: {sections}, expected one count of pairs for each axis")
    if sum(sections) != pairs:
        raise ValueError(f"sections: {sections} add up to {sum(sections)}, expected pairs={pairs}")
    axis = torch.arange(len(sections)).repeat_interleave(torch.tensor(sections))
    if interleaved:
        turn = torch.cat([torch.arange(n) for n in sections])
        axis = axis[(turn * len(sections) + axis).argsort()]
    return axis


def _check(kind: str, factors: Mapping[str, object]) -> None:
    """Check that a scaling has the factors of its kind, each of its type and within its range."""
    known = {
        name: parameter
        for name, parameter in inspect.signature(SCALINGS[kind]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    for name in factors:
        if name not in known:
            expected = f"expected {', '.join(known) or 'nothing'}"
            raise ValueError(f"scaling: {kind} with {name!r}, {expected}")
    for name, parameter in known.items():
        if name not in factors:
            if parameter.default is parameter.empty:
                raise ValueError(f"scaling: {kind} without {name}")
            continue
        value: Any = factors[name]
        if value is None and parameter.default is None:
            continue
        if name == "truncate":
            typed = fits = isinstance(value, bool)
            expected = "a bool"
        elif name in ("short_factor", "long_factor"):
            typed = isinstance(value, Sequence) and all(map(_is_number, value))
            fits, expected = typed and all(map(_is_positive, value)), "positive numbers"
        elif name == "original_max_position_embeddings":
            typed, expected = type(value) is int, "an integer above 1"
            fits = typed and 1 < value < 2**63
        else:
            typed, expected = _is_number(value), "a positive number"
            fits = typed and (_is_positive(value) or (name in _MAY_BE_ZERO and value == 0))
        if not fits:
            error = ValueError if typed else TypeError
            raise error(f"scaling: {kind} with {name}={value!r}, expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_positive(value: float) -> bool:
    return 0 < value <= sys.float_info.max
