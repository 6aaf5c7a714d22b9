"""A call writes neither to its inputs nor to the memory between their rows, and leaves PyTorch's
state, such as the default dtype, as it was.

Its outputs are new contiguous tensors, each in memory of its own, unless it is asked to work in
place: then it returns the tensor that it was given. Registered ops that it calls write to the
arguments of their schemas that say so: `torch.compile` takes the others for unchanged.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

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
    _expect_schemas(run.on(replace(case, context="grad")))
    return 0.0


def _expect_state(run: Run, inputs: Inputs) -> None:
    with keeping_state() as changed:
        _called(run, inputs)
    for state in changed:
        fail(run, f"it changes PyTorch's {state}")


def _called(run: Run, inputs: Inputs, **instead: Tensor) -> Any:
    """Call the function of the target with some inputs replaced, and return its results."""
    op, case = run.op, run.case
    with run.subject.set_up_for(case):
        given = inputs.given({**inputs.tensors, **instead})
        return run.subject.function(op)(**given, mode=case.called_mode, tile=case.tile)


def _expect_given(run: Run, inputs: Inputs) -> None:
    name = run.op.arguments[0].name
    x = own_copy(inputs.tensors[name])
    y = _called(run, inputs, **{name: x})
    assert isinstance(y, Tensor)
    if y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
        fail(run, f"{name}: it was to be written to, and was not")


class _Schemas(TorchDispatchMode):
    """Notes what registered ops write to although their schemas do not say so."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace in ("aten", "prim", "prims"):
            return func(*args, **kwargs)
        arguments = func._schema.arguments
        given = dict(zip([argument.name for argument in arguments], args, strict=False)) | kwargs
        read = {
            argument.name: given[argument.name]
            for argument in arguments
            if isinstance(given.get(argument.name), Tensor) and not argument.is_write
        }
        before = {name: _memory(x).clone() for name, x in read.items()}
        returned = func(*args, **kwargs)
        for name, x in read.items():
            if not torch.equal(_memory(x), before[name]):
                self.faults.append(f"{func.name()} writes to {name}, which its schema only reads")
        return returned


def _expect_schemas(run: Run) -> None:
    inputs = run.inputs()
    # No op can be watched in compiled code.
    with torch.compiler.set_stance("force_eager"), _Schemas() as seen:
        run.call(inputs, run.cotangents())
    for fault in seen.faults[:1]:
        fail(run, fault)


def _expect_new(run: Run, results: Results, watched: Results) -> None:
    names = [output.name for output in run.op.outputs if output.name in results]
    for place, name in enumerate(names):
        y = results[name]
        if not y.is_contiguous():
            fault = f"{name}: it is not contiguous"
            shown = f"{fault}, its shape is {list(y.shape)} and its strides are {list(y.stride())}"
            fail(run, shown, fault)
        for other, x in watched.items():
            if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and y.numel():
                fail(run, f"{name}: it shares memory with {other}")
        for other in names[:place]:
            if _overlap(y, results[other]):
                fail(run, f"{name}: it shares memory with {other}")


def _overlap(x: Tensor, y: Tensor) -> bool:
    """Whether two contiguous tensors have an address in common; parts of one buffer need not."""
    starts = x.data_ptr(), y.data_ptr()
    first, last = (x, y) if starts[0] < starts[1] else (y, x)
    between = max(starts) - min(starts)
    return bool(first.numel() and last.numel()) and between < first.numel() * first.element_size()


def _memory(x: Tensor) -> Tensor:
    """All bytes of the storage, including gaps between elements."""
    storage = x.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)


LAW = Law("untouched_inputs", check)
