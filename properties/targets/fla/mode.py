"""A mode of an op in fla: its function, and how that is called under our names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from inspect import Parameter, Signature, signature
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.catalogue import DTYPES
from properties.catalogue.op import Argument, Function, Op, Role
from properties.catalogue.telescope import Telescope
from properties.targets.adapter import Implementation
from properties.targets.bounds import Bound
from properties.targets.fla.library import Kernel, forget_the_gpu, release

Given = dict[str, Any]
Outputs = Tensor | tuple[Tensor | None, ...]
# Tokens of most chunks, and of most blocks of keys.
CHUNK = 64
# Our argument name → that of releases up to 0.2.
_EARLIER = {"cu_seqlens": "offsets"}
SCALE = "-1 is a number; the sentinel becomes the default"
_REQUIRED = "gates and strengths are required; none becomes zeros or ones"


def output_and_state(kernel: Kernel, given: Given) -> Outputs:
    """Output and final state."""
    o, state = kernel(**given)
    return o, state


def output_alone(kernel: Kernel, given: Given) -> Outputs:
    """The output; other returned values are no states."""
    returned = kernel(**given)
    y: Tensor = returned[0] if isinstance(returned, tuple) else returned
    return y


@dataclass(frozen=True)
class Mode:
    """A mode of an op in fla.

    Args:
        function: "package.module:function".
        call: calls it with arguments under its own names; returns the op's outputs.
        theirs: our argument name → fla's, if different.
        earlier: the same in releases that lack that name.
        ours: arguments that it lacks and `call` handles.
        without: arguments of the same name with another meaning.
        needs: arguments that default to None and that its docstring does not call optional.
        replaces: tensors without a default that it replaces by another where they are None.
        fixed: what it passes for arguments of fla that the op lacks.
        since: the first release that has it, if the function is older.
        The rest as in `Implementation`.
    """

    function: str
    call: Callable[[Kernel, Given], Outputs] = output_and_state
    theirs: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, str] = field(default_factory=dict)
    ours: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    since: tuple[int, ...] = ()
    tokens: int = 0
    constants: tuple[str, ...] = ()
    conventions: tuple[str, ...] = (SCALE,)
    dtypes: tuple[str, ...] = DTYPES
    output_dtypes: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    forward_only: bool = False
    unstated: Mapping[str, str] = field(default_factory=dict)
    telescopes: Callable[[Case], tuple[Telescope, ...]] = lambda case: ()
    whole: Callable[[Op], Op] = lambda op: op

    def implementation(self, op: Op, kernel: Kernel) -> Implementation:
        required = [a for a in op.arguments if a.optional and self._requires(kernel, a.name)]
        same = {f.name: getattr(self, f.name) for f in fields(Implementation)[1:]}
        if required:
            same["conventions"] += (_REQUIRED,)
        return Implementation(self._function(op, kernel, required), **same)

    def _name(self, kernel: Kernel, name: str) -> str:
        taken = signature(kernel).parameters
        now = self.theirs.get(name, name)
        return now if now in taken else {**_EARLIER, **self.earlier}.get(name, now)

    def released(self, kernel: Kernel) -> bool:
        """Whether the release has this mode of a function that it has."""
        taken = signature(kernel).parameters
        return release() >= self.since and (bool(self.since) or self.fixed.keys() <= taken.keys())

    def lacking(self, op: Op, kernel: Kernel) -> list[str]:
        """Tensors that the op requires and a function does not have, under fla's names."""
        taken = signature(kernel).parameters
        needed = [*(a.name for a in op.arguments if not a.optional), *self.needs]
        names = [self._name(kernel, name) for name in needed if name not in self.ours]
        return [name for name in names if name not in taken]

    def _requires(self, kernel: Kernel, name: str) -> bool:
        if name in self.needs or name in self.ours:
            return name in self.needs
        parameter = signature(kernel).parameters.get(self._name(kernel, name))
        return parameter is not None and parameter.default is Parameter.empty

    def _function(self, op: Op, kernel: Kernel, required: list[Argument]) -> Function:
        """The kernel under the op's argument names."""
        taken = signature(kernel).parameters
        called = {name: self._name(kernel, name) for name in op.names}
        names = [n for n in op.names if called[n] in taken or n in self.ours]
        names = [n for n in names if n not in self.without]

        def function(**given: Any) -> Outputs:
            for argument in required:
                if given.get(argument.name) is None:
                    given[argument.name] = neutral(op, argument, given)
            call = {called[name]: value for name, value in given.items()}
            if "scale" in call:
                dim = given[op.arguments[0].name].shape[-1]
                call["scale"] = _scale(call["scale"], taken["scale"].default, dim)
            forget_the_gpu()
            return self.call(kernel, {**call, **self.fixed})

        needed = {a.name for a in op.arguments if not a.optional and self._requires(kernel, a.name)}
        needed -= {*self.replaces}
        parameters = [
            Parameter(n, Parameter.KEYWORD_ONLY, default=Parameter.empty if n in needed else None)
            for n in names
        ]
        function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return function


Modes = Mapping[str, Mapping[str, Mode]]
"""Op → mode → how it is called."""


def neutral(op: Op, argument: Argument, given: Given) -> Tensor:
    """The neutral value of an optional gate or beta, in the dtype that fla's layers pass it in."""
    sizes = {
        letter: size
        for a in op.arguments
        if given.get(a.name) is not None
        for letter, size in zip(a.dims.split(), given[a.name].shape, strict=True)
    }
    shape = [sizes[letter] for letter in argument.dims.split()]
    first = given[op.arguments[0].name]
    if argument.role in (Role.STRENGTH, Role.RATE, Role.STEP):
        return torch.ones(shape, device=first.device, dtype=first.dtype)
    return torch.full(shape, float(argument.name == "weight"), device=first.device)


def _scale(scale: float | None, default: float | None, dim: int) -> float | None:
    """fla's default if it means the same as ours, else the number."""
    if scale is None or scale == -1:
        return default if default in (None, -1) else dim**-0.5
    return scale


def each(folder: str, *modes: str, name: str = "", **settings: Any) -> dict[str, Mode]:
    """Modes of an operation that differ only in name."""
    function = f"fla.ops.{folder}:{{}}_{name or folder}"
    tokens = {mode: CHUNK for mode in modes if mode in ("chunk", "fused_chunk", "parallel")}
    return {
        mode: Mode(function.format(mode), tokens=tokens.get(mode, 16), **settings) for mode in modes
    }
