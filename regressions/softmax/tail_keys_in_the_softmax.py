"""Keys past the end, in the sum of a row."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Garbage from decoding with 38, 39 or 70 keys, which are no multiple of 32.",
    cause="The last step read past the end of K and V and had no mask.",
    source="PyTorch 169222, MPS",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(1,),
            key_lengths=(38,),
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
        before="sees(key < high,",
        after="sees(key >= 0,",
    ),
)
