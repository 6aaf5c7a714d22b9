"""Sums and means over tokens, and systems of a chunk of them."""

from hypothesis import strategies as st

import reference
from properties.cases.case import Case
from properties.catalogue.declare import declare
from properties.catalogue.draws import count
from properties.catalogue.linear import HGRN
from properties.catalogue.op import Mode, Role

_CHUNK_SIZES = (None, 1, 3, 8, 16, 64, 2**40)
_POOLED = (4, 1, 2, 3, 16, 17, 64, 2**40)

CUMSUM = declare(
    reference.cumsum,
    in_float32=True,
    modes=(Mode("fused"),),
    options=(count("chunk_size", None, lambda case: st.sampled_from(_CHUNK_SIZES), switched=2),),
    work=lambda n: n["D"] * n["T"] * n["T"] / 3,
    multilinear=lambda case: True,
    of_any_size=lambda case: ("x",),
    recipes=("gaussian", "integers", "large_states", "uneven", "zeros", "cancelling"),
)


def _chunks(case: Case, tokens: int) -> int:
    size: int = case.options["chunk_size"]
    return -(-tokens // size)


MEAN_POOLING = declare(
    reference.mean_pooling,
    in_float32=True,
    modes=(Mode("fused"),),
    options=(count("chunk_size", 4, lambda case: st.sampled_from(_POOLED), switched=5),),
    rows={"M": _chunks},
    # A chunk's mean is of its last token too.
    without=("causality",),
    work=lambda n: n["H"] * n["D"] * n["T"] + n["T"] * n["T"],
    multilinear=lambda case: True,
    of_any_size=lambda case: ("x",),
    recipes=("gaussian", "large_states", "uneven", "zeros", "cancelling"),
)

LOGCUMSUMEXP = declare(
    reference.logcumsumexp,
    in_float32=True,
    wraps=HGRN,
    # The definition rounds each sum, as kernels do: an ulp of a sum of 100 is the error of an exp.
    quiet_form=reference.logcumsumexp,
    modes=(Mode("fused_recurrent"),),
    roles={"x": Role.LOGIT},
    linear_in=(),
    work=lambda n: n["D"] * n["T"] * n["T"],
    of_any_size=lambda case: ("x",),
    recipes=("gaussian", "large_logits", "empty_rows", "offset", "zeros"),
)

SOLVE_TRIL = declare(
    reference.solve_tril,
    quiet_form=reference.solve_tril,
    modes=(Mode("fused"),),
    # Rows about 1 long, with which an inverse stays small.
    roles={"A": Role.PROJECTION},
    dims={"C": st.sampled_from([16, 1, 5, 16, 32, 33, 64])},
    linear_in=(),
    work=lambda n: n["H"] * n["T"] * n["C"] * n["C"] / 3,
    recipes=("gaussian", "zeros"),
)
