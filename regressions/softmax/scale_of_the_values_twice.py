"""Scales of quantized values, applied twice."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Garbage from an 8-bit cache.",
    cause="Values that were dequantized already were scaled again.",
    source="vLLM 48016",
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
        before="v_tile.to(tl.float32) * v_factor[:, None]",
        after="v_tile.to(tl.float32) * v_factor[:, None] * v_factor[:, None]",
    ),
)
