"""Each law notices an implementation that breaks it, and all laws accept a right one.

The wrong implementations are the oracle with one bug, each with the law that must notice it. A law
that is switched off fails here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import pytest
import torch
import triton
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import tiles
from properties.cases.case import Case
from properties.cases.extents import ORDINARY
from properties.cases.strategies import cases
from properties.cases.tensors import boundaries
from properties.catalogue import DTYPES, OPS, Op
from properties.catalogue.op import Function, Output, Role
from properties.jobs import Job, share_factor
from properties.laws import LAWS, Law, Subject, Violation, exactness
from properties.profiles import drawn_only
from properties.targets import Target, ours
from properties.targets.oracle import Oracle

Bug = Callable[[Op, Function], Function]


@dataclass
class Wrong(Oracle):
    """The oracles with one bug."""

    bug: Bug
    name = "wrong"
    functions: dict[str, Function] = field(default_factory=dict)

    def function(self, op: Op) -> Function:
        # One function for all calls, since a bug may remember the previous call.
        if op.name not in self.functions:
            self.functions[op.name] = self.bug(op, super().function(op))
        return self.functions[op.name]


class _Found(BaseException):
    """Ends a run. Hypothesis would repeat an ordinary exception and might call it flaky."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation)
        self.violation = violation


def first_violation(
    law: Law, op: Op, target: Target, dtypes: Sequence[str], examples: int
) -> Violation | None:
    """The first violation that the law finds in this many small cases."""
    # For rejection the mode that refuses most arguments, else the one that refuses fewest.
    mode = (min if law.name != "rejection" else max)(
        op.modes_or_reference, key=lambda m: len(m.refuses)
    )
    subject = Subject(target, torch.device("cpu"), quick=True)

    @seed(0)
    @drawn_only(examples)
    @given(
        st.one_of(
            [cases(op, mode, d, target, longest=9, widest=12, extents=ORDINARY) for d in dtypes]
        )
    )
    def look(case: Case) -> None:
        try:
            law(op, case, subject)
        except Violation as violation:
            raise _Found(violation) from violation

    try:
        look()
    except _Found as found:
        return found.violation
    return None


def altering(change: Callable[[Output, Tensor], Tensor]) -> Bug:
    """A bug in the results."""

    @wraps(change)
    def bug(op: Op, right: Function) -> Function:
        def wrong(**given: Any) -> Tensor | tuple[Tensor | None, ...]:
            returned = right(**given)
            if isinstance(returned, Tensor):
                return change(op.outputs[0], returned)
            pairs = zip(op.outputs, returned, strict=True)
            return tuple(y if y is None else change(output, y) for output, y in pairs)

        return wrong

    return bug


def misreading(change: Callable[[Op, dict[str, Any]], dict[str, Any]]) -> Bug:
    """A bug in the use of arguments."""
    return calling(wraps(change)(lambda op, right, given: right(**change(op, given))))


def calling(wrong: Callable[[Op, Function, dict[str, Any]], Any]) -> Bug:
    """A bug around a call, which remembers no other."""

    @wraps(wrong)
    def bug(op: Op, right: Function) -> Function:
        return lambda **given: wrong(op, right, given)

    return bug


def _leaking(y: Tensor, axis: int, source: slice, sink: slice) -> Tensor:
    """`y` with some of `source` added to `sink` along an axis."""
    moved = y.movedim(axis, 0)
    leaked = torch.zeros_like(moved)
    leaked[sink] = 2**-6 * moved[source].nan_to_num(neginf=0.0)
    return y + leaked.movedim(0, axis)


def _along(name: str, letters: str, source: slice, sink: slice) -> Bug:
    def change(output: Output, y: Tensor) -> Tensor:
        axes = [axis for axis, dim in enumerate(output.dims.split()) if dim in letters]
        return _leaking(y, axes[0], source, sink) if axes else y

    change.__name__ = name
    return altering(change)


next_token_read = _along("next_token_read", "T", slice(1, None), slice(None, -1))
# A chunk of tokens, where an op has rows of those.
previous_token_leaks = _along("previous_token_leaks", "TM", slice(None, -1), slice(1, None))
first_head_leaks = _along("first_head_leaks", "H", slice(0, 1), slice(None))
first_row_leaks = _along("first_row_leaks", "B", slice(0, 1), slice(None))


@altering
def everything_times_zero(output: Output, y: Tensor) -> Tensor:
    return y + 0 * y.nan_to_num(nan=math.nan, neginf=0.0).sum()


@altering
def last_digits_wrong(output: Output, y: Tensor) -> Tensor:
    return y * (1 + 2**-20)


@altering
def returned_in_float64(output: Output, y: Tensor) -> Tensor:
    return y.double()


@altering
def returned_in_the_default_dtype(output: Output, y: Tensor) -> Tensor:
    return y.to(torch.get_default_dtype())


@altering
def states_of_eight_bits(output: Output, y: Tensor) -> Tensor:
    return y.bfloat16().to(y.dtype) if output.dtype == "float32" else y


@altering
def lse_in_base_two(output: Output, y: Tensor) -> Tensor:
    return y / math.log(2) if output.name == "lse" else y


@altering
def not_through_zero(output: Output, y: Tensor) -> Tensor:
    return y + 2**-6


@altering
def without_sign(output: Output, y: Tensor) -> Tensor:
    return y.abs()


@altering
def a_last_bit_by_chance(output: Output, y: Tensor) -> Tensor:
    return torch.where(torch.rand(y.shape) < 0.5, y, y * (1 + 2**-22))


@altering
def another_last_bit_in_inference(output: Output, y: Tensor) -> Tensor:
    return y if torch.is_grad_enabled() else y * (1 + 2**-22)


def one_buffer_for_all_results(op: Op, right: Function) -> Function:
    """Without gradients, each call writes its results over those of the call before."""
    buffers: dict[Any, Tensor] = {}

    def kept(place: int, y: Tensor | None) -> Tensor | None:
        if y is None or y.requires_grad:
            return y
        with torch.inference_mode(False):
            empty = torch.empty_like(y)
        return buffers.setdefault((place, y.shape, y.stride(), y.dtype), empty).copy_(y)

    def wrong(**given: Any) -> Any:
        returned = right(**given)
        if isinstance(returned, Tensor):
            return kept(0, returned)
        return tuple(kept(place, y) for place, y in enumerate(returned))

    return wrong


def contents_of_the_call_before(op: Op, right: Function) -> Function:
    """Caches by tensor objects, whose contents may change."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    name = op.arguments[0].name

    def wrong(**given: Any) -> Any:
        x = given[name]
        _, values = kept.setdefault(id(x), (x, x.detach().clone()))
        return right(**{**given, name: x + (values - x.detach())})

    return wrong


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: dict[torch.Size, Tensor]) -> Tensor:
        ctx.own = kept[x.shape] = x.detach().clone()
        ctx.kept = kept
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        return dx + (ctx.kept[ctx.own.shape] - ctx.own), None


def kept_for_the_backward_pass_by_shape(op: Op, right: Function) -> Function:
    """The next call of that shape replaces it."""
    kept: dict[torch.Size, Tensor] = {}
    name = op.arguments[0].name

    def wrong(**given: Any) -> Any:
        return right(**{**given, name: _Kept.apply(given[name], kept)})

    return wrong


class _AddsUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.sum = torch.zeros_like(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        ctx.sum += dx
        return torch.clone(ctx.sum)


@misreading
def gradients_added_up_over_passes(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    name = op.arguments[0].name
    # Autograd refuses to write into the result of `_AddsUp`.
    if given.get("inplace"):
        return given
    return {**given, name: _AddsUp.apply(given[name])}


@misreading
def a_copy_written_to(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    name = op.arguments[0].name
    return {**given, name: given[name].clone()}


@misreading
def gradients_lost_beside_a_frozen_tensor(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    names = [a.name for a in op.arguments if a.differentiable]
    tensors = {n: given[n] for n in names if given.get(n) is not None}
    if all(x.requires_grad for x in tensors.values()):
        return given
    return {**given, **{n: x.detach() for n, x in tensors.items()}}


@calling
def gradients_lost_without_an_output(op: Op, right: Function, given: dict[str, Any]) -> Any:
    returned = right(**given)
    if all(given[o.name] for o in op.options if o.auxiliary):
        return returned
    return tuple(y if y is None else y.detach() for y in returned)


@altering
def last_element_unwritten(output: Output, y: Tensor) -> Tensor:
    memory = torch.empty(y.numel(), dtype=y.dtype)
    memory[:-1] = y.reshape(-1)[:-1]
    return memory.view(y.shape)


@misreading
def no_gradient(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    name = op.arguments[0].name
    return {**given, name: given[name].detach()}


@misreading
def no_gradient_of_long_rows(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    """Give long rows a gradient of 0, as a factor 1 / length³ in float32 does."""
    longest = torch.finfo(torch.float32).max ** (1 / 3)

    def cut(x: Tensor) -> Tensor:
        lengths = x.detach().double().norm(dim=-1, keepdim=True)
        return torch.where(lengths > longest, x.detach(), x)

    names = [a.name for a in op.arguments if a.differentiable]
    return {**given, **{n: cut(given[n]) for n in names if given.get(n) is not None}}


@misreading
def sign_of_scale_ignored(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    scale = given["scale"]
    return {**given, "scale": scale if scale is None else abs(scale)}


@misreading
def negative_scale_is_the_sentinel(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    scale = given["scale"]
    return {**given, "scale": None if scale is not None and scale < 0 else scale}


@misreading
def start_ignored(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    """Ignores everything before the first token."""
    match op.continues_by:
        case "initial_state":
            return {**given, "initial_state": None}
        case "seqlen_offsets":
            return {**given, "seqlen_offsets": 0}
        case _:
            return _without_earlier_keys(op, given)


def _without_earlier_keys(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    """Uses only the last keys of each packed sequence, as many as there are queries."""
    if given.get("cu_seqlens_k") is None:
        return given
    kept: list[int] = []
    lengths = []
    queries, keys = given["cu_seqlens"].diff().tolist(), given["cu_seqlens_k"].tolist()
    for count, start, stop in zip(queries, keys[:-1], keys[1:], strict=True):
        own = range(max(start, stop - count), stop)
        kept += own
        lengths.append(len(own))
    chosen = {
        a.name: given[a.name][:, kept]
        for a in op.arguments
        if "S" in a.dims.split() and given.get(a.name) is not None
    }
    chosen |= {
        a.name: given[a.name][..., kept]
        for a in op.arguments
        # A size of 1 stands for all.
        if a.dims.endswith("#S") and given.get(a.name) is not None and given[a.name].shape[-1] > 1
    }
    if "indices" in given:
        # Blocks are counted anew, and none of the old ones is left.
        chosen["indices"] = torch.full_like(given["indices"], -1)
    if rules := dict(given.get("structure") or {}):
        if "document_ids" in rules:
            rules["document_ids"] = rules["document_ids"][:, kept]
        if "prefix" in rules:
            rules["prefix"] = rules["prefix"].minimum(rules["prefix"].new_tensor(lengths))
        chosen["structure"] = rules
    if "indices" in given:
        # An index past the keys would be refused.
        chosen["indices"] = given["indices"].clamp(max=0)
    return {**given, **chosen, "cu_seqlens_k": torch.tensor(boundaries(lengths))}


@misreading
def strides_ignored(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    name = op.arguments[0].name
    x = given[name]
    if 0 in x.stride():
        return given
    dense = torch.empty(x.shape).stride()
    return {**given, name: x.as_strided(x.shape, dense, x.storage_offset())}


@misreading
def float32_tensors_rounded(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    dtype = given[op.arguments[0].name].dtype
    names = [a.name for a in op.arguments if a.dtype == "either" and a.name in given]
    return {**given, **{n: given[n].to(dtype).to(given[n].dtype) for n in names}}


def _with_wider_gates(op: Op) -> bool:
    """Whether a decay may be float32 beside 16 bits, so that rounding it changes the results."""
    return any(a.dtype == "either" and a.role is Role.LOG_DECAY for a in op.arguments)


def options_of_the_first_call(op: Op, right: Function) -> Function:
    """Caches by shape only."""
    kept: dict[Any, dict[str, Any]] = {}

    def wrong(**given: Any) -> Any:
        shapes = tuple((n, x.shape) for n, x in given.items() if isinstance(x, Tensor))
        options = {n: v for n, v in given.items() if not isinstance(v, Tensor)}
        return right(**{**given, **kept.setdefault(shapes, options)})

    return wrong


def options_of_the_call_before(op: Op, right: Function) -> Function:
    before: dict[str, Any] = {}

    def wrong(**given: Any) -> Any:
        stale = {o.name: before[o.name] for o in op.options if o.name in before}
        before.clear()
        before.update({n: v for n, v in given.items() if not isinstance(v, Tensor)})
        try:
            return right(**{**given, **{n: v for n, v in stale.items() if n in before}})
        # Offsets past the end of another call's tables, or a write to what shares memory.
        except (ValueError, RuntimeError):
            return right(**given)

    return wrong


@calling
def scaled_by_the_tokens(op: Op, right: Function, given: dict[str, Any]) -> Any:
    """Rounds in another way in a longer call."""
    factor = 1 + 2**-12 * given[op.arguments[0].name].shape[1]
    return tuple(y if y is None else y * factor for y in right(**given))


@calling
def flag_changes_the_output(op: Op, right: Function, given: dict[str, Any]) -> Any:
    returned = right(**given)
    if any(given[o.name] for o in op.options if o.auxiliary):
        return returned
    return tuple(y if y is None else y * (1 + 2**-10) for y in returned)


def _second_input(op: Op, given: dict[str, Any]) -> Tensor:
    """The second tensor of every call, or the only one."""
    name = [a.name for a in op.arguments if not a.optional][:2][-1]
    x: Tensor = given[name]
    return x


@calling
def input_overwritten(op: Op, right: Function, given: dict[str, Any]) -> Any:
    returned, x = right(**given), _second_input(op, given)
    if 0 not in x.stride():
        x.data.add_(1)
    return returned


@misreading
def memory_around_an_input_overwritten(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    x = _second_input(op, given)
    torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).nan_to_num_()
    return given


@torch.library.custom_op("planted::write_to", mutates_args=())
def _write_to(x: Tensor) -> None:
    x.add_(1)


@calling
def a_write_that_a_schema_hides(op: Op, right: Function, given: dict[str, Any]) -> Any:
    _write_to(_second_input(op, given).detach().clone())
    return right(**given)


@calling
def bad_arguments_accepted(op: Op, right: Function, given: dict[str, Any]) -> Any:
    try:
        return right(**given)
    except ValueError:
        return None


@calling
def another_error_raised(op: Op, right: Function, given: dict[str, Any]) -> Any:
    try:
        return right(**given)
    except ValueError as error:
        raise RuntimeError(str(error)) from error


@calling
def wrong_type_is_a_wrong_value(op: Op, right: Function, given: dict[str, Any]) -> Any:
    try:
        return right(**given)
    except TypeError as error:
        raise ValueError(str(error)) from error


@calling
def error_says_nothing(op: Op, right: Function, given: dict[str, Any]) -> Any:
    try:
        return right(**given)
    except (ValueError, TypeError) as error:
        raise type(error)("something is wrong") from error


@triton.jit  # type: ignore[untyped-decorator]
def _nothing(x: Tensor) -> None:
    pass


@misreading
def launched_before_refusing(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    _nothing[(1,)](torch.zeros(1))
    return given


@misreading
def another_gradient_before_refusing(op: Op, given: dict[str, Any]) -> dict[str, Any]:
    if given.get("inplace") is True and isinstance(x := given[op.arguments[0].name], Tensor):
        x.mul_(1)
    return given


def _anywhere(op: Op) -> bool:
    return True


def _of_any_size(op: Op) -> bool:
    """Whether tensors may be of any size whatever the options are."""
    return bool(op.of_any_size(Case.of(op.name, "", {}, ())))


def _with_scale(op: Op) -> bool:
    return any(option.name == "scale" for option in op.options)


def _with_gradients(op: Op) -> bool:
    return any(argument.differentiable for argument in op.arguments)


def _in_place(op: Op) -> bool:
    return any(option.name == "inplace" for option in op.options)


def _with_flags(op: Op) -> bool:
    return any(option.auxiliary for option in op.options)


@dataclass(frozen=True)
class Planted:
    """A bug, the law that must notice it, the ops that can have it, and in which dtypes."""

    law: str
    bug: Bug
    possible: Callable[[Op], bool] = _anywhere
    dtypes: tuple[str, ...] = ("float32",)


PLANTED = (
    Planted("differential", no_gradient, _with_gradients),
    Planted("differential", not_through_zero),
    Planted("differential", sign_of_scale_ignored, _with_scale),
    Planted("differential", negative_scale_is_the_sentinel, _with_scale),
    Planted("differential", returned_in_float64),
    Planted("differential", no_gradient_of_long_rows, _of_any_size),
    Planted("differential", one_buffer_for_all_results),
    Planted("exactness", last_digits_wrong),
    Planted("exactness", states_of_eight_bits, exactness.returns_sums),
    Planted("causality", next_token_read),
    Planted("splitting", start_ignored),
    Planted("packing", previous_token_leaks),
    Planted("packing", everything_times_zero),
    Planted("permutation", first_head_leaks),
    Planted("permutation", first_row_leaks),
    Planted("linearity", not_through_zero),
    Planted("linearity", without_sign),
    Planted("scale_equivariance", sign_of_scale_ignored),
    Planted("scale_equivariance", negative_scale_is_the_sentinel),
    Planted("layout_invariance", strides_ignored),
    Planted("determinism", a_last_bit_by_chance),
    Planted("determinism", contents_of_the_call_before),
    Planted("determinism", kept_for_the_backward_pass_by_shape, _with_gradients),
    Planted("context_invariance", another_last_bit_in_inference),
    Planted("context_invariance", returned_in_the_default_dtype),
    Planted("context_invariance", gradients_added_up_over_passes, _with_gradients),
    Planted("request_invariance", gradients_lost_beside_a_frozen_tensor),
    Planted("request_invariance", gradients_lost_without_an_output, _with_flags),
    Planted("batch_invariance", scaled_by_the_tokens),
    Planted("merging", lse_in_base_two),
    Planted("plumbing", options_of_the_first_call),
    Planted("plumbing", options_of_the_call_before),
    Planted("plumbing", float32_tensors_rounded, _with_wider_gates, ("float16", "bfloat16")),
    Planted("plumbing", flag_changes_the_output, _with_flags),
    Planted("untouched_inputs", input_overwritten),
    Planted("untouched_inputs", a_copy_written_to, _in_place),
    Planted("untouched_inputs", memory_around_an_input_overwritten),
    Planted("untouched_inputs", a_write_that_a_schema_hides),
    Planted("written_outputs", last_element_unwritten),
    Planted("rejection", bad_arguments_accepted),
    Planted("rejection", another_error_raised),
    Planted("rejection", wrong_type_is_a_wrong_value),
    Planted("rejection", error_says_nothing),
    Planted("rejection", launched_before_refusing),
    Planted("rejection", another_gradient_before_refusing, _in_place),
)


def _ops(planted: Planted) -> list[Op]:
    """The ops that a bug is planted in: for each law about every other one.

    They take turns, so that a new op or bug adds little to the time of a run.
    """
    possible = [op for op in OPS.values() if planted.law in op.laws and planted.possible(op)]
    of_the_law = [one for one in PLANTED if one.law == planted.law]
    return possible[of_the_law.index(planted) % len(possible) :: 2 * len(of_the_law)]


@pytest.mark.parametrize(
    ("op", "planted"),
    [
        pytest.param(op, planted, id=f"{op.name}-{planted.law}-{planted.bug.__name__}")
        for planted in PLANTED
        for op in _ops(planted)
    ],
)
def test_law_notices(op: Op, planted: Planted) -> None:
    # In a run of the law about this op alone. The rarest bug is noticed with probability 1/8 by
    # the cases of a job in a run of all jobs.
    ci = settings.get_profile("ci").max_examples
    jobs = [
        Job(op.name, mode.name, planted.law, dtype)
        for mode in op.modes_or_reference
        for dtype in DTYPES
    ]
    # An op without kernels has few jobs.
    examples = max(48, sum(job.share(ci, share_factor(jobs, ci)) for job in jobs))
    law, wrong = LAWS[planted.law], Wrong(planted.bug)
    violation = first_violation(law, op, wrong, planted.dtypes, examples)
    assert violation is not None, f"accepted in {examples} cases"
    assert violation.law == planted.law


# Tensors of which an op takes an exponential or a softplus, and past what kernels may go wrong:
# float32 has no exp of 89, and many take a softplus past 20 to be a line.
EXPONENTS = {
    "abc": ("s", 89),
    "decay_gate": ("x", 20),
    "lightnet": ("k", 89),
    "logcumsumexp": ("x", 89),
    "mamba2": ("dt", 20),
    "rwkv4": ("k", 89),
    "selective_scan": ("dt", 20),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_differential_notices_a_wrong_exponential_of_large_numbers(name: str) -> None:
    op, (argument, limit) = OPS[name], EXPONENTS[name]

    @calling
    def clamped(op: Op, right: Function, given: dict[str, Any]) -> Any:
        return right(**{**given, argument: given[argument].clamp(max=limit)})

    violation = first_violation(LAWS["differential"], op, Wrong(clamped), DTYPES, 96)
    assert violation is not None


class Claiming(Wrong):
    """The oracles with one bug, on every architecture for which we have other tiles."""

    def architectures(self, case: Case) -> tuple[str, ...]:
        return ours.target(torch.device("cpu")).architectures(case)


@pytest.mark.parametrize("capability", [0, 80])
def test_a_law_notices_a_bug_on_one_architecture(capability: int) -> None:
    @altering
    def wrong_there(output: Output, y: Tensor) -> Tensor:
        return 2 * y if tiles.architecture(y.device) == capability else y

    ci = settings.get_profile("ci").max_examples
    op = OPS["attention"]
    jobs = [Job(op.name, "parallel", "differential", dtype) for dtype in DTYPES]
    examples = sum(job.share(ci, share_factor(jobs, ci)) for job in jobs)
    law = LAWS["differential"]
    violation = first_violation(law, op, Claiming(wrong_there), DTYPES, examples)
    assert violation is not None, f"accepted in {examples} cases"
    assert violation.case.architecture is not None


@pytest.mark.parametrize(
    ("op", "law"),
    [
        pytest.param(op, law, id=f"{op.name}-{law}")
        for place, op in enumerate(OPS.values())
        for law in op.laws[place % 3 :: 3]
    ],
)
def test_law_accepts_the_oracle_itself(op: Op, law: str) -> None:
    violation = first_violation(LAWS[law], op, Oracle(), DTYPES, 2)
    assert violation is None, str(violation)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_each_law_of_an_op_has_something_to_notice(op: Op) -> None:
    noticed = {planted.law for planted in PLANTED if planted.possible(op)}
    assert set(op.laws) <= noticed


# The oracles launch nothing that could break `large_calls`, see `test_large_calls.py`.
@pytest.mark.parametrize("name", sorted(set(LAWS) - {"large_calls"}))
def test_a_law_that_is_switched_off_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAWS, name, Law(name, lambda run: 0.0))
    # A law that accepts one case of the oracle accepts all of them.
    monkeypatch.setattr(Job, "share", lambda job, examples, times=1.0: 1)
    op = next(op for op in OPS.values() if name in op.laws)
    # Nobody calls the target, so that one bug stands for all.
    planted = next(one for one in PLANTED if one.law == name and one.possible(op))
    with pytest.raises(AssertionError, match="accepted in"):
        test_law_notices(op, planted)
