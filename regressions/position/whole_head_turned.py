"""A partial rotation that turns the whole head."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A model with partial_rotary_factor = 0.5 solved 0 of 1319 problems.",
    cause="rotary_dim was not passed on: the kernel turned all dims of the head, and read past "
    "the end of each row of the tables to do so.",
    source="vLLM 43676",
    pinned=LawAbout(
        "differential",
        Case(
            op="rotary_embedding",
            mode="fused",
            dtype="float32",
            dims={"B": 1, "H": 2, "D": 12, "P": 3},
            lengths=(5,),
            options={
                "interleaved": False,
                "seqlen_offsets": 0,
                "conjugate": False,
                "inplace": False,
            },
        ),
    ),
    planted=Edit(
        module="kernels.position.rotary",
        before="tokens, heads, head_dim, pairs, vectors, offset,",
        after="tokens, heads, head_dim, head_dim // 2, vectors, offset,",
    ),
)
