"""A packed batch of one token, taken for a step of decoding."""

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
            op="rwkv7",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 5, "V": 3},
            lengths=(0, 1),
            packed=True,
            given=("initial_state",),
            options={"scale": 1.0, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.delta.fused_recurrent",
        before="o, *optional(final_state, q),\n"
        "        scale, tokens, heads, key_dim, value_dim,\n"
        "        **blocks, **gate_flags(g), DPLR=a is not None,\n"
        "        PACKED=cu_seqlens is not None,",
        after="o, *optional(final_state, q),\n"
        "        scale, tokens, heads, key_dim, value_dim,\n"
        "        **blocks, **gate_flags(g), DPLR=a is not None,\n"
        "        PACKED=cu_seqlens is not None and tokens > 1,",
    ),
)
