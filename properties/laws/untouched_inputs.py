"""A call writes neither to its inputs nor to the memory between their rows, and leaves PyTorch's
state, such as the default dtype, as it was.

Its outputs are new contiguous tensors, unless it is asked to work in place: then it returns the
tensor that it was given.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from properties.cases.calls import own_copy
from properties.cases.inputs import Inputs, Results
from properties.cases.layouts import LAYOUTS
from properties.device import keeping_state
from properties.laws.expect import fail
from properties.laws.law import Law, Run


def check(run: Run) -> float:
    op, case = run.op, run.case
    # First, since the next calls would change nothing any more.
    _expect_state(run, run.inputs())
    other = replace(case, layout=sorted(LAYOUTS)[case.seed % len(LAYOUTS)], layouts={})
    for each in (case, op.settle(other)):
        moved = run.on(each)
        inputs, cotangents = moved.inputs(), moved.cotangents()
        watched = {**inputs.tensors, **{f"gradient of {n}": x for n, x in cotangents.items()}}
        before = {name: _memory(x).clone() for name, x in watched.items()}
        results = run.call(inputs, cotangents)
        for name, x in watched.items():
            if not torch.equal(_memory(x), before[name]):
                fail(run, f"{name}: its memory was written to")
        if run.subject.target.new_results and not inputs.options.get("inplace"):
            _expect_new(run, results, watched)
        if inputs.options.get("inplace"):
            _expect_given(moved, inputs)
    return 0.0


def _expect_state(run: Run, inputs: Inputs) -> None:
    with keeping_state() as changed:
        _called(run, inputs)
    for state in changed:
        fail(run, f"it changes PyTorch's {state}")


def _called(run: Run, inputs: Inputs, **instead: Tensor) -> Any:
    """Call the function of the target with some inputs replaced, and return its results."""
    op, case = run.op, run.case
    with run.subject.claiming(case):
        given = inputs.given({**inputs.tensors, **instead})
        return run.subject.function(op)(**given, mode=case.called_mode, tile=case.tile)


def _expect_given(run: Run, inputs: Inputs) -> None:
    name = run.op.arguments[0].name
    x = own_copy(inputs.tensors[name])
    y = _called(run, inputs, **{name: x})
    assert isinstance(y, Tensor)
    if y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
        fail(run, f"{name}: it was to be written to, and was not")


def _expect_new(run: Run, results: Results, watched: Results) -> None:
    for name in (output.name for output in run.op.outputs if output.name in results):
        y = results[name]
        if not y.is_contiguous():
            fault = f"{name}: it is not contiguous"
            shown = f"{fault}, its shape is {list(y.shape)} and its strides are {list(y.stride())}"
            fail(run, shown, fault)
        for other, x in watched.items():
            if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and y.numel():
                fail(run, f"{name}: it shares memory with {other}")


def _memory(x: Tensor) -> Tensor:
    """All bytes of the storage, including gaps between elements."""
    storage = x.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)


LAW = Law("untouched_inputs", check)
