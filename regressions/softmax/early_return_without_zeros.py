"""Keys that no query sees, whose gradients nobody writes."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Reads out of bounds for a block of keys after the last query; once that returned "
    "early, garbage in its dk and dv.",
    cause="The loop's first loads came before the test whether there is a turn of it. A return in "
    "their place has to write zeros.",
    source="flash-attention, commit 6998e0ec",
    pinned=LawAbout(
        "written_outputs",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(3,),
            key_lengths=(40,),
            options={
                "scale": None,
                "causal": True,
                "window": 4,
                "softcap": None,
                "return_lse": True,
            },
            tile=7,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.backward",
        before="    for member in tl.range(group",
        after="    if bounds[0] == high:\n        return\n    for member in tl.range(group",
    ),
)
