"""The passes of a mode of a recurrence, and the `torch.library` op that runs them.

A mode is a module with two functions, `forward` and `backward` (see `kernels.linear`), or the
`ModeFunctions` of a mode that one op has to itself. A mode has the arguments that `forward` takes.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels import arguments, tiles
from kernels.differentiable import differentiable
from kernels.op import axes
from kernels.primitives.groups import keys_gradient_dtype, of_each_group, of_each_head
from kernels.primitives.states import output_and_states

Results = tuple[Tensor, Tensor]
Gradients = dict[str, Tensor | None]


@dataclass(frozen=True)
class ModeFunctions:
    """A mode that has no module of its own: its name, and the two functions of such a module."""

    name: str
    forward: Callable[..., tuple[Tensor, Tensor | None]]
    backward: Callable[..., tuple[Tensor | None, ...]]


Mode = ModuleType | ModeFunctions


@dataclass(frozen=True)
class Passes:
    """The forward and the backward pass of a mode, which take their arguments by name.

    Args:
        takes: the names of the arguments of `forward`.
        forward: takes its arguments by name, and returns the output, the final state or None, and
            the tensors that it saves, if it is called with `saves=True`.
        backward: takes the same, the cotangents `do` and `dfinal_state`, and `saved`, the tensors
            that `forward` saved or None. It returns gradients by name.
        saved: the NamedTuple class of those tensors; its `shapes` maps the arguments by name to a
            shape and a dtype of each. None if `forward` saves nothing.
    """

    takes: frozenset[str]
    forward: Callable[..., tuple[Tensor | None, ...]]
    backward: Callable[..., Gradients]
    saved: Any = None


@dataclass(frozen=True)
class Registered:
    """A registered mode: a `torch.library` op and the names of its arguments, in their order."""

    op: Callable[..., tuple[Tensor, ...]]
    names: tuple[str, ...]

    def __call__(self, **given: Any) -> Results:
        if "saves" in self.names:
            tensors = (x for x in given.values() if isinstance(x, Tensor))
            given["saves"] = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        o, final_state, *_ = self.op(*(given[name] for name in self.names))
        return o, final_state


def name_of(mode: Mode) -> str:
    """The name of a mode."""
    return mode.name if isinstance(mode, ModeFunctions) else mode.__name__.rpartition(".")[2]


def passes_of(mode: Mode, saves: bool) -> Passes:
    """The passes of a mode, which give each head the q and k of its group and sum their gradients
    over the heads of a group.
    """
    forward_takes = tuple(inspect.signature(mode.forward).parameters)
    backward_takes = tuple(inspect.signature(mode.backward).parameters)
    inputs = forward_takes[: forward_takes.index("scale")]

    def spread(given: dict[str, Any]) -> dict[str, Any]:
        heads = given["v"].shape[2]
        return given | {name: of_each_head(given[name], heads) for name in ("q", "k")}

    def forward(**given: Any) -> tuple[Tensor | None, ...]:
        given = spread(given)
        results: tuple[Tensor | None, ...] = mode.forward(
            **{name: given.get(name) for name in forward_takes}
        )
        return results

    def backward(**given: Any) -> Gradients:
        q, heads = given["q"], given["v"].shape[2]
        dtypes = {"keys_dtype": keys_gradient_dtype(q, heads), "values_dtype": given["v"].dtype}
        given = dtypes | spread(given)
        found = mode.backward(**{name: given.get(name) for name in backward_takes})
        gradients = dict(zip((*inputs, "initial_state"), found, strict=True))
        return gradients | {n: of_each_group(gradients[n], q.shape[2]) for n in ("q", "k")}

    saved = getattr(mode, "Saved", None) if saves else None
    takes = frozenset(forward_takes) - (set() if saved else {"saves"})
    return Passes(takes, forward, backward, saved)


def register(
    name: str,
    mode: str,
    passes: Passes,
    parameters: Mapping[str, inspect.Parameter],
    same_dtype: Sequence[str],
    names: Mapping[str, str],
) -> Registered:
    """Make the two functions of a mode the `torch.library` op `attention_oracles::name_mode`.

    Its setting `dtype` is that of the operands, to which tensors in float32 are rounded; their
    gradients stay float32.
    """
    taken = {n: p for n, p in parameters.items() if names.get(n, n) in passes.takes}
    tensors = {
        n: "Tensor" + "?" * (p.default is None) for n, p in taken.items() if axes(p.annotation)
    }
    settings = {n: "bool" for n, p in taken.items() if isinstance(p.default, bool)}
    if "saves" in passes.takes:
        settings["saves"] = "bool"
    saved = 0 if passes.saved is None else len(passes.saved._fields)
    stacked = tuple(int(d) for d in axes(parameters["initial_state"].annotation) if d.isdecimal())
    if "out_dtype" in passes.takes:
        settings["out_dtype"] = "ScalarType"

    def named(given: Mapping[str, Any], dtype: torch.dtype, tile: int) -> dict[str, Any]:
        own = {names.get(each, each): value for each, value in given.items()}
        own |= {each: given[each].to(dtype) for each in same_dtype}
        return own | {"tile": tiles.TABLE[name, mode][tile]}

    def forward(*, dtype: torch.dtype, tile: int, **given: Any) -> tuple[Tensor | None, ...]:
        arguments.check_boundaries("cu_seqlens", given["cu_seqlens"], given["q"].shape[1])
        return passes.forward(**named(given, dtype, tile))

    def backward(
        *, dtype: torch.dtype, tile: int, d0: Tensor, d1: Tensor | None, **given: Any
    ) -> list[Tensor | None]:
        held = [given.pop(f"s{n}") for n in range(saved)]
        given["saved"] = held if given.get("saves") else None
        wide = {}
        if any(given[each].dtype != dtype for each in same_dtype):
            wide = dict.fromkeys(("keys_dtype", "values_dtype"), torch.float32)
        gradients = passes.backward(do=d0, dfinal_state=d1, **named(given, dtype, tile), **wide)
        gradients |= {each: gradients[each].to(given[each].dtype) for each in same_dtype}
        return [gradients.get(names.get(each, each)) for each in tensors]

    def shapes(given: Mapping[str, Any]) -> Any:
        k, v = given["k"], given["v"]
        state = (v.shape[2], *stacked, k.shape[3], v.shape[3])
        results = output_and_states(given, v, given.get("out_dtype", given["dtype"]), state)
        if passes.saved is None:
            return results
        entry = tiles.TABLE[name, mode][given["tile"]]
        return *results, *passes.saved.shapes(given | {"tile": entry})

    settings = {"scale": "float", **settings, "dtype": "ScalarType", "tile": "int"}
    registered = differentiable(
        f"{name}_{mode}",
        forward,
        backward,
        shapes,
        outputs=2,
        saved=saved,
        takes=tensors | settings,
    )
    return Registered(registered, (*tensors, *settings))
