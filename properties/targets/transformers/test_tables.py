"""The frequencies of `ROPE_INIT_FUNCTIONS` and the tables of models, compared with ours.

Bugs of transformers are in `regressions/targets/transformers/ledger.py`; `KNOWN` has those that a
drawn scaling may show, by the entry's name.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import reference

Scaling = dict[str, Any]
# Releases before 5 have a function for unscaled frequencies, too.
KINDS = [kind for kind in ROPE_INIT_FUNCTIONS if kind != "default"]

_FACTOR = st.sampled_from([1.0, 1.5, 4.0, 40.0])
_ORIGINAL = st.sampled_from([16, 100, 4096, 2**17])
_MSCALE = st.sampled_from([0.0, 0.707, 1.0])


def _numbers(pairs: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.sampled_from([1.0, 1.05, 8.0, 64.0]), min_size=pairs, max_size=pairs)


def _scalings(kind: str, pairs: int) -> st.SearchStrategy[Scaling]:
    grown: dict[str, Any] = {"factor": _FACTOR, "original_max_position_embeddings": _ORIGINAL}
    attention: dict[str, Any] = {"attention_factor": st.sampled_from([1.0, 1.25])}
    # transformers asks for both of the mscales.
    both: dict[str, Any] = {"mscale": _MSCALE, "mscale_all_dim": _MSCALE}
    mscales: st.SearchStrategy[Scaling] = st.just({}) | st.fixed_dictionaries(both)
    yarn = st.fixed_dictionaries(
        {"rope_type": st.just("yarn"), **grown},
        optional={
            "beta_fast": st.sampled_from([2.5, 32, 64.0]),
            "beta_slow": st.sampled_from([0.5, 1]),
            "truncate": st.booleans(),
            **attention,
        },
    )
    others: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "linear": ({"factor": _FACTOR}, {}),
        "dynamic": (grown, {}),
        "llama3": (
            {
                "low_freq_factor": st.sampled_from([0.5, 1.0]),
                "high_freq_factor": st.sampled_from([2.0, 4.0]),
                **grown,
            },
            {},
        ),
        "longrope": (
            {"short_factor": _numbers(pairs), "long_factor": _numbers(pairs), **grown},
            attention,
        ),
        "proportional": (
            {"partial_rotary_factor": st.sampled_from([0.0, 0.25, 0.3, 0.5, 1.0])},
            {"factor": _FACTOR},
        ),
    }
    if kind == "yarn":
        return st.builds(lambda one, two: {**one, **two}, yarn, mscales)
    needed, optional = others[kind]
    return st.fixed_dictionaries({"rope_type": st.just(kind), **needed}, optional=optional)


def _config(head_dim: int, base: float, scaling: Scaling) -> LlamaConfig:
    original = scaling.get("original_max_position_embeddings", 4096)
    parameters = {**scaling, "rope_theta": base}
    if scaling["rope_type"] == "dynamic":
        # Its original length is that of the model.
        del parameters["original_max_position_embeddings"]
    longer = 1 if scaling["rope_type"] == "dynamic" else scaling.get("factor", 1.0)
    sizes = {
        "hidden_size": head_dim,
        "num_attention_heads": 1,
        "head_dim": head_dim,
        "max_position_embeddings": int(original * longer),
    }
    if hasattr(LlamaConfig(), "rope_parameters"):
        return LlamaConfig(**sizes, rope_parameters=parameters)
    # Releases before 5 read the original length of LongRoPE from the model, as Phi-3 has it.
    own = {"original_max_position_embeddings": original} if "short_factor" in scaling else {}
    theta = parameters.pop("rope_theta")
    return LlamaConfig(**sizes, **own, rope_theta=theta, rope_scaling=parameters)


def _turning(rotary_dim: int, base: float, scaling: Scaling, β: float) -> float:
    turns = scaling["original_max_position_embeddings"] / (2 * math.pi * β)
    return rotary_dim * math.log(turns) / (2 * math.log(base))


def _falls(rotary_dim: int, base: float, scaling: Scaling) -> bool:
    """Whether the ramp ends before it begins."""
    if scaling["rope_type"] != "yarn":
        return False
    first = _turning(rotary_dim, base, scaling, scaling.get("beta_fast", 32))
    last = _turning(rotary_dim, base, scaling, scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    return min(last, rotary_dim - 1) < max(first, 0)


def _zero(rotary_dim: int, base: float, scaling: Scaling) -> bool:
    mscales = [scaling.get("mscale", 1.0), scaling.get("mscale_all_dim", 1.0)]
    return "attention_factor" not in scaling and 0.0 in mscales


def _one_pair(rotary_dim: int, base: float, scaling: Scaling) -> bool:
    return scaling["rope_type"] == "dynamic" and rotary_dim == 2


# Entry of the ledger → whether a scaling may show it.
KNOWN: dict[str, Callable[[int, float, Scaling], bool]] = {
    "yarn_without_slow_pairs": _falls,
    "yarn_mscale_of_zero": _zero,
    "dynamic_of_one_pair": _one_pair,
}


def _agree(rotary_dim: int, base: float, scaling: Scaling, tokens: int) -> bool:
    """Whether frequencies and attention factor are ours, up to the rounding of float32.

    An exponent of up to ln(base) is rounded, and a ramp is the quotient of two differences of such
    numbers, of which the first may be four times the second.
    """
    want, factor = reference.rotary_frequencies(
        rotary_dim, base=base, scaling=scaling, tokens=tokens
    )
    try:
        got, got_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
            _config(rotary_dim, base, scaling), None, seq_len=tokens
        )
    except ZeroDivisionError:
        return False
    plain, _ = reference.rotary_frequencies(rotary_dim, base=base)
    allowed = 8 * 2.0**-24 * (math.log(base) + 4) * plain
    same = got.shape == want.shape and bool(((got.double() - want).abs() <= allowed).all())
    return same and got_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@given(
    data=st.data(),
    pairs=st.integers(1, 12) | st.sampled_from([32, 64]),
    base=st.sampled_from([10.0, 500.0, 10_000.0, 5e6]),
    tokens=st.sampled_from([0, 15, 16, 17, 100, 101, 4096, 4097, 2**20]),
)
def test_frequencies_are_those_of_rope_init_functions(
    data: st.DataObject, pairs: int, base: float, tokens: int, kind: str
) -> None:
    scaling = data.draw(_scalings(kind, pairs), "scaling")
    if _agree(2 * pairs, base, scaling, tokens):
        return
    known = [name for name, shows in KNOWN.items() if shows(2 * pairs, base, scaling)]
    assert known, f"{scaling} with base {base}, {pairs} pairs, {tokens} tokens"
    event(f"known: {known[0]}")


@pytest.mark.parametrize(
    ("name", "pairs", "base", "scaling"),
    [
        (
            "yarn_without_slow_pairs",
            32,
            10.0,
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2**17},
        ),
        (
            "yarn_mscale_of_zero",
            32,
            10_000.0,
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 4096,
                "mscale": 0.707,
                "mscale_all_dim": 0.0,
            },
        ),
        (
            "dynamic_of_one_pair",
            1,
            10_000.0,
            {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 16},
        ),
    ],
)
def test_a_known_bug_shows(name: str, pairs: int, base: float, scaling: Scaling) -> None:
    assert KNOWN[name](2 * pairs, base, scaling)
    assert not _agree(2 * pairs, base, scaling, 20)


def _of_model(rotary: LlamaRotaryEmbedding, positions: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """The model's tables at some positions, each cosine once."""
    cos, sin = rotary(torch.zeros(1), positions[None])
    halves = cos[0, :, :pairs], sin[0, :, :pairs]
    for table, half in zip((cos, sin), halves, strict=True):
        assert torch.equal(table[0], torch.cat([half, half], -1))
    return halves


@pytest.mark.parametrize("kind", KINDS)
@given(
    data=st.data(),
    pairs=st.integers(2, 12) | st.just(64),
    base=st.sampled_from([500.0, 10_000.0, 5e6]),
    positions=st.lists(
        st.integers(0, 300) | st.sampled_from([4095, 4096, 5000]), min_size=1, max_size=5
    ),
)
def test_tables_of_a_new_model_are_ours(
    data: st.DataObject, pairs: int, base: float, positions: list[int], kind: str
) -> None:
    scaling = data.draw(_scalings(kind, pairs), "scaling")
    if any(shows(2 * pairs, base, scaling) for shows in KNOWN.values()):
        event("known")
        return
    rotary = LlamaRotaryEmbedding(config=_config(2 * pairs, base, scaling))
    at = torch.tensor(positions)
    tokens = max(positions) + 1
    got = _of_model(rotary, at, pairs)
    want = reference.rotary_tables(
        tokens, 2 * pairs, base=base, scaling=scaling, dtype=torch.float64
    )
    # Angles are products in float32.
    error = 8 * 2.0**-24 * (math.log(base) + 5) * at[:, None]
    for x, y in zip(got, want, strict=True):
        assert ((x.double() - y[at]).abs() <= 2 * error + 2.0**-22).all()
