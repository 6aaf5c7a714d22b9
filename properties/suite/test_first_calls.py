"""A process' first calls leave nothing behind that breaks calls in another context.

A table may be cached in the first call of its size. From inference mode it cannot be saved for a
gradient; from another default dtype it has other digits. A new process for each op makes such first
calls in every mode, then the same calls with gradients.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from properties.cases.case import Case
from properties.cases.contexts import OF_THE_CALL
from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.device import activate
from properties.laws import LAWS, Subject
from properties.planting.fork_pool import ForkPool
from properties.planting.trial import LIBRARIES
from properties.targets import load

_TOKENS = 5


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


def _firsts(op: Op, mode: str, contexts: tuple[str, ...]) -> Iterator[Case]:
    """For each context a call of sizes that no other call has."""
    for number, context in enumerate(contexts, start=1):
        sizes = dict.fromkeys(op.dims, 2 * number)
        case = op.full(mode, sizes, (_TOKENS,), packed=False)
        yield replace(case, dtype="float32", context=context)


def _wrong(name: str, device: str) -> list[str]:
    op, where = OPS[name], activate(device)
    subject = Subject(load("ours", where), where, quick=True)
    contexts = tuple(c for c in subject.target.contexts if c not in ("grad", *OF_THE_CALL))
    firsts = [case for mode in op.modes for case in _firsts(op, mode.name, contexts)]
    for case in firsts:
        subject.run(op, case, subject.inputs(op, case))
    wrong = []
    for case in firsts:
        try:
            LAWS["differential"](op, replace(case, context="grad"), subject)
        except Exception as error:
            wrong.append(f"after a first call in {case.context}: {error}")
    return wrong
