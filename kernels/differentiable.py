"""From a pair of plain functions, forward and backward, to a differentiable `torch.library` op."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Given = Mapping[str, Any]


def differentiable(
    name: str,
    *,
    tensors: Sequence[str],
    settings: Mapping[str, str],
    outputs: int,
    forward: Callable[..., Sequence[Tensor | None]],
    backward: Callable[..., Sequence[Tensor | None]],
    shapes: Callable[[Given], Sequence[tuple[Sequence[int], torch.dtype]]],
) -> Callable[..., Any]:
    """Register `attention_oracles::name` and its backward op; the former is returned.

    An op always returns tensors: one without elements stands for each None. It is called by
    position, tensors first. The backward op sees the same tensors, a cotangent per output and the
    same settings, and is not differentiable itself.

    Args:
        tensors: names of the tensor arguments, "?" after those that may be None.
        settings: names of the other arguments, and their types in the language of schemas,
            "int?" for one that may be None.
        outputs: how many outputs there are; the first always exists.
        forward: from all arguments by name to the outputs.
        backward: from all arguments by name, "d" and the position of an output for its cotangent
            (the first is a tensor), to a gradient for each of `tensors`.
        shapes: from all arguments by name to the shape and dtype of each output, an empty shape
            `(0,)` for one that is None.
    """
    names = [each.removesuffix("?") for each in tensors]
    takes = [
        f"Tensor{'?' if each.endswith('?') else ''} {each.removesuffix('?')}" for each in tensors
    ]
    sets = [f"{kind} {each}" for each, kind in settings.items()]
    returns = ", ".join(["Tensor"] * outputs)
    cotangents = [f"Tensor{'?' if n else ''} d{n}" for n in range(outputs)]
    given = (*names, *settings)
    given_back = (*names, *(f"d{n}" for n in range(outputs)), *settings)

    def run(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
        return _filled(forward(**dict(zip(given, arguments, strict=True))), arguments[0])

    def run_back(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
        return _filled(backward(**dict(zip(given_back, arguments, strict=True))), arguments[0])

    def fake(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
        made = shapes(dict(zip(given, arguments, strict=True)))
        like = arguments[0]
        return _filled([like.new_empty(shape, dtype=dtype) for shape, dtype in made], like)

    def fake_back(*arguments: Any) -> Tensor | tuple[Tensor, ...]:
        made = (
            None if x is None or not x.is_floating_point() else x.new_empty(x.shape)
            for x in arguments[: len(names)]
        )
        return _filled(list(made), arguments[0])

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[: len(names)])
        ctx.settings = inputs[len(names) :]
        first = output if outputs == 1 else output[0]
        ctx.first = first.shape, first.dtype
        ctx.set_materialize_grads(False)

    def differentiate(ctx, first, *others):
        saved = ctx.saved_tensors
        if first is None:
            shape, dtype = ctx.first
            first = saved[0].new_zeros(shape, dtype=dtype)
        # The cotangent of an output that was None is one of the empty tensor in its place.
        others = (None if dy is not None and dy.dim() == 1 else dy for dy in others)
        gradients = op_back(*saved, first, *others, *ctx.settings)
        if len(names) == 1:
            gradients = (gradients,)
        wanted = (
            None if x is None or not x.is_floating_point() else dx
            for x, dx in zip(saved, gradients, strict=True)
        )
        return *wanted, *(None for _ in settings)

    schema = f"({', '.join([*takes, *sets])}) -> ({returns})"
    op = torch.library.custom_op(f"attention_oracles::{name}", run, mutates_args=(), schema=schema)
    schema_back = (
        f"({', '.join([*takes, *cotangents, *sets])}) -> ({', '.join(['Tensor'] * len(names))})"
    )
    op_back = torch.library.custom_op(
        f"attention_oracles::{name}_backward", run_back, mutates_args=(), schema=schema_back
    )
    op.register_fake(fake)
    op_back.register_fake(fake_back)
    op.register_autograd(differentiate, setup_context=setup_context)
    refuse_gradients(op_back, name)
    return op


def refuse_gradients(op: Any, name: str, of: str = "gradients of its gradients") -> None:
    """Have the gradient of a custom op raise NotImplementedError."""

    def refuse(ctx, *_):
        raise NotImplementedError(f"{name}: {of} are not implemented")

    op.register_autograd(refuse)


def _filled(results: Sequence[Tensor | None], like: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Return the results of an op as torch wants them: only tensors, and a single one bare."""
    filled = tuple(_empty(like) if x is None else x for x in results)
    return filled[0] if len(filled) == 1 else filled


def _empty(like: Tensor) -> Tensor:
    return like.new_empty(0, dtype=torch.float32)
