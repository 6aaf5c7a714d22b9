"""Delta rules: linear recurrences whose state is corrected where it is read."""

from typing import Any

from torch import Tensor

import reference
from properties.catalogue.declare import declare, flag
from properties.catalogue.op import Mode, Role
from properties.catalogue.work import pairs_and_states, pairs_by_channel

_MODES = (Mode("chunk"), Mode("fused_recurrent"))
_NORMALIZE = flag("use_qk_l2norm_in_kernel", exact=False)  # a square root is exact only by luck
_RECIPES = (
    "gaussian",
    "integers",
    "uneven",
    "late_maximum",
    "one_hot_values",
    "zeros",
    "cancelling",
)
_OF_UNIT_KEYS = (*_RECIPES, "parallel_keys", "long_keys")

DELTA_RULE = declare(
    reference.delta_rule,
    modes=_MODES,
    roles={"k": Role.UNIT_KEY},
    options=(_NORMALIZE,),
    work=pairs_and_states,
    recipes=_OF_UNIT_KEYS,
)

GATED_DELTA_RULE = declare(
    reference.gated_delta_rule,
    modes=_MODES,
    roles={"k": Role.UNIT_KEY},
    options=(_NORMALIZE,),
    work=pairs_and_states,
    recipes=_OF_UNIT_KEYS,
)

KDA = declare(
    reference.kda,
    modes=_MODES,
    roles={"k": Role.UNIT_KEY},
    options=(_NORMALIZE,),
    work=pairs_by_channel,
    recipes=_OF_UNIT_KEYS,
)

DPLR = declare(
    reference.dplr,
    modes=_MODES,
    roles={"a": Role.LOW_RANK, "b": Role.LOW_RANK},
    work=pairs_by_channel,
    recipes=_RECIPES,
)


def _rwkv7_in_parallel(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """RWKV-7 as DPLR, whose second form rounds what kernels round."""
    options.setdefault("scale", 1.0)
    return reference.dplr.second_form(r, k, v, -kk, a * kk, w, **options)


RWKV7 = declare(
    reference.rwkv7,
    wraps=DPLR,
    quiet_form=_rwkv7_in_parallel,
    roles={"r": Role.QUERY, "w": Role.LOG_DECAY, "kk": Role.UNIT_KEY, "a": Role.RATE},
    recipes=(*_RECIPES, "parallel_keys"),
)
