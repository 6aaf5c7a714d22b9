"""From a pair of plain functions, forward and backward, to a differentiable `torch.library` op."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import torch
from torch import Tensor

Given = Mapping[str, Any]

_KINDS = {
    Tensor: "Tensor", bool: "bool", int: "int", float: "float", str: "str",
    torch.dtype: "ScalarType",
}  # fmt: skip


def differentiable(
    name: str,
    forward: Callable[..., Sequence[Tensor | None]],
    backward: Callable[..., Sequence[Tensor | None]],
    shapes: Callable[[Given], Sequence[tuple[Sequence[int], torch.dtype]]],
    *,
    outputs: int,
    saved: int = 0,
    reads_output: bool = False,
    constants: Collection[str] = (),
    takes: Mapping[str, str] | None = None,
) -> Callable[..., Any]:
    """Register `attention_oracles::name` and its backward op, and return the former.

    An op always returns tensors: one without elements stands for each None. It is called by name,
    or by position, tensors first. The backward op sees the same tensors, a cotangent per output and
    the same settings, which are the other arguments, and is not differentiable itself.

    Args:
        forward: from all arguments by name to the outputs.
        backward: from all arguments by name, the cotangents `d0, d1, ...` of the outputs, of which
            `d0` is never None, and what is saved, `s0, s1, ...`, to a gradient for each tensor, in
            their order; those after the last that has one may be left out.
        shapes: from all arguments by name to the shape and dtype of each output, an empty shape
            `(0,)` for one that is None.
        outputs: how many outputs there are; the first always exists.
        saved: how many more there are, not differentiable and for `backward` alone. `forward`
            may leave them out, and each is then None.
        reads_output: `backward` also takes the first output, `y0`.
        constants: tensors of floats that get no gradient.
        takes: the arguments and their types in the language of schemas, "int?" for one that may be
            None; see `schema_of`. None: those of the signature of `forward`.
    """
    kinds = schema_of(forward) if takes is None else takes
    tensors = {each: kind for each, kind in kinds.items() if kind.startswith("Tensor")}
    settings = {each: kind for each, kind in kinds.items() if each not in tensors}
    cotangents = {f"d{n}": "Tensor?" if n else "Tensor" for n in range(outputs)}
    kept = {f"s{n}": "Tensor" for n in range(saved)}
    if reads_output:
        kept["y0"] = "Tensor"

    def results_and_saved(**given: Any) -> list[Tensor | None]:
        return _padded(forward(**given), outputs + saved)

    def gradients_of_all(**given: Any) -> list[Tensor | None]:
        return _padded(backward(**given), len(tensors))

    taken = {**tensors, **settings}
    op = _custom_op(name, results_and_saved, taken, outputs + saved)
    taken_back = {**tensors, **cotangents, **kept, **settings}
    op_back = _custom_op(f"{name}_backward", gradients_of_all, taken_back, len(tensors))

    def trains(inputs: Sequence[Tensor | None]) -> list[bool]:
        return [
            x is not None and x.is_floating_point() and each not in constants
            for each, x in zip(tensors, inputs, strict=True)
        ]

    def fake(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
        made = shapes(dict(zip(taken, arguments, strict=True)))
        like = arguments[0]
        return _filled([like.new_empty(shape, dtype=dtype) for shape, dtype in made], like)

    def fake_back(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
        inputs = arguments[: len(tensors)]
        made = [
            x.new_empty(x.shape) if trained else None
            for x, trained in zip(inputs, trains(inputs), strict=True)
        ]
        return _filled(made, arguments[0])

    def setup_context(ctx, inputs, output):
        first, *others = output if outputs + saved > 1 else (output,)
        held = others[outputs - 1 :]
        ctx.mark_non_differentiable(*held)
        ctx.save_for_backward(*inputs[: len(tensors)], *held, *([first] if reads_output else []))
        ctx.settings = inputs[len(tensors) :]
        ctx.first = first.shape, first.dtype
        ctx.set_materialize_grads(False)

    def differentiate(ctx, first, *others):
        # Once: checkpointing refuses to give them a second time.
        stored = ctx.saved_tensors
        inputs, held = stored[: len(tensors)], stored[len(tensors) :]
        if first is None:
            shape, dtype = ctx.first
            first = inputs[0].new_zeros(shape, dtype=dtype)
        # The cotangent of an output that was None is one of the empty tensor in its place.
        others = [None if dy is not None and dy.shape == (0,) else dy for dy in others]
        gradients = op_back(*inputs, first, *others[: outputs - 1], *held, *ctx.settings)
        if len(tensors) == 1:
            gradients = (gradients,)
        wanted = (
            dx if trained else None for dx, trained in zip(gradients, trains(inputs), strict=True)
        )
        return *wanted, *(None for _ in settings)

    op.register_fake(fake)
    op_back.register_fake(fake_back)
    op.register_autograd(differentiate, setup_context=setup_context)
    refuse_gradients(op_back, name)
    return op


def _custom_op(
    name: str,
    function: Callable[..., Sequence[Tensor | None]],
    takes: Mapping[str, str],
    returns: int,
) -> Any:
    """Register a function of arguments by name as a `torch.library` op of arguments by position."""

    def run(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
        first = arguments[0]
        # Triton launches on the current device, wherever the tensors are.
        with torch.cuda.device_of(first), _without_autocast(first.device.type):
            return _filled(function(**dict(zip(takes, arguments, strict=True))), first)

    arguments = ", ".join(f"{kind} {each}" for each, kind in takes.items())
    schema = f"({arguments}) -> ({', '.join(['Tensor'] * returns)})"
    return torch.library.custom_op(
        f"attention_oracles::{name}", run, mutates_args=(), schema=schema
    )


def _without_autocast(device: str) -> AbstractContextManager[None]:
    """Products in the dtype of their operands: a backward pass may run under autocast as well."""
    if not torch.is_autocast_enabled(device):
        # Entering one takes as long as a small launch.
        return nullcontext()
    return torch.autocast(device, enabled=False)


def schema_of(function: Callable[..., Any]) -> dict[str, str]:
    """The arguments of a function or class and their types, in the language of schemas."""
    kinds = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *none = get_args(parameter.annotation) or (parameter.annotation,)
        kinds[name] = _KINDS[kind] + "?" * len(none)
    return kinds


def like_the_first(given: Given) -> list[tuple[Sequence[int], torch.dtype]]:
    """The `shapes` of one output of the shape and dtype of the first argument."""
    x, *_ = given.values()
    return [(x.shape, x.dtype)]


def refuse_gradients(op: Any, name: str, of: str = "gradients of its gradients") -> None:
    """Have the gradient of a custom op raise NotImplementedError."""

    def refuse(ctx, *_):
        raise NotImplementedError(f"{name}: {of} are not implemented")

    op.register_autograd(refuse)


def _padded(results: Sequence[Tensor | None], count: int) -> list[Tensor | None]:
    return [*results, *(None for _ in range(count - len(results)))]


def _filled(results: Sequence[Tensor | None], like: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Return the results of an op as torch wants them: only tensors, and a single one bare."""
    filled = tuple(_empty(like) if x is None else x for x in results)
    return filled[0] if len(filled) == 1 else filled


def _empty(like: Tensor) -> Tensor:
    return like.new_empty(0, dtype=torch.float32)
