"""Adapters narrow what is drawn and say so; ledgers tell known failures from new ones."""

import gc
import locale
import os
import re
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.machinery import PathFinder
from io import TextIOWrapper
from pathlib import Path
from time import sleep
from typing import Any, cast
from unittest.mock import Mock

import numpy
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import BaseTorchDispatchMode

import reference
from properties import scope, session, simulator
from properties.cases.case import Case
from properties.cases.extents import ORDINARY
from properties.cases.inputs import Results
from properties.cases.strategies import cases
from properties.cases.tensors import build
from properties.catalogue import OPS, Op
from properties.catalogue.op import Argument, Role
from properties.device import keeping_python, keeping_state
from properties.jobs import Job, Selection, drawn, hypothesis_test, judge
from properties.laws import LAWS, Run, Subject, Violation, expect, untouched_inputs
from properties.laws.mistakes import Mistake, in_turn, mistakes
from properties.session import SHARE_FACTORS
from properties.simulator import SimulationError
from properties.simulator.errors import Location
from properties.suite import limit, test_laws
from properties.targets import NAMES, Adapter, Implementation, Target, bounds, load
from properties.targets.fla import library
from properties.targets.fla.mode import neutral
from properties.targets.ledger import KnownFailure, Ledger, Raised, Wrong, read, symptom
from properties.verdict.oracle import oracle_results

CPU = torch.device("cpu")
ATTENTION = OPS["attention"]
ROOT = Path(__file__).parents[2]
README = ROOT / "properties" / "targets" / "README.md"


def causal_only(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return reference.attention(q, k, v, scale=scale, causal=causal, cu_seqlens=cu_seqlens)[0]


def always_causal(case: Case) -> Case:
    return case.with_options(causal=True)


def some() -> Adapter:
    one = Implementation(
        causal_only,
        dtypes=("float32",),
        bounds={"causal": always_causal},
        constants=("k",),
        unstated={"determinism": "it adds as it likes"},
    )
    adapter = Adapter({"attention": {"some": one}})
    adapter.name = "mine"
    return adapter


def test_only_what_the_signature_names_is_drawn() -> None:
    op = scope.declared(some(), "attention", "some")
    assert [a.name for a in op.arguments] == ["q", "k", "v"]
    assert {o.name for o in op.options} == {"scale", "causal"}
    assert [o.name for o in op.outputs] == ["o"]
    assert op.packed_by == ("cu_seqlens",)

    @settings(
        max_examples=60,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(op, op.modes[0], "float32", some()))
    def look(case: Case) -> None:
        assert set(case.options) == {"scale", "causal"}
        assert case.options["causal"]
        assert not case.given
        assert not (case.packed and case.key_lengths)

    look()


def test_a_tensor_without_a_default_is_in_every_case() -> None:
    def rms_norm_gated(x: Tensor, z: Tensor, weight: Tensor) -> Tensor:
        return reference.rms_norm_gated(x, z, weight)

    target = Adapter({"rms_norm_gated": {"some": rms_norm_gated}})
    op = scope.declared(target, "rms_norm_gated", "some")
    case = Case.of("rms_norm_gated", "some", {"B": 1, "H": 1, "D": 2}, (1,))
    assert op.settle(case).given == ("weight",)
    (line,) = scope.missing(target, ["rms_norm_gated"])
    assert "only with `weight`" in line
    for law in ("differential", "plumbing", "request_invariance"):
        judge(law, op.settle(case), Subject(target, CPU, quick=True))


def test_a_target_reports_what_it_lacks() -> None:
    *absent, line = scope.missing(some())
    assert absent == [f"target mine has attention of {len(OPS)} ops"]
    assert line == (
        "attention (some): no `sink`, no `alibi_slopes`, no `g`, no `bias`, no `mask`, "
        "no `window`, no `softcap`, no `structure`, no `return_lse`, no packed keys but the "
        "queries' own; 2 of 6 options drawn; not in bfloat16 or float16; only causal and k as a "
        "constant; laws not stated: determinism (it adds as it likes), merging (it has no "
        "return_lse)"
    )
    assert [*scope.missing(some(), ["attention"])] == [line]
    assert [*scope.missing(some(), [], ["another"])] == absent
    assert [*scope.missing(some(), ["gla"])] == ["target mine has no gla"]


def _without_lse(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False) -> Tensor:
    return causal_only(q, k, v)


@pytest.mark.parametrize("law", ["differential", "determinism", "untouched_inputs"])
def test_a_missing_result_is_named_whatever_the_law(law: str) -> None:
    dims = {"B": 1, "G": 1, "R": 1, "K": 4, "V": 3}
    case = Case.of("attention", "some", dims, (5,), options={"return_lse": True})
    target = Adapter({"attention": {"some": _without_lse}})
    with pytest.raises(TypeError, match="it returns no lse, expected o, lse"):
        LAWS[law](scope.declared(target, "attention", "some"), case, Subject(target, CPU))


def _in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return causal_only(q, k, v).float()


def test_a_target_states_the_dtype_of_its_output() -> None:
    case = Case.of(
        "attention", "some", {"B": 1, "G": 1, "R": 1, "K": 4, "V": 3}, (5,), dtype="bfloat16"
    )
    differential = LAWS["differential"]
    silent = Adapter({"attention": {"some": _in_float32}})
    with pytest.raises(Violation, match="it returns o in float32, expected bfloat16"):
        differential(scope.declared(silent, "attention", "some"), case, Subject(silent, CPU))
    stated = Adapter(
        {"attention": {"some": Implementation(_in_float32, output_dtypes={"o": "float32"})}}
    )
    differential(scope.declared(stated, "attention", "some"), case, Subject(stated, CPU))
    *_, line = scope.missing(stated)
    assert "only o in float32;" in line


def test_the_oracles_lack_nothing() -> None:
    assert list(scope.missing(load("oracle", CPU))) == []


def test_ours_lacks_the_ops_without_a_kernel_and_nothing_else() -> None:
    absent = [op.name for op in OPS.values() if not op.modes]
    expected = [f"target ours has no {', '.join(absent)}"] if absent else []
    ours = load("ours", CPU)
    assert list(scope.missing(ours)) == expected
    assert scope.declared(ours, "attention", "parallel") is ATTENTION


def _summed(x: Tensor, *, cu_seqlens: Tensor | None = None) -> Tensor:
    return reference.cumsum(x, cu_seqlens=cu_seqlens)


def test_lengths_are_about_the_usual_tiles_where_a_target_states_none() -> None:
    target = Adapter({"cumsum": {"mine": _summed}})
    op = scope.declared(target, "cumsum", "mine")
    met: set[int] = set()

    @settings(max_examples=200, database=None, derandomize=True, phases=[Phase.generate])
    @given(drawn(Job("cumsum", "mine", "differential", "float32"), op, target))
    def draw(bundle: list[Case]) -> None:
        met.update(length for case in bundle for length in case.lengths)

    draw()
    assert met >= {63, 64, 65, 127, 128, 129}


def test_jobs_are_those_that_the_target_has() -> None:
    jobs = Selection().jobs(some())
    assert {(job.op, job.mode, job.dtype) for job in jobs} == {("attention", "some", "float32")}
    # It has no LSE to merge parts by.
    assert {job.law for job in jobs} == set(ATTENTION.laws) - {"determinism", "merging"}
    with pytest.raises(ValueError, match="mode: 'parallel', expected one of some"):
        Selection(modes=("parallel",)).jobs(some())


def test_a_mode_that_is_left_out_is_refused_with_the_reason() -> None:
    target = some()
    target.remarks = ("attention (parallel) is left out: No module named 'einops'",)
    with pytest.raises(ValueError, match=r"'parallel', expected one of some; .* named 'einops'"):
        Selection(ops=("attention",), modes=("parallel",)).jobs(target)


@pytest.mark.parametrize("law", sorted(set(ATTENTION.laws) - {"determinism", "merging"}))
def test_every_stated_law_holds_for_a_part_of_the_oracle(law: str) -> None:
    job = Job("attention", "some", law, "float32")
    settings(max_examples=4, database=None, deadline=None)(
        hypothesis_test(job, Subject(some(), CPU, quick=True))
    )()


def test_kernels_may_choose_by_the_shared_memory_of_other_gpus() -> None:
    told = set()

    def asking(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        utils = triton.runtime.driver.active.utils
        told.add(utils.get_device_properties(0)["max_shared_mem"] // 1024)
        return causal_only(q, k, v)

    with simulator.simulating():
        asked = Adapter({"attention": {"some": asking}}, triton=True)
        assert Adapter({"attention": {"some": asking}}).architectures(SQUARE) == ()
        assert asked.architectures(SQUARE) == ("sm_80", "sm_120")
        op = scope.declared(asked, "attention", "some")
        case = Case.of("attention", "some", {"B": 1, "G": 1, "R": 1, "K": 4, "V": 3}, (5,))
        for architecture in (None, *asked.architectures(case)):
            one = replace(case, architecture=architecture)
            LAWS["differential"](op, one, Subject(asked, CPU))
    assert told == {227, 163, 99}


def positive_scale(case: Case) -> Case:
    scale = case.options["scale"]
    if scale in (None, -1) or scale > 0:
        return case
    return case.with_options(scale=abs(scale) or 1.0)


def two_tokens(case: Case) -> Case:
    keys = case.key_lengths and tuple(max(2, n) for n in case.key_lengths)
    return replace(case, lengths=tuple(max(2, n) for n in case.lengths), key_lengths=keys)


def no_more_keys(case: Case) -> Case:
    return replace(case, key_lengths=None)


def with_all_outputs(case: Case) -> Case:
    return case.with_options(**OPS[case.op].asks_for_all)


def unnormalized(case: Case) -> Case:
    plain = {n: False for n in ("normalize", "use_qk_l2norm_in_kernel") if n in case.options}
    return case.with_options(**plain)


BOUNDS = (positive_scale, two_tokens, no_more_keys, with_all_outputs, unnormalized)


class Bounded(Adapter):
    """The oracle of an op within bounds; counts calls outside of them."""

    def __init__(self, op: Op) -> None:
        bounds = {bound.__name__: bound for bound in BOUNDS}
        super().__init__({op.name: {"some": Implementation(self.call, bounds=bounds)}})
        self.name = "bounded"
        self.op = op
        self.calls = 0
        self.outside: list[dict[str, Any]] = []

    def call(self, **given: Any) -> Any:
        self.calls += 1
        flags = {"normalize": False, "use_qk_l2norm_in_kernel": False} | self.op.asks_for_all
        scale, q = given["scale"], given["q"]
        bounds = given.get("cu_seqlens")
        tokens = torch.tensor([q.shape[1]]) if bounds is None else bounds.diff()
        if not (
            (scale in (None, -1) or scale > 0)
            and bool((tokens >= 2).all())
            and given["k"].shape[1] == q.shape[1]
            and all(given[name] == flag for name, flag in flags.items() if name in given)
        ):
            self.outside.append(given)
        return self.op.oracle(**given)


@pytest.mark.ops("rotary_embedding")
def test_an_oracle_names_a_bad_argument_of_a_call_in_place() -> None:
    call = load("oracle", torch.device("cpu")).function(OPS["rotary_embedding"])
    angle = torch.zeros(1, 1)
    with pytest.raises(TypeError, match=r"^x: "):
        call(mode="fused", tile=None, x=[1.0], cos=angle, sin=angle, inplace=True)


@pytest.mark.parametrize("name", ["gla", "delta_rule", "attention"])
@pytest.mark.parametrize("law", sorted(set(LAWS) - {"rejection"}))
def test_no_law_leaves_the_bounds_of_an_adapter(
    name: str, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Judge no results, which would take most of the time.
    monkeypatch.setattr(expect, "_within_a_budget", lambda *_: [])
    target = Bounded(OPS[name])
    if law not in scope.laws(target, name, "some"):
        pytest.skip(f"{name} has no such law")
    op, subject = scope.declared(target, name, "some"), Subject(target, CPU, quick=True)

    # Only requests are tested, so tensors may be small.
    @settings(max_examples=24, database=None, deadline=None, phases=[Phase.generate])
    @given(cases(op, op.modes[0], "float32", target, longest=8, widest=4, extents=ORDINARY))
    def look(case: Case) -> None:
        judge(law, case, subject)

    # Parts of attention need more or fewer keys than queries, so two laws do not apply here. Of a
    # recurrence, few cases have both parts within the bounds.
    nothing = name == "attention" and law in ("splitting", "merging")
    for number in range(1 if nothing else 10):
        seed(number)(look)()
        assert not target.outside
        if target.calls:
            return
    assert nothing


@pytest.mark.parametrize("law", ["differential", "permutation", "plumbing", "untouched_inputs"])
def test_an_adapter_of_padding_masks_gets_masks_of_keys(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expect, "_within_a_budget", lambda *_: [])
    shapes: list[tuple[int, ...]] = []

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None
    ) -> Tensor:
        assert scale in (None, -1) or scale > 0
        if mask is not None:
            shapes.append(tuple(mask.shape))
            assert mask.shape[1:] == (1, 1, k.shape[1])
        return reference.attention(q, k, v, scale=scale, mask=mask)[0]

    usual = {"masks of keys": bounds.masks_of_keys, "a positive scale": bounds.positive_scale}
    target = Adapter({"attention": {"forward": Implementation(attention, bounds=usual)}})
    op = scope.declared(target, "attention", "forward")

    @settings(max_examples=24, database=None, deadline=None, phases=[Phase.generate])
    @given(cases(op, op.modes[0], "float32", target, longest=8, widest=4, extents=ORDINARY))
    def look(case: Case) -> None:
        judge(law, case, Subject(target, CPU, quick=True))

    seed(0)(look)()
    assert len({shape[0] for shape in shapes}) > 1


@pytest.mark.parametrize("bound", [None, bounds.with_keys])
def test_pages_hold_the_keys_of_all_queries_where_an_adapter_says_so(
    bound: bounds.Bound | None,
) -> None:
    fewer = []

    def paged_attention(
        q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
        causal: bool = False, cu_seqlens: Tensor,
    ) -> Any:  # fmt: skip
        fewer.append(bool((lengths < cu_seqlens.diff().clamp(1)).any()))
        return OPS["paged_attention"].oracle(
            q, k_pages, v_pages, block_table, lengths, causal=causal, cu_seqlens=cu_seqlens
        )

    one = Implementation(paged_attention, bounds={"keys of all queries": bound} if bound else {})
    made = Adapter({"paged_attention": {"some": one}})
    op, subject = scope.declared(made, "paged_attention", "some"), Subject(made, CPU, quick=True)

    @settings(max_examples=24, database=None, deadline=None, phases=[Phase.generate])
    @given(cases(op, op.modes[0], "float32", made, longest=8, widest=4, extents=ORDINARY))
    def look(case: Case) -> None:
        judge("differential", case, subject)

    seed(0)(look)()
    assert any(fewer) is (bound is None)


def a_query_of_each(case: Case) -> Case:
    return replace(case, lengths=tuple(max(1, n) for n in case.lengths))


def pages_of_16(case: Case) -> Case:
    size = case.dims["C"]
    return case.with_dims(C=size if size in (16, 32, 64) else 16)


def no_sink_beside_a_window(case: Case) -> Case:
    return case if case.options["window"] is None else replace(case, given=())


@pytest.mark.parametrize("law", ["batch_invariance", "plumbing", "differential"])
def test_no_law_leaves_the_bounds_of_an_adapter_of_pages(law: str) -> None:
    calls: list[tuple[int, int]] = []

    def paged_attention(
        q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
        causal: bool = False, window: int | None = None, sink: Tensor | None = None,
    ) -> Any:  # fmt: skip
        calls.append((q.shape[1], k_pages.shape[1]))
        assert window is None or sink is None
        return OPS["paged_attention"].oracle(
            q, k_pages, v_pages, block_table, lengths, causal=causal, window=window, sink=sink
        )

    bounds = (a_query_of_each, pages_of_16, no_sink_beside_a_window)
    one = Implementation(paged_attention, bounds={bound.__name__: bound for bound in bounds})
    made = Adapter({"paged_attention": {"some": one}})
    op, subject = scope.declared(made, "paged_attention", "some"), Subject(made, CPU, quick=True)
    dims = {"B": 1, "G": 1, "R": 1, "K": 16, "V": 16, "C": 32}
    drawn = Case.of("paged_attention", "some", dims, (1,), "float16", float32=("sink",))
    for number in range(8):
        options = {"causal": True, "window": (None, 2)[number % 2]}
        case = replace(drawn, lengths=(1 + number % 3,), options=options, seed=number)
        judge(law, op.settle(replace(case, given=("sink",))), subject)
    assert {size for _, size in calls} <= {16, 32, 64}
    assert all(tokens for tokens, _ in calls)
    assert law != "batch_invariance" or len({size for _, size in calls}) > 1


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("linear_attn", "normalize", True),
        ("gla", "output_final_state", False),
        ("kda", "use_qk_l2norm_in_kernel", True),
        ("short_conv", "activation", "silu"),
        ("attention", "causal", False),
        ("attention", "window", 5),
        ("attention", "return_lse", False),
    ],
)
def test_every_law_keeps_to_an_option_of_one_value(name: str, option: str, value: object) -> None:
    """Small integers round with some of them, and others undo what a law says."""
    got: list[object] = []

    def call(**given: Any) -> Any:
        got.append(given[option])
        return OPS[name].oracle(**given)

    one_value = bounds.fixed_options(**{option: value})
    # Gates of attention need `causal`.
    narrow = {"no gates": lambda case: case.without("g"), "one value": one_value}
    one = Implementation(call, bounds=narrow)
    target = Adapter({name: {"some": one}})
    op, subject = scope.declared(target, name, "some"), Subject(target, CPU, quick=True)

    @seed(0)
    @settings(max_examples=10, database=None, deadline=None, phases=[Phase.generate])
    @given(cases(op, op.modes[0], "float32", target, longest=8, widest=4, extents=ORDINARY))
    def look(case: Case) -> None:
        assert case.options[option] == value
        for law in scope.laws(target, name, "some"):
            if law == "exactness" or LAWS[law].options:
                judge(law, case, subject)

    look()
    assert set(got) == {value}


@pytest.mark.parametrize(("name", "tokens", "least"), [("hgrn", 2048, 3), ("l2norm", 512, 10)])
def test_sequences_pass_the_end_of_a_long_tile(name: str, tokens: int, least: int) -> None:
    """A form of hgrn's oracle holds all pairs of tokens, l2norm's few numbers."""
    target = Adapter({name: {"some": Implementation(OPS[name].oracle, tokens=tokens)}})
    op = scope.declared(target, name, "some")
    past: list[Case] = []

    @seed(0)
    @settings(max_examples=100, database=None, deadline=None, phases=[Phase.generate])
    @given(cases(op, op.modes[0], "float32", target))
    def draw(case: Case) -> None:
        if max(case.lengths) > tokens and case.values != "integers":
            past.append(case)

    draw()
    assert len(past) >= least


def test_bounds_hold_for_the_call_before() -> None:
    op = Bounded(OPS["gla"]).declaration(OPS["gla"], "some")

    def settled(earlier: Mapping[str, Any]) -> Mapping[str, Any] | None:
        options = {"scale": 2.0, "normalize": False, "output_final_state": True}
        case = replace(SQUARE, op="gla", dims={"B": 1, "H": 1, "K": 3, "V": 2}, options=options)
        return op.settle(replace(case, earlier=earlier)).earlier

    assert settled({"scale": -3.0}) == {"scale": 3.0}
    assert settled({"scale": 3.0}) == {"scale": 3.0}
    assert settled({}) == {}


@pytest.mark.parametrize(
    ("name", "option", "larger", "smaller"),
    [("linear_attn", "normalize", True, False), ("rotary_embedding", "seqlen_offsets", 2, 0)],
)
def test_the_call_before_has_tensors_that_are_large_enough(
    name: str, option: str, larger: object, smaller: object
) -> None:
    """A state of a normalizer has a column more, and later positions need longer tables."""
    op = Adapter({name: {"some": OPS[name].oracle}}).declaration(OPS[name], "some")
    dims = dict.fromkeys([*OPS[name].dims, "B"], 2)
    given = ("initial_state",) if name == "linear_attn" else ()
    case = Case.of(name, "some", dims, (3,), given=given)

    def settled(now: object, before: object) -> Mapping[str, Any] | None:
        options = {**case.options, option: now}
        return op.settle(replace(case, options=options, earlier={option: before})).earlier

    assert settled(smaller, larger) == {}
    assert settled(larger, smaller) == {option: smaller}


def test_the_call_before_has_no_option_that_a_library_lacks() -> None:
    """As in a case that was kept before its adapter lost the option."""

    def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float | None = None) -> Any:
        return OPS["gla"].oracle(q, k, v, g, scale=scale)

    op = Adapter({"gla": {"some": gla}}).declaration(OPS["gla"], "some")
    case = Case.of("gla", "some", {"B": 1, "H": 1, "K": 3, "V": 2}, (3,))
    before = {"normalize": True, "scale": 2.0}
    assert op.settle(replace(case, earlier=before)).earlier == {"scale": 2.0}


def test_options_that_a_library_lacks_are_never_set() -> None:
    def short_conv(x: Tensor, weight: Tensor) -> Any:
        return OPS["short_conv"].oracle(x, weight)

    target = Adapter({"short_conv": {"some": short_conv}})
    dims = {"B": 1, "D": 2, "W": 2}
    case = replace(SQUARE, op="short_conv", dims=dims, options={}, values="integers")
    assert target.declaration(OPS["short_conv"], "some").settle(case) == case


def with_a_tap(form: Callable[..., Any]) -> Callable[..., Any]:
    def convolution(*, weight: Tensor, **given: Any) -> Any:
        return form(weight=torch.nn.functional.pad(weight, (1, 0)), **given)

    return convolution


def of_all_taps(op: Op) -> Op:
    """A convolution whose state has one more token, with weight 0."""
    forms: dict[str, Any] = {
        n: with_a_tap(getattr(op, n)) for n in ("oracle", "second_form", "quiet_form")
    }
    return replace(op, **forms, sizes=lambda case: {"W-1": case.dims["W"]})


@pytest.mark.parametrize("lost", [False, True])
def test_a_gradient_lost_in_results_outside_the_catalogue_is_seen(lost: bool) -> None:
    def library(
        x: Tensor,
        weight: Tensor,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        form = with_a_tap(reference.short_conv)
        y, state = form(
            x=x, weight=weight, initial_state=initial_state, output_final_state=output_final_state
        )
        if lost and state is not None:
            state = torch.cat([state[:, :1].detach(), state[:, 1:]], 1)
        return y, state

    target = Adapter({"short_conv": {"some": Implementation(library, whole=of_all_taps)}})
    target.name = "mine"
    op = target.declaration(OPS["short_conv"], "some")
    case = Case.of(
        "short_conv",
        "some",
        {"B": 1, "D": 2, "W": 3},
        (5,),
        given=("initial_state",),
        options={"output_final_state": True},
    )
    for law in ("differential", "splitting"):
        if not lost:
            LAWS[law](op, case, Subject(target, CPU))
            continue
        with pytest.raises(Violation, match="dx differs from the oracle"):
            LAWS[law](op, case, Subject(target, CPU))


def parameter_of_another_name(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    return q


def no_values(q: Tensor, k: Tensor) -> Tensor:
    return q


def nameless(q: Tensor, /, k: Tensor, v: Tensor) -> Tensor:
    return q


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ({"attn": {}}, "op: 'attn', expected one of "),
        ({"attention": {"a": parameter_of_another_name}}, r"\(a\): parameter 'sm_scale', expected"),
        ({"attention": {"a": no_values}}, r"attention \(a\): no parameter 'v', expected one"),
        (
            {"attention": {"a": Implementation(causal_only, unstated={"speed": "slow"})}},
            r"attention \(a\): law 'speed', expected one of ",
        ),
        ({"attention": causal_only}, "attention: .*causal_only.*, expected a mapping of modes"),
        *(
            ({"attention": {mode: causal_only}}, "attention: mode .*, expected letters, digits")
            for mode in ("../a", "it's", "", "a" * 300, 3)
        ),
        ([("attention", {})], r"ops: \[\('attention', {}\)\], expected a mapping of ops"),
        ({"attention": {"a": 3}}, r"attention \(a\): function 3, expected a function"),
        ({"attention": {"a": torch.sin}}, r"attention \(a\): no signature found"),
        ({"attention": {"a": nameless}}, r"\(a\): parameter 'q' is positional only"),
        *(
            ({"attention": {"a": Implementation(causal_only, **field)}}, rf"\(a\): {told}")
            for field, told in (
                ({"dtypes": "float32"}, "dtypes 'float32', expected a tuple"),
                ({"dtypes": (torch.float32,)}, "dtype torch.float32, expected one of float32"),
                ({"output_dtypes": {"y": "case"}}, "output 'y', expected one of o, lse"),
                ({"output_dtypes": {"o": "float64"}}, "output dtype 'float64', expected one of"),
                ({"constants": ("dq",)}, "constant 'dq', expected one of q, k, v"),
                ({"unstated": ("rejection",)}, r"unstated \('rejection',\), expected a Mapping"),
                ({"unstated": {"rejection": None}}, "None, expected a text"),
                ({"conventions": (3,)}, "3, expected a text"),
                ({"bounds": {"even": "D % 2"}}, "even 'D % 2', expected a function"),
                ({"whole": None}, "whole None, expected a function"),
                ({"telescopes": ()}, r"telescopes \(\), expected a function"),
                ({"forward_only": "no"}, "forward_only 'no', expected a bool"),
                ({"tokens": -1}, "tokens -1, expected 0 or more"),
            )
        ),
    ],
)
def test_an_adapter_that_does_not_match_the_catalogue_is_rejected(ops: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Adapter(ops)


def skipping(device: torch.device) -> Target:
    pytest.skip("no such machine")


def unnameable(device: torch.device) -> Target:
    class Unnameable(Target):
        name = property(lambda self: 1 / 0)

    return Unnameable()


def __getattr__(name: str) -> object:
    """As of a module that imports on demand."""
    raise (ImportError("no such library") if name == "on_demand" else AttributeError(name))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", f"'nothing', expected one of {', '.join(NAMES)}, or package.module:attribute"),
        ("no_such_module:target", "cannot be imported: No module named 'no_such_module'"),
        ("properties.targets.ours:nothing", "properties.targets.ours has no 'nothing'"),
        ("properties.targets:NAMES", "properties.targets has no callable 'NAMES'"),
        ("builtins:repr", "returned str, expected a properties.targets.Target"),
        (f"{__name__}:skipping", "cannot be made: Skipped: no such machine"),
        (f"{__name__}:unnameable", "cannot be made: AttributeError: property "),
        (f"{__name__}:on_demand", "cannot be imported: no such library"),
    ],
)
def test_a_target_that_does_not_exist_is_named(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load(name, CPU)


def test_an_import_that_fails_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_library.py").write_text("\nimport no_such_module\n")
    (tmp_path / "my_adapter.py").write_text("import of_a_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"named 'no_such_module', at .*of_a_library\.py:2$"):
        load("my_adapter:target", CPU)


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"modes": lambda *_: None}, "modes of linear_attn: None, expected a tuple of texts"),
        ({"limits": lambda *_: 1 / 0}, r"limits of linear_attn \(chunk\): ZeroDivisionError: div"),
        (
            {"declaration": lambda *_: None},
            r"declaration of linear_attn \(chunk\): None, expected Op",
        ),
        ({"unstated": lambda *_: ["packing"]}, r"unstated of .*: \['packing'\], expected Mapping"),
        ({"contexts": ("nowhere",)}, r"contexts: \('nowhere',\), expected some of grad, no_grad"),
        ({"remarks": "slow"}, "remarks: 'slow', expected a tuple of texts"),
    ],
)
def test_a_target_that_states_something_else_is_named(
    stated: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = type("Mine", (Target,), stated)
    monkeypatch.setattr(sys.modules[__name__], "mine", lambda device: made(), raising=False)
    with pytest.raises(ValueError, match=f"^target: {told}"):
        load(f"{__name__}:mine", CPU)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("op", ["nope"], "op: 'nope', expected one of linear_attn, gla"),
        ("mode", ["nope"], "mode: 'nope', expected one of "),
        ("law", ["nope"], "law: 'nope', expected one of differential"),
        ("dtype", ["int8"], "dtype: 'int8', expected one of float32"),
        ("target", "nope", "target: 'nope', expected one of ours"),
        ("ledger", "nope", "ledger: 'nope', expected a file"),
    ],
)
def test_pytest_refuses_an_unknown_name_before_it_collects(
    option: str,
    value: object,
    told: str,
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(pytestconfig.option, f"oracles_{option}", value)
    with pytest.raises(pytest.UsageError, match=f"^{told}"):
        session.pytest_configure(pytestconfig)


def _normalized(change: Callable[[Tensor], Tensor]) -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        return change(reference.l2norm(x))

    return Adapter({"l2norm": {"some": l2norm}})


NORM = Case.of("l2norm", "some", {"B": 2, "H": 1, "D": 3}, (4,))


def test_a_wrong_shape_is_one_bug_whether_or_not_gradients_are_asked_for() -> None:
    subject = Subject(_normalized(lambda y: y[..., :1]), CPU)
    found = set()
    for context in ("grad", "no_grad"):
        with pytest.raises(
            Violation, match=r"shape \[2, 4, 1, 1\], expected \[2, 4, 1, 3\]"
        ) as one:
            judge("differential", replace(NORM, context=context), subject)
        found.add(one.value.fingerprint)
    assert len(found) == 1


@triton.autotune(  # type: ignore[untyped-decorator]
    configs=[triton.Config({"B": 16}), triton.Config({"B": 8})], key=["D"]
)
@triton.jit  # type: ignore[untyped-decorator]
def _first_config_alone(x_ptr, y_ptr, D, B: tl.constexpr):  # type: ignore[no-untyped-def]
    d = tl.arange(0, B)
    x = tl.load(x_ptr + tl.program_id(0) * D + d, mask=d < D, other=0.0)
    y = x / tl.sqrt(tl.sum(x * x) + 1e-6)
    tl.store(y_ptr + tl.program_id(0) * D + d, y if B == 16 else -y, mask=d < D)


def _autotuned_norm() -> Adapter:
    def l2norm(x: Tensor) -> Tensor:
        x, y = x.contiguous(), torch.empty(x.shape)
        _first_config_alone[(y[..., 0].numel(),)](x, y, x.shape[-1])
        return y

    return Adapter({"l2norm": {"some": Implementation(l2norm, forward_only=True)}})


def test_a_case_runs_another_config_of_an_autotuned_kernel() -> None:
    subject = Subject(_autotuned_norm(), CPU)
    with simulator.simulating():
        judge("differential", NORM, subject)
        judge("differential", replace(NORM, tile=2), subject)
        with pytest.raises(Violation, match="y differs from the oracle"):
            judge("differential", replace(NORM, tile=1), subject)


@pytest.mark.parametrize("emulated", [True, False])
def test_configs_are_drawn_where_no_gpu_times_them(
    emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("properties.targets.adapter.emulated", lambda: emulated)
    target, found = _autotuned_norm(), set()
    op = scope.declared(target, "l2norm", "some")

    @seed(0)
    @settings(max_examples=60, database=None, deadline=None)
    @given(cases(op, op.modes[0], "float32", target, extents=ORDINARY))
    def draw(case: Case) -> None:
        found.add(case.tile)

    draw()
    assert found == ({None, *range(1, 8)} if emulated else {None})


@pytest.mark.parametrize(
    "bound",
    [lambda case: None, lambda case: replace(case, dims={}), lambda c: replace(c, op="gla")],
)
def test_a_bound_that_makes_no_case_of_the_op_is_named(bound: Any) -> None:
    one = Implementation(causal_only, bounds={"even heads": bound})
    op = scope.declared(Adapter({"attention": {"some": one}}), "attention", "some")
    with pytest.raises(TypeError, match=r"bound 'even heads': .*, expected a case of"):
        op.settle(Case.of("attention", "some", {"B": 1, "H": 1, "K": 1}, (1,)))


def test_a_bound_that_changes_its_own_cases_is_named() -> None:
    wider = bounds.changed_dims("G", lambda n: n + 1)
    one = Implementation(causal_only, bounds={"more heads": wider})
    op = scope.declared(Adapter({"attention": {"some": one}}), "attention", "some")
    with pytest.raises(ValueError, match=r"bound 'more heads': .*, expected one that it leaves"):
        op.settle(Case.of("attention", "some", {"B": 1, "G": 1, "R": 1, "K": 1, "V": 1}, (1,)))


def test_a_bound_leaves_out_what_is_empty() -> None:
    one = Implementation(causal_only, bounds={"nothing empty": bounds.not_empty})
    target = Adapter({"attention": {"some": one}})
    op = scope.declared(target, "attention", "some")

    @seed(0)
    @settings(max_examples=60, database=None, deadline=None)
    @given(cases(op, op.modes[0], "float32", target))
    def draw(case: Case) -> None:
        assert all([*case.dims.values(), *case.lengths, *(case.key_lengths or ())])

    draw()


def test_the_symptom_of_an_error_of_triton_is_what_is_wrong() -> None:
    error = RuntimeError("at 46:10:\n    a + b\n    ^\narange's range must be a power of 2\n")
    assert symptom(error) == Raised("RuntimeError", "arange's range must be a power of 2")
    assert symptom(ValueError("no K\nhere")) == Raised("ValueError", "no K")


def test_a_result_on_another_device_is_named() -> None:
    subject = Subject(_normalized(lambda y: y.detach().to("meta")), CPU)
    with pytest.raises(Violation, match="it returns y on meta, expected cpu"):
        judge("differential", NORM, subject)


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ("grad mode", lambda: torch.set_grad_enabled(False)),
        ("default dtype", lambda: torch.set_default_dtype(torch.float64)),
        ("default device", lambda: torch.set_default_device("meta")),
        ("number of threads", lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
        ("anomaly mode", lambda: torch.autograd.set_detect_anomaly(True)),
        ("stack of function modes", lambda: BaseTorchFunctionMode().__enter__()),
        ("stack of dispatch modes", lambda: BaseTorchDispatchMode().__enter__()),
        ("hooks of saved tensors", lambda: save_on_cpu().__enter__()),
        ("choice of flash attention", lambda: torch.backends.cuda.enable_flash_sdp(False)),
        ("choice of math attention", lambda: torch.backends.cuda.enable_math_sdp(False)),
        ("functorch levels", torch._C._functorch._grad_increment_nesting),
        ("random seed", lambda: torch.manual_seed(torch.initial_seed() + 1)),
        ("flushing of denormals", lambda: torch.set_flush_denormal(True)),
    ],
)
def test_a_call_that_changes_pytorchs_state_is_told(
    state: str, change: Callable[[], object]
) -> None:
    def changing(y: Tensor) -> Tensor:
        change()
        return y

    told = pytest.raises(Violation, match=f"it changes PyTorch's {state}")
    with keeping_state() as changed, told:
        judge("untouched_inputs", NORM, Subject(_normalized(changing), CPU))
    assert changed == []


@pytest.mark.parametrize(
    ("read", "change"),
    [
        (lambda: [*warnings.filters], lambda: warnings.simplefilter("error")),
        (sys.getrecursionlimit, lambda: sys.setrecursionlimit(3000)),
        (sys.gettrace, lambda: sys.settrace(lambda *_: None)),
        (sys.getprofile, lambda: sys.setprofile(lambda *_: None)),
        (numpy.geterr, lambda: numpy.seterr(all="raise")),
        (gc.isenabled, gc.disable),
        (gc.get_threshold, lambda: gc.set_threshold(1)),
        (lambda: locale.setlocale(locale.LC_ALL), lambda: locale.setlocale(locale.LC_ALL, "C")),
    ],
    ids=[
        "warnings",
        "recursion limit",
        "trace",
        "profile",
        "NumPy's errors",
        "collector",
        "collector's threshold",
        "locale",
    ],
)
def test_a_call_that_changes_pythons_state_spoils_no_later_case(
    read: Callable[[], object], change: Callable[[], object]
) -> None:
    def changing(y: Tensor) -> Tensor:
        change()
        return y

    before = read()
    with warnings.catch_warnings(), keeping_python():
        judge("differential", NORM, Subject(_normalized(changing), CPU))
        assert read() == before


@pytest.mark.parametrize("law", ["differential", "determinism", "rejection"])
@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_device("meta"),
        lambda: warnings.simplefilter("error"),
    ],
    ids=["default dtype", "default device", "warnings"],
)
def test_state_that_a_call_changes_is_not_blamed_on_what_a_law_computes(
    change: Callable[[], object], law: str
) -> None:
    def changing(y: Tensor) -> Tensor:
        change()
        return y

    subject = Subject(_normalized(changing), CPU)
    # Its values depend on the default dtype while they are made.
    case = Case.of("l2norm", "some", {"B": 1, "H": 1, "D": 1}, (1,))
    judge(law, replace(case, values="zeros", earlier={}), subject)


def test_results_in_one_memory_are_told_and_parts_of_one_buffer_are_not() -> None:
    buffer = torch.zeros(2, 3, 4)
    run = Run("untouched_inputs", ATTENTION, PLAIN, Subject(_normalized(lambda y: y), CPU))
    untouched_inputs._expect_new(run, {"o": buffer[0], "lse": buffer[1, 0]}, {})
    untouched_inputs._expect_new(run, {"o": buffer[0], "lse": buffer[0, :0]}, {})
    for lse in (buffer[0], buffer[0, 2]):
        for results in ({"o": buffer[0], "lse": lse}, {"o": lse, "lse": buffer[0]}):
            with pytest.raises(Violation, match="lse: it shares memory with o"):
                untouched_inputs._expect_new(run, results, {})


class _Text(str):
    def __getitem__(self, place: object) -> str:
        raise RuntimeError("no part of it")


class _Odd(Exception):
    """An exception that wants no note, and whose text cannot be cut."""

    def __str__(self) -> str:
        return _Text("odd")

    def __getattribute__(self, name: str) -> object:
        if name == "__notes__":
            raise RuntimeError("no note")
        return super().__getattribute__(name)


@pytest.mark.parametrize("bitwise", [False, True])
def test_a_flag_that_changes_another_output_is_seen(bitwise: bool) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False) -> Any:
        o, lse = reference.attention(q, k, v, return_lse=return_lse)
        return (o, lse) if return_lse else (o / 2, None)

    adapter = Adapter({"attention": {"some": attention}}, bitwise=bitwise)
    case = replace(PLAIN, mode="some", options={"return_lse": True})
    with pytest.raises(Violation, match=r"^plumbing does not hold .*: o differs from the "):
        judge("plumbing", case, Subject(adapter, CPU))


def test_an_exception_of_an_odd_type_is_told_as_it_is() -> None:
    def refuse(y: Tensor) -> Tensor:
        raise _Odd

    with pytest.raises(Violation, match=r"^differential: _Odd: odd\n"):
        judge("differential", NORM, Subject(_normalized(refuse), CPU))


class _GradientWrittenTo(torch.autograd.Function):
    """Takes a gradient as it is, and leaves other numbers in its memory."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        taken = gradients[0].clone()
        gradients[0].mul_(2)
        return taken


def test_right_results_are_right_though_the_call_writes_to_its_arguments() -> None:
    subject = Subject(_normalized(_GradientWrittenTo.apply), CPU)
    judge("differential", NORM, subject)
    with pytest.raises(Violation, match="gradient of y: its memory was written to"):
        judge("untouched_inputs", NORM, subject)


def test_pytest_reports_a_target_that_skips() -> None:
    subject = Subject(_normalized(lambda y: pytest.skip("no such machine")), CPU)
    job = Job("l2norm", "some", "differential", "float32")
    with pytest.raises(Violation, match="Skipped: no such machine"):
        test_laws.test_law_holds(job, subject, Mock(stash={SHARE_FACTORS: {"l2norm": 1.0}}))


def test_pytest_tells_of_the_worst_case_beside_the_smallest() -> None:
    """The first large case has NaN, and then all others a rounding alone. Gradients are right, so
    that there is one failure.
    """
    first: list[torch.Size] = []

    def change(y: Tensor) -> Tensor:
        if not first and y.numel() > 40:
            first.append(y.shape)
        if not first:
            return y
        return y + (torch.nan if y.shape == first[0] else 1e-4) * y.detach()

    job = Job("l2norm", "some", "differential", "float32")
    with pytest.raises(Violation, match="times the budget") as caught:
        test_laws.test_law_holds(
            job, Subject(_normalized(change), CPU), Mock(stash={SHARE_FACTORS: {"l2norm": 1.0}})
        )
    told = "\n".join(caught.value.__notes__)
    assert re.search(r"^  at worst  not finite: Case\(.*\nREPRO: python -m ", told, re.M), told


def test_pytest_ends_a_case_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SECONDS", "_LOOK"):
        monkeypatch.setattr(limit, name, 0.1)

    def hang(y: Tensor) -> Tensor:
        sleep(1000)
        return y

    job = Job("l2norm", "some", "differential", "float32")
    with pytest.raises(Violation, match="Hangs: it takes over 0 s") as caught:
        test_laws.test_law_holds(
            job, Subject(_normalized(hang), CPU), Mock(stash={SHARE_FACTORS: {"l2norm": 1.0}})
        )
    assert "sleep(1000)" in str(caught.value)


def test_an_oracle_that_takes_long_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "_SECONDS", 2.0)
    monkeypatch.setattr(limit, "_LOOK", 0.1)
    seconds = [3.0]

    def slow(*asked: Any) -> Results:
        while seconds:
            sleep(seconds.pop())
        return oracle_results(*asked)

    monkeypatch.setattr(expect, "oracle_results", slow)
    job = Job("l2norm", "some", "differential", "float32")
    subject = Subject(_normalized(lambda y: y), CPU)
    test_laws.test_law_holds(job, subject, Mock(stash={SHARE_FACTORS: {"l2norm": 1.0}}))
    assert not seconds


def test_a_kernel_that_ends_the_process_passes_no_run_of_pytest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    call = session.pytest_runtest_call()
    next(call)
    with pytest.raises(SystemExit):
        os._exit(0)
    with pytest.raises(StopIteration):
        call.send(None)
    os._exit(0)
    assert left == [0]


def _closing() -> None:
    sys.stdout.close()


def _taking_over() -> None:
    sys.stdout = TextIOWrapper(sys.stdout.buffer, encoding="ascii")


def _detaching() -> None:
    sys.stdout = TextIOWrapper(cast(TextIOWrapper, sys.stdout).detach(), encoding="ascii")


@pytest.mark.parametrize("take", [_closing, _taking_over, _detaching])
def test_a_stream_that_a_kernel_takes_stays_pytests(
    take: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "printed").open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with session.staying():
            take()
        assert sys.stdout is stream
        assert not stream.closed
        stream.write("1 failed")
        stream.flush()
    assert (tmp_path / "printed").read_text() == "1 failed"
    assert stream.closed


def test_an_internal_error_of_a_worker_passes_no_run_of_pytest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_INTERNAL", [])
    run = Mock(exitstatus=pytest.ExitCode.OK, config=Mock(stash={session._CHANGED: None}))
    session.pytest_sessionfinish(run, run.exitstatus)
    assert run.exitstatus == pytest.ExitCode.OK
    session.pytest_internalerror("of a worker")
    session.pytest_sessionfinish(run, run.exitstatus)
    assert run.exitstatus == pytest.ExitCode.INTERNAL_ERROR


_LEFT = """
import threading
from time import sleep
from unittest.mock import Mock
from properties import session
session._LEAVING = 0.1
session.pytest_unconfigure(Mock(**{"pluginmanager.getplugin.return_value.exitstatus": 5}))
threading.Thread(target=sleep, args=(1000,)).start()
"""


def test_a_thread_that_a_kernel_leaves_does_not_hold_up_the_end_of_pytest() -> None:
    run = subprocess.run([sys.executable, "-c", _LEFT], cwd=ROOT, capture_output=True, timeout=300)
    assert run.returncode == 5
    assert b"goes on; ended without it" in run.stderr


_PROCESSES = """
import atexit, os, subprocess, sys, time
from properties import session
atexit.register(session._end_what_is_left, os.getpid())
nowhere = subprocess.DEVNULL
outside = subprocess.Popen(["sleep", "1000"], stdout=nowhere, stderr=nowhere)
with session.staying():
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    copy = os.fork()
    if copy == 0:
        time.sleep(1000)
print(outside.pid, daemon.pid, copy, flush=True)
"""


def test_processes_that_a_test_leaves_end_with_pytest() -> None:
    # While they go on, they hold the pipe open.
    run = subprocess.run(
        [sys.executable, "-c", _PROCESSES], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    outside, *left = map(int, run.stdout.split())
    os.kill(outside, signal.SIGKILL)
    assert "ended what a test has left running: " in run.stderr
    assert "sleep 1000" in run.stderr
    # One that has ended has no command, and soon no folder.
    commands = [Path(f"/proc/{process}/cmdline") for process in left]
    assert not any(command.exists() and command.read_bytes() for command in commands)


def test_a_call_that_switches_gradients_off_hides_no_wrong_gradient() -> None:
    def without(y: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return y.detach()

    subject = Subject(_normalized(without), CPU)
    for _ in range(2):
        with pytest.raises(Violation, match="dx differs from the oracle"):
            judge("differential", NORM, subject)


@pytest.fixture
def load_oracles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Target]:
    """Load the oracles as the target of a module that does something else besides."""

    def load_module(name: str, does: str) -> Target:
        text = f"from properties.targets.oracle import target\n{does}\n"
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return load(f"{name}:target", CPU)

    return load_module


def test_a_module_that_changes_pytorchs_state_changes_no_verdict(
    load_oracles: Callable[[str, str], Target],
) -> None:
    load_oracles("inference_only", "import torch; torch.set_grad_enabled(False)")
    assert torch.is_grad_enabled()


def test_a_module_that_forks_and_sets_an_alarm_ends_no_run(
    load_oracles: Callable[[str, str], Target],
) -> None:
    load_oracles("alarmed", "import os, signal; child = os.fork(); signal.alarm(1)")
    assert not any(signal.getitimer(signal.ITIMER_REAL))
    # The second process has not come as far.
    assert os.waitpid(sys.modules["alarmed"].child, 0)[1] == 0


def test_a_call_with_an_argument_that_the_target_lacks_is_rejected() -> None:
    function = some().function(ATTENTION)
    x = torch.ones(1, 2, 1, 4)
    with pytest.raises(ValueError, match=r"window: given, but target mine has no such argument"):
        function(q=x, k=x, v=x, window=2, mode="some", tile=None)
    with pytest.raises(ValueError, match="mode: 'chunk', expected one of some"):
        function(q=x, k=x, v=x, mode="chunk", tile=None)


SQUARE = Case.of(
    "attention",
    "some",
    {"B": 1, "G": 1, "R": 1, "K": 3, "V": 2},
    (5,),
    options={"scale": 0.0, "causal": True},
)


class Buggy(Target):
    """Returns half the output if the scale is 0 or 2; more may be wrong too."""

    name = "buggy"

    def __init__(self, more: Callable[[Tensor, Tensor], Tensor] = lambda o, q: o) -> None:
        self.more = more

    def function(self, op: Op) -> Any:
        def wrong(*, mode: str, tile: int | None, **given: Any) -> Tensor:
            o = causal_only(**given)
            o = o / 2 if given["scale"] in (0.0, 2.0) else o
            return self.more(o, given["q"])

        return wrong

    def declaration(self, op: Op, mode: str) -> Op:
        return some().declaration(op, mode)


def scale_is_zero(given: Mapping[str, Any]) -> bool:
    return bool(given["scale"] == 0)


RELEASE = f"torch {torch.__version__.partition('+')[0]}"


class Library(Target):
    """Another library's attention, with its own exceptions."""

    name = "library"
    documented_errors = False

    def __init__(self, accepts: Callable[[Mapping[str, Any]], Any]) -> None:
        self.accepts = accepts

    def function(self, op: Op) -> Any:
        def attention(*, mode: str, tile: int | None, **given: Any) -> Any:
            if mode != "parallel" or tile is not None:
                raise LookupError("neither such a mode nor tiles")
            accepted = self.accepts(given)
            if accepted is not None:
                return accepted
            try:
                return reference.attention(**given)
            except (ValueError, TypeError) as error:
                raise RuntimeError("an error of the library") from error

        return attention


def zeros(given: Mapping[str, Any]) -> tuple[Tensor, None]:
    return torch.zeros_like(given["v"]), None


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def nothing(given: Mapping[str, Any]) -> None:
    """The library accepts no bad argument."""


def other_numbers(given: Mapping[str, Any]) -> Any:
    """Windows and scales of other numeric types are accepted as numbers."""
    read = {
        name: given[name].item()
        for name in ("scale", "window")
        if hasattr(given.get(name), "item") and not isinstance(given[name], numpy.float64)
    }
    if isinstance(given.get("window"), float) and given["window"].is_integer():
        read["window"] = int(given["window"])
    return reference.attention(**{**given, **read}) if read else None


def nan_of_nan(given: Mapping[str, Any]) -> Any:
    scale = given.get("scale")
    if isinstance(scale, float) and scale != scale:
        return torch.full_like(given["v"], torch.nan), None
    return None


def values_in_16_bits(given: Mapping[str, Any]) -> Any:
    """The outputs are float32, as the queries are, beside values in 16 bits."""
    v = given["v"]
    if not is_tensor(v) or v.dtype != torch.bfloat16:
        return None
    return reference.attention(**{**given, "v": v.float()})


def zeros_of_nan(given: Mapping[str, Any]) -> Any:
    scale = given.get("scale")
    return zeros(given) if isinstance(scale, float) and scale != scale else None


def window_of_no_keys(given: Mapping[str, Any]) -> Any:
    return zeros(given) if given.get("window") == 0 else None


def half_of_other_numbers(given: Mapping[str, Any]) -> Any:
    read = other_numbers(given)
    return None if read is None else (read[0] / 2, read[1])


def keys_for_no_values(given: Mapping[str, Any]) -> Any:
    return reference.attention(**{**given, "v": given["k"]}) if given["v"] is None else None


def rows_of_integers(given: Mapping[str, Any]) -> Any:
    q = given["q"]
    if not is_tensor(q) or q.is_floating_point():
        return None
    o, lse = reference.attention(**{**given, "q": q.float()})
    return o.int(), lse


def leaves_its_tensors(given: Mapping[str, Any]) -> Any:
    if is_tensor(given["v"]) and given["v"].dim() == 4 and given["v"].shape[1] == 6:
        raise SimulationError("attention_kernel", Location(), "rows that are not there")
    return None


PLAIN = Case.of(
    "attention",
    "parallel",
    {"B": 1, "G": 1, "R": 1, "K": 3, "V": 3},
    (5,),
    options={"scale": None, "causal": True, "window": 4, "softcap": None, "return_lse": False},
)


@pytest.mark.parametrize("accepts", [nothing, other_numbers, nan_of_nan, values_in_16_bits])
def test_a_library_may_raise_anything_or_be_right(accepts: Any) -> None:
    assert LAWS["rejection"](ATTENTION, PLAIN, Subject(Library(accepts), CPU)) == 0


@pytest.mark.parametrize(
    ("accepts", "mistake"),
    [
        (window_of_no_keys, "window=0"),
        (zeros_of_nan, "scale=nan"),
        (half_of_other_numbers, r"(window|scale)=\S+"),
        (rows_of_integers, "q of integers"),
        (keys_for_no_values, "v=None"),
        (leaves_its_tensors, "v with S larger by one"),
    ],
)
def test_a_library_may_not_be_wrong_without_a_word(accepts: Any, mistake: str) -> None:
    with pytest.raises(Violation) as info:
        LAWS["rejection"](ATTENTION, PLAIN, Subject(Library(accepts), CPU))
    assert re.match(f"rejection does not hold: {mistake} was not refused, and", str(info.value))


def test_none_is_no_mistake_where_a_library_gives_it_a_meaning() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor | None = None) -> Tensor:
        return reference.attention(q, k, k if v is None else v)[0]

    case = replace(PLAIN, mode="some", options={})
    subject = Subject(Adapter({"attention": {"some": attention}}), CPU)
    assert judge("rejection", case, subject) == 0


@pytest.mark.parametrize("law", ["splitting", "rejection", "merging"])
def test_a_target_may_return_none_for_a_result_that_it_lacks(law: str) -> None:
    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, return_lse: bool = False
    ) -> Any:
        return (*reference.attention(q, k, v, causal=causal, return_lse=return_lse), None)

    target = Adapter({"attention": {"some": attention}})
    case = replace(PLAIN, mode="some", options={"causal": True, "return_lse": False})
    assert judge(law, case, Subject(target, CPU)) is not None


def test_another_mistake_moves_none_of_the_others() -> None:
    each = [*mistakes(ATTENTION, PLAIN, Subject(some(), CPU).inputs(ATTENTION, PLAIN))]
    more = in_turn([Mistake("one more", {}, ()), *each], PLAIN)
    after = [one.what for one in more if one.what != "one more"]
    assert after == [one.what for one in in_turn(each, PLAIN)]


def test_a_mistake_that_is_never_refused_hides_no_other() -> None:
    def careless(given: Mapping[str, Any]) -> Any:
        return window_of_no_keys(given) or zeros_of_nan(given)

    told = set()
    for number in range(0, 64, 8):
        with pytest.raises(Violation) as info:
            LAWS["rejection"](
                ATTENTION, replace(PLAIN, seed=number), Subject(Library(careless), CPU)
            )
        told.add(str(info.value).split()[4])
    assert told == {"window=0", "scale=nan"}


def test_a_mistake_beside_others_is_told_as_often() -> None:
    """A pack in a batch follows bad boundaries, which many libraries take."""
    packed = replace(PLAIN, packed=True, lengths=(3, 2))
    each = [*mistakes(ATTENTION, packed, Subject(some(), CPU).inputs(ATTENTION, packed))]
    groups = {one.group for one in each}
    runs = 20 * len(groups)
    first = Counter(in_turn(each, replace(packed, seed=n))[0].group for n in range(runs))
    assert groups == set(first)
    assert max(first.values()) < 5 * runs / len(groups)


def test_rejection_skips_a_library_that_is_wrong_without_a_mistake() -> None:
    wrong = Library(lambda given: zeros(given) if is_tensor(given["v"]) else None)
    assert LAWS["rejection"](ATTENTION, PLAIN, Subject(wrong, CPU)) == 0


def test_rejection_skips_a_number_that_is_wrong_in_a_legal_type_as_well() -> None:
    """A mistake may make logits larger than those of the case, and a library rounds them."""

    def wrong_from_a_half_on(given: Mapping[str, Any]) -> Any:
        scale = given.get("scale")
        number = isinstance(scale, (int, float, numpy.number)) and 0.5 <= scale < torch.inf
        return zeros(given) if number else None

    assert LAWS["rejection"](ATTENTION, PLAIN, Subject(Library(wrong_from_a_half_on), CPU)) == 0


KNOWN = KnownFailure(
    name="half_at_scale_0",
    law="differential",
    releases=("torch 1.0.0", RELEASE),
    cases=(SQUARE,),
    modes=("some",),
    shows=scale_is_zero,
    symptoms=(Wrong(("o", "dv"), most=2.0**23),),
    expected="1",
    got="0.5",
    cause="planted",
)


def broken(subject: Subject, scale: float = 0.0) -> Exception | None:
    """The exception from the differential law for the square case, unless excused."""
    subject.ledger.start()
    case = replace(SQUARE, options={"scale": scale, "causal": True})
    op = subject.target.declaration(ATTENTION, "some")
    try:
        LAWS["differential"](op, case, subject)
    except Exception as error:
        return error
    return None


def test_a_known_failure_is_excused_and_counted_and_no_other() -> None:
    subject = Subject(Buggy(), CPU, Ledger([KNOWN]))
    assert broken(subject) is None
    assert subject.ledger.excused == {"half_at_scale_0": 1}
    assert "o differs from the oracle" in str(broken(subject, scale=2.0))
    assert subject.ledger.excused == {"half_at_scale_0": 1}


def with_nan(o: Tensor, q: Tensor) -> Tensor:
    return o + torch.where(torch.arange(o.numel()).view(o.shape) == 0, torch.nan, 0.0)


def with_a_gradient_of_q(o: Tensor, q: Tensor) -> Tensor:
    """`o`, with a gradient of q that is off by ones."""
    return o + (q - q.detach()).sum()


def a_thousand_times(o: Tensor, q: Tensor) -> Tensor:
    return 1000 * o


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        (with_nan, "o differs from the oracle\n\n  NaN where a number is expected"),
        (with_a_gradient_of_q, "dq differs from the oracle"),
        (a_thousand_times, "o differs from the oracle\n\n  the error exceeds its budget"),
    ],
)
def test_another_symptom_of_the_same_call_is_reported(more: Any, reported: str) -> None:
    error = broken(Subject(Buggy(more), CPU, Ledger([KNOWN])))
    assert isinstance(error, Violation)
    assert reported in str(error)


def test_how_large_an_error_may_be_follows_from_the_call() -> None:
    small = replace(KNOWN, symptoms=(Wrong(most=lambda given: 2.0 ** given["q"].shape[1]),))
    assert broken(Subject(Buggy(), CPU, Ledger([small]))) is not None
    large = replace(KNOWN, symptoms=(Wrong(most=lambda given: 2.0 ** (5 * given["q"].shape[1])),))
    assert broken(Subject(Buggy(), CPU, Ledger([large]))) is None


def test_an_exception_is_excused_by_its_type_and_message() -> None:
    def refusing(o: Tensor, q: Tensor) -> Tensor:
        raise IndexError(f"no row {len(o)}")

    for kind, message, excused in (
        ("IndexError", "no row", True),
        ("IndexError", "no column", False),
        ("IndexError", "", False),
        ("KeyError", "no row", False),
    ):
        ledger = Ledger([replace(KNOWN, symptoms=(Raised(kind, message),))])
        error = broken(Subject(Buggy(refusing), CPU, ledger))
        assert isinstance(error, IndexError)
        assert ledger.excuses(error) is excused


def test_an_entry_is_about_releases() -> None:
    assert KNOWN.installed
    assert not replace(KNOWN, releases=("torch 1.0.0", "no_such_package 1.0")).installed


def test_an_entry_is_not_about_a_release_that_another_one_shadows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _package(tmp_path / "torch", "")
    in_front = PathFinder.find_spec("torch", [str(tmp_path)])
    monkeypatch.setattr("properties.targets.ledger.find_spec", lambda name: in_front)
    assert not KNOWN.installed


def test_ops_of_fla_are_found_where_its_models_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n == "fla" or n.startswith("fla.")]:
        monkeypatch.delitem(sys.modules, name)
    text = "__version__ = '0.1.2.dev3'\nraise ValueError('already used by a Transformers config')"
    _package(tmp_path / "fla", text)
    _package(tmp_path / "fla" / "ops", "def l2_norm(x): return x")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        found = library.kernel("fla.ops:l2norm fla.ops:l2_norm")
        assert found is not None
        assert found.__name__ == "l2_norm"
        assert library.release() == (0, 1, 2)
    finally:
        for name in ("fla", "fla.ops"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def other(): ...", "it has nothing of op l2norm"),
        (
            "def l2norm(y): return y",
            "l2norm (fused) is left out: fla.modules.l2norm:l2norm has no x",
        ),
        ("1 / 0", "l2norm (fused) is left out: fla.modules.l2norm cannot be imported: division by"),
    ],
)
def test_an_op_that_a_release_of_fla_lacks_is_told(source: str, told: str, tmp_path: Path) -> None:
    _package(tmp_path / "fla", "__version__ = '9.9'")
    _package(tmp_path / "fla" / "modules", "")
    (tmp_path / "fla" / "modules" / "l2norm.py").write_text(source)
    command = "-m", "properties.fuzz", "--target", "fla", "--op", "l2norm", "--device", "simulator"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert ran.returncode == 2
    assert told in ran.stderr


def _package(folder: Path, source: str) -> None:
    folder.mkdir()
    (folder / "__init__.py").write_text(source)


def test_a_ledger_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from properties.selftest.test_targets import KNOWN\n"
        "LEDGER = (KNOWN, replace(KNOWN, name='old', releases=('torch 1.0.0',)))\n"
    )
    assert [entry.name for entry in read(str(path), "mine", "cpu").entries] == [KNOWN.name]
    assert len(read(str(path), "mine", None).entries) == 2
    assert read(str(path), "mine", "cuda").entries == ()
    assert read("none", "torch", "cpu").entries == ()
    assert read("auto", "mine:target", "cpu").entries == ()
    with pytest.raises(ValueError, match="ledger: 'no/such/file', expected a file"):
        read("no/such/file", "mine", "cpu")


@pytest.mark.ops("attention")
def test_the_example_of_the_readme_runs_and_reports_what_it_shows(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "adapter.py").write_text(example[1])
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "properties/suite/test_laws.py",
            "--target",
            "adapter:target",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **{n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")},
            "PYTHONPATH": str(tmp_path),
        },
    )
    said = ran.stdout
    assert ran.returncode == 0, said
    assert " passed" in said
    report = re.search(r"```\n(target adapter:target has .*?)\n```", README.read_text(), re.DOTALL)
    assert report is not None
    # The README shortens lists.
    for shown in re.split(r", \.\.\.|\n", report[1]):
        assert shown in said


@pytest.mark.parametrize(
    ("op", "argument"),
    [
        pytest.param(op, argument, id=f"{op.name}-{argument.name}")
        for op in OPS.values()
        for argument in op.arguments
        if argument.optional
        and argument.role in (Role.LOG_DECAY, Role.STRENGTH, Role.RATE, Role.STEP)
    ],
)
def test_what_fla_is_given_for_a_tensor_left_out_changes_nothing(
    op: Op, argument: Argument
) -> None:
    mode = op.modes_or_reference[0].name
    case = op.full(mode, dict.fromkeys(op.dims, 2), (3,), packed=False)
    inputs = build(op, op.settle(replace(case, given=(), dtype="float32")))
    function = partial(getattr(reference, op.name), **inputs.tensors, **inputs.options)
    filled = function(**{argument.name: neutral(op, argument, inputs.tensors)})
    torch.testing.assert_close(filled, function())


def packs_alone(op: Op, calls: list[int], *, one_sequence: bool = False) -> Adapter:
    """The oracle of an op, which refuses a batch; or one that takes a pack for one sequence."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, cu_seqlens_k: Tensor,
        scale: float | None = None, causal: bool = False, g: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:  # fmt: skip
        calls.append(len(cu_seqlens) - 1)
        assert cu_seqlens[-1] == q.shape[1]
        assert cu_seqlens_k[-1] == k.shape[1]
        bounds = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k}
        options = {"scale": scale, "causal": causal, "g": g, "return_lse": return_lse}
        return op.oracle(q, k, v, **options, **({} if one_sequence else bounds))

    def gla(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, *, cu_seqlens: Tensor,
        initial_state: Tensor | None = None, output_final_state: bool = False,
    ) -> Any:  # fmt: skip
        calls.append(len(cu_seqlens) - 1)
        assert cu_seqlens[-1] == q.shape[1]
        rest = {"initial_state": initial_state, "output_final_state": output_final_state}
        return op.oracle(q, k, v, g, cu_seqlens=None if one_sequence else cu_seqlens, **rest)

    some: dict[str, Any] = {"attention": attention, "gla": gla}
    return Adapter({op.name: {"some": some[op.name]}})


@pytest.mark.parametrize("name", ["attention", "gla"])
@pytest.mark.parametrize("law", sorted(set(LAWS) - {"rejection"}))
def test_a_kernel_that_takes_packs_alone_is_judged_by_every_law(name: str, law: str) -> None:
    calls: list[int] = []
    target = packs_alone(OPS[name], calls)
    if law not in scope.laws(target, name, "some"):
        pytest.skip(f"{name} has no such law")
    op, subject = scope.declared(target, name, "some"), Subject(target, CPU, quick=True)

    @seed(0)
    @settings(max_examples=10, database=None, deadline=None, phases=[Phase.generate])
    @given(cases(op, op.modes[0], "float32", target, longest=8, widest=4, extents=ORDINARY))
    def look(case: Case) -> None:
        judge(law, case, subject)

    look()
    assert max(calls) > 1


@pytest.mark.parametrize("name", ["attention", "gla"])
def test_rows_without_tokens_make_a_pack(name: str) -> None:
    calls: list[int] = []
    dims = dict.fromkeys(OPS[name].dims, 2)
    drawn = Case.of(name, "some", dims, (0,), "float32")
    judge("differential", drawn, Subject(packs_alone(OPS[name], calls), CPU, quick=True))
    assert calls[0] == 2


def test_a_row_that_reads_its_neighbour_in_the_pack_is_noticed() -> None:
    target = packs_alone(OPS["attention"], [], one_sequence=True)
    dims = {"B": 2, "G": 1, "R": 1, "K": 2, "V": 2}
    drawn = Case.of("attention", "some", dims, (3,), "float32", options={"causal": True})
    with pytest.raises(Violation, match="differential"):
        judge("differential", drawn, Subject(target, CPU, quick=True))


def test_a_kernel_that_takes_packs_alone_says_so_and_has_no_mask() -> None:
    def with_mask(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, mask: Tensor | None = None
    ) -> Any:
        raise NotImplementedError

    assert "a batch is the pack of its rows" in "".join(
        scope.missing(packs_alone(ATTENTION, []), ops=["attention"])
    )
    told = r"parameter 'mask', expected none beside 'cu_seqlens' without a default"
    with pytest.raises(ValueError, match=told):
        Adapter({"attention": {"some": with_mask}})


def test_a_convolution_that_takes_packs_alone_may_have_a_bias() -> None:
    def packs(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, cu_seqlens: Tensor) -> Any:
        return reference.short_conv(x, weight, bias, cu_seqlens=cu_seqlens)

    target = Adapter({"short_conv": {"some": packs}})
    drawn = Case.of(
        "short_conv", "some", {"B": 2, "D": 2, "W": 3}, (3,), "float32", given=("bias",)
    )
    judge("differential", drawn, Subject(target, CPU, quick=True))


def test_tensors_of_different_batches_make_no_pack() -> None:
    function: Any = packs_alone(ATTENTION, []).function(ATTENTION)
    q, k = torch.ones(2, 3, 1, 4), torch.ones(1, 6, 1, 4)
    with pytest.raises(ValueError, match=r"k: shape \(1, 6, 1, 4\), expected B=2"):
        function(q=q, k=k, v=k, mode="some", tile=None)


def test_a_result_too_many_of_a_pack_is_refused() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor) -> Any:
        return (*reference.attention(q, k, v, cu_seqlens=cu_seqlens), q)

    target = Adapter({"attention": {"some": attention}})
    dims = {"B": 2, "G": 1, "R": 1, "K": 2, "V": 2}
    drawn = Case.of("attention", "some", dims, (3,), "float32")
    with pytest.raises(Violation, match="it returns 3 results, expected o alone") as failed:
        judge("differential", drawn, Subject(target, CPU, quick=True))
    assert failed.value.fingerprint.place == ""
