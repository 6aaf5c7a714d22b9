"""A process' first calls leave nothing behind that breaks calls in another context.

A table may be cached in the first call of its size, or in the first call of all. From inference
mode it cannot be saved for a gradient; from another default dtype it has other digits. A new
process for each op makes such first calls in every mode, in all those contexts at once, then the
same calls with gradients.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from properties.cases.contexts import AROUND_BACKWARD, CONTEXTS, OF_THE_CALL
from properties.catalogue import OPS
from properties.device import activate
from properties.laws import LAWS, Subject
from properties.planting.fork_pool import ForkPool
from properties.planting.trial import LIBRARIES
from properties.targets import load

_TOKENS = 5
# Besides inference mode, which leaves behind what no_grad does, and more.
_OTHERS = ("grad", "no_grad", "inference_mode", *AROUND_BACKWARD, *OF_THE_CALL)
_AROUND = [name for name in CONTEXTS if name not in _OTHERS]


@pytest.fixture(scope="module")
def pool() -> Iterator[ForkPool]:
    """Processes that have imported the kernels and called none."""
    with ForkPool((*LIBRARIES, "properties.planting.warm")) as pool:
        yield pool


@pytest.mark.parametrize("op", [op.name for op in OPS.values() if op.modes])
def test_calls_with_gradients_are_right_after_first_calls_without(
    op: str, pool: ForkPool, device: torch.device
) -> None:
    name = "simulator" if device.type == "cpu" else device.type
    assert pool.submit(_wrong, op, name).result() == []


def _wrong(name: str, device: str) -> list[str]:
    op, where = OPS[name], activate(device)
    subject = Subject(load("ours", where), where, quick=True)
    sizes = dict.fromkeys(op.dims, 2)
    whole = [op.full(mode.name, sizes, (_TOKENS,), packed=False) for mode in op.modes]
    firsts = [replace(case, dtype="float32", context="inference_mode") for case in whole]
    for case in firsts:
        inputs = subject.inputs(op, case)
        with ExitStack() as around:
            for context in _AROUND:
                around.enter_context(CONTEXTS[context](where.type))
            subject.run(op, case, inputs)
    wrong = []
    for case in firsts:
        try:
            LAWS["differential"](op, replace(case, context="grad"), subject)
        except Exception as error:
            wrong.append(f"{case.mode}: {error}")
    return wrong
