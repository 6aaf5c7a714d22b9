"""The target declares what the installed release has."""

import torch

from properties.targets.transformers import attention, fallbacks, target
from properties.targets.transformers import told as told_of


def test_each_declared_mode_is_there_or_left_out_with_a_reason() -> None:
    found = target(torch.device("cpu"))
    told = "\n".join(found.remarks)
    for op, modes in {**attention.DECLARED, **fallbacks.DECLARED}.items():
        for mode in modes:
            assert (mode in found.ops.get(op, {})) != (f"{op} ({mode})" in told), (op, mode)


def test_modes_of_one_reason_share_a_sentence() -> None:
    lacking = {"kda (a)": "no model", "kda (b)": "no model", "rwkv4 (c)": "no function"}
    assert told_of(lacking) == (
        "kda (a), kda (b) are left out: no model",
        "rwkv4 (c) is left out: no function",
    )
