"""ALiBi slopes rounded to the dtype of the model."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="ALiBi imprecise, or refused, after model.half().",
    cause="The slopes are a registered buffer, which half() casts too; the kernel needs them in "
    "float32.",
    source="flash-attention 846, commit 6bbc5323",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="bfloat16",
            dims={"B": 1, "G": 1, "R": 3, "K": 5, "V": 3},
            lengths=(40,),
            given=("alibi_slopes",),
            float32=("alibi_slopes",),
            options={
                "scale": None,
                "causal": True,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="*contiguous(sink, alibi_slopes), g,",
        after="*contiguous(sink, None if alibi_slopes is None else alibi_slopes.to(dtype)), g,",
    ),
)
