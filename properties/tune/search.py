"""The search: candidates of one stage after another; the next stage compiles while one is timed."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field
from itertools import chain

import torch

from kernels.tiles import Entry, Tile
from properties.tune.grids import STAGES, Stage
from properties.tune.trial import Problem, TrialResult

# How many of the fastest are compiled with every option at a time, until one has no spills.
_AT_ONCE = 4


@dataclass(frozen=True)
class Candidate:
    """A candidate and its result.

    Args:
        kernel: the stage, by the name of its kernels.
        tile: the candidate's tile for these.
        today: whether it is the table's entry.
        ratio: its times over those of the table's entry, the mean over passes; None without times.
    """

    problem: Problem
    kernel: str
    entry: Entry
    tile: Tile
    today: bool
    result: TrialResult
    ratio: float | None = None


@dataclass(frozen=True)
class Best:
    """The best entry of a stage: the fastest without spills.

    Args:
        taken: whether a candidate could be taken; otherwise the entry stays.
        ratio: as for a candidate.
        ruled_out: faster candidates, and why they are not taken.
    """

    problem: Problem
    kernel: str
    entry: Entry
    taken: bool
    ratio: float | None
    ruled_out: tuple[tuple[Tile, str], ...] = ()


@dataclass
class Search:
    """Candidates of all stages of some problems.

    Args:
        compiled, ruled: `trial.compiled` and `trial.within_the_rules`. They run in separate pools,
            so that the next stage's compilation does not delay the last stage's winners.
        judged: `trial.judged`, one at a time.
        device: what is tuned for.
        until: when to end, by `time.monotonic`.
        ended: whether it ended before all was tried.
    """

    pool: Executor
    rules_pool: Executor
    compiled: Callable[[Problem, Stage, Entry], TrialResult]
    ruled: Callable[[Problem, Entry], TrialResult]
    judged: Callable[[Problem, Stage, Entry], TrialResult]
    device: torch.device
    until: float | None = None
    ended: bool = False
    _ranked: dict[Problem, tuple[Stage, list[Candidate]]] = field(default_factory=dict)
    _rules: dict[tuple[Problem, Entry], Future[TrialResult]] = field(default_factory=dict)
    _best: dict[Problem, Entry] = field(default_factory=dict)

    def run(
        self, problems: Sequence[Problem], kernels: Sequence[str] = ()
    ) -> Iterator[Candidate | Best]:
        """Yield every candidate when it is done, and at the end of a problem's stage the best
        entry.

        The best comes late: by then the stage of another problem may have started.

        Args:
            kernels: names of the stages to run; all if empty.
        """
        work = [
            (problem, stages[turn])
            for turn in range(max(len(each) for each in STAGES.values()))
            for problem in problems
            if turn < len(stages := _wanted(problem, kernels))
        ]
        for problem in problems:
            self._best[problem] = problem.entry(self.device)
        begun: dict[int, dict[Future[TrialResult], Entry]] = {}
        for number, (problem, stage) in enumerate(work):
            yield from self._settled(problem)
            if number not in begun:
                begun[number] = self._begin(problem, stage)
            if number + 1 < len(work) and work[number + 1][0] != problem:
                yield from self._settled(work[number + 1][0])
                begun[number + 1] = self._begin(*work[number + 1])
            yield from self._stage(problem, stage, begun.pop(number))
            if self.ended:
                break
        for problem in problems:
            yield from self._settled(problem)

    def _late(self) -> bool:
        return self.until is not None and time.monotonic() > self.until

    def _begin(self, problem: Problem, stage: Stage) -> dict[Future[TrialResult], Entry]:
        today = problem.entry(self.device)
        candidates = [today]
        for entry in stage.candidates(self._best[problem], problem.dim):
            if problem.chunk in (None, entry.tokens):
                candidates.append(entry)
        return {
            self.pool.submit(self.compiled, problem, stage, entry): entry
            for number, entry in enumerate(candidates)
            if entry not in candidates[:number]
        }

    def _stage(
        self, problem: Problem, stage: Stage, begun: dict[Future[TrialResult], Entry]
    ) -> Iterator[Candidate]:
        today = problem.entry(self.device)
        first = next(future for future, entry in begun.items() if entry == today)
        reference: tuple[float, ...] = ()
        candidates = []
        for future in chain([first], self._in_time(set(begun) - {first})):
            if self._late():
                self.ended = True
                break
            entry = begun[future]
            result = future.result()
            if not result.wrong:
                result = self.judged(problem, stage, entry)
            reference = result.times if entry == today else reference
            pairs = list(zip(result.times, reference, strict=False))
            ratio = sum(a / b for a, b in pairs) / len(pairs) if pairs else None
            candidate = Candidate(
                problem, stage.name, entry, stage.tile(entry), entry == today, result, ratio
            )
            candidates.append(candidate)
            yield candidate
        for future in begun:
            future.cancel()
        ranked = sorted((o for o in candidates if o.result.times), key=_slowness)
        if problem.chunk is not None:
            faster = [o for o in ranked if o.entry.tokens == problem.chunk]
        else:
            # Candidates slower than the table's entry do not matter.
            faster = ranked[: 1 + next((i for i, o in enumerate(ranked) if o.today), len(ranked))]
        if candidates:
            self._ranked[problem] = stage, faster
        for candidate in faster[:_AT_ONCE]:
            self._rule(problem, candidate.entry)

    def _in_time(self, futures: set[Future[TrialResult]]) -> Iterator[Future[TrialResult]]:
        left = None if self.until is None else max(0.0, self.until - time.monotonic())
        try:
            yield from as_completed(futures, timeout=left)
        except TimeoutError:
            self.ended = True

    def _rule(self, problem: Problem, entry: Entry) -> Future[TrialResult]:
        if (problem, entry) not in self._rules:
            self._rules[problem, entry] = self.rules_pool.submit(self.ruled, problem, entry)
        return self._rules[problem, entry]

    def _settled(self, problem: Problem) -> Iterator[Best]:
        """Wait until the fastest candidates of the last stage have been compiled with every
        option.
        """
        if problem not in self._ranked:
            return
        stage, ranked = self._ranked.pop(problem)
        taken, ratio = False, None
        ruled_out: list[tuple[Tile, str]] = []
        for candidate in ranked:
            wrong = self._rule(problem, candidate.entry).result().wrong
            if not wrong:
                self._best[problem], taken, ratio = candidate.entry, True, candidate.ratio
                break
            ruled_out.append((candidate.tile, wrong))
        yield Best(problem, stage.name, self._best[problem], taken, ratio, tuple(ruled_out))


def _slowness(candidate: Candidate) -> float:
    return sum(candidate.result.times) if candidate.ratio is None else candidate.ratio


def _wanted(problem: Problem, kernels: Sequence[str]) -> list[Stage]:
    return [stage for stage in STAGES[problem.row] if not kernels or stage.name in kernels]
