"""Values appended with the width of keys."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="Wrong values in a cache whose value heads have another width than its key heads.",
    cause="The append took the shape of V from that of K.",
    source="flash-attention 6d199aa2, e3b2400a, 9e07d6d3",
    pinned=TestAt(
        "properties/suite/test_caches.py::test_any_order_of_calls_matches_the_list_of_tokens[ContiguousMachine]"
    ),
    planted=Edit(
        module="kernels.cache.pages",
        before=(
            "        stride_vp, stride_vr, stride_vpg, stride_vpd,\n"
            "        V, BLOCK_V,\n"
            "    )  # fmt: skip\n"
            "\n"
            "\n"
            "@triton.jit\n"
            "def _gather_rows("
        ),
        after=(
            "        stride_vp, stride_vr, stride_vpg, stride_vpd,\n"
            "        K, BLOCK_V,\n"
            "    )  # fmt: skip\n"
            "\n"
            "\n"
            "@triton.jit\n"
            "def _gather_rows("
        ),
    ),
)
