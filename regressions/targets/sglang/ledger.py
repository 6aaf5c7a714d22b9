"""Known failures of SGLang's Triton kernels of attention."""

import math

from properties.cases.case import Case
from properties.targets.engines import heads_are_alone, largest_logit, part_is_empty
from properties.targets.ledger import Given, KnownFailure, Wrong

RELEASES = ("sglang 0.5.23", "sglang 0.4.9.post1")


def _rounds(given: Given) -> bool:
    return heads_are_alone(given) and largest_logit(given) > 2


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
    KnownFailure(
        name="scale_of_zero",
        law="differential",
        releases=("sglang 0.5.23",),
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"extend","dtype":"float16","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[2],"options":{"causal":false,"window":null,'
                '"softcap":null,"scale":0.0,"return_lse":true}}'
            ),
        ),
        modes=("extend",),
        shows=lambda given: given.get("scale") == 0,
        symptoms=(Wrong(("o", "lse"), math.inf),),
        expected="8.0",
        got="16.0",
        cause="A scale is taken by `sm_scale or K ** -0.5`, to which 0 is none given.",
    ),
    KnownFailure(
        name="products_in_16_bits",
        law="differential",
        releases=("sglang 0.5.23",),
        cases=(
            Case.from_json(
                '{"op":"paged_attention","mode":"decode","dtype":"bfloat16","dims":{"B":1,"G":2,'
                '"R":1,"K":128,"V":16,"C":1},"lengths":[1],"given":["sink"],"options":'
                '{"scale":null,"softcap":null,"num_splits":1},"values":"large_logits","seed":405}'
            ),
        ),
        modes=("decode", "latent"),
        shows=_rounds,
        symptoms=(Wrong(("o",), largest_logit),),
        expected="16.75",
        got="16.5",
        cause="With a head of keys for each of queries, products are formed in the dtype of q and "
        "k. Grouped heads take a dot, whose products are float32.",
    ),
)
