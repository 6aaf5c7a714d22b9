"""The parts of a night: buckets, log, corpus, display."""

import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any, cast
from unittest.mock import Mock

import pytest
from hypothesis import Phase, settings
from hypothesis.database import InMemoryExampleDatabase
from rich.console import Console

from properties import scope
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.clock import Clock
from properties.fuzz.answer import HANGS, Answer, Failure, Origin
from properties.fuzz.asking import Asker
from properties.fuzz.bucket import Bucket
from properties.fuzz.corpus import Corpus
from properties.fuzz.display import Display
from properties.fuzz.lanes import Lanes
from properties.fuzz.log import Log, Tally
from properties.fuzz.needs import parts
from properties.fuzz.night import Night
from properties.fuzz.turn import Turn
from properties.fuzz.worker import FIRST, Worker
from properties.jobs import Job, Selection, drawing
from properties.laws.fingerprint import Fingerprint
from properties.targets.oracle import Oracle
from properties.verdict.excess import NOT_FINITE, Excess
from properties.verdict.picture import Picture, Strip

pytestmark = pytest.mark.ops("l2norm")

Y = Fingerprint("norm", "differential", "y")
DX = Fingerprint("norm", "differential", "dx")
JOB = Job("l2norm", "fused", "differential", "float32")


def case(tokens: int) -> Case:
    dims = {"B": 1, "H": 1, "D": 3}
    return Case(op="l2norm", mode="fused", dtype="float32", dims=dims, lengths=(tokens,))


def failure(fingerprint: Fingerprint, tokens: int = 1, **more: Any) -> Failure:
    return Failure(fingerprint, "differential", case(tokens), "what is wrong", **more)


def answer(fingerprint: Fingerprint | None) -> Answer:
    """A worker's answer for a case with this failure, or without one."""
    if fingerprint is None:
        return Answer()
    doubtful = fingerprint.law if fingerprint.law != "differential" else ""
    return Answer(failure=failure(fingerprint), doubtful=doubtful)


def night(log: Log) -> Night:
    origin = Origin("oracle", "simulator", "none")
    return Night(
        log,
        Oracle(),
        origin,
        Corpus("oracle", InMemoryExampleDatabase()),
        minutes=90,
        examples=None,
        limit=1,
        shrink=True,
        tell=lambda bucket: None,
    )


def test_a_bucket_keeps_the_smallest_case_of_each_sign() -> None:
    bucket = Bucket([failure(Y, 5)])
    bucket.add(failure(Y, 2, also=(DX,)))
    bucket.add(failure(DX, 7))
    bucket.add(failure(DX, 3))
    bucket.add(failure(DX, 4))
    assert [one.case.lengths for one in bucket.smallest] == [(2,), (3,)]
    assert "also      norm differential dx: Case(" in bucket.report


def excess(ratio: float = 0.0, **more: Any) -> Excess:
    return Excess("y", ratio=ratio, **more)


def test_a_bucket_shows_its_smallest_case_and_says_how_far_the_worst_is_off() -> None:
    slight, grave = (failure(Y, n, excess=excess(off)) for n, off in ((2, 1.02), (5, 1200.0)))
    bucket = Bucket([slight])
    bucket.seen[JOB.name] = 4
    assert bucket.line == f"norm differential y, up to 1.02 x its budget: {JOB.name} 4"
    assert bucket.at_worst is None
    bucket.add(grave)
    bucket.add(failure(Y, 9, excess=excess(7.0)))
    assert bucket.first is slight
    assert bucket.at_worst is grave
    assert "norm differential y, up to 1.2e+03 x its budget: l2norm" in bucket.line
    assert f"  at worst  up to 1.2e+03 x its budget: {grave.case.line()}" in bucket.report
    # A later bug of the same kind, whose first result that differs is right but for a rounding.
    other = Bucket([failure(DX, 8, excess=excess(beyond=NOT_FINITE))])
    other.add(failure(DX, 3, excess=excess(2.0)))
    bucket.absorb(other)
    assert [one.case.lengths for one in bucket.smallest] == [(2,), (3,)]
    assert bucket.how_far == "not finite"
    assert bucket.at_worst == failure(DX, 8, excess=excess(beyond=NOT_FINITE))


def test_of_two_cases_that_are_as_far_off_a_bucket_keeps_the_smaller() -> None:
    lost = excess(beyond=NOT_FINITE)
    bucket = Bucket([failure(Y, 5, excess=lost)])
    bucket.add(failure(Y, 9, excess=lost))
    bucket.add(failure(Y, 2, excess=lost))
    assert bucket.worst is bucket.first
    assert "at worst" not in bucket.report


KILLED, HANGING = Fingerprint("norm", "ends with SIGKILL"), Fingerprint("norm", HANGS)


@pytest.mark.parametrize(
    ("shown", "judged", "unrepeated"),
    [
        ([Y], {Y}, []),
        ([KILLED, KILLED], {KILLED}, []),
        ([KILLED, None], set(), [KILLED]),
        ([KILLED, Y], {Y}, [KILLED]),
        ([HANGING, None], set(), [HANGING]),
        # With more time it raises: one bug.
        ([HANGING, Y], {Y, HANGING}, []),
        ([HANGING, KILLED, None], set(), [HANGING, KILLED]),
        ([HANGING, KILLED, HANGING], {HANGING}, [KILLED]),
    ],
)
def test_a_case_that_the_machine_may_have_killed_is_repeated_until_it_fails_twice_alike(
    shown: list[Fingerprint | None], judged: set[Fingerprint], unrepeated: list[Fingerprint]
) -> None:
    answers = [answer(fingerprint) for fingerprint in shown]
    worker = Mock(Worker, ask=Mock(side_effect=answers))
    log = Log("oracle", 1, {JOB: Tally()})
    Turn(night(log), worker, JOB, 0)._judge(case(1))
    assert worker.ask.call_count == len(answers)
    assert {one for one in (Y, KILLED, HANGING) if log.bucket(one) is not None} == judged
    assert [*log.unrepeated] == [one.law for one in unrepeated]


def test_a_case_whose_process_somebody_ends_is_no_failure() -> None:
    ask = Mock(return_value=replace(answer(KILLED), by_machine=True))
    log = Log("oracle", 1, {JOB: Tally()})
    Turn(night(log), Mock(Worker, ask=ask), JOB, 0)._judge(case(1))
    assert ask.call_count == 2
    assert not log.buckets
    assert log.unrepeated == {KILLED.law: 1}
    # Nor does it pass.
    assert log.failed
    assert log.untested == {"l2norm (fused)": 1}


CRASHING = Fingerprint("norm", "ends with SIGSEGV", place="kernel.py:3")
OUT_OF_TIME = Fingerprint("norm", "ends with SIGXCPU")


@pytest.mark.parametrize(
    ("shown", "bugs"),
    [(CRASHING, 1), (Fingerprint("norm", HANGS), 1), (KILLED, 0), (OUT_OF_TIME, 0)],
)
def test_a_second_case_of_a_kernel_that_passes_only_when_repeated_is_a_bug(
    shown: Fingerprint, bugs: int
) -> None:
    failing = answer(shown)
    assert failing.failure
    failing = replace(failing, failure=replace(failing.failure, fatal=True))
    log = Log("oracle", 1, {JOB: Tally()})
    whole = night(log)
    for met in (0, bugs):
        turn = Turn(whole, Mock(Worker, ask=Mock(side_effect=[failing, Answer()])), JOB, 0)
        turn._judge(case(1))
        assert len(log.buckets) == met
        assert bool(turn.asker.single) == bool(met)
    assert log.failed


def test_a_new_hang_costs_a_lane_two_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Hanging:
        stopped = False

        def __init__(self, origin: Origin, limit: float) -> None:
            self.engine = origin.device

        def ask(self, law: str, case: Case) -> Answer:
            events.append(f"{self.engine} begins")
            sleep(0.2)
            events.append(f"{self.engine} ends")
            failure = Failure(HANGING, law, case, "what hangs", fatal=True)
            return Answer(failure=failure, doubtful=HANGS)

        def stop(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr("properties.fuzz.asking.Worker", Hanging)
    log = Log("oracle", 1, {JOB: Tally()})
    whole = night(log)
    Turn(whole, cast(Worker, Hanging(whole.origin, whole.limit)), JOB, 0).play()
    tries = [event for event in events if event.startswith("simulator")]
    assert tries == ["simulator begins", "simulator ends"] * 2
    # In parallel.
    again = events.index("simulator ends") + 1
    assert sorted(events[again : again + 2]) == ["interpreter begins", "simulator begins"]
    assert log.buckets[0].repeats[1] == "  engines   the simulator; the interpreter too"
    # Each of the two may take half as long again.
    assert FIRST * 2 == 3


@pytest.mark.parametrize(
    ("one", "other", "rests"),
    [
        # One hang and its repeat, at a limit of a second.
        (Tally(seconds=4, lost=4), Tally(), True),
        (Tally(seconds=4, lost=4), Tally(seconds=11), True),
        (Tally(seconds=4, lost=4), Tally(seconds=13), False),
        # A few that end their process soon.
        (Tally(seconds=0.2, lost=0.2), Tally(), False),
        (Tally(seconds=9), Tally(seconds=9, lost=9), False),
        (Tally(broken=True), Tally(seconds=9), True),
    ],
)
def test_a_job_rests_while_its_kernel_wastes_the_time(
    one: Tally, other: Tally, rests: bool
) -> None:
    of_the_kernel = replace(JOB, law="causality")
    elsewhere = Job("gla", "chunk", "differential", "float32")
    log = Log("oracle", 1, {JOB: one, of_the_kernel: other, elsewhere: Tally(seconds=99)})
    assert night(log).rests(JOB) is rests


def test_each_mode_is_compared_with_the_oracle_before_any_is_in_another_dtype() -> None:
    jobs = Selection(laws=("differential", "causality")).jobs(Oracle())
    lanes = Lanes(night(Log("oracle", 1, dict.fromkeys(jobs, Tally()))))
    compared = [job for job in jobs if job.law == "differential"]
    modes = {(job.op, job.mode) for job in compared}
    first = [job for _, job in islice(lanes.order, 2 * len(modes)) if job.law == "differential"]
    assert {(job.op, job.mode) for job in first} == modes
    rest = [job for _, job in islice(lanes.order, len(jobs) - 2 * len(modes))]
    assert {*first, *rest} >= {*compared}
    assert next(lanes.order)[0] == 1


def test_failures_at_one_line_are_one_bug() -> None:
    norm = Fingerprint("norm", "differential", error="LoadOutOfBounds", place="rows.py:3")
    linear = Fingerprint("linear", "causality", error="LoadOutOfBounds", place="rows.py:3")
    log = Log("ours", 1, {}, [Bucket([failure(norm)])])
    assert log.bucket(linear) is log.buckets[0]
    assert log.bucket(Y) is None


def test_a_case_is_made_plainer_by_each_of_its_parts() -> None:
    dims = {"B": 1, "H": 2, "K": 3, "V": 4}
    whole = Case(
        op="gla",
        mode="chunk",
        dtype="float32",
        dims=dims,
        lengths=(0, 5),
        packed=True,
        given=("initial_state",),
        float32=("initial_state",),
        options={"scale": None, "output_final_state": True},
        layouts={"initial_state": "sliced", "cu_seqlens": "sliced"},
    )
    plainer = parts(whole)
    assert [*plainer] == [
        *("an empty sequence", "packed sequences", "initial_state", "output_final_state"),
        *("float32", "layouts"),
    ]
    assert plainer["an empty sequence"].lengths == (5,)
    dense = plainer["packed sequences"]
    assert (dense.packed, dense.lengths, [*dense.layouts]) == (False, (5,), ["initial_state"])
    without = plainer["initial_state"]
    assert (without.given, without.float32, [*without.layouts]) == ((), (), ["cu_seqlens"])
    assert parts(Case.of("gla", "chunk", dims, (5,))) == {}


SLICED = replace(case(1), layout="sliced")


def test_a_bug_explains_no_case_that_lacks_what_it_needs() -> None:
    log = Log("ours", 1, {})
    needing = log.open(replace(failure(Y), case=SLICED), 0.0, ["layouts"])
    other = log.open(failure(Y), 0.0)
    assert log.bucket(Y, case=case(9)) is other
    assert log.bucket(Y, case=SLICED) is needing
    assert needing.name != other.name
    log.merge()
    assert log.buckets == [needing, other]
    assert "needs     layouts: it passes without" in needing.report


@pytest.mark.parametrize("cases", [(SLICED, case(5)), (case(5), SLICED)])
def test_bugs_that_make_one_result_wrong_are_told_apart_by_what_they_need(
    cases: tuple[Case, Case],
) -> None:
    def ask(law: str, case: Case) -> Answer:
        wrong = case.layout == "sliced" or case.lengths == (5,)
        return Answer(failure=Failure(Y, law, case, "what is wrong") if wrong else None)

    log = Log("oracle", 1, {JOB: Tally()})
    whole, worker = night(log), Mock(Worker, ask=ask)
    for lap, one in enumerate((*cases, *cases)):
        turn = Turn(whole, worker, JOB, lap)
        turn._judge(one)
        for bucket in turn.found:
            turn._find_needs(bucket)
    assert [bucket.first.case for bucket in log.buckets] == [*cases]
    assert [bucket.needs for bucket in log.buckets] == [
        ("layouts",) if one is SLICED else () for one in cases
    ]


def test_a_law_that_wrong_results_may_obey_tells_nothing_of_what_a_bug_needs() -> None:
    invariance = replace(JOB, law="request_invariance")

    def ask(law: str, case: Case) -> Answer:
        fails = law == "differential" or case.layout == "sliced"
        found = replace(Y, law=law)
        return Answer(failure=Failure(found, law, case, "what is wrong") if fails else None)

    log = Log("oracle", 1, {JOB: Tally(), invariance: Tally()})
    whole, worker = night(log), Mock(Worker, ask=ask)
    for lap, (job, one) in enumerate([(invariance, SLICED), (JOB, case(5))]):
        turn = Turn(whole, worker, job, lap)
        turn._judge(one)
        for bucket in turn.found:
            turn._find_needs(bucket)
            turn._link(bucket)
    assert [bucket.needs for bucket in log.buckets] == [()]


def test_functions_are_those_of_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that met the bug before notes none, and its first call imports modules besides."""
    first, later = (
        replace(answer(Y), functions=frozenset(ran))
        for ran in (["shift.py:10", "six.py:90"], ["shift.py:10"])
    )
    worker = Mock(Worker, ask=Mock(side_effect=[first, later, answer(Y)]))
    whole = night(Log("oracle", 1, {JOB: Tally()}, [bucket := Bucket([failure(Y)])]))
    second = Mock(asked=Mock(result=lambda: answer(None)))
    monkeypatch.setattr(Asker, "_begin_second", lambda *case: second)
    Asker(whole, worker).repeats(bucket)
    assert bucket.functions == {"shift.py:10"}
    assert whole.log.ran == {JOB.op: {"shift.py:10"}}


def bucket_of(*ops: str, lines: str) -> Bucket:
    """A bucket that these ops found, whose cases launched these lines."""
    bucket = Bucket([failure(Fingerprint(ops[0], "differential", "y"))])
    bucket.seen.update(f"{op}-fused-differential-float32" for op in ops)
    bucket.ran(frozenset(lines.split()))
    return bucket


def test_kernels_without_a_common_line_have_no_common_bug() -> None:
    bucket = bucket_of("merge_attention", lines="merge.py:3 rows.py:1")
    log = Log("ours", 1, {}, [bucket])
    same = bucket.first.fingerprint
    assert log.bucket(same, lines=frozenset({"attention.py:7"})) is None
    assert log.bucket(same, lines=frozenset({"attention.py:7", "rows.py:1"})) is bucket
    assert log.bucket(same) is bucket


def test_a_line_explains_buckets_if_most_ops_that_launch_it_fail() -> None:
    shared = bucket_of("gla", "kda", lines="rows.py:3 rows.py:4 linear.py:1 all.py:1")
    too = bucket_of("attention", lines="rows.py:3 rows.py:4 softmax.py:1 all.py:1")
    other = bucket_of("rotary", lines="rotary.py:1 all.py:1")
    named = Bucket([failure(replace(Y, place="rows.py:3"))], lines=frozenset({"rows.py:3"}))
    buckets = [shared, too, other, named]
    ran = {op: set(bucket.lines or ()) for bucket in buckets for op in bucket.ops}
    ran |= {f"right {index}": {"all.py:1"} for index in range(5)}
    log = Log("ours", 1, {}, buckets, ran=ran)
    (cause,) = log.causes
    assert cause.buckets == (shared, too)
    assert cause.place == "rows.py:3-4"
    assert (cause.failed, cause.launched) == (3, 3)
    assert log.bug_count == 3
    for index in range(4):
        ran[f"right too {index}"] = {"rows.py:3", "rows.py:4"}
    assert log.causes == []


def test_a_line_that_every_op_launches_explains_buckets_only_if_nearly_all_fail() -> None:
    buckets = [bucket_of("gla", "kda", lines="all.py:1"), bucket_of("attention", lines="all.py:1")]
    ran = {op: {"all.py:1"} for op in ("gla", "kda", "attention", "right")}
    log = Log("ours", 1, {}, buckets, ran=ran)
    assert log.causes == []
    del ran["right"]
    assert [cause.buckets for cause in log.causes] == [tuple(buckets)]


def test_buckets_that_a_case_shows_to_be_one_bug_are_merged() -> None:
    both, later, third = (Bucket([failure(one)]) for one in (Y, DX, replace(Y, law="causality")))
    log = Log("ours", 1, {}, [both, later, third])
    log.merge()
    assert len(log.buckets) == 3
    both.seen["a job"] += 1
    later.seen["a job"] += 2
    both.add(failure(Y, also=(DX,)))
    log.merge(without=[later])
    assert len(log.buckets) == 3
    log.merge()
    assert log.buckets == [both, third]
    assert both.count == 3
    # As a bucket that was merged shows it.
    both.linked.add(third.first.fingerprint)
    log.merge()
    assert log.buckets == [both]


def test_wrong_results_of_a_kernel_are_one_bug_if_none_repeats_each_time() -> None:
    causality = replace(Y, law="causality")
    steady, flaky, same = (Bucket([failure(one)]) for one in (Y, causality, replace(Y, law="x")))
    other = Bucket([failure(DX)])
    log = Log("ours", 1, {}, [steady, other, flaky, same])
    assert log.as_unsteady(flaky) is None
    for bucket in (other, flaky, same):
        bucket.steady = False
    assert log.as_unsteady(flaky) is same
    assert log.as_unsteady(same) is flaky
    assert log.as_unsteady(steady) is None
    assert log.as_unsteady(other) is None
    elsewhere = replace(case(1), mode="chunk")
    log.buckets[3] = Bucket([replace(failure(Y), case=elsewhere)], steady=False)
    assert log.as_unsteady(flaky) is None


def test_a_bucket_that_is_merged_takes_its_file_along(tmp_path: Path) -> None:
    both, later = Bucket([failure(Y)]), Bucket([failure(DX)])
    log = Log("ours", 1, {}, [both, later])
    for bucket in log.buckets:
        bucket.write(tmp_path, "ours")
    assert len([*tmp_path.iterdir()]) == 2
    both.add(failure(Y, also=(DX,)))
    log.merge()
    assert [path.name for path in tmp_path.iterdir()] == [f"{both.name}.py"]


def test_a_process_that_crashed_before_it_began_has_no_clock() -> None:
    line = Clock.started(os.getpid()).line
    began = Clock.read(f"{line}Fatal Python error: Segmentation fault")
    assert began is not None
    assert began.process == os.getpid()
    anew = Clock.read(f"{line}{(again := Clock.started(os.getpid())).line}[unfinished")
    assert anew is not None
    assert anew.at == again.at > began.at
    for text in ("", line[:-1], f"Fatal Python error: Segmentation fault\n\n{line}"):
        assert Clock.read(text) is None


def _kept(folder: Path) -> Log:
    """A log with something in each field, in a file."""
    strips = (Strip("head 0", ("01", "44")),)
    wrong = failure(Y, also=(DX,), picture=Picture("y", "2 tokens", "2 dims", (0.5,), strips, 0))
    bucket = Bucket([wrong], {DX}, repeats=("once",), file="there", files=("a",))
    bucket.seen["a job"] += 2
    bucket.add(failure(Y, 9, excess=excess(1.5)))
    bucket.ran(frozenset({"rows.py:3", "rows.py:4"}), frozenset({"shift.py:10"}))
    log = Log("ours", 7, {JOB: Tally(3, 1.5, 0.25, 2, 0.5)}, [bucket], turns=4, seconds=9.5)
    for counts in (log.unrepeated, log.excused, log.errors):
        counts["once"] += 1
    log.history.add(12.0, "l2norm", Tally(2, 1.0))
    log.changed.add("rows.py")
    log.ran["l2norm"] = {"rows.py:3", "rows.py:14"}
    log.write(folder)
    return log


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    log, read = _kept(tmp_path), Log.read(tmp_path)
    assert read is not None
    assert vars(read.buckets.pop()) == vars(log.buckets.pop())
    assert read == log


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each list or object in JSON with each key or index of it."""
    if isinstance(value, dict | list):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            yield value, key
            # A case has a test of its own.
            yield from _places(value[key]) if key != "case" else ()


@pytest.mark.parametrize("wrong", ["text", 3, [3], {"a": "b"}])
def test_a_wrong_type_in_a_log_is_named_by_its_field(wrong: object, tmp_path: Path) -> None:
    _kept(tmp_path)
    path = tmp_path / "night.json"
    kept = json.loads(path.read_text())
    for holder, key in [*_places(kept)]:
        right = holder[key]
        if key == "case" or type(right) is type(wrong) or (type(right), wrong) == (float, 3):
            continue
        holder[key] = wrong
        path.write_text(json.dumps(kept))
        with pytest.raises(ValueError, match=f"expected a night.*[.[]?{key}.*(expected|missing)"):
            Log.read(tmp_path)
        holder[key] = right


def test_a_file_that_is_no_log_is_rejected(tmp_path: Path) -> None:
    assert Log.read(tmp_path) is None
    (tmp_path / "night.json").write_text("{}")
    with pytest.raises(ValueError, match=r"night\.json, expected a night"):
        Log.read(tmp_path)


def test_a_corpus_keeps_failures_and_the_largest_errors() -> None:
    database = InMemoryExampleDatabase()
    corpus = Corpus("ours", database)
    for tokens, worst in enumerate((0.1, 0.5, 0.2, 0.4, 0.3), 1):
        corpus.keep(JOB, case(tokens), worst)
    corpus.keep(JOB, case(9), float("inf"))
    reopened = Corpus("ours", database)
    assert [worst for worst, _ in reopened.entries(JOB)] == [float("inf"), 0.5, 0.4, 0.3]
    reopened.drop(JOB, case(9))
    assert [one.lengths for _, one in reopened.entries(JOB)] == [(2,), (4,), (5,)]
    assert Corpus("another", database).entries(JOB) == []


def test_the_display_shows_failures_and_the_worst_in_few_lines() -> None:
    jobs = Selection(dtypes=("float32",)).jobs(Oracle())
    untried = jobs[40].op, jobs[40].law
    tallies = {job: Tally(examples=(job.op, job.law) != untried) for job in jobs}
    tallies[jobs[-1]] = Tally(examples=9, failed=4)
    tallies[jobs[30]] = Tally(examples=9, worst=0.75)
    log = Log("oracle", 1, tallies, latest=jobs[20])
    display = Display(night(log))
    screen = io.StringIO()
    Console(file=screen, force_terminal=True, width=80, height=16, color_system=None).print(display)
    shown = screen.getvalue()
    assert len(shown.splitlines()) <= 16
    assert f"{jobs[-1].law} " in shown
    assert "0.75" in shown
    title = " ".join(shown.split())
    assert f"latest {jobs[20].name}" in title
    assert "1 h 29 min left" in title
    assert "more rows" in shown
    table = io.StringIO()
    Console(file=table, width=80).print(display)
    assert "none" in table.getvalue()
    assert len(table.getvalue().splitlines()) > len(log.rows())


def test_an_option_that_may_be_a_tensor_may_have_a_layout() -> None:
    op = OPS["rotary_embedding"]
    drawn = op.full(op.modes[0].name, dict.fromkeys(op.dims, 4), (2,), packed=False)
    # As when a law sets the option to a number.
    scope.check(Oracle(), replace(drawn, layouts={"seqlen_offsets": "sliced"}))


def test_every_drawn_case_can_be_given_as_an_argument() -> None:
    target = Oracle()

    def check(bundle: Sequence[Case]) -> None:
        for case in bundle:
            scope.check(target, case)
        scope.check_call(target, bundle[0])

    for job in Selection(laws=("differential",), dtypes=("bfloat16",)).jobs(target):
        test = drawing(job, target, check)
        settings(max_examples=2, phases=[Phase.generate], database=None, derandomize=True)(test)()
