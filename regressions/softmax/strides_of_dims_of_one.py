"""The stride of a dim of size 1, taken seriously."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Tensors of one token and one channel are refused although they are contiguous.",
    cause="The stride of a dim of size 1 is arbitrary, and contiguous() leaves it as it is.",
    source="PyTorch 116333",
    pinned=LawAbout(
        "differential",
        Case(
            op="attention",
            mode="parallel",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 1, "V": 1},
            lengths=(1,),
            options={
                "scale": None,
                "causal": False,
                "window": None,
                "softcap": None,
                "return_lse": True,
            },
            layout="strided",
        ),
    ),
    planted=Edit(
        module="kernels.softmax.attention",
        before="    q, k, v = dense_rows(q, k, v)\n",
        after="    q, k, v = contiguous(q, k, v)\n"
        "    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1\n",
    ),
)
