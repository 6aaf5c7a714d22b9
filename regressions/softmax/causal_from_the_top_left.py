"""A causal mask aligned at the top left."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Decoding with a cache attends to the first key alone: is_causal=True where there are "
    "more keys than queries.",
    cause="The diagonal started at the first key instead of ending at the last.",
    source="PyTorch 103082, 108108 and 110144; gpt-neox 1178",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(1,),
            key_lengths=(5,),
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
        before="shift = length_k - length_q",
        after="shift = 0 * length_k",
    ),
)
