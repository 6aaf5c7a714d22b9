"""Exponents around the gates of a row that depends on the length."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Outputs and gradients of a prefix change with a later gate: KDA with safe_gate and a "
    "last sub-chunk that is not full, T = 22 for example.",
    cause="The anchor of the exponents was row min(BC // 2, T - i - 1) of the sub-chunk, so it "
    "depended on later rows and on the length.",
    source="flash-linear-attention issue 1240",
    pinned=LawAbout(
        "causality",
        Case(
            op="kda",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(22,),
            given=("g",),
            options={"scale": None, "use_qk_l2norm_in_kernel": False, "output_final_state": True},
            seed=1,
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="X = x * decayed\n",
        after=(
            "X = x * decayed\n"
            "            before = rows[:, None] <= tl.minimum(C // 2, left - 1)\n"
            "            anchor = tl.sum(tl.where(before, g.to(tl.float32), 0.0), 0)[None, :]\n"
            "            X *= tl.exp(tl.where(readers, anchor, -anchor))\n"
        ),
    ),
)
