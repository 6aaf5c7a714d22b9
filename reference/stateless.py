"""The heads, sequences and window that ops without a state share."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from reference.heads import heads_per_group
from reference.op import Form, Op, axes, op, spelled_out
from reference.scale import BAD_SCALE, resolve_scale
from reference.sequences import BAD_BOUNDARIES, sequences
from reference.softmax.run import check_window

P = ParamSpec("P")
R = TypeVar("R")

TEXTS = {
    "cu_seqlens": "Boundaries of N packed sequences, in tokens; B is then 1, and each is "
    "computed alone. None means N = B sequences.",
    "window": "W >= 1, the number of keys seen, the query's own included. None means all.",
    "sink": "Natural units: one more logit per head that has no value.",
}


def stateless(
    first: Form,
    second: Form,
    *,
    same_dtype: Sequence[str] = ("q", "k", "v"),
    outputs: Sequence[str] = ("o",),
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Make an op of a signature: it computes each sequence alone, and passes on no state.

    A form computes sequences of one length. It names those arguments of the op that it needs; all
    tensors have one dtype, and all H heads where the signature has dims G and H. It returns the
    outputs, each `[B, T, ...]`.

    Args:
        first: the definition.
        second: the same, derived another way.
        same_dtype: arguments that must have one dtype, the first of them setting it.
        outputs: the names of the results; the first has the dtype of the first argument.
    """

    def decorate(page: Callable[P, R]) -> Op[P, R]:
        parameters = spelled_out(page).parameters
        dims = {name: axes(parameter.annotation) for name, parameter in parameters.items()}
        raises = ["H not G, 2 G, 3 G, ..."] if any("G" in each for each in dims.values()) else []
        if "scale" in parameters:
            raises.append(BAD_SCALE)
        if "window" in parameters:
            raises.append("a window below 1")
        return op(
            first,
            second,
            outputs=outputs,
            run=functools.partial(_run, dims),
            same_dtype=same_dtype,
            texts=TEXTS,
            raises=[*raises, BAD_BOUNDARIES],
        )(page)

    return decorate


def _run(
    dims: Mapping[str, list[str]],
    form: Form,
    sizes: Mapping[str, int],
    *,
    cu_seqlens: Tensor | None,
    **arguments: Any,
) -> Tensor | tuple[Tensor, ...]:
    """Run one form over every sequence of a batch, in one dtype."""
    check_window(arguments.get("window"))
    if "scale" in arguments:
        arguments["scale"] = resolve_scale(arguments["scale"], sizes["K"])
    given = {name: x for name, x in arguments.items() if isinstance(x, Tensor)}
    own: Tensor = next(iter(given.values()))
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in given.values()))
    given = {name: x.to(dtype) for name, x in given.items()}
    shared = [name for name in given if "G" in dims[name]]
    if shared:
        with_heads = next(name for name in given if "H" in dims[name])
        repeats = heads_per_group(with_heads, sizes["H"], sizes["G"], shared)
        given |= {name: given[name].repeat_interleave(repeats, dim=2) for name in shared}
    by_token = [name for name in given if dims[name][:2] == ["B", "T"]]
    wanted_by_form = inspect.signature(form).parameters

    results = []
    for _, t in sequences(cu_seqlens, sizes["B"], sizes["T"]):
        pieces = {**arguments, **given, **{name: given[name][:, t] for name in by_token}}
        found = form(**{name: pieces[name] for name in wanted_by_form})
        results.append(found if isinstance(found, tuple) else (found,))
    first, *others = (torch.cat(parts, dim=1) for parts in zip(*results, strict=True))
    return (first.to(own.dtype), *others) if others else first.to(own.dtype)
