"""A rotation applied twice."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Garbage, in long outputs only: the later the position, the further the angles were "
    "off.",
    cause="yarn was missing from is_rope, the test whether queries and keys are turned already: "
    "they were turned once before the attention backend and once in it.",
    source="TensorRT-LLM 16378",
    pinned=LawAbout(
        "context_invariance",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 2, "D": 6, "P": 3},
            lengths=(5,),
            options={
                "interleaved": False,
                "seqlen_offsets": 0,
                "conjugate": False,
                "inplace": True,
            },
            values="integers",
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="        _rotary_(*inputs)\n        return x\n",
        after="        _rotary_(*inputs)\n",
    ),
)
