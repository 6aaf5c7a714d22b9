"""Bugs that this kernel had. The fuzzer writes a draft of a module like this into `findings/`."""

from attention_oracles import Case, Edit, KnownBug, LawAbout

BUG = KnownBug(
    happened="outputs decay too slowly after the second token",
    cause="gates are natural logarithms, and the kernel took powers of 2",
    source="the first version of this kernel",
    pinned=LawAbout(
        "differential",
        Case(
            op="simple_gla",
            mode="fused_recurrent",
            dtype="float32",
            dims={"B": 1, "H": 1, "K": 1, "V": 1},
            lengths=(2,),
            given=("g",),
            options={"scale": None, "output_final_state": False},
        ),
    ),
    planted=Edit("kernel", "tl.exp(g)", "tl.exp2(g)"),
)
