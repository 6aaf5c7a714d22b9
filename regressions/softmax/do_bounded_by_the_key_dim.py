"""The gradient of o, read up to the head dim of the keys."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="dq silently wrong where qk_head_dim < v_head_dim.",
    cause="The block pointers of V and dO were bounded by qk_head_dim.",
    source="native-sparse-attention-triton 27 (defect 2)",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 3, "V": 5},
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
        before="do_tile = load_rows(do, stride_ot, first, rows, length_q, in_v,",
        after="do_tile = load_rows(\n"
        "        do, stride_ot, first, rows, length_q, tl.arange(0, PAD_V) < key_dim,",
    ),
)
