"""Another library's kernels behind the signatures of the catalogue."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from properties import simulator
from properties.architectures import ARCHITECTURES
from properties.cases.case import Case
from properties.cases.tensors import shape, sizes
from properties.catalogue import DTYPES, OPS
from properties.catalogue.op import Function, Mode, Op
from properties.catalogue.telescope import Telescope
from properties.device import emulated
from properties.simulator import driver
from properties.targets.bounds import Bound
from properties.targets.modules import TOLD_TO_CACHES, TOLD_TO_ROTARY, Caches, Rotaries, check
from properties.targets.packs import call_packed, unpackable
from properties.targets.target import Target

# A text in place of a tuple of texts would count as its letters.
_KINDS: dict[str, type] = {
    "conventions": tuple,
    "dtypes": tuple,
    "output_dtypes": Mapping,
    "tokens": int,
    "bounds": Mapping,
    "constants": tuple,
    "forward_only": bool,
    "unstated": Mapping,
}

# Positions: most lists have fewer configs of different tiles.
_CONFIGS = range(1, 8)


@dataclass(frozen=True)
class Implementation:
    """Another library's implementation of an op.

    Args:
        function: takes the op's arguments by the same names and meaning, and returns its outputs in
            order. Arguments that its signature lacks are never drawn, and are reported as missing.
            A tensor that the op may lack is in every case if its parameter has no default.
            A parameter with the default None may be None, also where the op needs a tensor.
            Boundaries without a default are in every call: a batch is then the pack of its rows.
        whole: the catalogue's op → the op as the library has it, if that returns more, such as
            another row of a state. The oracle then defines the rest, and its gradients count.
        conventions: what `function` translates because the library means something else, a sentence
            each.
        dtypes: of the activations.
        output_dtypes: outputs that it returns in another dtype than the catalogue's → "case" for
            that of the activations, or "float32".
        tokens: per tile; lengths are drawn next to its multiples. 0 means that it is not known, and
            then they are drawn next to multiples of 16, 32, 64 and 128.
        bounds: other restrictions of cases, in words → function that makes a case obey.
        constants: tensors that get no gradient, and outputs through which none flows.
        forward_only: it has no backward pass.
        unstated: laws that do not apply to it → why.
        telescopes: case → the gradients that it forms as a difference of large sums, whose errors
            remain.
    """

    function: Function
    whole: Callable[[Op], Op] = field(default=lambda op: op, kw_only=True)
    conventions: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    output_dtypes: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    forward_only: bool = False
    unstated: Mapping[str, str] = field(default_factory=dict)
    telescopes: Callable[[Case], tuple[Telescope, ...]] = lambda case: ()

    def has(self, name: str) -> bool:
        return name in self._parameters() or self._takes_all()

    def _takes_all(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self._parameters().values())

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    def required(self, op: Op) -> tuple[str, ...]:
        """The tensors that the op may lack and the signature has without a default."""
        return tuple(a.name for a in op.arguments if a.optional and self._needs(a.name))

    def boundaries(self, op: Op) -> tuple[str, ...]:
        """The boundaries of packed sequences that the signature has without a default."""
        return tuple(filter(self._needs, op.packed_by))

    def _needs(self, name: str) -> bool:
        parameter = self._parameters().get(name)
        return parameter is not None and parameter.default is parameter.empty

    def check(self, op: Op, where: str) -> None:
        """Check the declaration against the catalogue.

        Raises:
            ValueError: a parameter that the op lacks, a missing tensor, or a field that names what
                is not there.
        """
        for field_, kind in _KINDS.items():
            value = getattr(self, field_)
            if not isinstance(value, kind):
                raise ValueError(f"{where}: {field_} {value!r}, expected a {kind.__name__}")
        for text in (*self.conventions, *self.bounds, *self.unstated.values()):
            if not isinstance(text, str):
                raise ValueError(f"{where}: {text!r}, expected a text")
        own = {name: getattr(self, name) for name in ("function", "whole", "telescopes")}
        for name, function in {**own, **self.bounds}.items():
            if not callable(function):
                raise ValueError(f"{where}: {name} {function!r}, expected a function")
        try:
            parameters = self._parameters()
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        for name, parameter in parameters.items():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ValueError(f"{where}: parameter {name!r} is positional only, expected a name")
            if name not in op.names and parameter.kind is not parameter.VAR_KEYWORD:
                raise ValueError(f"{where}: parameter {name!r}, expected {_listed(op.names)}")
        for argument in op.arguments:
            if not argument.optional and not self.has(argument.name):
                raise ValueError(f"{where}: no parameter {argument.name!r}, expected one")
        outputs = self.whole(op).outputs
        tensors = [*(one.name for one in op.arguments), *(one.name for one in outputs)]
        if needed := self.boundaries(op):
            for name in filter(self.has, unpackable(op)):
                what = f"none beside {needed[0]!r} without a default"
                raise ValueError(f"{where}: parameter {name!r}, expected {what}")
        for what, names, known in (
            ("law", self.unstated, (*op.laws, "large_calls")),
            ("dtype", self.dtypes, DTYPES),
            ("constant", self.constants, tensors),
            ("output", self.output_dtypes, [one.name for one in outputs]),
            ("output dtype", self.output_dtypes.values(), ("case", "float32")),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"{where}: {what} {name!r}, expected {_listed(known)}")
        if self.tokens < 0:
            raise ValueError(f"{where}: tokens {self.tokens}, expected 0 or more")

    def narrowed(self, op: Op, mode: str) -> Op:
        """The op as this implementation has it."""
        op = self.whole(op)

        def differentiable(name: str) -> bool:
            return not self.forward_only and name not in self.constants

        def takes_none(name: str) -> bool:
            parameter = self._parameters().get(name)
            return parameter is not None and parameter.default is None

        return replace(
            op,
            modes=(Mode(mode),),
            arguments=tuple(
                replace(
                    a,
                    differentiable=a.differentiable and differentiable(a.name),
                    takes_none=takes_none(a.name),
                )
                for a in op.arguments
                if self.has(a.name)
            ),
            options=tuple(o for o in op.options if self.has(o.name)),
            # Decays are meant to be <= 0. Beyond that only our kernels promise the equation.
            recipes=tuple(name for name in op.recipes if name != "growing_gates"),
            outputs=tuple(
                replace(
                    o,
                    dtype=self.output_dtypes.get(o.name, o.dtype),
                    differentiable=differentiable(o.name),
                )
                for o in op.outputs
                if o.asked_by is None or self.has(o.asked_by)
            ),
            packed_by=tuple(name for name in op.packed_by if self.has(name)),
            dtypes=self.dtypes,
            # No library promises it.
            in_float32=False,
            settle=partial(self._settled, op),
            telescopes=self.telescopes,
        )

    def _settled(self, op: Op, case: Case) -> Case:
        """Settle a case within the bounds, together with its earlier call on the same tensors.

        Our kernels refuse options for which a tensor is too small; a library reads past its end.
        """
        case = self._bounded(op, case)
        if not case.earlier:
            return case
        before = self._bounded(op, case.with_options(**case.earlier))
        suits = replace(before, options=case.options) == case and not _outgrows(op, before, case)
        # A case that an earlier night kept may have options that the adapter had then.
        names = [name for name in case.earlier if name in before.options]
        earlier = {name: before.options[name] for name in names} if suits else {}
        return replace(case, earlier=earlier)

    def _bounded(self, op: Op, case: Case) -> Case:
        needed = (name for name in self.required(op) if name not in case.given)
        case = replace(case, given=(*case.given, *needed))
        if self.boundaries(op):
            case = self._packable(op, case)
        case = self._with_own_options(op.settle(_with_heads(case)))
        for name, bound in self.bounds.items():
            bounded = bound(case)
            if not (isinstance(bounded, Case) and _shape(bounded) == _shape(case)):
                what = "expected a case of the same op, mode and dims"
                raise TypeError(f"bound {name!r}: {bounded!r} of {case.line()}, {what}")
            if bound(bounded) != bounded:
                # No case would be within it, and laws would skip all that they change.
                what = "expected one that it leaves alone"
                raise ValueError(f"bound {name!r}: {bounded.line()} of {case.line()}, {what}")
            case = self._with_own_options(op.settle(bounded))
            if case.values == "integers" and bound(case) != case:
                # Options with which small integers are exact leave the bound.
                other = op.settle(replace(bounded, values="gaussian"))
                case = self._with_own_options(other)
        return case

    def _packable(self, op: Op, case: Case) -> Case:
        """A case that can be handed over as a pack: of some row, of keys with boundaries."""
        dims = {**case.dims, "B": max(1, case.dims["B"])}
        of_keys = all(map(self.has, op.packed_by))
        return replace(case, dims=dims, key_lengths=case.key_lengths if of_keys else None)

    def _with_own_options(self, case: Case) -> Case:
        # The op may set an option that the implementation lacks.
        return replace(case, options={n: v for n, v in case.options.items() if self.has(n)})


def _with_heads(case: Case) -> Case:
    """The case with one head or more: only our kernels promise to take none."""
    some = {letter: max(size, int(letter in "HR")) for letter, size in case.dims.items()}
    return replace(case, dims=some)


def _outgrows(op: Op, case: Case, other: Case) -> bool:
    """Whether some tensor of a case is larger along a dim than in another case."""
    own, others = sizes(op, case), sizes(op, other)
    return any(
        size > limit
        for argument in op.arguments
        for size, limit in zip(
            shape(case, argument, own), shape(other, argument, others), strict=True
        )
    )


def _shape(case: Case) -> tuple[str, str, Collection[str]]:
    """Return the parts of a case that no bound may change."""
    return case.op, case.mode, case.dims.keys()


def without(function: Callable[..., Any], names: Collection[str]) -> Callable[..., Any]:
    """Remove arguments from the signature of a function, and return it: it then lacks them."""
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.name not in names]
    function.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return function


class Adapter(Target):
    """A target made of implementations.

    Args:
        ops: op → mode → its implementation, or just a function.
        bitwise, remarks: see `Target`.
        caches, rotary: see `Target`.
        triton: its kernels are Triton's, and may choose tiles by a GPU's shared memory; in the
            simulator it then has the law `large_calls`, and other GPUs.

    Raises:
        ValueError: an op is not in the catalogue, or a signature does not match.
    """

    new_results = False
    documented_errors = False

    def __init__(
        self,
        ops: Mapping[str, Mapping[str, Implementation | Function]],
        *,
        caches: Caches | None = None,
        rotary: Rotaries | None = None,
        bitwise: bool = False,
        triton: bool = False,
        remarks: tuple[str, ...] = (),
    ) -> None:
        self.bitwise, self.triton = bitwise, triton
        self.caches = {} if caches is None else caches
        self.rotary = {} if rotary is None else rotary
        check("caches", self.caches, TOLD_TO_CACHES)
        check("rotary", self.rotary, TOLD_TO_ROTARY)
        self.remarks = remarks
        if isinstance(remarks, str) or not all(isinstance(one, str) for one in remarks):
            raise ValueError(f"remarks: {remarks!r}, expected a tuple of texts")
        if not isinstance(ops, Mapping):
            raise ValueError(f"ops: {ops!r}, expected a mapping of ops")
        self.ops: dict[str, dict[str, Implementation]] = {}
        for name, modes in ops.items():
            if name not in OPS:
                raise ValueError(f"op: {name!r}, expected {_listed(OPS)}")
            if not isinstance(modes, Mapping):
                raise ValueError(f"{name}: {modes!r}, expected a mapping of modes")
            self.ops[name] = {
                mode: one if isinstance(one, Implementation) else Implementation(one)
                for mode, one in modes.items()
            }
            for mode, one in self.ops[name].items():
                # Names of tests and files contain the mode.
                if not (isinstance(mode, str) and re.fullmatch(r"[\w-]{1,60}", mode)):
                    what = "expected letters, digits, _ and -, 60 at most"
                    raise ValueError(f"{name}: mode {mode!r}, {what}")
                one.check(OPS[name], f"{name} ({mode})")

    def modes(self, op: Op) -> tuple[str, ...]:
        return tuple(self.ops.get(op.name, ()))

    def declaration(self, op: Op, mode: str) -> Op:
        narrowed = self.ops[op.name][mode].narrowed(op, mode)
        if self.triton and simulator.installed():
            return replace(narrowed, laws=(*narrowed.laws, "large_calls"))
        return narrowed

    def unstated(self, op: Op, mode: str) -> Mapping[str, str]:
        return self.ops[op.name][mode].unstated

    def limits(self, op: Op, mode: str) -> tuple[str, ...]:
        one = self.ops[op.name][mode]
        others = [
            f"{name} in {'the dtype of the inputs' if dtype == 'case' else dtype}"
            for name, dtype in one.output_dtypes.items()
        ]
        bounds = [*one.bounds, *(f"with `{name}`" for name in one.required(op))]
        if one.forward_only:
            return (*bounds, *others, "forward")
        constants = [f"{name} as a constant" for name in one.constants]
        return (*bounds, *others, *constants)

    def tiles(self, case: Case) -> Mapping[int, int]:
        """Configs of autotuned kernels after the first. On a GPU, Triton chooses."""
        tokens = self.tokens(case.op, case.mode)
        return dict.fromkeys(_CONFIGS, tokens) if emulated() else {}

    def architectures(self, case: Case) -> tuple[str, ...]:
        """One NVIDIA GPU for each other size of shared memory. A library learns at import, not from
        the simulator, whether a GPU is AMD's.
        """
        if not (self.triton and simulator.installed()):
            return ()
        nvidia = [one for one in ARCHITECTURES.values() if one.capability]
        sizes = {one.shared_memory: one.name for one in nvidia}
        return tuple(name for size, name in sizes.items() if size != driver.SHARED_MEMORY)

    def tokens(self, op: str, mode: str) -> int:
        return self.ops[op][mode].tokens

    def conventions(self, op: Op, mode: str) -> tuple[str, ...]:
        one = self.ops[op.name][mode]
        packs = ("a batch is the pack of its rows",) if one.boundaries(op) else ()
        return (*one.conventions, *packs)

    def function(self, op: Op) -> Function:
        modes = self.ops[op.name]

        def translated(
            *, mode: str, tile: int | None, **given: Any
        ) -> Tensor | tuple[Tensor | None, ...]:
            if mode not in modes:
                raise ValueError(f"mode: {mode!r}, expected {_listed(modes)}")
            one = modes[mode]
            for name in given:
                if not one.has(name):
                    has = f"target {self.name} has no such argument of {op.name} ({mode})"
                    raise ValueError(f"{name}: given, but {has}")
            if tile is not None and (type(tile) is not int or tile not in _CONFIGS):
                raise ValueError(f"tile: {tile!r}, expected None or {_listed(map(str, _CONFIGS))}")
            # Both widths and all layouts are drawn; libraries take dense int64.
            bounds = {n: given[n] for n in op.packed_by if isinstance(given.get(n), Tensor)}
            dense = {n: x.long().contiguous() for n, x in bounds.items()}
            given = {**given, **dense}
            needed = one.boundaries(op)
            return call_packed(one.function, op, given, needed) if needed else one.function(**given)

        return translated


def _listed(names: Iterable[str]) -> str:
    return "one of " + ", ".join(names)
