"""One packed token, taken for one token of each sequence."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Reads and writes out of bounds, a crash, for a single token packed beside an empty "
    "sequence.",
    cause="IS_DECODE = (T == 1) looked at the tokens of the batch and not at cu_seqlens.",
    source="flash-linear-attention, fused_mul_recurrent_rwkv7, before 0.6.0",
    pinned=LawAbout(
        "differential",
        Case(
            op="gla",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(0, 1),
            packed=True,
            given=("initial_state",),
            options={
                "scale": None,
                "normalize": False,
                "output_final_state": True,
                "reverse": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.linear.fused_recurrent",
        before="        PACKED=cu_seqlens is not None,\n"
        "        num_warps=tile.num_warps,\n"
        "    )  # fmt: skip\n"
        "    return add_parts(o",
        after="        PACKED=cu_seqlens is not None and tokens > 1,\n"
        "        num_warps=tile.num_warps,\n"
        "    )  # fmt: skip\n"
        "    return add_parts(o",
    ),
)
