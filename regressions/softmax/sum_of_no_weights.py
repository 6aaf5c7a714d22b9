"""A row without keys, divided by its sum."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN from decoding with an empty cache in one entry of the batch.",
    cause="0 / 0 in the normalisation.",
    source="flash-linear-attention, attn_decoding_one_step, before 0.6.0",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(1, 2),
            key_lengths=(0, 3),
            packed=True,
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
        ),
    ),
    planted=Edit(
        module="kernels.softmax.forward",
        before="acc / tl.where(total == 0.0, 1.0, total)[:, None]",
        after="acc / total[:, None]",
    ),
)
