"""Scalings of rotary embeddings to longer contexts, as in the configuration of a model."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

KINDS = ("default", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional")


def factors(
    kind: str, pairs: int, originals: Sequence[int] = (2, 100, 4096)
) -> st.SearchStrategy[dict[str, Any]]:
    """A scaling of a type for so many pairs, with and without the factors that have defaults."""
    factor, original = st.sampled_from([1.0, 2, 2.5, 40.0]), st.sampled_from(originals)
    numbers = st.lists(st.sampled_from([1.0, 1.5, 64]), min_size=pairs, max_size=pairs)
    scaled = {"factor": factor}
    grown = scaled | {"original_max_position_embeddings": original}
    mscale = st.sampled_from([0.0, 0.707, 1.0])
    beta = {"beta_fast": st.sampled_from([2.5, 32, 64.0]), "beta_slow": st.sampled_from([0.5, 1])}
    ramp = beta | {"mscale": mscale, "mscale_all_dim": mscale, "truncate": st.booleans()}
    turns = {
        "low_freq_factor": st.sampled_from([0.5, 1.0]),
        "high_freq_factor": st.sampled_from([2.0, 4]),
    }
    given = {"attention_factor": st.none() | st.just(1.25)}
    some = st.sampled_from([0.0, 0.25, 0.5, 0.99, 1])
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "default": ({}, {}),
        "linear": (scaled, {}),
        "ntk": (scaled, {}),
        "dynamic": (grown, {}),
        "yarn": (grown, ramp | given),
        "llama3": (grown | turns, {}),
        "longrope": (grown | {"short_factor": numbers, "long_factor": numbers}, given),
        "proportional": ({"partial_rotary_factor": some}, scaled),
    }
    needed, optional = kinds[kind]
    return st.fixed_dictionaries({"rope_type": st.just(kind), **needed}, optional=optional)
