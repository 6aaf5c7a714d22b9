"""Known failures of SGLang's Triton kernels of attention."""

import math

from properties.cases.case import Case
from properties.targets.engines import part_is_empty
from properties.targets.ledger import KnownFailure, Wrong

RELEASES = ("sglang 0.5.23", "sglang 0.4.9.post1")

LEDGER = (
    KnownFailure(
        name="part_without_keys",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"merge_attention","mode":"fused","dtype":"bfloat16","dims":{"B":1,"H":2,'
                '"V":1},"lengths":[1],"values":"empty_rows"}'
            ),
        ),
        modes=("fused",),
        shows=part_is_empty,
        symptoms=(Wrong(("o", "lse"), math.inf, finite=False),),
        expected="[2.0, 0.0]",
        got="[nan, nan]",
        cause="Its o is multiplied by a weight of 0; and -inf less the larger LSE, -inf, is NaN.",
        devices=("cpu", "cuda"),
    ),
)
