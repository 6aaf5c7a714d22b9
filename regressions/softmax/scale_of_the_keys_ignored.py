"""Scales of quantized keys."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Attention to 8-bit keys as if they were not scaled.",
    cause="The scales were swallowed by a positional argument, or used for another format only.",
    source="flashinfer 1023, 4979; vLLM 51363",
    pinned=LawAbout(
        "differential",
        Case(
            op="paged_attention",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 2, "K": 5, "V": 3, "C": 4},
            lengths=(1,),
            given=("k_scale", "v_scale"),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "num_splits": 1,
                "return_lse": True,
            },
            seed=3,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.paged_forward",
        before="products *= k_factor[None, :]",
        after="products *= 1.0",
    ),
)
