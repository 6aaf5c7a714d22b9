"""The steps for one candidate: compile, check against the oracle, time.

Each is a function of plain data, for a process of its own.
"""

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import cache, partial
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import kernels
from kernels import tiles
from kernels.bench.timing import time_call
from kernels.tiles import Entry
from properties.aot.cases import Compilation
from properties.aot.checks import check
from properties.architectures import ARCHITECTURES, Architecture
from properties.cases.calls import outputs_and_gradients
from properties.cases.case import Case
from properties.cases.inputs import Inputs, Results
from properties.cases.lengths import WORK
from properties.cases.strategies import cases
from properties.cases.tensors import build, build_cotangents, work
from properties.catalogue import OPS
from properties.catalogue.op import Argument, Output, Role
from properties.laws import Subject, Violation
from properties.laws.differential import LAW
from properties.planting.oracle_cache import OracleCache
from properties.targets.ours import Ours
from properties.tune.grids import Stage

# Tokens of the larger case: multiples of 16, like the timed one, but never of 64.
_LARGER = range(16 * 67, 16, -32)
_LARGER_WORK = 4 * WORK
_DRAWN = 150
# The head dim that every entry must admit, for the tests of entries.
_SMALLEST = 32


@dataclass(frozen=True)
class Problem:
    """A kernel to find tiles for, and the sizes at which they are timed.

    Args:
        dim: head dim of keys and values.
        batch, tokens, channels: sizes of the timed call; there are channels / dim heads.
        chunk: the tokens that an entry must have; None for any.
        drawn: how many drawn cases the law checks besides the larger one.
    """

    op: str
    mode: str
    dim: int
    dtype: str
    batch: int = 8
    tokens: int = 4096
    channels: int = 2048
    chunk: int | None = None
    drawn: int = 2

    def __str__(self) -> str:
        return f"{self.op} {self.mode}, head dim {self.dim}, {self.dtype}"

    @property
    def heads(self) -> int:
        """Heads of the timed call."""
        return max(1, self.channels // self.dim)

    @property
    def row(self) -> tuple[str, str]:
        return self.op, self.mode

    def entry(self, device: torch.device) -> Entry:
        """The table's entry for this head dim alone.

        Raises:
            ValueError: there is none.
        """
        index = tiles.choose(
            *self.row, dim=self.dim, dtype=getattr(torch, self.dtype), device=device, tile=None,
            states=tiles.count_states(self.batch, self.heads, self.dim, None),
        )  # fmt: skip
        return replace(tiles.TABLE[self.row][index], max_dim=max(self.dim, _SMALLEST))

    def case(self, stage: Stage, *, batch: int, tokens: int, heads: int) -> Case:
        """A causal case with only what the stage's kernels need.

        For attention that is the terms of its logits, for other ops float32 gates and betas.
        """
        op = OPS[self.op]
        refused = op.mode(self.mode).refuses
        options = {o.name: o.default for o in op.options if o.name not in refused}
        if op.float32_logits:
            terms: dict[str, tuple[str, ...]] = {"biased": ("alibi_slopes",), "gated": ("g",)}
            extra = terms.get(stage.terms, ())
            options |= {"causal": True, "softcap": 30.0 if stage.terms == "biased" else None}
        else:
            of_interest = (Role.LOG_DECAY, Role.STRENGTH)
            present = [a for a in op.arguments if a.name not in refused]
            extra = tuple(a.name for a in present if a.role in of_interest)
        sizes = {"B": batch, "H": heads, "G": heads, "R": 1, "K": self.dim, "V": self.dim}
        return Case(
            op=self.op,
            mode=self.mode,
            dtype=self.dtype,
            dims={letter: sizes[letter] for letter in op.dims},
            lengths=(tokens,),
            given=tuple(name for name in extra if op.argument(name).optional),
            float32=tuple(name for name in extra if op.argument(name).dtype == "either"),
            options=options,
            tile=0,
        )

    def timed(self, stage: Stage) -> Case:
        return self.case(stage, batch=self.batch, tokens=self.tokens, heads=self.heads)

    def checked(self, stage: Stage, capability: int) -> list[Case]:
        """A larger case that compiles like the timed one, and a few drawn ones.

        They are drawn for the candidate's tile, which is installed in the table.
        """
        larger = (self.case(stage, batch=1, tokens=tokens, heads=2) for tokens in _LARGER)
        op = OPS[self.op]
        first = next(case for case in larger if work(op, case) <= _LARGER_WORK)
        return [first, *_drawn(self, stage, capability, tiles.TABLE[self.row][0].tokens)]


@cache
def _drawn(problem: Problem, stage: Stage, capability: int, edge: int) -> list[Case]:
    """The largest of some drawn cases, with lengths next to multiples of `edge`."""
    op, dim = OPS[problem.op], problem.dim
    absent = ("alibi_slopes", "g") if stage.kernel and not stage.terms else ()
    fixed = replace(
        op,
        arguments=tuple(x for x in op.arguments if not op.float32_logits or x.name not in absent),
        dims={**op.dims, "K": st.just(dim), "V": st.just(dim)},
    )
    drawn: list[Case] = []

    @settings(
        max_examples=_DRAWN,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(fixed, op.mode(problem.mode), problem.dtype, Ours(capability)))
    def collect(case: Case) -> None:
        reached = stage.kernel is None or _terms(case) == stage.terms
        if case.dims["K"] == case.dims["V"] == dim and case.values != "zeros" and reached:
            drawn.append(replace(case, tile=0))

    if problem.drawn:
        collect()
    return sorted(drawn, key=lambda case: work(op, case))[::-1][: problem.drawn]


def _terms(case: Case) -> str:
    """Which backward kernels of attention run: see `Stage.terms`."""
    if not OPS[case.op].float32_logits:
        return ""
    if "g" in case.given:
        return "gated"
    biased = "alibi_slopes" in case.given or case.options["softcap"] is not None
    return "biased" if biased else ""


@dataclass(frozen=True)
class TrialResult:
    """The result of a step.

    Args:
        wrong: why the candidate cannot be used, on one line; empty if it can.
        times: milliseconds of each pass of the stage.
    """

    wrong: str = ""
    times: tuple[float, ...] = ()


@contextmanager
def installed(problem: Problem, entry: Entry) -> Iterator[None]:
    """Make the candidate the only entry of its row."""
    with patch.dict(tiles.TABLE, {problem.row: (entry,)}):
        yield


def _quietly() -> None:
    """Ignore Ctrl-C, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def compiled(problem: Problem, stage: Stage, entry: Entry, architecture: str) -> TrialResult:
    """Compile the kernels to check and time into Triton's disk cache, without running them.

    Spilled registers are allowed here: the timing shows their cost.
    """
    capability = ARCHITECTURES[architecture].capability

    def runs() -> Iterator[Callable[[], object]]:
        yield partial(_run, replace(problem.timed(stage), lengths=(256,)))
        for case in problem.checked(stage, capability):
            yield partial(_run, case)

    return _compiled(problem, entry, runs(), architecture, spills=True)


def within_the_rules(problem: Problem, entry: Entry, architecture: str) -> TrialResult:
    """Compile like the tests of all entries: with every option, and without spills."""
    compilation = Compilation(problem.op, problem.mode, problem.dtype, architecture)
    runs = compilation.runs(ARCHITECTURES[architecture], thorough=False)
    return _compiled(problem, entry, runs, architecture, spills=False)


def _compiled(
    problem: Problem,
    entry: Entry,
    runs: Iterable[Callable[[], object]],
    architecture: str,
    *,
    spills: bool,
) -> TrialResult:
    """Compile the launches of `runs`; with `spills`, spilled registers are no fault."""
    _quietly()
    torch.set_num_threads(1)
    with installed(problem, entry), redirect_stderr(StringIO()):
        try:
            faults = check(runs, architecture).faults
        except Exception as error:
            return TrialResult(wrong=_first_line(f"{type(error).__name__}: {error}"))
    wrong = [fault for fault in faults if not (spills and " spills " in fault)]
    return TrialResult(wrong=_first_line(wrong[0]) if wrong else "")


def judged(
    problem: Problem,
    stage: Stage,
    entry: Entry,
    memory: Path,
    milliseconds: int,
    timer: Callable[[Callable[[], object], int], float] | None = None,
    device: str = "cuda",
) -> TrialResult:
    """Check a candidate, and time it if it is right.

    Args:
        memory: the cache of the oracle's answers.
        timer: milliseconds of a call; by default on the current GPU.
    """
    if device == "cuda":
        _quietly()
    where = torch.device(device)
    capability = tiles.architecture(where)
    op = OPS[problem.op]
    recall = OracleCache(memory, defaultdict(str))
    subject = Subject(Ours(capability), where, recall=recall, quick=True)
    with installed(problem, entry):
        try:
            for case in problem.checked(stage, capability):
                LAW(op, case, subject)
            times = [
                (timer or _median)(call, milliseconds) for call in _calls(problem, stage, where)
            ]
        except Violation as violation:
            return TrialResult(wrong=_first_line(str(violation)))
        except Exception as error:
            wrong = _first_line(f"{type(error).__name__}: {error}")
            if where.type == "cuda" and _lost():
                # This process can run nothing more.
                os._exit(1)
            return TrialResult(wrong=wrong)
    return TrialResult(times=tuple(times))


def _calls(problem: Problem, stage: Stage, device: torch.device) -> list[Callable[[], object]]:
    op, case = OPS[problem.op], problem.timed(stage)
    inputs, cotangents = _built(case, device)
    calls: list[Callable[[], object]] = []
    for backward in stage.passes:
        wanted = cotangents if backward else None
        function = getattr(kernels, op.name)
        calls.append(
            partial(
                outputs_and_gradients, op, function, inputs, wanted, mode=case.mode, tile=case.tile
            )
        )
    return calls


_LAST: dict[tuple[Case, torch.device], tuple[Inputs, Results]] = {}


def _built(case: Case, device: torch.device) -> tuple[Inputs, Results]:
    """The tensors of a large case: one row, repeated over the batch.

    Those of the last case are cached, because drawing numbers uses one core.
    """
    if (case, device) not in _LAST:
        _LAST.clear()
        op, batch = OPS[case.op], case.dims["B"]
        row = case.with_dims(B=1)
        inputs, cotangents = build(op, row, device), build_cotangents(op, row, device)
        named: list[Argument | Output] = [*op.arguments, *op.outputs]
        rows = {one.name for one in named if one.dims[0] == "B"}

        def repeated(tensors: Results) -> Results:
            return {
                name: torch.cat([x] * batch) if name in rows else x for name, x in tensors.items()
            }

        _LAST[case, device] = inputs.with_tensors(repeated(inputs.tensors)), repeated(cotangents)
    return _LAST[case, device]


def _run(case: Case) -> None:
    op = OPS[case.op]
    function = getattr(kernels, op.name)
    outputs_and_gradients(
        op, function, build(op, case), build_cotangents(op, case), mode=case.mode, tile=case.tile
    )


def _median(call: Callable[[], object], milliseconds: int) -> float:
    return time_call(call, milliseconds).median


def _lost() -> bool:
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def architecture_of(capability: int) -> Architecture:
    """The architecture with this compute capability.

    Raises:
        ValueError: it is unknown.
    """
    for known in ARCHITECTURES.values():
        if known.capability == capability:
            return known
    raise ValueError(f"device: compute capability {capability}, expected one of {[*ARCHITECTURES]}")
