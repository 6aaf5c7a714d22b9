"""The parts of a declaration: the op, its arguments, options, outputs and modes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from hypothesis import find, settings
from hypothesis.errors import NoSuchExample, Unsatisfiable
from hypothesis.strategies import SearchStrategy, just
from torch import Generator, Tensor

from properties.cases.case import Case
from properties.catalogue.telescope import Telescope

Function = Callable[..., Tensor | tuple[Tensor | None, ...]]

# The levels of `properties.laws.batch_invariance`.
LEVELS = ("batch", "pages", "cut", "splits")

DTYPES = ("float32", "bfloat16", "float16")

# The most tokens of a chunk in the chunk form of a recurrence.
CHUNK = 64


class Role(Enum):
    """The meaning of the numbers of a tensor, by which a recipe fills it."""

    QUERY = "query"
    KEY = "key"
    UNIT_KEY = "key of length 1"
    LOW_RANK = "key of half that length, one side of what is added to a decay"
    STEP = "step of a token, at least 0"
    STRENGTH = "strength of a write, 0 to 2"
    RATE = "in-context learning rate of a channel, 0 to 1"
    VALUE = "value"
    LOG_DECAY = "natural-log decay, at most 0"
    STATE = "state"
    LOGIT = "logit"
    SCALE = "scale, at least 0"
    FACTOR = "factor of any sign"
    TURN = "turn of a ring, by any number of places"
    BIAS = "what is added to the logit of a pair, -inf included"
    MASK = "whether a pair is seen"
    COSINE = "cosine of an angle"
    SINE = "sine of an angle"
    PROJECTION = "weight of a projection, whose rows are about 1 long"
    SCORE = "small integer of which scores are computed, so that float32 selects exactly"
    INDEX = "integer that says where something is, such as a position"
    PARENT = "index of an earlier token of the sequence, or -1"


# Roles of which any number is allowed.
ANY_NUMBERS = (Role.QUERY, Role.KEY, Role.VALUE, Role.TURN)
# The integers of a tensor in a case, given the size of every letter.
Fill = Callable[[Case, Mapping[str, int], Generator], Tensor]
# A call that must be refused: what is wrong, the bad arguments, the one that the error must name.
BadCall = tuple[str, dict[str, Any], str]
# The tensors of a case by name, from those that recipes have filled.
Amend = Callable[[Case, Mapping[str, int], dict[str, Tensor]], dict[str, Tensor]]
# The tensors that a case takes over from another one, changed so that it accepts them.
CarryOver = Callable[[Case, Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Argument:
    """A tensor that an op takes.

    Args:
        dims: its dims by name, "B T H K"; `#B` may have size 1 instead of B.
        optional: a case may leave it out.
        differentiable: the op promises a gradient.
        dtype: "case" for that of the activations, "float32", "either" of these, "bool", or "index"
            for integers.
        fill: fills a tensor of integers; None for numbers, which a recipe fills.
        takes_none: the op requires it, but an implementation accepts None, so None is no mistake.
    """

    name: str
    dims: str
    role: Role
    optional: bool = False
    differentiable: bool = True
    dtype: str = "case"
    fill: Fill | None = None
    takes_none: bool = False


@dataclass(frozen=True)
class Option:
    """Another argument of an op: its default and what is drawn for it.

    Args:
        draw: given the case so far, a strategy of JSON values.
        bad: values that must be refused.
        number: every call passes a number, or None for a default number, so that kernels are
            compiled once for all values.
        auxiliary: it asks for one more output and may not change the others.
        exact: values with which the results of small integers are not rounded. If there is only
            one, every case of small integers has it. Empty if results are exact with any value.
        switch: given a case, a value that is not the default; None to take any that is drawn.
    """

    name: str
    default: Any
    draw: Callable[[Case], SearchStrategy[Any]]
    bad: tuple[Any, ...] = ()
    number: bool = False
    auxiliary: bool = False
    exact: tuple[Any, ...] = ()
    switch: Callable[[Case], Any] | None = None

    def switched(self, case: Case) -> Any:
        """A value that is not the default, the same each time; the default if there is no other."""
        if self.default is False:
            return True
        if self.switch is not None:
            return self.switch(case)
        others = self.draw(case).filter(lambda value: value != self.default)
        try:
            return find(others, lambda _: True, settings=settings(derandomize=True, database=None))
        except (NoSuchExample, Unsatisfiable):
            return self.default


@dataclass(frozen=True)
class Mode:
    """A kernel of an op.

    Args:
        refuses: the names of the arguments and options that it refuses.
        bits: the highest level of batch invariance, one of `LEVELS`, at which it keeps its bits.
    """

    name: str
    refuses: frozenset[str] = frozenset()
    bits: str = "batch"


# The mode of an oracle that has no kernels beside it.
REFERENCE = Mode("reference")


@dataclass(frozen=True)
class Output:
    """A tensor that an op returns.

    Args:
        asked_by: the auxiliary option that turns it on.
        linear: it is linear in the op's `linear_in`; other outputs do not depend on those.
        differentiable: gradients flow through it.
    """

    name: str
    dims: str
    asked_by: str | None = None
    dtype: str = "case"
    linear: bool = True
    differentiable: bool = True

    def dtype_in(self, case: Case) -> torch.dtype:
        """The dtype that a call of a case returns it in."""
        return torch.float32 if self.dtype == "float32" else case.torch_dtype


@dataclass(frozen=True, kw_only=True)
class Op:
    """One op: its oracle, its arguments, and what must hold of it.

    Args:
        oracle: the main form of the reference page.
        second_form: the same function derived another way.
        quiet_form: the form from which error budgets come. Both forms round the operands that a
            kernel rounds; this one rounds less otherwise.
        modes: the kernel's modes; empty while the op has no kernel.
        arguments, options, outputs: in the order of the signature.
        dims: what is drawn for each letter that a case fixes.
        widest: letters of head dims that may be above 256 → the largest.
        sizes: given a case, whose dims then include T, S and N, the sizes of letters that are
            computed from it.
        rows: letter of an axis along which sequences are packed in other rows than tokens, such as
            chunks → the rows of a sequence, given the case and its tokens.
        work: how many numbers the oracle's forms hold at once for one sequence, given the size of
            every letter; strategies bound it.
        settle: turns a drawn case into one that the op accepts.
        recipes: names of the value recipes that can show a bug of this op.
        dtypes: of the activations.
        amend: changes the tensors that recipes have filled, given the size of every letter: it
            quantizes them, for example, or writes NaN where the op does not read.
        packed_by: the arguments that pack sequences: of the queries, then of the keys. Without the
            second the keys are packed as the queries are; without both nothing is packed.
        own_keys: keys have lengths of their own, dim "S"; else they share "T" with the queries.
        linear_in: arguments in which the outputs are jointly linear, the others being fixed.
        multilinear: whether the op computes only sums of products in this case, without a
            difference, so that the oracle on absolute values bounds every rounding error.
        constant_decay: the largest decay of a token that no argument gives, as -log.
        heads_alike: the results of a head do not depend on its index.
        float32_logits: products of two inputs, and what follows from them element by element, stay
            float32 until they are operands of a product, as in a softmax or sigmoid; the error
            budgets of 16 bits are sharper then. Budgets take the largest `scale · q · k`
            for the largest logit, and want an output `o`: not for logits that are larger.
        in_float32: kernels compute in float32 whatever the dtype, and round only results: the
            budget of one call in 16 bits is that of float32, and one rounding.
        of_any_size: names of the tensors that may hold numbers of about 2^-48 and 2^48 in this case
            (2^-12 and 2^12 in float16), as may cotangents: no intermediate overflows float32.
            By default those of `linear_in`.
        nonnegative: whether queries, keys and the last column of a state, which is a sum of keys,
            are drawn without sign in this case: they sum to a normalizer, near whose zeros no error
            is bounded.
        telescopes: gradients that the kernel forms as a difference of large sums.
        continues_by: how a second call continues a first one: with its final state as
            "initial_state", with all "keys" so far, or with "seqlen_offsets"; empty if it cannot.
        mistakes: further calls that must be refused.
        carried_over: given a case and the tensors of another, such as one with more keys or another
            option, turns them into tensors that the case accepts.
        laws: names of the laws that hold, in `properties.laws.LAWS`.
        wraps: the name of the op whose kernels it calls; None for an op that has its own.
    """

    name: str
    oracle: Function
    second_form: Function
    quiet_form: Function
    modes: tuple[Mode, ...]
    arguments: tuple[Argument, ...]
    options: tuple[Option, ...]
    outputs: tuple[Output, ...]
    dims: Mapping[str, SearchStrategy[int]]
    laws: tuple[str, ...]
    recipes: tuple[str, ...]
    work: Callable[[Mapping[str, int]], float]
    widest: Mapping[str, int] = field(default_factory=dict)
    sizes: Callable[[Case], dict[str, int]] = lambda case: {}
    rows: Mapping[str, Callable[[Case, int], int]] = field(default_factory=dict)
    settle: Callable[[Case], Case] = lambda case: case
    amend: Amend = lambda case, sizes, tensors: tensors
    dtypes: tuple[str, ...] = DTYPES
    packed_by: tuple[str, ...] = ("cu_seqlens",)
    own_keys: bool = False
    linear_in: tuple[str, ...] = ()
    continues_by: str = "initial_state"
    mistakes: Callable[[Case, Any], Iterable[BadCall]] = lambda case, inputs: ()
    carried_over: CarryOver = lambda case, tensors: dict(tensors)
    multilinear: Callable[[Case], bool] = lambda case: False
    constant_decay: Callable[[Case], float] = lambda case: 0.0
    heads_alike: bool = True
    float32_logits: bool = False
    in_float32: bool = False
    of_any_size: Callable[[Case], tuple[str, ...]] = lambda case: ()
    nonnegative: Callable[[Case], bool] = lambda case: False
    telescopes: Callable[[Case], tuple[Telescope, ...]] = lambda case: ()
    wraps: str | None = None

    def __repr__(self) -> str:
        return f"Op({self.name!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Hypothesis shows each strategy once, drawn or not, and the fields of a dataclass whatever
        # its text. Their source takes milliseconds, and another thread may not import meanwhile.
        printer.text(repr(self))

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that it takes: tensors, options and boundaries."""
        return (
            *(argument.name for argument in self.arguments),
            *(option.name for option in self.options),
            *self.packed_by,
        )

    def argument(self, name: str) -> Argument:
        return next(a for a in self.arguments if a.name == name)

    def mode(self, name: str) -> Mode:
        return next(m for m in self.modes_or_reference if m.name == name)

    def named(self, returned: Any) -> dict[str, Any]:
        """Return the results of a call by name, without those that are None.

        A target without an optional result may return None in its place.

        Raises:
            TypeError: there are more results.
        """
        results = returned if isinstance(returned, tuple) else (returned,)
        if any(y is not None for y in results[len(self.outputs) :]):
            names = ", ".join(output.name for output in self.outputs)
            raise TypeError(f"it returns {len(results)} results, expected {names} alone")
        both = zip(self.outputs, results, strict=False)
        return {output.name: y for output, y in both if y is not None}

    @property
    def asks_for_all(self) -> dict[str, bool]:
        """The options with which a call asks for every output."""
        return {o.asked_by: True for o in self.outputs if o.asked_by is not None}

    @property
    def modes_or_reference(self) -> tuple[Mode, ...]:
        """The kernel's modes, or that of the oracle for an op without a kernel."""
        return self.modes or (REFERENCE,)

    def full(
        self, mode: str, dims: Mapping[str, int], lengths: tuple[int, ...], *, packed: bool
    ) -> Case:
        """A bfloat16 case with every tensor that the mode takes and every output that it has."""
        refused = self.mode(mode).refuses
        case = Case(
            op=self.name,
            mode=mode,
            dtype="bfloat16",
            dims={letter: dims[letter] for letter in self.dims} | ({"B": 1} if packed else {}),
            lengths=lengths,
            packed=packed,
            given=tuple(a.name for a in self.arguments if a.optional and a.name not in refused),
            options={
                o.name: o.auxiliary or o.default for o in self.options if o.name not in refused
            },
        )
        return self.settle(case)


def always(value: Any) -> Callable[[Case], SearchStrategy[Any]]:
    """A strategy of one value, whatever the case."""
    return lambda _: just(value)
