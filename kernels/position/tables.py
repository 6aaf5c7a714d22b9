"""Cosines and sines of rotary position encoding, and its scalings for longer contexts.

Each scaling is a function of the frequencies θ, in radians per token, that the base gives. Its
keyword arguments are the factors that a configuration has beside its `rope_type`.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from math import ceil, floor, log, pi, sqrt
from sys import float_info
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from kernels.arguments import check_number, check_size, describe

Scaled = tuple[Tensor, float]


def default(θ: Tensor, base: float, tokens: int) -> Scaled:
    return θ, 1.0


def linear(θ: Tensor, base: float, tokens: int, *, factor: float) -> Scaled:
    return θ / factor, 1.0


def ntk(θ: Tensor, base: float, tokens: int, *, factor: float) -> Scaled:
    """The base grows, so that the slowest pair is divided by the factor; a pair alone stays."""
    pairs = len(θ)
    if pairs == 1:
        return θ, 1.0
    exponents = torch.arange(pairs, dtype=θ.dtype, device=θ.device) / pairs
    return (base * factor ** (pairs / (pairs - 1))) ** -exponents, 1.0


def dynamic(
    θ: Tensor, base: float, tokens: int, *, factor: float, original_max_position_embeddings: int,
) -> Scaled:  # fmt: skip
    past = max(tokens - original_max_position_embeddings, 0)
    return ntk(θ, base, tokens, factor=1 + factor * past / original_max_position_embeddings)


def yarn(
    θ: Tensor, base: float, tokens: int, *, factor: float, original_max_position_embeddings: int,
    beta_fast: float = 32.0, beta_slow: float = 1.0, mscale: float = 1.0,
    mscale_all_dim: float = 0.0, attention_factor: float | None = None, truncate: bool = True,
) -> Scaled:  # fmt: skip
    if base <= 1:
        raise ValueError(f"base: {base}, expected more than 1 for yarn")
    if beta_slow > beta_fast:
        raise ValueError(f"scaling: yarn's beta_slow={beta_slow} is above beta_fast={beta_fast}")
    pairs = len(θ)
    first, last = (
        pairs * log(original_max_position_embeddings / (2 * pi * turns)) / log(base)
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    index = torch.arange(pairs, dtype=θ.dtype, device=θ.device)
    # A ramp of no width is a step.
    slow = ((index - first) / max(last - first, 1e-3)).clamp(0, 1)
    if attention_factor is None:
        octaves = log(factor) / 10 if factor > 1 else 0.0
        attention_factor = (mscale * octaves + 1) / (mscale_all_dim * octaves + 1)
    return torch.lerp(θ, θ / factor, slow), attention_factor


def llama3(
    θ: Tensor, base: float, tokens: int, *, factor: float, low_freq_factor: float,
    high_freq_factor: float, original_max_position_embeddings: int,
) -> Scaled:  # fmt: skip
    if low_freq_factor >= high_freq_factor:
        raise ValueError(
            f"scaling: llama3's low_freq_factor={low_freq_factor}, "
            f"expected less than high_freq_factor={high_freq_factor}"
        )
    turns = original_max_position_embeddings / (2 * pi / θ)
    fast = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
    return torch.lerp(θ / factor, θ, fast.clamp(0, 1)), 1.0


def longrope(
    θ: Tensor, base: float, tokens: int, *, short_factor: Sequence[float],
    long_factor: Sequence[float], original_max_position_embeddings: int,
    factor: float | None = None, attention_factor: float | None = None,
) -> Scaled:  # fmt: skip
    for name, numbers in (("short_factor", short_factor), ("long_factor", long_factor)):
        if len(numbers) != len(θ):
            raise ValueError(
                f"scaling: longrope's {name} has {len(numbers)} numbers, "
                f"expected one for each of {len(θ)} pairs"
            )
    if attention_factor is None:
        if factor is None:
            raise ValueError("scaling: longrope has no factor, expected it or attention_factor")
        octaves = log(factor) / log(original_max_position_embeddings) if factor > 1 else 0.0
        attention_factor = sqrt(1 + octaves)
    numbers = long_factor if tokens > original_max_position_embeddings else short_factor
    return θ / torch.tensor(numbers, dtype=θ.dtype, device=θ.device), attention_factor


def proportional(
    θ: Tensor, base: float, tokens: int, *, partial_rotary_factor: float, factor: float = 1.0,
) -> Scaled:  # fmt: skip
    if partial_rotary_factor > 1:
        raise ValueError(
            f"scaling: proportional's partial_rotary_factor={partial_rotary_factor}, "
            "expected at most 1"
        )
    scaled = θ / factor
    scaled[int(partial_rotary_factor * 2 * len(θ) // 2) :] = 0
    return scaled, 1.0


SCALINGS: Mapping[str, Callable[..., Scaled]] = {
    scaling.__name__: scaling
    for scaling in (default, linear, ntk, dynamic, yarn, llama3, longrope, proportional)
}


def tokens_that_scale(scaling: Mapping[str, object] | None, tokens: int) -> int:
    """Return a number that is equal for token counts at which a valid scaling is equal, or 0 if it
    depends on none.
    """
    kind = None if scaling is None else scaling["rope_type"]
    if kind not in ("dynamic", "longrope"):
        return 0
    original = scaling["original_max_position_embeddings"]
    return max(tokens, original) if kind == "dynamic" else original + (tokens > original)


def rotary_frequencies(
    rotary_dim: int,
    *,
    base: float = 10000.0,
    scaling: Mapping[str, object] | None = None,
    tokens: int = 0,
    device: torch.device | str | None = None,
) -> tuple[Float[Tensor, " P"], float]:
    """Radians per token of each pair of dims, and the factor of cosines and sines.

    `help(reference.rotary_frequencies)` has the scalings, their factors and their sources.

    Args:
        rotary_dim: 2P, the number of dims of a *head* that turn; even.
        base: θ_i = base^(-2i / rotary_dim) without a scaling.
        scaling: `{"rope_type": "linear", "factor": 4.0}`, as in a model's configuration.
        tokens: the tokens so far, by which `dynamic` and `longrope` scale.
        device: of the frequencies; torch's default if None.

    Returns:
        frequencies: `[P]`, float64.
        attention_factor: of cosines and sines.

    Raises:
        TypeError: an argument, or a factor of a scaling, of a wrong type.
        ValueError: a rotary_dim that is odd or below 2, a base that is not a positive finite
            number, negative tokens; a scaling of an unknown type, or whose factors are missing,
            unknown or out of range.
    """
    if check_size("rotary_dim", rotary_dim, 2) % 2:
        raise ValueError(f"rotary_dim: {rotary_dim}, expected an even number of at least 2")
    check_number("base", base)
    if not 0 < base <= float_info.max:
        raise ValueError(f"base: {base}, expected a positive finite number")
    check_size("tokens", tokens, 0)
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim
    scale, factors = _read(scaling)
    return scale(base**-exponents, base, tokens, **factors)


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
    """Cosine and sine of every position's rotation angles.

        angle[r, i] = r * θ[i]          r < R = length,  i < P = rotary_dim / 2

    Angles are float64 and the cast to `dtype` comes last: a position above 256 is no bfloat16
    number, and an angle rounded before its cosine is wrong by whole radians far out.

    Args:
        length: R, the number of positions, 0 or more.
        rotary_dim: 2P, the number of dims of a *head* that turn; even.
        base: the longest wavelength is about `2π base` tokens; positive and finite.
        scaling: of the frequencies θ, see `rotary_frequencies`.
        tokens: the tokens so far, by which some scalings scale; `length` if None.
        dtype: of the tables.
        device: of the tables; torch's default if None.

    Returns:
        cos, sin: the tables, each `[R, P]`, times the attention factor of the scaling.

    Raises:
        TypeError: an argument of a wrong type; a dtype that is not a float.
        ValueError: a negative length, and as of `rotary_frequencies`.

    Source: RoFormer, arXiv 2104.09864, section 3.4.2.
    """
    check_size("length", length, 0)
    _check_dtype(dtype)
    exact = {"dtype": torch.float64, "device": device}
    θ, factor = rotary_frequencies(
        rotary_dim,
        base=base,
        scaling=scaling,
        tokens=length if tokens is None else tokens,
        device=device,
    )
    angles = torch.outer(torch.arange(length, **exact), θ)
    return (factor * angles.cos()).to(dtype), (factor * angles.sin()).to(dtype)


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
    """The tables of xPos: queries grow by what keys shrink, and products decay with the distance.

        s[r, i] = ((i / P + 0.4) / 1.4)^((r - center) / scale_base)

    Args:
        length, rotary_dim, base, dtype, device: as of `rotary_tables`.
        scale_base: the tokens over which a product decays by one factor; positive and finite.
        center: the position whose scale is 1.

    Returns:
        cos, sin of the queries, times s; cos, sin of the keys, divided by s. Each `[R, P]`.

    Raises:
        TypeError: an argument of a wrong type; a dtype that is not a float.
        ValueError: as of `rotary_tables`; a `scale_base` that is not a positive finite number; a
            length with a scale that is no normal number of the dtype.

    Source: A Length-Extrapolatable Transformer, arXiv 2212.10554.
    """
    check_number("scale_base", scale_base)
    if type(center) is not int:
        raise TypeError(f"center: {describe(center)}, expected an int")
    if not 0 < scale_base <= float_info.max:
        raise ValueError(f"scale_base: {scale_base}, expected a positive finite number")
    _check_dtype(dtype)
    exact = {"dtype": torch.float64, "device": device}
    cos, sin = rotary_tables(length, rotary_dim, base=base, **exact)
    pairs = torch.arange(rotary_dim // 2, **exact)
    logs = ((pairs / len(pairs) + 0.4) / 1.4).log()
    logs = torch.outer((torch.arange(length, **exact) - center) / scale_base, logs)
    largest, smallest = log(torch.finfo(dtype).max), log(torch.finfo(dtype).smallest_normal)
    if length and float(logs.abs().max()) > min(largest, -smallest):
        raise ValueError(
            f"length: {length} with center={center} and scale_base={scale_base}, expected scales "
            f"within the range of {dtype}"
        )
    scale = logs.exp()
    each = (cos * scale, sin * scale, cos / scale, sin / scale)
    of_queries, its_sine, of_keys, their_sine = (table.to(dtype) for table in each)
    return of_queries, its_sine, of_keys, their_sine


def rotary_axes(
    pairs: int,
    sections: Sequence[int],
    *,
    interleaved: bool = False,
    device: torch.device | str | None = None,
) -> Int64[Tensor, " P"]:
    """The axis that turns each pair of dims, for `multiaxis_rotary`.

    Sections (4, 3, 3) are 0000111222 in blocks, as in Qwen2-VL, and 0120120120 interleaved, as in
    Qwen3-VL, where axes take turns until their sections are full.

    Args:
        pairs: P, half of the rotary dim.
        sections: how many pairs each axis turns.
        interleaved: axes take turns.
        device: of the axes; torch's default if None.

    Returns:
        axes: `[P]`.

    Raises:
        TypeError: an argument, or a section, of a wrong type.
        ValueError: no sections, a negative one, or sections that do not add up to the pairs.
    """
    check_size("pairs", pairs, 0)
    if not isinstance(sections, Sequence):
        raise TypeError(f"sections: {describe(sections)}, expected a sequence of counts")
    if any(type(n) is not int for n in sections):
        raise TypeError(f"sections: {describe(sections)}, expected ints")
    if not sections or min(sections) < 0:
        raise ValueError(f"sections: {sections}, expected a count of pairs for each axis")
    if sum(sections) != pairs:
        raise ValueError(f"sections: {sections} are {sum(sections)} pairs, expected {pairs}")
    if interleaved:
        turns = range(max(sections))
        order = [axis for turn in turns for axis, n in enumerate(sections) if turn < n]
    else:
        order = [axis for axis, n in enumerate(sections) for _ in range(n)]
    return torch.tensor(order, dtype=torch.int64, device=device)


def _check_dtype(dtype: object) -> None:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype: {dtype!r}, expected a floating point dtype")


def _read(scaling: Mapping[str, object] | None) -> tuple[Callable[..., Scaled], dict[str, object]]:
    """The function of a scaling and its factors, checked."""
    if scaling is None:
        return default, {}
    if not isinstance(scaling, Mapping):
        raise TypeError(f"scaling: {describe(scaling)}, expected a mapping or None")
    factors = dict(scaling)
    kind = factors.pop("rope_type", None)
    if not isinstance(kind, str | None):
        raise TypeError(f"scaling: rope_type {describe(kind)}, expected a str")
    if kind not in SCALINGS:
        raise ValueError(f"scaling: rope_type {kind!r}, expected one of {', '.join(SCALINGS)}")
    known = {
        name: parameter
        for name, parameter in signature(SCALINGS[kind]).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    }
    for name, parameter in known.items():
        if name in factors:
            _check_factor(kind, name, factors[name], parameter.default)
        elif parameter.default is Parameter.empty:
            raise ValueError(f"scaling: {kind} has no {name}")
    if unknown := [name for name in factors if name not in known]:
        raise ValueError(f"scaling: {kind} has {unknown}, expected {', '.join(known) or 'nothing'}")
    return SCALINGS[kind], factors


def _check_factor(kind: str, name: str, value: Any, default: object) -> None:
    """Refuse a factor of another type with a TypeError, and one out of range with a ValueError."""
    if value is None and default is None:
        return
    if name == "truncate":
        typed = fits = isinstance(value, bool)
        expected = "a bool"
    elif name == "original_max_position_embeddings":
        typed, expected = type(value) is int, "an integer above 1, of 64 bits"
        fits = typed and 1 < value < 2**63
    elif name in ("short_factor", "long_factor"):
        typed = isinstance(value, Sequence) and all(map(_is_number, value))
        fits, expected = typed and all(0 < x <= float_info.max for x in value), "positive numbers"
    else:
        typed, expected = _is_number(value), "a positive number"
        fits = typed and 0 < value <= float_info.max
        if name in ("mscale", "mscale_all_dim", "partial_rotary_factor"):
            fits, expected = fits or (typed and value == 0), "a number of at least 0"
    if not fits:
        error = ValueError if typed else TypeError
        raise error(f"scaling: {kind}'s {name}={value!r}, expected {expected}")


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)
