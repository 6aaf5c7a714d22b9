"""A process' first calls leave nothing behind that breaks calls in another context.

A table may be cached in the first call of its size. From inference mode it cannot be saved for a
gradient; from another default dtype it has other digits. ``python -m
properties.suite.test_first_calls DEVICE`` makes such first calls of every op and mode, then the
same calls with gradients, and prints the failures' reports as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from properties.cases.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.device import activate
from properties.laws import LAWS, Subject
from properties.targets import load

_TOKENS = 5


def test_calls_with_gradients_are_right_after_first_calls_without(device: torch.device) -> None:
    name = "simulator" if device.type == "cpu" else device.type
    done = subprocess.run([sys.executable, "-m", __name__, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def _firsts(op: Op, mode: str, contexts: tuple[str, ...]) -> Iterator[Case]:
    """For each context a call of sizes that no other call has."""
    for number, context in enumerate(contexts, start=1):
        sizes = dict.fromkeys(op.dims, 2 * number)
        case = op.full(mode, sizes, (_TOKENS,), packed=False)
        yield replace(case, dtype="float32", context=context)


def _wrong(subject: Subject) -> Iterator[str]:
    contexts = tuple(c for c in subject.target.contexts if c not in ("grad", "compiled"))
    kernels = [(op, mode.name) for op in OPS.values() for mode in op.modes]
    firsts = [(op, case) for op, mode in kernels for case in _firsts(op, mode, contexts)]
    for op, case in firsts:
        subject.run(op, case, subject.inputs(op, case))
    for op, case in firsts:
        try:
            LAWS["differential"](op, replace(case, context="grad"), subject)
        except Exception as error:
            yield f"after a first call in {case.context}: {error}"


if __name__ == "__main__":
    where = activate(sys.argv[1])
    json.dump([*_wrong(Subject(load("ours", where), where))], sys.stdout, indent=1)
