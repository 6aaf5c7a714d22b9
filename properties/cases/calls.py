"""Call an implementation of an op, and return its outputs and gradients by name."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from properties.cases import structures
from properties.cases.contexts import (
    AROUND_BACKWARD,
    CONTEXTS,
    WITHOUT_GRADIENTS,
    checkpointed,
    compiled,
)
from properties.cases.inputs import Inputs, Results
from properties.catalogue.op import Function, Op
from properties.device import calling


def outputs_and_gradients(
    op: Op,
    function: Function,
    inputs: Inputs,
    cotangents: Results | None = None,
    *,
    context: str = "grad",
    earlier: Mapping[str, Any] | None = None,
    **extra: Any,
) -> Results:
    """Call `function`; return its outputs by name, and the gradient of x as "dx".

    Args:
        cotangents: cotangents by output; if empty, only the forward pass runs.
        context: of the forward pass, and of the backward pass too if it is in `AROUND_BACKWARD`.
        earlier: options of a call before this one on the same tensor objects, which then hold other
            numbers; None for no such call. Another call on other numbers then comes after it as
            well, before the backward pass.
        extra: arguments of this implementation alone: `mode` and `tile`.
    """
    tensors = dict(inputs.tensors)
    names = [name for name in inputs.trained if name in tensors]
    if cotangents or context in WITHOUT_GRADIENTS:
        for name in names:
            tensors[name] = tensors[name].detach().requires_grad_()
    given = inputs.given(tensors)
    if earlier is not None:
        _call_before(function, given, earlier, context, extra)
        # A view of a tensor whose numbers have changed since may have another history.
        given = inputs.given(tensors)
    if inputs.options.get("inplace"):
        name = op.arguments[0].name
        given[name] = own_copy(tensors[name])
    if context == "compiled":
        function = compiled(function)
    # A call that writes to its input cannot be run again.
    if context == "checkpointed" and not inputs.options.get("inplace"):
        function = checkpointed(function)
    device = _device_type(inputs)
    with (
        CONTEXTS[context](device),
        noting_call(op, {**given, **extra}),
        _expecting_memory_of(given),
    ):
        named = _named(op, function(**given, **extra), given)
        _expect_memory(named)
    if earlier is not None:
        _call_between(function, given, context, extra)
    if not cotangents:
        return {name: y.detach() for name, y in named.items()}
    leaves = {name: tensors[name] for name in names}
    read = {**given, **{f"the gradient of {name}": dy for name, dy in cotangents.items()}}
    around = CONTEXTS[context](device) if context in AROUND_BACKWARD else nullcontext()
    noted = noting_call(op, {**given, **extra}, "backwards through ")
    with around, noted, _expecting_memory_of(read):
        gradients = _gradients(named, leaves, cotangents, twice=context == "backward_twice")
        _expect_memory(gradients)
    return {name: y.detach() for name, y in named.items()} | gradients


def _gradients(named: Results, leaves: Results, cotangents: Results, *, twice: bool) -> Results:
    """The gradient of each leaf x as "dx", 0 where none reaches it.

    Args:
        twice: another backward pass comes first.
    """
    # An output without history contributes no gradient. Nor does one of a wrong shape, which is
    # wrong whether or not gradients are asked for.
    wanted = {
        name: y
        for name, y in named.items()
        if name in cotangents and y.requires_grad and y.shape == cotangents[name].shape
    }
    found: Sequence[Tensor | None] = [None] * len(leaves)
    if wanted:
        outputs, inputs = [*wanted.values()], [*leaves.values()]
        backwards = partial(torch.autograd.grad, outputs, inputs, allow_unused=True)
        rounded = [cotangents[name].to(y.dtype) for name, y in wanted.items()]
        if twice:
            backwards([-2 * dy for dy in rounded], retain_graph=True)
        found = backwards(rounded)
    gradients = {
        f"d{name}": torch.zeros_like(x) if gradient is None else gradient
        for (name, x), gradient in zip(leaves.items(), found, strict=True)
    }
    for name, gradient in gradients.items():
        _expect_dense(name, gradient)
    return gradients


@contextmanager
def noting_call(op: Op, given: Mapping[str, Any], way: str = "") -> Iterator[None]:
    """Undo what the call does to the state of its process, and add its arguments to an error, since
    a law may change those of its case.

    For nested calls the note describes the innermost.
    """
    try:
        with calling():
            yield
    except BaseException as error:
        described = ", ".join(f"{name}={_described(value)}" for name, value in given.items())
        # Its type may be the target's own and refuse a note.
        with suppress(Exception):
            if not getattr(error, "__notes__", ()):
                error.add_note(f"{way}{op.name}({described})")
        raise


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    dtype = str(value.dtype).removeprefix("torch.")
    few = value.ndim == 1 and not value.is_floating_point() and len(value) <= 16
    return f"{dtype}{value.tolist() if few else list(value.shape)}"


@contextmanager
def _expecting_memory_of(given: Mapping[str, Any]) -> Iterator[None]:
    """Expect a call to leave its tensors where and as large as they are: whoever reads them next
    may crash.

    Raises:
        RuntimeError: it does not; memory that it freed is there again, with other numbers.
    """
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    for name, value in given.items():
        rules = value if isinstance(value, dict) else {}
        tensors |= {f"{name}[{n!r}]": x for n, x in rules.items() if isinstance(x, Tensor)}
    before = {name: _form(x) for name, x in tensors.items()}
    yield
    for name, x in tensors.items():
        after = _form(x)
        if changed := [part for part, was in before[name].items() if after[part] != was]:
            x.untyped_storage().resize_(before[name]["storage size"])
            raise RuntimeError(f"it changes {name}: its {', '.join(changed)}")


def _form(x: Tensor) -> dict[str, Any]:
    return {
        "dtype": x.dtype,
        "shape": x.shape,
        "strides": x.stride(),
        "storage offset": x.storage_offset(),
        "storage size": x.untyped_storage().nbytes(),
    }


def _expect_memory(results: Results) -> None:
    """Expect that there is memory for each element."""
    for name, y in results.items():
        last = sum((n - 1) * stride for n, stride in zip(y.shape, y.stride(), strict=True))
        needed = (y.storage_offset() + last + 1) * y.element_size() if y.numel() else 0
        if y.untyped_storage().nbytes() < needed:
            raise TypeError(f"it returns {name} without memory for its elements")


def own_copy(x: Tensor) -> Tensor:
    """Copy `x` into memory of its own with the same strides and history, so that it can be written
    to.
    """
    memory = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage().clone())
    return memory.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(x)


def _device_type(inputs: Inputs) -> str:
    return next(iter(inputs.tensors.values())).device.type


def _call_before(
    function: Function,
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    context: str,
    extra: Mapping[str, Any],
) -> None:
    """Call the function with other numbers in all its tensors and other option values.

    The function may reject this call, since the options need not suit the tensors.
    """
    tensors = {id(x): _own_elements(x) for x in given.values() if isinstance(x, Tensor)}
    others = {key: _other(x) for key, x in tensors.items()}
    for value in given.values():
        if isinstance(value, dict):
            rules = {id(x): (name, x) for name, x in value.items() if isinstance(x, Tensor)}
            tensors |= {key: _own_elements(x) for key, (_, x) in rules.items()}
            others |= {key: structures.changed(n, tensors[key]) for key, (n, _) in rules.items()}
    before = {key: x.detach().clone() for key, x in tensors.items()}
    with torch.no_grad():
        for key, x in tensors.items():
            x.copy_(others[key])
    device = next(x.device for x in given.values() if isinstance(x, Tensor))
    lists = {
        # An empty list would become floats.
        name: torch.tensor(value, dtype=torch.int64, device=device)
        for name, value in options.items()
        if isinstance(value, (list, tuple))
    }
    try:
        with CONTEXTS[context](device.type), calling(), _expecting_memory_of(given):
            function(**{**given, **options, **lists, **_not_in_place(given)}, **extra)
    except (ValueError, TypeError):
        pass
    finally:
        with torch.no_grad():
            for key, x in tensors.items():
                x.copy_(before[key])


def _call_between(
    function: Function, given: Mapping[str, Any], context: str, extra: Mapping[str, Any]
) -> None:
    """Call the function with other numbers in other tensors, as the next layer of a model does.

    The function may reject this call, as the options need not suit the numbers.
    """
    others = {
        name: _turned(x.detach()).requires_grad_(x.requires_grad)
        for name, x in given.items()
        if isinstance(x, Tensor)
    }
    device = next(x.device for x in others.values())
    with suppress(ValueError, TypeError), CONTEXTS[context](device.type), calling():
        function(**{**given, **others, **_not_in_place(given)}, **extra)


def _not_in_place(given: Mapping[str, Any]) -> dict[str, bool]:
    return {"inplace": False} if "inplace" in given else {}


def _own_elements(x: Tensor) -> Tensor:
    """The view of a tensor that has each of its addresses once."""
    x = x.detach()
    for axis, stride in enumerate(x.stride()):
        if not stride and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    return x


def _other(x: Tensor) -> Tensor:
    """Other numbers of the same kind: in reverse order, or half of each where that changes none."""
    turned = _turned(x)
    same = x.is_floating_point() and torch.equal(turned.nan_to_num(), x.nan_to_num())
    return x / 2 if same else turned


def _turned(x: Tensor) -> Tensor:
    """Permute the numbers: rows in reverse order, sequence lengths too."""
    if x.is_floating_point() or not len(x):
        return x.flip(tuple(range(max(x.dim() - 1, 1))))
    bounds = x.dim() == 1 and bool(x[0] == 0) and bool((x.diff() >= 0).all())
    return x[-1] - x.flip(0) if bounds else x.flip(0)


def transformable(op: Op, function: Function, inputs: Inputs, cotangents: Results) -> Results:
    """Do what `outputs_and_gradients` does in a way that `torch.func.vmap` accepts.

    `function` must consist of PyTorch operations only.
    """
    written = op.arguments[0].name

    def call(tensors: Results) -> Results:
        given = inputs.given({**inputs.tensors, **tensors})
        if inputs.options.get("inplace"):
            given[written] = given[written].clone()
        return _named(op, function(**given), given)

    if not cotangents:
        return call({})
    named, pull, *_ = torch.func.vjp(call, {n: inputs.tensors[n] for n in inputs.trained})
    (gradients,) = pull(
        {n: cotangents[n] if n in cotangents else torch.zeros_like(y) for n, y in named.items()}
    )
    return {**named, **{f"d{name}": gradient for name, gradient in gradients.items()}}


def _named(op: Op, returned: Any, given: Mapping[str, Any]) -> Results:
    named = op.named(returned)
    promised = [o.name for o in op.outputs if o.asked_by is None or given.get(o.asked_by)]
    device = next(x.device for x in given.values() if isinstance(x, Tensor))
    if missing := [name for name in promised if name not in named]:
        raise TypeError(f"it returns no {' and no '.join(missing)}, expected {', '.join(promised)}")
    for name, y in named.items():
        if not isinstance(y, Tensor):
            raise TypeError(f"it returns {name} as {type(y).__name__}, expected a tensor")
        _expect_dense(name, y)
        if y.device != device:
            raise TypeError(f"it returns {name} on {y.device}, expected {device}")
    return named


def _expect_dense(name: str, y: Tensor) -> None:
    if not y.is_floating_point() or y.is_nested or y.layout != torch.strided:
        kind = "nested" if y.is_nested else f"{y.dtype} {y.layout}".replace("torch.", "")
        raise TypeError(f"it returns {name} as a tensor that is {kind}, expected dense floats")
