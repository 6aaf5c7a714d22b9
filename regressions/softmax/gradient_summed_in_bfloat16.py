"""A gradient summed in the dtype of the inputs."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A noisy gradient of the weight where it is the sum of many chunks.",
    cause="It was accumulated in bfloat16.",
    source="flash-linear-attention 794f183c (874), in its fused linear losses",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="bfloat16",
            dims={"B": 1, "G": 1, "R": 1, "K": 16, "V": 16},
            lengths=(64,),
            key_lengths=(400,),
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            tile=7,
            values="one_hot_values",
        ),
    ),
    planted=Edit(
        module="kernels.softmax.backward",
        before='acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")',
        after='acc = tl.dot(ds.to(k_tile.dtype), k_tile, acc, input_precision="ieee")\n'
        "            acc = acc.to(k_tile.dtype).to(tl.float32)",
    ),
)
