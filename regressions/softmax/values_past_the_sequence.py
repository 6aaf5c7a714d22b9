"""Values past the end of a sequence, times 0."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="NaN in o where rows of V past the length of the cache hold NaN or Inf.",
    cause="The tail of V was loaded as it is. Its weights are 0, and 0·NaN is NaN.",
    source="flash-attention 1745 and 2374",
    pinned=LawAbout(
        "packing",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(5, 7),
            packed=True,
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            seed=1,
        ),
    ),
    planted=Edit(
        module="kernels.softmax.forward",
        before="v_tile = load_rows(v, stride_vt, start, columns, high,",
        after="v_tile = load_rows(v, stride_vt, start, columns, num_keys - start_k,",
    ),
)
