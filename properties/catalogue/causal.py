"""Causal attention of a sequence with itself, and attention over depth."""

from collections.abc import Mapping
from functools import partial

import reference
from properties.catalogue.declare import LOGITS, declare
from properties.catalogue.draws import EPS, WINDOW
from properties.catalogue.op import Mode, Role
from properties.catalogue.work import pairs

_PARALLEL = (Mode("parallel"),)
_declare = partial(
    declare,
    modes=_PARALLEL,
    float32_logits=True,
    of_any_size=lambda case: ("v",),
    recipes=LOGITS,
)


def _pairs_and_moments(n: Mapping[str, int]) -> float:
    """Like `pairs_and_states`, where the state at a token has second moments of the keys."""
    return n["H"] * n["T"] * (n["T"] + n["K"] * n["K"] * n["V"] / 12)


STICKBREAKING_ATTN = _declare(
    reference.stickbreaking_attn,
    nonlinear=("rest",),
    work=pairs,
)

PATH_ATTN = _declare(
    reference.path_attn,
    quiet_form=reference.path_attn.second_form,
    roles={"w": Role.UNIT_KEY},
    work=pairs,
)

WALL_ATTN = _declare(
    reference.wall_attn,
    options=(WINDOW,),
    roles={"gs": Role.LOG_DECAY, "sink": Role.LOGIT},
    work=lambda n: pairs(n) * n["K"],
)

PARALLAX = _declare(
    reference.parallax,
    quiet_form=reference.parallax.second_form,
    options=(WINDOW,),
    # Not a query: the scale is no factor of its products.
    roles={"r": Role.KEY},
    work=pairs,
)

DELTAFORMER = _declare(
    reference.deltaformer,
    quiet_form=reference.deltaformer.second_form,
    roles={"beta": Role.RATE},
    work=pairs,
)

DIFFERENTIAL_ATTENTION = _declare(
    reference.differential_attention,
    options=(WINDOW,),
    roles={"q1": Role.QUERY, "q2": Role.QUERY, "k1": Role.KEY, "k2": Role.KEY, "lam": Role.FACTOR},
    work=lambda n: 2 * pairs(n),
)

_polynomial = partial(
    declare,
    modes=_PARALLEL,
    work=_pairs_and_moments,
    recipes=("gaussian", "large_logits", "uneven", "one_hot_values", "zeros", "cancelling"),
)
BASED = _polynomial(reference.based, quiet_form=reference.based)
# A square has no sign.
REBASED = _polynomial(
    reference.rebased, quiet_form=reference.rebased, without=("scale_equivariance",)
)

ATTNRES = declare(
    reference.attnres,
    in_float32=True,
    quiet_form=reference.attnres,
    modes=(Mode("fused"),),
    roles={"query": Role.QUERY, "weight": Role.KEY, "output_weight": Role.KEY},
    options=(EPS,),
    linear_in=(),
    of_any_size=lambda case: ("x",),
    # The factor of the logits is no power of a key dim.
    without=("scale_equivariance",),
    work=lambda n: n["T"] * n["L"] * n["D"],
    recipes=("gaussian", "large_logits", "large_values", "uneven", "zeros"),
)
