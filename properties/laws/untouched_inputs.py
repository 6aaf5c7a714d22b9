"""An op writes to its outputs: not to its inputs, and not to the memory around them."""

from dataclasses import replace

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.layouts import LAYOUTS
from properties.catalogue.op import Op
from properties.laws.judge import fail
from properties.laws.law import Law, Subject


def check(op: Op, case: Case, subject: Subject) -> float:
    other = replace(case, layout=sorted(LAYOUTS)[case.seed % len(LAYOUTS)], layouts={})
    for moved in (case, op.settle(other)):
        inputs, gradients_of = subject.inputs(op, moved), subject.cotangents(op, moved)
        watched = {**inputs.tensors, **{f"gradient of {n}": x for n, x in gradients_of.items()}}
        before = {name: _memory(x).clone() for name, x in watched.items()}
        subject.run(op, case, inputs, gradients_of)
        for name, x in watched.items():
            if not torch.equal(_memory(x), before[name]):
                fail("untouched_inputs", op, case, subject, f"{name}: its memory was written to")
    return 0.0


def _memory(x: Tensor) -> Tensor:
    """All bytes of the storage, the gaps between the elements included."""
    storage = x.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)


LAW = Law("untouched_inputs", check)
