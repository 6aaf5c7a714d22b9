"""A gradient allocated like its input, and written as if contiguous."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="dv wrong, or refused, where k and v do not lie in memory alike.",
    cause="empty_like copies the strides of a tensor; the kernel was told others.",
    source="flash-attention, report 818 (commit 2423cca3) and commit d9a5cb29",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 2, "R": 1, "K": 5, "V": 3},
            lengths=(7,),
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            layout="heads_first",
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="dv = v.new_empty(batch, keys, kv_heads, value_dim)",
        after="dv = torch.empty_like(v)",
    ),
)
