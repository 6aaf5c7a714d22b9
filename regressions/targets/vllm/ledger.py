"""Known failures of vLLM's Triton kernels of attention."""

import math

from properties.cases.case import Case
from properties.targets.engines import heads_are_alone, largest_logit, part_is_empty
from properties.targets.ledger import Given, KnownFailure, Wrong


def _bidirectional(given: Given) -> bool:
    return given.get("window") is not None and not given.get("causal")


def _widest(given: Given) -> bool:
    window = given.get("window")
    # The last key of a block of 128 queries is counted in int32.
    return window is not None and window > 2**31 - 256


def _hides(given: Given) -> bool:
    window = given.get("window")
    return window is not None and bool((given["lengths"] > window).any())


def _negative_slopes(given: Given) -> bool:
    scale = given.get("scale")
    none = scale is None or scale == -1
    return given.get("alibi_slopes") is not None and not none and bool(scale <= 0)


LEDGER = (
    KnownFailure(
        name="part_without_keys",
        law="differential",
        releases=("vllm 0.33.0", "vllm 0.9.2"),
        cases=(
            Case.from_json(
                '{"op":"merge_attention","mode":"fused","dtype":"bfloat16","dims":{"B":1,"H":2,'
                '"V":1},"lengths":[1],"values":"empty_rows"}'
            ),
        ),
        modes=("fused",),
        shows=part_is_empty,
        symptoms=(Wrong(("o", "lse"), math.inf, finite=False),),
        expected="2.0",
        got="nan",
        cause="Its o is multiplied by a weight of 0, and 0.9.2 takes -inf from -inf.",
        devices=("cpu", "cuda"),
    ),
    KnownFailure(
        name="products_in_16_bits",
        law="differential",
        releases=("vllm 0.33.0",),
        cases=(
            Case.from_json(
                '{"op":"paged_attention","mode":"decode","dtype":"bfloat16","dims":{"B":1,"G":1,'
                '"R":1,"K":16,"V":16,"C":1},"lengths":[1],"options":{"scale":null,"softcap":null,'
                '"num_splits":1,"return_lse":true}}'
            ),
        ),
        modes=("decode", "latent"),
        shows=heads_are_alone,
        # 2^-9 of a logit, whose budget is 2^-18 of it.
        symptoms=(Wrong(("o",), largest_logit), Wrong(("lse",), 2.0**9)),
        expected="289.0",
        got="288.0",
        cause="With a head of keys for each of queries, products are formed in the dtype of q and "
        "k, before they are added. Grouped heads take a dot, whose products are float32.",
        devices=("cpu", "cuda"),
    ),
    KnownFailure(
        name="bidirectional_window",
        law="differential",
        releases=("vllm 0.33.0",),
        cases=(
            Case.from_json(
                '{"op":"paged_attention","mode":"unified","dtype":"bfloat16","dims":{"B":1,"G":1,'
                '"R":1,"K":16,"V":16,"C":1},"lengths":[63],"options":{"causal":false,"window":1},'
                '"seed":1}'
            ),
        ),
        modes=("unified",),
        shows=_bidirectional,
        symptoms=(Wrong(("o",), math.inf, finite=True),),
        expected="[0.5, 1.0, 2.0, 3.0, 3.5]",
        got="[0.5, 0.33, 0.33, 0.0, 0.0]",
        cause="Values W tokens or more ahead of the first query of a block are set to 0, although "
        "later queries of the block see them.",
        devices=("cpu", "cuda"),
    ),
    KnownFailure(
        name="window_of_31_bits",
        law="differential",
        releases=("vllm 0.33.0",),
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"prefill","dtype":"bfloat16","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[2],"options":{"causal":false,"window":2147483647,'
                '"scale":null}}'
            ),
        ),
        modes=("prefill",),
        shows=_widest,
        symptoms=(Wrong(("o",), math.inf, finite=False),),
        expected="1.0",
        got="nan",
        cause="The last key that a block needs is the window beyond its last query, which wraps "
        "around: no key is looked at.",
        devices=("cpu", "cuda"),
    ),
    KnownFailure(
        name="nan_outside_the_window",
        law="differential",
        releases=("vllm 0.33.0",),
        cases=(
            Case.from_json(
                '{"op":"paged_attention","mode":"chunked","dtype":"bfloat16","dims":{"B":1,"G":1,'
                '"R":1,"K":16,"V":16,"C":32},"lengths":[1],"options":{"scale":null,"causal":true,'
                '"window":1}}'
            ),
        ),
        modes=("chunked",),
        shows=_hides,
        symptoms=(Wrong(("o",), finite=False),),
        expected="1.0",
        got="nan",
        cause="Values outside the window, whose pages may be another sequence's by now, are "
        "multiplied by a weight of 0.",
        devices=("cpu", "cuda"),
    ),
    KnownFailure(
        name="slopes_of_a_scale_of_zero",
        law="differential",
        releases=("vllm 0.33.0",),
        cases=(
            Case.from_json(
                '{"op":"paged_attention","mode":"chunked","dtype":"float16","dims":{"B":12,"G":1,'
                '"R":2,"K":40,"V":40,"C":32},"lengths":[8],"given":["alibi_slopes"],"float32":'
                '["alibi_slopes"],"options":{"scale":-2,"causal":true,"window":null}}'
            ),
        ),
        modes=("chunked",),
        shows=_negative_slopes,
        symptoms=(Wrong(("o",), finite=False),),
        expected="1.0",
        got="nan",
        cause="The logits of keys that are no part of the sequence, -inf, are multiplied by the "
        "scale: by 0 they are NaN, and by less they outweigh all.",
        devices=("cpu", "cuda"),
    ),
)
