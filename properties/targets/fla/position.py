"""Rotary embeddings in fla."""

from properties.targets.fla.bounds import all_in_the_dtype, at_least
from properties.targets.fla.mode import Mode, Modes, output_alone

MODES: Modes = {
    "rotary_embedding": {
        "fused": Mode(
            "fla.modules.rotary:rotary_embedding",
            call=output_alone,
            conventions=(),
            bounds={
                "tables in the dtype of x": all_in_the_dtype,
                "a head of two": at_least(2, "D"),
                "some pairs, some rows": at_least(1, "P", "B"),
            },
        )
    },
}
