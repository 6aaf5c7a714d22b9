"""Decays of pairs as a quotient of decays from the start of the chunk."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN from the fused chunk form of GLA after 43884 tokens.",
    cause="exp(P_i)·exp(-P_j) overflows where the gates up to token j have summed up, however near "
    "i is to j.",
    source="flash-linear-attention 458c0186, issue 122",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(21,),
            given=("g",),
            options={"scale": None, "normalize": False, "output_final_state": True},
            values="extreme_gates",
        ),
    ),
    planted=Edit(
        module="kernels.linear.chunk",
        before="decayed = decay(level_span(level, C, EXCLUSIVE), g, DTYPE)\n            q =",
        after="decayed = tl.exp(\n"
        "                tl.where(readers, 1.0, -1.0) * tl.cumsum(g.to(tl.float32), 0)\n"
        "            )\n"
        "            q =",
    ),
)
