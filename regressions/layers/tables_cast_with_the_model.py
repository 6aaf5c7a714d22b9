"""Tables that model.half() casts."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="A model cast to 16 bits rotated far positions otherwise than one that was built in "
    "float32.",
    cause="What the angles are made from was a buffer of the module, and .half() casts all "
    "buffers.",
    source="transformers 25681",
    pinned=TestAt("kernels/layers/test_rotary_embedding.py::test_tables_stay_float32[half]"),
    planted=Edit(
        module="kernels.layers.rotary_embedding",
        before=(
            "        device = fn(self._tables.new_empty(0)).device\n"
            "        if device != self._tables.device:\n"
            "            self._tables = self._build(self._tables.shape[1], self._tokens, device)\n"
        ),
        after="        self._tables = fn(self._tables)\n",
    ),
)
