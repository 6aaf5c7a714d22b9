"""Ops as PyTorch sees them: valid registrations, and compiled calls equal to eager ones.

For each op and mode of the catalogue there is a bare case, and cases with every tensor and option
of the mode.
"""

import gc
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from inspect import Parameter, signature
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from properties.cases.calls import outputs_and_gradients, own_copy
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Mode, Op
from properties.laws import Subject

_Call = tuple[Any, tuple[Any, ...]]
_NAMESPACE = "attention_oracles"
# No size is 0 or 1, which compilers specialise, nor equal to a number of tokens or table rows here,
# which they would take for the same number; that includes a row of a slice, 3 H + 1.
_SIZES = {"B": 2, "H": 8, "G": 2, "R": 3, "K": 5, "V": 7, "D": 17, "P": 6, "W": 4}
_OTHER_SIZES = (9, 11, 13, 14, 15)


def _sizes(op: Op) -> dict[str, int]:
    others = iter(_OTHER_SIZES)
    return {letter: _SIZES[letter] if letter in _SIZES else next(others) for letter in op.dims}


def _required(op: Op) -> dict[str, Any]:
    """Options without a default in the signature."""
    parameters = signature(op.oracle).parameters
    return {o.name: o.default for o in op.options if parameters[o.name].default is Parameter.empty}


def _loaded(op: Op, mode: Mode, bare: Case) -> Case:
    """The case with every tensor and option that the mode takes."""
    return replace(
        bare,
        given=tuple(a.name for a in op.arguments if a.optional and a.name not in mode.refuses),
        options={o.name: o.switched(bare) for o in op.options if o.name not in mode.refuses},
    )


def _cases(op: Op, mode: Mode) -> dict[str, Case]:
    either = tuple(a.name for a in op.arguments if a.dtype == "either")
    dense = Case(
        op=op.name,
        mode=mode.name,
        dtype="bfloat16",
        dims=_sizes(op),
        lengths=(10,),
        key_lengths=(12,) if op.own_keys else None,
        options=_required(op),
    )
    packed = replace(
        dense, lengths=(4, 0, 6), key_lengths=(5, 2, 8) if op.own_keys else None, packed=True
    ).with_dims(B=1)
    loaded = _loaded(op, mode, dense)
    cases = {
        "dense": dense,
        "packed": replace(packed, dtype="float32", layout="strided"),
        "dense-loaded": replace(loaded, dtype="bfloat16", layout="sliced", float32=either),
        # Of the layouts this one alone is kept by `empty_like`, which a kernel need not do.
        "packed-loaded": replace(_loaded(op, mode, packed), dtype="float16", layout="heads_first"),
    }
    return {name: op.settle(case) for name, case in cases.items()}


_LEAST_AND_MOST = ("dense", "packed-loaded")
_BETWEEN = ("packed", "dense-loaded")


def _registered(op: Op, mode: Mode) -> tuple[str, ...]:
    """The cases whose registrations are checked, since all cases check nearly the same."""
    return _LEAST_AND_MOST if mode is op.modes[0] else _LEAST_AND_MOST[1:]


def _compiled(op: Op, mode: Mode) -> tuple[str, ...]:
    """The cases to compile: two in each mode, by turns. Either pair has a dense and a packed case,
    and a bare and a loaded one.
    """
    turn = list(OPS).index(op.name) + op.modes.index(mode)
    return _LEAST_AND_MOST if turn % 2 else _BETWEEN


def _of_several_outputs(op: Op, mode: Mode) -> tuple[str, ...]:
    """A case with all outputs that the mode has, for an op with several."""
    differentiable = [o for o in op.outputs if o.differentiable and o.asked_by not in mode.refuses]
    return _LEAST_AND_MOST[1:] if len(differentiable) > 1 else ()


def _bare(op: Op, mode: Mode) -> tuple[str, ...]:
    return _LEAST_AND_MOST[:1] if mode is op.modes[0] else ()


def _loaded_once(op: Op, mode: Mode) -> tuple[str, ...]:
    return _LEAST_AND_MOST[1:] if mode is op.modes[0] else ()


def _longer(op: Op, case: Case) -> Case:
    """The same with other numbers of tokens."""
    more = tuple(n + 3 for n in case.lengths)
    keys = None if case.key_lengths is None else tuple(n + 4 for n in case.key_lengths)
    return op.settle(replace(case, lengths=more, key_lengths=keys))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    ops, modes, dtypes = (option(f"oracles_{name}") for name in ("op", "mode", "dtype"))
    tried = {
        test_registrations_are_sound: _registered,
        test_a_loss_without_the_first_output_has_gradients: _of_several_outputs,
        test_a_gradient_of_a_gradient_is_refused_or_computed: _bare,
        test_what_changes_before_the_backward_pass_is_refused_or_does_not_matter: _loaded_once,
        test_a_call_leaves_nothing_behind: _loaded_once,
        test_compiled_equals_eager_bit_for_bit: _compiled,
    }[metafunc.function]
    cases = {
        f"{op.name}-{mode.name}-{name}": case
        for op in OPS.values()
        for mode in op.modes
        for name, case in _cases(op, mode).items()
        # A wrapper runs another op's custom ops, which are tested in all its modes.
        if (op.wraps is None or mode is op.modes[0])
        and name in tried(op, mode)
        and (tried is not _of_several_outputs or any(a.differentiable for a in op.arguments))
        and (not ops or op.name in ops)
        and (not modes or mode.name in modes)
        and (not dtypes or case.dtype in dtypes)
    }
    metafunc.parametrize("case", list(cases.values()), ids=list(cases))


class _Calls(TorchDispatchMode):
    """Record calls of our custom ops: op and arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[_Call] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func.namespace == _NAMESPACE:
            assert not kwargs, f"{func}: called with keywords, expected positions alone"
            self.made.append((func, args))
        return func(*args, **(kwargs or {}))


# Checks of `opcheck` besides compiling a call, which for most ops a test below does.
_UNCOMPILED = ("test_schema", "test_autograd_registration", "test_faketensor")


def _calls(op: Op, case: Case, subject: Subject) -> tuple[list[_Call], list[_Call]]:
    """Calls of custom ops in a forward pass and in its backward pass."""
    function, inputs = getattr(kernels, op.name), subject.inputs(op, case)
    with _Calls() as forward:
        outputs_and_gradients(op, function, inputs, mode=case.mode)
    with _Calls() as both:
        outputs_and_gradients(op, function, inputs, subject.cotangents(op, case), mode=case.mode)
    return forward.made, both.made[len(forward.made) :]


def _on_leaves(call: _Call, differentiable: set[str]) -> _Call:
    """The call on tensors without history, of which the named ones require gradients."""
    func, args = call
    leaves = (
        x.detach().requires_grad_(argument.name in differentiable) if isinstance(x, Tensor) else x
        for argument, x in zip(func._schema.arguments, args, strict=True)
    )
    return func, tuple(leaves)


@pytest.fixture(scope="module")
def compiled(subject: Subject) -> Callable[[str, str], frozenset[Any]]:
    """The custom ops that the compiled cases of a mode call."""

    @cache
    def called(name: str, mode: str) -> frozenset[Any]:
        op = OPS[name]
        cases = _cases(op, op.mode(mode))
        made = (_calls(op, cases[one], subject) for one in _compiled(op, op.mode(mode)))
        return frozenset(func for passes in made for calls in passes for func, _ in calls)

    return called


def test_registrations_are_sound(
    case: Case, subject: Subject, compiled: Callable[[str, str], frozenset[Any]]
) -> None:
    op = OPS[case.op]
    forward, backward = _calls(op, case, subject)
    assert forward, f"{case.op} calls no op of {_NAMESPACE}"
    promised = {a.name for a in op.arguments if a.differentiable}
    assert backward or not promised, f"the gradient of {case.op} calls no op of {_NAMESPACE}"

    def check(call: _Call, differentiable: set[str]) -> None:
        func, args = _on_leaves(call, differentiable)
        known = compiled(op.name, case.mode)
        tests = _UNCOMPILED if func in known else (*_UNCOMPILED, "test_aot_dispatch_dynamic")
        torch.library.opcheck(func, args, test_utils=tests)

    for call in forward:
        # The gradient of an op that writes to its arguments is defined elsewhere.
        check(call, set() if call[0]._schema.is_mutable else promised)
    for call in backward:
        check(call, set())


def test_a_gradient_of_a_gradient_is_refused_or_computed(case: Case, subject: Subject) -> None:
    """PyTorch computes that of what is around a kernel; a kernel's own is refused by name."""
    op, inputs = OPS[case.op], subject.inputs(OPS[case.op], case)
    trained = inputs.trained or tuple(n for n, x in inputs.tensors.items() if x.is_floating_point())
    leaves = {n: inputs.tensors[n].detach().requires_grad_() for n in trained}
    given = {**inputs.given({**inputs.tensors, **leaves}), "mode": case.mode}
    returned = getattr(kernels, op.name)(**given)
    o = returned[0] if isinstance(returned, tuple) else returned
    trained_with = partial(torch.autograd.grad, inputs=[*leaves.values()], allow_unused=True)
    refused = ""
    try:
        for gradient in trained_with(o.square().sum(), create_graph=True):
            trained_with(gradient.sum(), retain_graph=True)
    except NotImplementedError as error:
        refused = str(error)
    assert not refused or re.search("gradients( of its gradients)? are not implemented", refused)


def _registered_ops() -> dict[str, set[str]]:
    """Op of the catalogue → the custom ops whose names start with its name."""
    found: dict[str, set[str]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        ours = [op for op in OPS if name.startswith(f"{_NAMESPACE}::{op}")]
        if ours:
            found.setdefault(max(ours, key=len), set()).add(name)
    return found


@pytest.mark.parametrize("op", sorted(_registered_ops()))
def test_every_registered_op_is_called_by_some_case(op: str, subject: Subject) -> None:
    left = _registered_ops()[op]
    for name in reversed(_LEAST_AND_MOST):
        for mode in OPS[op].modes:
            forward, backward = _calls(OPS[op], _cases(OPS[op], mode)[name], subject)
            left -= {func._schema.name for func, _ in (*forward, *backward)}
        if not left:
            return
    assert not left


def test_a_loss_without_the_first_output_has_gradients(case: Case, subject: Subject) -> None:
    """A loss of the final state only gives the gradients of a zero cotangent for the first
    output.
    """
    op = OPS[case.op]
    inputs, (first, *others) = subject.inputs(op, case), subject.cotangents(op, case).items()
    zeros = torch.zeros(first[1].shape, dtype=first[1].dtype, device=first[1].device)
    want = subject.run(op, case, inputs, {first[0]: zeros, **dict(others)})
    got = subject.run(op, case, inputs, dict(others))
    assert any(want[f"d{a.name}"].any() for a in op.arguments if f"d{a.name}" in want)
    for name, x in want.items():
        assert torch.equal(got[name], x), name


def test_what_changes_before_the_backward_pass_is_refused_or_does_not_matter(
    case: Case, subject: Subject
) -> None:
    """PyTorch notices changes of what is saved for the backward pass, and of nothing else that a
    function keeps.
    """
    op, function = OPS[case.op], getattr(kernels, case.op)
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    want = outputs_and_gradients(op, function, inputs, cotangents, mode=case.mode)
    outputs = [output.name for output in op.outputs]
    for changed in (*inputs.tensors, *outputs):

        def changing(changed: str = changed, **given: Any) -> Any:
            returned = function(**given)
            several = returned if isinstance(returned, tuple) else (returned,)
            x = {**given, **dict(zip(outputs, several, strict=True))}[changed]
            with torch.no_grad():
                x.copy_(~x if x.dtype == torch.bool else x + 1)
            return returned

        own = inputs.with_tensors({n: own_copy(x) for n, x in inputs.tensors.items()})
        try:
            got = outputs_and_gradients(op, changing, own, cotangents, mode=case.mode)
        except RuntimeError as error:
            if not re.search("modified (by an )?inplace", str(error)):
                raise
        else:
            for name in inputs.trained:
                assert torch.equal(got[f"d{name}"], want[f"d{name}"]), f"d{name}, {changed}"


def test_a_call_leaves_nothing_behind(case: Case, subject: Subject) -> None:
    """No memory, once its tensors are gone, and random numbers where they were."""
    op, function = OPS[case.op], getattr(kernels, case.op)
    cuda = subject.device.type == "cuda"
    random = [torch.get_rng_state, *([torch.cuda.get_rng_state] if cuda else [])]
    before = [state() for state in random]
    memory: list[StorageWeakRef] = []

    def watched(tensors: Iterable[Tensor]) -> None:
        memory.extend(StorageWeakRef(x.untyped_storage()) for x in tensors)

    def call() -> None:
        inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
        own = inputs.with_tensors({n: own_copy(x) for n, x in inputs.tensors.items()})
        watched(own.tensors.values())
        watched(outputs_and_gradients(op, function, own, cotangents, mode=case.mode).values())
        with torch.no_grad():
            watched(outputs_and_gradients(op, function, own, mode=case.mode).values())

    call()
    # The thread of a GPU's backward pass may let go of its last tensors a moment later.
    for attempt in range(20):
        # The youngest objects first: what a whole run holds takes half a second to look at.
        gc.collect(1 if attempt == 0 else 2)
        if all(one.expired() for one in memory):
            break
        time.sleep(0.1)
    assert all(one.expired() for one in memory)
    assert all(torch.equal(state(), was) for state, was in zip(random, before, strict=True))


class _Stopped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> None:
        return None


def test_an_op_whose_one_output_has_no_gradient_gives_zeros(subject: Subject) -> None:
    """Later code may pass no gradient to it, and PyTorch still runs the op's backward."""
    x = torch.randn(2, 3, 4, 5, device=subject.device, requires_grad=True)
    (dx,) = torch.autograd.grad(_Stopped.apply(kernels.l2norm(x)).sum(), x)
    assert torch.equal(dx, torch.zeros_like(x))


def _dynamic(case: Case) -> bool:
    """Whether sizes are symbolic: in each mode the packed case or the dense one, by turns."""
    return case.packed == bool(list(OPS).index(case.op) % 2)


def test_compiled_equals_eager_bit_for_bit(case: Case, subject: Subject) -> None:
    op, dynamic = OPS[case.op], _dynamic(case)
    function = getattr(kernels, op.name)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    # A graph compiled for any size must serve other lengths too, also where two sizes of the first
    # call are equal by chance, which PyTorch would take for one symbol.
    for each in (case, _longer(op, case)) if dynamic else (case,):
        inputs, cotangents = subject.inputs(op, each), subject.cotangents(op, each)
        want = outputs_and_gradients(op, function, inputs, cotangents, mode=each.mode)
        with (
            # Keys of PyTorch's cache of fake results take longer than the results, if symbolic.
            torch._dynamo.config.patch(
                error_on_recompile=each is not case, fake_tensor_cache_enabled=False
            ),
            mock.patch.object(torch.fx.experimental._config, "use_duck_shape", False),
        ):
            got = outputs_and_gradients(op, compiled, inputs, cotangents, mode=each.mode)
        assert got.keys() == want.keys()
        for name, x in want.items():
            assert got[name].dtype == x.dtype, name
            assert torch.equal(got[name], x), f"{name} differs in {each.line()}"
