"""Options kept from the call before."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A wrapper planned with a custom mask, then with causal=True, goes on with the mask.",
    cause="What was planned once was not reset.",
    source="flashinfer 1028; flash-attention, commit 1a58058a",
    pinned=LawAbout(
        "plumbing",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
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
        before='"CAUSAL": causal,',
        after='"CAUSAL": vars(_options).setdefault("causal", causal),',
    ),
)
