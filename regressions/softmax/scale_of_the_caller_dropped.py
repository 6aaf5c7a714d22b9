"""The caller's scale, replaced by the default."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong results for any scale but 1 / sqrt(d), once the attention is recognised and "
    "fused.",
    cause="The replacement did not pass the scale on.",
    source="PyTorch 151098 and 174049 (fix 174361)",
    pinned=LawAbout(
        "plumbing",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": 0.5,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before='resolve_scale(scale, sizes["K"])',
        after='resolve_scale(None, sizes["K"])',
    ),
)
