"""Two parts of the keys of which a query sees nothing, merged."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in o and in the lse of a row whose keys are all masked, once the parts of its "
    "softmax are combined.",
    cause="exp(lse_1 - lse) of two parts without a key is exp(-inf - -inf).",
    source="flash-attention, commit 26d7d92f; flashinfer 4051 and 5262; vLLM 27491, 28181 and "
    "39148",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(20,),
            key_lengths=(3,),
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
        module="kernels.softmax.forward",
        before='tl.where(new_peak == float("-inf"), 0.0, new_peak)',
        after="new_peak",
    ),
)
