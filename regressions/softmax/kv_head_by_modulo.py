"""Query heads that read kv heads in turn."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="The wrong kv head, and no crash, wherever Hq / Hkv > 1.",
    cause="tile where it should be repeat_interleave: query head h reads kv head h // (Hq / Hkv).",
    source="mamba 462; onnx 7274; axlearn 842; jax-js 180",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 2, "R": 2, "K": 5, "V": 3},
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
        module="kernels.softmax.forward",
        before="kv_head = (head // group)",
        after="kv_head = (head % (heads // group))",
    ),
)
