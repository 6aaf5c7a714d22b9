"""The simulator agrees with other engines: Triton's interpreter, and ttsem if installed.

Each runs in processes of its own, because Triton decides at import whether it compiles kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language
from hypothesis import Phase, given, settings
from hypothesis.strategies import SearchStrategy

import properties.simulator as simulator
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.planting.fork_pool import ForkPool
from properties.planting.trial import LIBRARIES
from properties.simulator import test_checks as broken
from properties.simulator import test_features as kernels

Outputs = dict[str, torch.Tensor]
INTEGERS = torch.int32
CPU = torch.device("cpu")
WITHOUT_INTERPRETER = triton.__version__.startswith("3.6") and (
    np.lib.NumpyVersion(np.__version__) >= "2.4.0"
)
ENGINES = [
    pytest.param(
        "interpreter",
        marks=pytest.mark.skipif(
            WITHOUT_INTERPRETER, reason="the interpreter of Triton 3.6 does not run on NumPy 2.4"
        ),
    ),
    pytest.param(
        "ttsem",
        marks=pytest.mark.skipif(
            find_spec("ttsem") is None, reason="ttsem is not installed: tox -e ttsem"
        ),
    ),
]


def features() -> Outputs:
    """Outputs of the feature kernels on the current engine."""
    torch.manual_seed(5)
    n, outputs = 64, {}

    def add(name: str, kernel: Any, out: torch.Tensor, *args: Any, **settings: Any) -> None:
        outputs[name] = kernels.launch(kernel, out, *args, **settings)

    add("for", kernels.loop_with_own_bound, torch.zeros(7, n, dtype=INTEGERS), N=n, grid=7)
    start = torch.randint(1, 60, (9,), dtype=INTEGERS)
    add("while", kernels.collatz, torch.zeros(9, dtype=INTEGERS), start, grid=9)
    add("if", kernels.conditions, torch.zeros(16), torch.randn(8) * 4, 1, grid=8)
    tile = torch.randint(-8, 8, (8, 32)).float()
    add("reduce", kernels.reductions, torch.zeros(10, 8), tile, M=8, N=32)
    signs, steps = torch.tensor([1.0, -1.0])[torch.randint(0, 2, (n,))], torch.randint(-4, 5, (n,))
    for reverse in (False, True):
        out = torch.zeros(4, n)
        add(f"scan {reverse}", kernels.scans, out, signs, steps.float(), N=n, REVERSE=reverse)
    add("sort", kernels.sorting, torch.zeros(2, n), torch.randn(n), N=n, DESCENDING=True)
    add("shapes", kernels.shapes, torch.zeros(7, 128), torch.randn(8, 16), M=8, N=16)
    index = torch.randint(0, 16, (4, 16), dtype=INTEGERS)
    add("gather", kernels.look_up, torch.zeros(4, 16), torch.randn(4, 16), index, M=4, N=16)
    counted = torch.randint(0, 16, (3, n), dtype=INTEGERS)
    out = torch.zeros(3, 16, dtype=INTEGERS)
    add("histogram", kernels.count, out, counted, N=n, BINS=16, grid=3)
    add("random", kernels.random_numbers, torch.zeros(3, 4096), 5, N=1024, grid=4)
    add("walk", kernels.walking, torch.zeros(n), torch.randn(5, n), 5, N=n)
    out = torch.zeros(8, dtype=INTEGERS)
    add("atomic", kernels.atomic_histogram, out, counted.flatten()[:128] % 8, N=n, grid=2)
    for dtype in (torch.float32, torch.float16):
        a, b = torch.randn(2, n).to(dtype)
        name = str(dtype)
        add(f"narrow {name}", kernels.narrow_arithmetic, torch.zeros(6, n, dtype=dtype), a, b, N=n)
        # Numbers that tf32 represents exactly, since engines round to it differently.
        a, b = torch.randn(3, 16, 32).bfloat16(), torch.randn(3, 32, 64).bfloat16()
        sizes = {"M": 16, "K": 32, "N": 64, "DTYPE": triton.language.float32, "grid": 3}
        add(
            f"dot {name}",
            kernels.products,
            torch.zeros(3, 16, 64),
            a.to(dtype),
            b.to(dtype),
            **sizes,
        )
    a, b = torch.randn(2, n)
    sizes = {"N": n, "SINGLE": True, "LIBRARY": False}
    add("functions", kernels.float_functions, torch.zeros(15, n), a, b, **sizes)
    return outputs


def outputs(case: Case) -> Outputs:
    """Results and gradients of a call of the project.

    `properties/suite/test_laws.py` compares them with those of the oracle, in every dtype.
    """
    from properties.laws import Subject
    from properties.targets import load

    op, subject = OPS[case.op], Subject(load("ours", CPU), CPU)
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    return subject.run(op, case, inputs, cotangents)


DTYPES = ("float32", "float16", "bfloat16")


def modes_and_dtypes() -> list[tuple[str, str, str]]:
    """Every op and mode in one dtype by turns, in the profile nightly in all."""
    modes = [(op.name, m.name) for op in OPS.values() for m in op.modes if op.wraps is None]
    every = settings.get_current_profile_name() == "nightly"
    return [
        (*mode, dtype)
        for number, mode in enumerate(modes)
        for turn, dtype in enumerate(DTYPES)
        if every or number % len(DTYPES) == turn
    ]


def small_cases(op: str, mode: str, dtype: str) -> list[Case]:
    """A few small ragged cases, called once for all gradients.

    Contexts and earlier calls run the same kernels again, and a head or a row as the one before it.
    """
    from properties.cases.extents import ORDINARY
    from properties.cases.strategies import cases
    from properties.targets import load

    declared = OPS[op]
    (named,) = (m for m in declared.modes if m.name == mode)
    target = load("ours", CPU)
    small = cases(declared, named, dtype, target, longest=17, widest=16, extents=ORDINARY)
    drawn = some(small.filter(_computes))
    few = [{n: min(size, 2) if n in "BGHR" else size for n, size in c.dims.items()} for c in drawn]
    return [
        declared.settle(replace(case, dims=dims, frozen=(), context="grad", earlier=None))
        for case, dims in zip(drawn, few, strict=True)
    ]


def _computes(case: Case) -> bool:
    return all(case.dims.values()) and sum(case.lengths) > 1 and case.key_lengths != (0,)


def some(strategy: SearchStrategy[Case]) -> list[Case]:
    """A few elements of a strategy, without the simplest one."""
    drawn: list[Case] = []

    @settings(
        max_examples=2, derandomize=True, database=None, deadline=None, phases=[Phase.generate]
    )
    @given(strategy)
    def keep(case: Case) -> None:
        drawn.append(case)

    keep()
    return drawn[1:]


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=INTEGERS)


# A kernel for every class of faults in ttsem's README.
FAULTS: dict[str, Callable[[], None]] = {
    "read past the end": lambda: broken.one_row_too_many[(6,)](
        torch.ones(5, 16), torch.zeros(5, 16), 5, D=16
    ),
    "write past the end": lambda: broken.store_tile[(3,)](
        torch.zeros(40, dtype=INTEGERS), 40, D=16, CHECKED=False
    ),
    "race of two stores": lambda: broken.everybody_writes[(4,)](integers(0), VALUE=0),
    "race of a load and a store": lambda: broken.shift_in_place[(4,)](torch.arange(60.0), 60, D=16),
    "race of a store and an atomic": lambda: broken.sets_and_counts[(4,)](integers(0), FIRST=True),
    "division by zero": lambda: broken.divides[(1,)](integers(0), integers(5), integers(0), N=1),
    "least integer by -1": lambda: broken.divides[(1,)](
        integers(0), integers(-(2**31)), integers(-1), N=1
    ),
    "two values for one address": lambda: broken.scatters[(1,)](
        torch.zeros(4, 16), torch.arange(16.0), N=16, SAME=False
    ),
    "loop in steps of 0": lambda: broken.steps[(1,)](torch.zeros(4, dtype=INTEGERS), integers(0)),
}


def faults() -> Outputs:
    """The source line that the engine blames for each fault; 0 if it finds none."""
    return {name: torch.tensor([blamed(launch)]) for name, launch in FAULTS.items()}


def blamed(launch: Callable[[], None]) -> int:
    try:
        launch()
    except simulator.SimulationError as error:
        return error.location.line
    except Exception as error:
        if not hasattr(error, "fault"):
            raise
        return int(error.fault.source_line)
    return 0


def seconds() -> Outputs:
    """Processor time of a `tl.dot` kernel with 1, 8 and 64 programs, after a first launch."""
    spent = {}
    for programs in (1, 8, 64):
        a, b, out = (torch.ones(programs, *size) for size in ((16, 32), (32, 64), (16, 64)))
        sizes = {"M": 16, "K": 32, "N": 64, "DTYPE": triton.language.float32, "grid": programs}
        best = float("inf")
        for _ in range(4):
            start = time.process_time()
            kernels.launch(kernels.products, out, a, b, **sizes)
            best = min(best, time.process_time() - start)
        spent[str(programs)] = torch.tensor([best])
    return spent


@dataclass(frozen=True)
class Engine:
    """Another engine, in processes that are forked from one that has chosen it."""

    name: str
    pool: ForkPool

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.pool.submit(on_engine, self.name, function, *arguments).result()


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    environment = {"TRITON_INTERPRET": "1" if request.param == "interpreter" else "0"}
    preload = (*LIBRARIES, "properties.laws", "properties.targets.ours", __name__)
    with ForkPool(preload, environment=environment) as pool:
        yield Engine(request.param, pool)


def on_engine(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    if name == "interpreter":
        from properties import interpreter

        interpreter.install()
        return function(*arguments)
    from ttsem import sanitize

    with sanitize.session(cuda_is_cpu=False):
        return function(*arguments)


on_each_engine = pytest.mark.parametrize("engine", ENGINES, indirect=True)
on_ttsem = pytest.mark.parametrize("engine", ENGINES[1:], indirect=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize(("op", "mode", "dtype"), modes_and_dtypes())


@on_each_engine
def test_another_engine_agrees_on_features(engine: Engine) -> None:
    theirs = engine.call(features)
    with simulator.simulating():
        ours = features()
    expect_same(
        {name: {name: x} for name, x in ours.items()},
        {name: {name: x} for name, x in theirs.items()},
    )


@on_each_engine
def test_another_engine_agrees_on_an_op(engine: Engine, op: str, mode: str, dtype: str) -> None:
    # Passed as data, since Hypothesis' draws depend on the imported modules.
    for case in small_cases(op, mode, dtype):
        theirs = engine.call(outputs, case)
        with simulator.simulating():
            expect_same({case.line(): outputs(case)}, {case.line(): theirs})


def expect_same(ours: dict[str, Outputs], theirs: dict[str, Outputs]) -> None:
    """The outputs of each call agree.

    Engines round every step alike, but add in another order and use other libraries' functions: a
    few units in the last place of the result's largest element. Where float32 terms cancel, as in
    a gradient of 1e-16, engines differ by units of the terms, which are taken to be as large as
    the largest element that the call returns. A call of an op may cancel larger ones on its way:
    then the results of both engines are within their error budget.
    """
    assert ours.keys() == theirs.keys()
    for call, outputs in ours.items():
        assert outputs.keys() == theirs[call].keys()
        apart = [
            f"{name}: {units:.0f} units"
            for name, got in outputs.items()
            if (units := units_apart(got, theirs[call][name], theirs[call])) > 16
        ]
        if apart:
            assert call.startswith("Case("), f"{call}: {apart}"
            for results in (outputs, theirs[call]):
                expect_within_budget(eval(call, {"Case": Case}), results)


def units_apart(got: torch.Tensor, want: torch.Tensor, returned: Outputs) -> float:
    differs = (got != want) & ~(got.isnan() & want.isnan())
    if not differs.any():
        return 0.0
    largest = max(map(largest_element, returned.values()))
    unit = max(torch.finfo(got.dtype).eps * largest_element(want), 2.0**-23 * largest)
    return (got.double() - want.double())[differs].abs().max().item() / unit


def expect_within_budget(case: Case, results: Outputs) -> None:
    from properties.laws import Run, Subject
    from properties.laws.expect import compare_with_oracle
    from properties.targets import load

    op, subject = OPS[case.op], Subject(load("ours", CPU), CPU)
    inputs, cotangents = subject.inputs(op, case), subject.cotangents(op, case)
    compare_with_oracle(Run("differential", op, case, subject), inputs, cotangents, results)


def largest_element(x: torch.Tensor) -> float:
    finite = x.double()[x.isfinite()].abs()
    return finite.max().item() if finite.numel() else 0.0


@on_ttsem
def test_faults_that_ttsem_finds_are_found_at_the_same_line(engine: Engine) -> None:
    theirs = engine.call(faults)
    with simulator.simulating():
        ours = faults()
    for name, line in theirs.items():
        assert line > 0
        # A race has two sides, and either may be named.
        assert ours[name] > 0 if name.startswith("race") else ours[name] == line, name


@on_ttsem
def test_a_product_takes_a_twentieth_of_the_time_of_ttsem(engine: Engine) -> None:
    theirs = engine.call(seconds)
    with simulator.simulating():
        ours = seconds()
    ratios = {programs: float(theirs[programs] / ours[programs]) for programs in ours}
    print(ratios)
    assert min(ratios.values()) >= 20
