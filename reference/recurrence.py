"""The options, states and sequences that all recurrences over tokens share."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, TypedDict, TypeVar

import torch
from torch import Tensor

from reference.heads import heads_per_group
from reference.op import Form, Op, axes, op, spelled_out
from reference.scale import BAD_SCALE, resolve_scale
from reference.sequences import BAD_BOUNDARIES, CuSeqlens, sequences

P = ParamSpec("P")
R = TypeVar("R")

Run = Callable[..., tuple[Tensor, Tensor]]
Around = Callable[..., tuple[Tensor, Tensor]]

_TERM = re.compile(r"([+-]?)(\w+)")

TEXTS = {
    "beta": "Strength of each write, meant to be in [0, 2]. None means 1.",
    "normalize": "Divide each row by its sum of weights; meant for q, k >= 0 and so for a state "
    "whose last column is not negative: where the sum passes through 0 there is a pole.",
    "use_qk_l2norm_in_kernel": "Run `reference.l2norm` on q and k first, with its default ε; then "
    "every β in [0, 2] is stable.",
    "initial_state": "State before the first token. None means zero.",
    "output_final_state": "Return the state after the last token as well.",
    "reverse": "Run from the last token to the first. `initial_state` is then before the last "
    "token, and the final state after the first.",
    "cu_seqlens": "Boundaries of N packed sequences, in tokens; B is then 1. The state of an empty "
    "sequence passes through. None means N = B sequences.",
    "final_state": "In the promoted dtype of the inputs; None unless `output_final_state`.",
}


class _Scale(TypedDict, total=False):
    scale: float | None


class _UnitKeys(TypedDict, total=False):
    use_qk_l2norm_in_kernel: bool


class _States(TypedDict, total=False):
    initial_state: Tensor | None
    output_final_state: bool


class _Reverse(TypedDict, total=False):
    reverse: bool


class _Packing(TypedDict, total=False):
    cu_seqlens: CuSeqlens | None


class StatelessOptions(_Scale, _Packing):
    """Options of an op that keeps no state, in the order of its signature."""


class StateOptions(_States, _Packing):
    """Options of a recurrence without a scale, in the order of its signature."""


class Options(_Scale, _States, _Packing):
    """Options of a recurrence."""


class DeltaOptions(_Scale, _UnitKeys, _States, _Packing):
    """Options of a delta rule."""


class ReversibleOptions(_Scale, _States, _Reverse, _Packing):
    """Options of a recurrence that also runs from the last token to the first."""


def recurrence(
    first: Form,
    second: Form,
    *,
    around: Around | None = None,
    same_dtype: Sequence[str] = ("q", "k", "v"),
    neutral: Mapping[str, float] = MappingProxyType({}),
    groups: str = "heads",
    start: Callable[[Tensor], Tensor] = lambda zeros: zeros,
    outputs: Sequence[str] = ("o", "final_state"),
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Make an op of a signature: a recurrence whose state runs through the tokens of a sequence.

    A form computes sequences of one length. It names those arguments of the op that it needs, all
    of one dtype, and besides S, the state before the first token `[B, ...]`; it returns the output
    `[B, T, ...]` and the state after the last token. With `reverse` a form gets the tokens in
    reverse. Where the signature has dims G and H, a form gets all H heads.

    Args:
        first: the definition, token by token.
        second: the same, derived another way.
        around: `(run, **arguments) -> (o, S)`: it calls `run` with arguments of its own choice, and
            may change its results.
        same_dtype: arguments that must have one dtype, the first of them setting it.
        neutral: the values of tensors that are left out; others reach the forms as None.
        groups: the name of the G heads in messages.
        start: the state of a sequence that has none, from zeros.
        outputs: the names of the results.

    Returns:
        A decorator of a signature without a body.
    """

    def decorate(page: Callable[P, R]) -> Op[P, R]:
        parameters = spelled_out(page).parameters
        dims = {name: axes(parameter.annotation) for name, parameter in parameters.items()}
        raises = []
        if any("G" in each for each in dims.values()):
            raises.append("H not G, 2 G, 3 G, ...")
        if "scale" in parameters:
            raises.append(BAD_SCALE)
        return op(
            first,
            second,
            outputs=outputs,
            run=functools.partial(_run, dims, around, neutral, groups, start),
            same_dtype=same_dtype,
            texts={**TEXTS, outputs[0]: f"In the dtype of {same_dtype[0]}."},
            raises=[*raises, BAD_BOUNDARIES],
        )(page)

    return decorate


def _run(
    dims: Mapping[str, list[str]],
    around: Around | None,
    neutral: Mapping[str, float],
    groups: str,
    start: Callable[[Tensor], Tensor],
    form: Form,
    sizes: Mapping[str, int],
    *,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    reverse: bool = False,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """Run one form of a recurrence over every sequence of a batch, in one dtype."""
    first: Tensor = next(iter(arguments.values()))
    shared = [n for n in arguments if "G" in dims[n] and sizes["G"] != sizes["H"]]
    if shared:
        with_heads = next(name for name in arguments if "H" in dims[name])
        repeats = heads_per_group(with_heads, sizes["H"], sizes["G"], shared, groups)
    if "scale" in arguments:
        arguments["scale"] = resolve_scale(arguments["scale"], sizes["K"])
    batches = list(sequences(cu_seqlens, sizes["B"], sizes["T"]))

    def run(**arguments: Any) -> tuple[Tensor, Tensor]:
        states = initial_state
        if states is None:
            state = [size_of(dim, sizes) for dim in dims["initial_state"][1:]]
            states = start(first.new_zeros(batches[-1][0].stop, *state))
        for name in shared:
            arguments[name] = arguments[name].repeat_interleave(repeats, dim=2)
        given = {n: x for n, x in arguments.items() if isinstance(x, Tensor)}
        dtypes = [x.dtype for x in (*given.values(), states)]
        dtype = functools.reduce(torch.promote_types, dtypes)
        for name, value in neutral.items():
            if name not in given:
                shape = [sizes[dim] for dim in dims[name]]
                given[name] = torch.full(shape, value, dtype=dtype, device=first.device)
        given = {name: x.to(dtype) for name, x in given.items()}
        by_token = [name for name in given if dims[name][:2] == ["B", "T"]]
        wanted = inspect.signature(form).parameters
        states = states.to(dtype)

        outputs, final_states = [], []
        for n, t in batches:
            pieces = {**arguments, **given, **{name: given[name][:, t] for name in by_token}}
            if reverse:
                pieces |= {name: pieces[name].flip(1) for name in by_token}
            pieces["S"] = states[n]
            o, S = form(**{name: pieces[name] for name in wanted})
            outputs.append(o.flip(1) if reverse else o)
            final_states.append(S)
        return torch.cat(outputs, dim=1), torch.cat(final_states)

    o, final_state = run(**arguments) if around is None else around(run, **arguments)
    return o.to(first.dtype), final_state if output_final_state else None


def size_of(dim: str, sizes: Mapping[str, int]) -> int:
    """Return the size of a dim such as `K` or `V+normalize`; a flag counts 1 or 0."""
    terms = [(-1 if sign == "-" else 1, term) for sign, term in _TERM.findall(dim)]
    return sum(sign * (int(term) if term.isdecimal() else sizes[term]) for sign, term in terms)
