"""kv heads, numbered modulo the size of a group."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="dk and dv are garbage or NaN where the number of kv heads is not the size of a "
    "group.",
    cause="% and // by the share count instead of Hkv, so that some slots were never written.",
    source="native-sparse-attention-triton 27 (defect 1)",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 3, "R": 2, "K": 5, "V": 3},
            lengths=(7,),
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
        module="kernels.softmax.backward",
        before="kv_head = (tl.program_id(0) // tiles % kv_heads)",
        after="kv_head = (tl.program_id(0) // tiles % group)",
    ),
)
