"""Known failures of SGLang's Triton kernels of attention."""

import math

from properties.cases.case import Case
from properties.targets.bounds import power_of_two
from properties.targets.engines import heads_are_alone, largest_logit, part_is_empty
from properties.targets.ledger import Given, KnownFailure, Raised, Wrong

RELEASES = ("sglang 0.5.23", "sglang 0.4.9.post1")


def _sink_is_far_above(given: Given) -> bool:
    # exp of 88.7 and less fits into float32, and logits may lie below 0.
    sink = given.get("sink")
    return sink is not None and bool((sink > 40).any())


def _other_tile(given: Given) -> bool:
    keys, values = given["k_pages"].shape[-1], given["v_pages"].shape[-1]
    # Of 576 and 288 channels, those beyond 512 and 256 have a tile of their own.
    tile = {576: 512, 288: 256}.get(keys, power_of_two(keys))
    return not heads_are_alone(given) and tile != power_of_two(values)


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
    KnownFailure(
        name="sink_above_logits",
        law="differential",
        releases=("sglang 0.5.23",),
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"extend","dtype":"bfloat16","dims":{"B":1,"G":9,"R":1,'
                '"K":16,"V":16},"lengths":[2],"packed":true,"given":["sink"],"options":'
                '{"causal":true,"window":2,"softcap":2,"scale":null,"return_lse":true},'
                '"values":"large_logits"}'
            ),
        ),
        modes=("extend",),
        shows=_sink_is_far_above,
        symptoms=(Wrong(("lse",), finite=False),),
        expected="100.0",
        got="inf",
        cause="The weight of a sink, exp(sink - largest logit), overflows, and so does the LSE.",
    ),
    KnownFailure(
        name="tile_of_latents",
        law="differential",
        releases=("sglang 0.5.23",),
        cases=(
            Case.from_json(
                '{"op":"paged_attention","mode":"latent","dtype":"bfloat16","dims":{"B":1,"G":1,'
                '"R":2,"K":32,"V":16,"C":1},"lengths":[1],"options":{"scale":null,"softcap":null,'
                '"num_splits":1},"same":{"v_pages":"k_pages"}}'
            ),
        ),
        modes=("latent",),
        shows=_other_tile,
        symptoms=(Raised("CompilationError", "Cannot make_shape_compatible"),),
        expected="1.0",
        got="0.0",
        cause="Values are the tile of keys, which is as wide as all their channels, unless these "
        "are 576 or 288: it does not compile with an accumulator as wide as the values.",
    ),
)
