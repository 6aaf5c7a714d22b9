"""A chunk length that the backward pass does not ask for."""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong gradients of KDA with any chunk_size but 64.",
    cause="BT = 64, written out in the backward pass.",
    source="flash-linear-attention 769035e9 (876) and 424b3330 (935)",
    pinned=LawAbout(
        "differential",
        Case(
            op="kda",
            mode="chunk",
            dtype="float32",
            dims={"B": 1, "G": 1, "R": 1, "K": 5, "V": 3},
            lengths=(37,),
            given=("g",),
            options={"scale": None, "use_qk_l2norm_in_kernel": False, "output_final_state": True},
        ),
    ),
    planted=Edit(
        module="kernels.delta.chunk",
        before='**self._launch("system_backward"),',
        after='**(self._launch("system_backward") | {"C": 32, "LEVELS": 5}),',
    ),
)
