"""A night survives faults of its target and of the machine."""

import errno
import inspect
import itertools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from multiprocessing import active_children
from multiprocessing.util import get_temp_dir
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from pebble import ProcessPool

from properties.cases.case import Case
from properties.clock import Clock
from properties.fuzz import __main__ as command
from properties.fuzz import (
    answer,
    ending,
    fork_server,
    lanes,
    night,
    planted,
    report,
    strays,
    turn,
    worker,
)
from properties.fuzz.__main__ import main
from properties.fuzz.conftest import Fuzz, on_l2norm
from properties.fuzz.corpus import FOLDER, Corpus
from properties.fuzz.log import Log
from properties.jobs import Job, hypothesis_test
from properties.laws import Subject, Violation

pytestmark = pytest.mark.ops("l2norm", "short_conv")

CPU = torch.device("cpu")
# A call of the planted targets.
CASE = Case(op="l2norm", mode="fused", dtype="float32", dims={"B": 1, "H": 1, "D": 3}, lengths=(1,))

_ROOT = Path(__file__).parents[2]
_NOT_STARTED, _HERE = "a process that judges cases does not start", "properties/fuzz/planted.py:"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file by which processes of a target know each other."""
    monkeypatch.setenv(planted.MARK, str(tmp_path / "mark"))
    return tmp_path / "mark"


@pytest.fixture
def _few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bundle, of a target that ends its process or has it replaced in each case."""
    monkeypatch.setattr(turn, "EXAMPLES_OF_A_TURN", 1)


@pytest.mark.parametrize("target", ["hanging", "hanging_beside", "hanging_in_calls", "endless"])
def test_a_case_that_hangs_is_killed_and_reported(target: str, fuzz: Fuzz) -> None:
    code, printed = fuzz(target, "--case-timeout", "0.2")
    assert code == 1
    assert "the process that ran it hangs" in printed
    assert "planted.py:" in printed
    assert "1 bug in" in printed
    assert "again     in a fresh process as well" in printed
    assert "engines   the simulator; the interpreter too" in printed
    assert "may be at fault" not in printed


def test_a_hang_is_told_and_leaves_no_process_whatever_the_target_started(mark: Path) -> None:
    hung = worker.Worker(answer.Origin(f"{planted.__name__}:unruly", "simulator", "none"), 0.2)
    try:
        assert hung.ask("differential", CASE).doubtful == answer.HANGS
    finally:
        hung.close()
    _wait_for_the_end_of(int(mark.read_text()))


def _wait_for_the_end_of(process: int) -> None:
    clock = Clock.started(process)
    while not clock.ended:
        time.sleep(0.01)


def test_a_daemon_that_a_target_started_ends_with_the_run(fuzz: Fuzz, mark: Path) -> None:
    assert fuzz("daemonising")[0] == 0
    _wait_for_the_end_of(int(mark.read_text()))


def test_a_loop_that_reaches_the_turn_limit_is_reported(fuzz: Fuzz) -> None:
    _, printed = fuzz("turning", "--no-shrink", "--case-timeout", "0.4")
    assert "turns of while loops" in printed
    assert "while count >= 0:" in printed
    assert "engines   the simulator; the interpreter too" in printed
    assert "1 bug in" in printed


def test_a_case_that_hangs_until_given_more_time_is_one_bug(fuzz: Fuzz, mark: Path) -> None:
    code, printed = fuzz("hanging_once", "--no-shrink", "--case-timeout", "0.4")
    assert code == 1
    assert mark.exists()
    assert "ValueError: after a while" in printed
    assert "1 bug in" in printed
    assert "may be at fault" not in printed


@pytest.mark.parametrize("target", ["starved", "starved_beside"])
def test_a_case_that_waits_for_a_core_does_not_hang(target: str, fuzz: Fuzz, mark: Path) -> None:
    code, printed = fuzz(target, "--case-timeout", "1.5")
    assert code == 0
    assert mark.exists()
    assert "may be at fault" not in printed


_STOPPED = """
import os, signal, time
from properties.clock import Clock, pause
clock = Clock.started(os.getpid())
if not os.fork():
    time.sleep(0.1)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(os.getppid(), signal.SIGCONT)
    os._exit(0)
pause(0.3)
print(clock.seconds() < 1)
"""


def test_the_time_in_which_a_run_is_stopped_does_not_count() -> None:
    command = [sys.executable, "-c", _STOPPED]
    assert subprocess.check_output(command, cwd=_ROOT, text=True) == "True\n"


@pytest.mark.usefixtures("_few_cases")
def test_a_crash_is_a_finding_with_the_name_of_its_signal(fuzz: Fuzz) -> None:
    code, printed = fuzz("crashing")
    assert code == 1
    assert "the process that ran it ends with SIGSEGV" in printed
    assert "planted.py:" in printed
    assert "REPRO: python -m properties.fuzz --law differential --case" in printed
    assert "1 bug in" in printed


def test_the_deadline_ends_a_run_whose_target_hangs(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(night, "_GRACE", 0.5)
    code, printed = fuzz("hanging", "--minutes", "0.03")
    assert code == 1
    assert re.search(r"nothing judged in 0 examples, 0 min \d+ s", printed)
    name = "l2norm-fused-differential-float32"
    assert (
        f"cut off after the deadline; its case may hang: {name}\nREPRO: python -m properties"
        in printed
    )
    assert "had no turn" not in printed


def test_a_case_does_not_hang_while_its_process_loads_the_target() -> None:
    origin = answer.Origin(f"{planted.__name__}:hanging_at_once", "simulator", "none")
    loading = worker.Worker(origin, 60.0)

    def stop() -> None:
        while Clock.read(loading.traces.read_text()) is None:
            time.sleep(0.05)
        loading.stop()

    Thread(target=stop, daemon=True).start()
    try:
        with pytest.raises(answer.Stopped) as ended:
            loading.ask("differential", CASE)
        assert not ended.value.judging
    finally:
        loading.close()


def test_drawing_that_never_ends_is_told_and_ended(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit() -> None:
        # Before the first case Hypothesis reads the source of all modules, which may take long.
        planted.SEEKING.wait()
        monkeypatch.setattr(lanes, "_DRAWING", 0.1)

    Thread(target=limit, daemon=True).start()
    code, printed = fuzz("drawing_endlessly", "--minutes", "5")
    assert code == 1
    assert "drawing a case of l2norm-fused-differential-float32 takes over" in printed
    # Whichever line of its loop the interrupt meets.
    loop = "while True:", "case = replace(case, seed=case.seed + 1)"
    assert any(line in printed for line in loop), printed


def test_drawing_in_compiled_code_does_not_hold_up_the_end(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setattr(ending, "_LEAVING", 0.1)
    monkeypatch.setattr(night, "_GRACE", 0.5)
    monkeypatch.setattr(lanes, "_LAST", 0.1)
    with planted.HELD:
        code, printed = fuzz("drawing_in_compiled_code", "--minutes", "0.03")
        assert "nothing judged in 0 examples" in printed
        assert not left  # `main` may be called within a process that goes on.
        with pytest.raises(SystemExit):
            ending.leave(code)
        while not left:
            time.sleep(0.01)
    assert left == [code]


def test_running_out_of_memory_once_is_not_reported(fuzz: Fuzz, mark: Path) -> None:
    code, printed = fuzz("exhausted_once")
    assert code == 0
    assert "no findings, as the machine may be at fault: runs out of memory 1" in printed
    assert "no bugs in" in printed


@pytest.mark.parametrize(
    ("target", "what"), [("littering_files", "open files"), ("filling_a_disk", "disk")]
)
def test_a_machine_that_lacks_something_is_not_reported(target: str, what: str, fuzz: Fuzz) -> None:
    code, printed = fuzz(target, "--examples", "1")
    assert code == 1
    assert f"no findings, as the machine may be at fault: runs out of {what} " in printed
    assert "not tested, by examples that it spoiled: l2norm (fused) " in printed


@pytest.mark.parametrize("target", ["forking", "printing"])
def test_one_process_answers_and_prints_nothing(target: str, fuzz: Fuzz) -> None:
    code, printed = fuzz(target)
    assert code == 0, printed
    assert "may be at fault" not in printed


@pytest.mark.parametrize("target", ["wandering", "muting"])
def test_what_a_kernel_does_to_its_process_spoils_no_later_case(
    target: str, fuzz: Fuzz, tmp_path: Path
) -> None:
    code, printed = fuzz(target, "--report", "seen")
    assert code == 0, printed
    assert re.search("no bugs in [1-9]", printed)
    assert (tmp_path / "seen" / "report.json").exists()


def test_a_module_that_is_saved_during_a_night_is_loaded_again(
    fuzz: Fuzz, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_SAVED", 0.0)
    code, printed = fuzz("saved_meanwhile", "--no-shrink")
    assert code == 1
    assert mark.read_text().count("loaded") > 2
    assert "differential: MemoryError" in printed
    assert "does not start" not in printed


def test_a_file_of_a_module_that_changes_during_a_night_is_told(
    fuzz: Fuzz, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = ModuleType("edited")
    edited.__file__ = str(mark)
    monkeypatch.setitem(sys.modules, "edited", edited)
    # It touches the file.
    _, printed = fuzz("exhausted_once", "--report", "seen")
    assert re.search("may have met another version: .*mark\n", printed)
    assert "may have met another version" in (tmp_path / "seen" / "report.html").read_text()


def test_a_machine_that_forks_nothing_for_a_while_ends_no_run(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, calls = ProcessPool.schedule, itertools.count()

    def scarce(*given: Any) -> Any:
        if 3 <= next(calls) < 9:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return schedule(*given)

    monkeypatch.setattr(ProcessPool, "schedule", scarce)
    monkeypatch.setattr(worker, "_SAVED", 0.0)
    code, printed = fuzz("good")
    assert code == 0, printed
    assert next(calls) > 9
    assert re.search("no bugs in [1-9]", printed)


def test_a_machine_without_a_thread_for_the_second_engine_reports_the_bug(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Thread.start

    def scarce(thread: Thread) -> None:
        if thread.name.startswith("ThreadPoolExecutor") or thread.name.endswith("(watch)"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(Thread, "start", scarce)
    code, printed = fuzz("raising", "--no-shrink")
    assert code == 1
    assert "the interpreter cannot tell: can't start new thread" in printed
    assert "1 bug in" in printed


def test_a_process_killed_from_outside_is_not_reported(fuzz: Fuzz, mark: Path) -> None:
    def kill() -> None:
        while not (mark.exists() and mark.read_text().endswith("\n")):
            time.sleep(0.05)
        os.kill(int(mark.read_text()), signal.SIGKILL)

    killer = Thread(target=kill, daemon=True)
    killer.start()
    code, printed = fuzz("waiting_once")
    assert code == 0
    assert "no findings, as the machine may be at fault: ends with SIGKILL 1" in printed
    assert "no bugs in" in printed


@pytest.mark.usefixtures("_few_cases")
def test_a_case_whose_process_is_killed_each_time_is_not_reported(fuzz: Fuzz) -> None:
    code, printed = fuzz("killed", "--examples", "1")
    assert code == 1
    assert "no findings, as the machine may be at fault: ends with SIGKILL" in printed
    assert "nothing judged in 0 examples" in printed


@pytest.mark.usefixtures("_few_cases")
def test_a_signal_that_a_kernel_sends_its_own_process_is_reported(fuzz: Fuzz) -> None:
    code, printed = fuzz("giving_up")
    assert code == 1
    assert "the process that ran it ends with SIGTERM, which it sends itself" in printed
    assert "sends itself at properties/fuzz/planted.py:" in printed
    assert "again     in a fresh process as well" in printed
    assert "1 bug in" in printed
    assert "may be at fault" not in printed


@pytest.mark.usefixtures("_few_cases")
def test_a_case_whose_process_is_killed_for_memory_each_time_is_reported(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = itertools.count()
    monkeypatch.setattr(worker, "_killed_for_memory", lambda: next(counts))
    code, printed = fuzz("killed", "--examples", "1")
    assert code == 1
    assert "ends with SIGKILL, while Linux kills 1 process for want of memory" in printed
    assert "1 bug in" in printed


def test_a_process_that_grows_is_replaced(
    fuzz: Fuzz, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "GROWTH", 1 << 20)
    code, printed = fuzz("growing")
    assert code == 0
    # A case makes at most three calls, which grow it too much: no process judges a second case.
    judged = int(re.findall("no bugs in ([0-9]+) examples", printed)[-1])
    loaded = len({*mark.read_text().split()})
    # The test itself loads the target once.
    assert 5 <= judged <= loaded - 1


def test_each_process_sees_a_gpu_of_its_own(
    fuzz: Fuzz, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "gpus", lambda device: ["0", "GPU-5"])
    _, printed = fuzz("looking", "--jobs", "3", "--examples", "30")
    assert "1 job of target" in printed
    assert "3 processes" in printed
    seen = mark.read_text().splitlines()
    # The test itself loads the target too.
    seen.remove(str(os.environ.get("CUDA_VISIBLE_DEVICES")))
    assert sorted(seen) == ["0", "0", "GPU-5"]


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("exiting", "SystemExit: 3"),
        ("interrupting", "KeyboardInterrupt"),
        ("unwinding", "Unwinding: all of it"),
        ("returning_a_list", "TypeError: it returns y as list, expected a tensor"),
        ("returning_more", "TypeError: it returns 2 results, expected y alone"),
        ("speechless", "Speechless: its text raises RecursionError"),
        ("obscure", "Obscure: said"),
        ("colourful", r"ValueError: \x1b[31mred\x1b[0m\x00"),
    ],
)
def test_an_exit_of_python_is_reported(target: str, error: str, fuzz: Fuzz) -> None:
    code, printed = fuzz(target, "--no-shrink")
    assert code == 1
    assert f"differential: {error}" in printed
    assert "1 bug in" in printed


def test_a_long_text_of_an_exception_is_cut(fuzz: Fuzz) -> None:
    _, printed = fuzz("verbose", "--no-shrink")
    assert "more characters" in printed
    assert len(printed) < 20_000


@pytest.mark.usefixtures("_few_cases")
def test_a_process_that_ends_without_an_error_is_reported(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody notices an end with code 0, however long one waits.
    monkeypatch.setattr(worker, "_NOTICE", 0.1)
    code, printed = fuzz("leaving")
    assert code == 1
    assert "the process that ran it ends with code 0" in printed
    assert "again     in a fresh process as well" in printed
    assert "1 bug in" in printed


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("stillborn", f"{_NOT_STARTED}: it ends with code 1 while it starts"),
        ("leaving_at_once", f"{_NOT_STARTED}: it ends with code 0 while it starts"),
        ("crashing_at_once", f"{_NOT_STARTED}: it ends with SIGSEGV while it starts, at {_HERE}"),
        ("hanging_at_once", f"{_NOT_STARTED}: it hangs while it starts, at {_HERE}"),
        ("refusing_at_once", "not here"),
        ("interrupting_at_once", f"target: '{planted.__name__}:interrupting_at_once' raises Keyb"),
        ("breaking_at_once", "target: 'properties.fuzz.planted:breaking_at_once' cannot be made: "),
    ],
)
def test_a_target_that_no_process_can_load_begins_no_run(
    target: str,
    told: str,
    fuzz: Fuzz,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Nobody notices an end with code 0, however long one waits.
    monkeypatch.setattr(worker, "_NOTICE", 0.1 if target == "leaving_at_once" else worker._NOTICE)
    if target == "hanging_at_once":
        # The first process waits for imports.
        fuzz("good", "--examples", "1")
        monkeypatch.setattr(worker, "_STARTING", 2.0)
    before = {*active_children()}
    with pytest.raises(SystemExit) as ended:
        fuzz(target)
    assert ended.value.code == 2
    assert f"error: {told}" in capsys.readouterr().err
    # Python would wait for them.
    assert {*active_children()} <= before


def test_a_process_with_the_mark_of_another_run_is_left_alone() -> None:
    """The id of the run's process may be that of another, in a container or later."""
    other = os.environ | {strays.MARK: str(os.getpid())}
    with subprocess.Popen(["sleep", "1000"], env=other) as process:
        fork_server.end_strays()
        assert process.poll() is None
        process.kill()


def test_a_process_that_forks_no_workers_is_replaced(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = fork_server._server()
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    end = fork_server.end_server

    def replaced() -> None:
        # The next one may take long to import PyTorch.
        monkeypatch.setattr(worker, "_STARTING", 300.0)
        end()

    monkeypatch.setattr(worker, "_STARTING", 1.0)
    monkeypatch.setattr(fork_server, "end_server", replaced)
    code, printed = fuzz("good")
    assert code == 0
    assert "no bugs in" in printed
    assert fork_server._server() not in (None, stopped)


def test_a_process_that_replaces_another_ignores_interrupts_as_well(mark: Path) -> None:
    origin = answer.Origin(f"{planted.__name__}:marking_then_hanging", "simulator", "none")
    at_work = worker.Worker(origin, 60.0)

    def judge() -> None:
        with suppress(answer.Stopped):
            while True:
                at_work.ask("differential", CASE)

    judged = Thread(target=judge)
    try:
        # A target is loaded by the thread that Ctrl-C interrupts.
        at_work.load()
        judged.start()
        while not mark.exists():
            time.sleep(0.01)
        fork_server.end_server()
        while (server := fork_server._server()) is None:
            time.sleep(0.01)
        status = Path(f"/proc/{server}/status").read_text()
    finally:
        at_work.stop()
        judged.join()
        at_work.close()
    assert int(status.partition("SigBlk:")[2].split()[0], 16) >> (signal.SIGINT - 1) & 1


def test_temporary_files_that_somebody_deletes_end_no_run(fuzz: Fuzz) -> None:
    shutil.rmtree(get_temp_dir())
    code, printed = fuzz("good")
    assert code == 0
    assert "no bugs in" in printed


def test_a_temporary_folder_whose_name_no_socket_can_have_is_refused(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", f"/{'t' * 75}")
    with pytest.raises(SystemExit):
        fuzz("good")
    assert "error: TMPDIR: '/ttt" in capsys.readouterr().err


def test_a_current_folder_that_somebody_removes_ends_no_run(
    fuzz: Fuzz, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark.mkdir()
    monkeypatch.chdir(mark)
    code, printed = fuzz("homeless", "--no-shrink")
    assert code == 1
    assert "ValueError: head dim 7 is not supported" in printed
    assert "again     3 of 3 times in a fresh process" in printed
    assert "Not written: findings" in printed


def test_an_adapter_that_exits_where_cases_are_drawn_ends_no_run(fuzz: Fuzz) -> None:
    code, printed = fuzz("exiting_from_a_bound")
    assert code == 1
    assert "nothing judged in 0 examples" in printed
    assert "SystemExit: 3" in printed
    assert "left out after hangs, crashes or an error below: l2norm-fused" in printed


def test_an_illegal_address_is_one_bug_on_both_engines(fuzz: Fuzz) -> None:
    _, printed = fuzz("outside", "--law", "determinism", "--examples", "20", "--no-shrink")
    assert "return tl.load(x + size + tl.arange(0, 16))" in printed
    assert "again     3 of 3 times in a fresh process" in printed
    assert "1 bug in" in printed


def test_an_engine_that_shows_a_wrong_address_as_wrong_values_says_so(fuzz: Fuzz) -> None:
    _, printed = fuzz("between_rows", "--seed", "3", "--no-shrink")
    assert "between the elements of the view" in printed
    assert (
        "engines   the simulator; the interpreter fails otherwise: differential does not" in printed
    )
    assert "1 bug in" in printed


def test_a_bug_in_code_that_ops_share_is_one_bug(fuzz: Fuzz) -> None:
    chosen = "--op", "short_conv", "--law", "determinism", "--examples", "25"
    _, printed = fuzz("sharing", *chosen, "--no-shrink")
    assert printed.count("return tl.load(x + size + tl.arange(0, 16))") == 1
    assert len(re.findall("^REPRO", printed, re.MULTILINE)) == 1, printed
    (line,) = re.findall("^  [0-9]+ x .*", printed, re.MULTILINE)
    assert "short_conv-fused" in line
    assert "l2norm-fused" in line


def test_wrong_values_of_code_that_ops_share_are_one_bug(fuzz: Fuzz) -> None:
    ops = [part for op in ("token_shift", "strength_gate", "cumsum") for part in ("--op", op)]
    _, printed = fuzz("miscounting", *ops, "--examples", "60", "--seed", "3", "--no-shrink")
    (cause,) = {*re.findall("^  3 failures that (.*) would explain", printed, re.MULTILINE)}
    source, line = inspect.getsourcelines(planted._wrong.fn)
    assert cause == f"properties/fuzz/planted.py:{line + len(source) - 1}"
    assert "1 bug in" in printed


def test_a_new_bug_beside_a_known_one_is_reported(fuzz: Fuzz, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.py"
    ledger.write_text(_LEDGER)
    chosen = "--examples", "20", "--seed", "2", "--ledger", str(ledger)
    code, printed = fuzz("twofold", *chosen, "--no-shrink")
    assert code == 1
    assert "ArithmeticError" not in printed
    assert "differs from the oracle" in printed
    assert "1 bug in" in printed
    assert re.search("known failures met, by examples: even dims [0-9]", printed)


_LEDGER = f"""
from properties.cases.case import Case
from properties.targets.ledger import KnownFailure, Raised
LEDGER = (
    KnownFailure(
        name="even dims", law="differential", releases=("pytest {version("pytest")}",),
        expected="", got="", cause="", modes=("fused",),
        cases=(Case(op="l2norm", mode="fused", dtype="float32", dims={{}}, lengths=(1,)),),
        shows=lambda given: given["x"].shape[-1] % 2 == 0,
        symptoms=(Raised("ArithmeticError", "even"),),
    ),
)
"""


def test_no_more_time_than_granted_is_spent_on_making_cases_smaller(
    fuzz: Fuzz, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calls(granted: float, *more: str) -> int:
        monkeypatch.setattr(night, "_SHRINKING", granted)
        _, printed = fuzz("raising_and_counting", "--seed", "0", *more)
        assert "1 bug in" in printed
        count = mark.read_text().count("called")
        mark.unlink()
        return count

    assert calls(0.0) <= calls(60.0, "--no-shrink") < calls(60.0)


@pytest.fixture
def _shrinking_soon_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night, "_SHRINKING", 3.0)


@pytest.mark.usefixtures("_shrinking_soon_ends")
def test_two_bugs_in_one_kernel_stay_two(fuzz: Fuzz) -> None:
    code, printed = fuzz("twofold", "--examples", "20", "--seed", "2")
    assert code == 1
    assert "ArithmeticError: even" in printed
    assert "differs from the oracle" in printed
    # Wrong results, and wrong gradients where results are 0, are one bug.
    assert "2 bugs in" in printed
    assert len(re.findall("^REPRO", printed, re.MULTILINE)) == 2


@pytest.mark.usefixtures("_shrinking_soon_ends")
def test_two_bugs_that_make_one_result_wrong_stay_two(fuzz: Fuzz) -> None:
    code, printed = fuzz("doubling", "--op", "cumsum", "--examples", "60", "--seed", "2")
    assert code == 1
    assert "2 bugs in" in printed
    needs = {*re.findall("^  needs     (.*): it passes without$", printed, re.MULTILINE)}
    assert needs == {"an empty sequence, packed sequences", "reverse=True"}


_SPOILED = """
import reference
from properties.targets import Adapter

def spoiled(x):
    return 2 * x

def l2norm(x):
    return spoiled(reference.l2norm(x))

def cumsum(x):
    return spoiled(reference.cumsum(x))

def strength_gate(x):
    return spoiled(reference.strength_gate(x))

def target(device):
    return Adapter({one.__name__: {"fused": one} for one in (l2norm, cumsum, strength_gate)})
"""


def test_a_function_that_ops_share_explains_their_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spoiled.py").write_text(_SPOILED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    # A turn for each op.
    given = "--target spoiled:target --law differential --dtype float32 --jobs 1 --examples 11"
    assert main([*given.split(), "--no-shrink"]) == 1
    printed = capsys.readouterr().out
    assert "3 failures that spoiled.py:5 would explain: 3 of the 3 ops" in printed
    assert "1 bug in" in printed


def test_a_bug_that_shows_now_and_then_is_one_and_needs_nothing(fuzz: Fuzz) -> None:
    code, printed = fuzz("flaky", "--examples", "20", "--seed", "2")
    assert code == 1
    assert re.search("again     [012] of 3 times in a fresh process", printed)
    assert "it passes without" not in printed
    assert "1 bug in" in printed


def test_a_bug_that_shows_now_and_then_in_several_laws_is_one(fuzz: Fuzz) -> None:
    given = ("--law", "causality", "--examples", "15", "--seed", "2", "--no-shrink")
    code, printed = fuzz("rarely_wrong", *given)
    assert code == 1
    assert "  also      norm causality y: Case(" in printed
    assert "1 bug in" in printed


def test_a_bug_that_no_fresh_process_shows_is_told_so(fuzz: Fuzz) -> None:
    code, printed = fuzz("wearing_out", "--no-shrink", "--examples", "15")
    assert code == 1
    assert "0 of 3 times in a fresh process, so it is flaky, or an earlier case changed" in printed


def test_a_finding_of_another_target_prints_a_ledger_entry_that_excuses_it(
    fuzz: Fuzz, tmp_path: Path
) -> None:
    _, printed = fuzz("raising", "--no-shrink")
    entry = "Raised(kind='ValueError', message='head dim 7 is not supported')"
    assert f"An entry of the ledger with {entry} would excuse it" in printed
    pin, written = sorted((tmp_path / "findings").iterdir(), key=lambda path: len(path.name))
    assert entry in written.read_text()
    compile(written.read_text(), str(written), "exec")
    # The module pins it in the repository of the target.
    assert 'planted=Edit(module="properties.fuzz.planted"' in pin.read_text()
    compile(pin.read_text(), str(pin), "exec")


def test_a_report_is_printed_if_no_file_can_be_written(
    fuzz: Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel creates a file where the findings folder should be.
    monkeypatch.setenv(planted.MARK, str(tmp_path / "findings"))
    code, printed = fuzz("littering", "--examples", "10", "--no-shrink")
    assert code == 1
    assert "ValueError: littered" in printed
    assert re.search("Not written: findings/.*: File exists", printed)
    assert "1 bug in" in printed


def test_a_file_of_a_bug_that_cannot_be_written_again_is_told(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = command._watch

    def spoil(*given: Any) -> None:
        watch(*given)
        shutil.rmtree("findings")
        Path("findings").touch()

    monkeypatch.setattr(command, "_watch", spoil)
    _, printed = fuzz("raising", "--no-shrink")
    assert re.search("(?s)Written for your regressions: findings/.*Not written: findings/", printed)


def test_a_full_disk_does_not_end_the_run(fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, contents: str | bytes, **how: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    files = "--record", "worst.json", "--resume", "kept", "--report", "seen"
    code, printed = fuzz("raising", *files, "--no-shrink")
    assert code == 1
    assert "Not written: findings/l2norm" in printed
    assert "--record not written: [Errno 28]" in printed
    assert "--resume not written: [Errno 28]" in printed
    assert "--report not written: [Errno 28]" in printed
    assert "1 bug in" in printed


def test_an_error_outside_the_threads_ends_them(
    fuzz: Fuzz, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(_: lanes.Lanes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(lanes.Lanes, "watch", mistaken)
    with pytest.raises(ZeroDivisionError):
        fuzz("slow", "--minutes", "10")
    for thread in threading.enumerate():
        if thread.name.startswith("lane"):
            thread.join(60)
            assert not thread.is_alive()


def test_a_full_disk_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    corpus, job = Corpus("good"), Job("l2norm", "fused", "differential", "float32")
    case = Case(op="l2norm", mode="fused", dtype="float32", dims={"B": 1}, lengths=(1,))
    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        for number in range(1, 20):
            corpus.keep(job, case, 0.01 * number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) < before + 19


def test_what_another_users_folder_refuses_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    FOLDER.mkdir(parents=True)
    FOLDER.chmod(0)
    corpus, job = Corpus("good"), Job("l2norm", "fused", "differential", "float32")
    case = Case(op="l2norm", mode="fused", dtype="float32", dims={"B": 1}, lengths=(1,))
    process = os.fork()
    if process == 0:
        kept: object = None
        with suppress(BaseException):
            # No mode keeps root out.
            if os.geteuid() == 0:
                os.setuid(65534)
            corpus.keep(job, case, 0.5)
            corpus.database.move(b"from", b"to", b"nothing")
            kept = corpus.entries(job)
        os._exit(0 if kept == [] else 1)
    assert os.waitpid(process, 0)[1] == 0
    FOLDER.chmod(0o700)


def test_a_disk_that_fills_up_does_not_end_the_run(tmp_path: Path) -> None:
    run = _Run(tmp_path, "raising_in_the_end", "--no-shrink")
    for process in run.processes():
        _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
        # Large enough for a semaphore.
        resource.prlimit(process, resource.RLIMIT_FSIZE, (64, hard))
    lines = []
    for line in run.process.stdout or ():
        lines.append(line)
        if "Not written: findings/" in line:
            run.process.terminate()
    printed = "".join(lines)
    assert "ValueError: in the end" in printed
    assert "--record not written: [Errno 27]" in printed
    assert "--resume not written: [Errno 27]" in printed
    assert "1 bug in" in printed
    assert "Traceback" not in printed
    assert run.left() == []


def test_failing_cases_are_tried_first_the_next_night(fuzz: Fuzz, tmp_path: Path) -> None:
    fuzz("twofold", "--examples", "15", "--seed", "2", "--no-shrink")
    assert (tmp_path / ".hypothesis" / "examples").is_dir()
    _, printed = fuzz("twofold", "--examples", "5", "--no-shrink", "--seed", "5")
    assert "2 bugs in" in printed


_BOUNDED = """
from pathlib import Path
import reference
from attention_oracles import Adapter, Implementation, bounds

def l2norm(x):
    if not x.numel():
        raise ValueError("no rows")
    return reference.l2norm(x)

def target(device):
    bounded = {"nothing empty": bounds.not_empty} if Path("stated").exists() else {}
    return Adapter({"l2norm": {"fused": Implementation(l2norm, bounds=bounded)}})
"""


def test_a_failing_case_outside_a_new_bound_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bounded.py").write_text(_BOUNDED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    given = "--target bounded:target --law differential --dtype float32 --jobs 1 --no-shrink"
    assert main([*given.split(), "--examples", "60", "--seed", "2"]) == 1
    assert "ValueError: no rows" in capsys.readouterr().out
    (tmp_path / "stated").touch()
    for _ in range(2):
        assert main([*given.split(), "--examples", "5"]) == 0


class _Run:
    """The command in a process of its own, from its start or its first sign of work."""

    def __init__(self, folder: Path, target: str, *more: str, at_work: bool = True) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "properties.fuzz", *on_l2norm(target), *more]
        command += ["--minutes", "10", "--record", "worst.json"]
        command += ["--resume", "kept", "--report", "seen"]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "COLUMNS": "200"}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment | {planted.MARK: str(folder / "mark")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # The tests themselves may run under nohup.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        assert self.process.stdout is not None
        while not at_work and "1 job of target" not in self.process.stdout.readline():
            assert self.process.poll() is None
        while at_work and not (folder / "mark").exists():
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.05)

    def printed(self) -> str:
        return self.process.communicate(timeout=60)[0]

    def processes(self) -> list[int]:
        """The run's processes that still run."""
        return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and self._has(p)]

    def left(self) -> list[int]:
        """The run's processes after its end; what others are forked from may still import."""
        for _ in range(300):
            processes = self.processes()
            if not processes:
                break
            time.sleep(0.1)
        return processes

    def _has(self, process: Path) -> bool:
        """Whether a process belongs to the run and still runs."""
        try:
            state, _, _, session, *_ = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return session == str(self.process.pid) and state != "Z"


@pytest.mark.parametrize(
    ("numbers", "at_work"),
    [
        ([signal.SIGTERM], True),
        ([signal.SIGHUP], True),
        ([signal.SIGINT] * 10, True),
        ([signal.SIGQUIT, signal.SIGINT], False),
    ],
    ids=["SIGTERM", "SIGHUP", "Ctrl-C ten times", "Ctrl-\\ and Ctrl-C at once"],
)
def test_a_signal_ends_a_run_with_its_full_summary(
    numbers: list[signal.Signals], at_work: bool, tmp_path: Path
) -> None:
    run = _Run(tmp_path, "marking_then_hanging", at_work=at_work)
    for number in numbers:
        # A terminal sends these two to all processes of the run.
        typed = number in (signal.SIGINT, signal.SIGQUIT)
        (os.killpg if typed else os.kill)(run.process.pid, number)
        time.sleep(0.05)
    printed = run.printed()
    assert f"stopped by {numbers[0].name}" in printed
    assert " judged in 0 examples" in printed or "no bugs in" in printed
    assert "Traceback" not in printed
    assert (tmp_path / "worst.json").exists()
    assert Log.read(tmp_path / "kept") is not None
    assert f"stopped by {numbers[0].name}" in (tmp_path / "seen" / "report.json").read_text()
    assert run.left() == []


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_other_signals_ask_for_the_end_as_well(name: str) -> None:
    number, asked = signal.Signals[name], list[str]()
    before = {each: signal.getsignal(each) for each in signal.valid_signals()}
    try:
        signal.signal(number, signal.SIG_DFL)
        with ending.signals(asked):
            signal.raise_signal(number)
        assert asked == [name]
        # While Python exits, another one has no effect.
        signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            if signal.getsignal(each) != handler:
                signal.signal(each, handler)


def test_a_run_whose_output_nobody_reads_ends_with_its_records(tmp_path: Path) -> None:
    run = _Run(tmp_path, "raising", "--no-shrink", at_work=False)
    assert run.process.stdout is not None
    run.process.stdout.close()
    assert run.process.wait(timeout=200) == 1
    text = (tmp_path / "seen" / "report.json").read_text()
    assert "stopped by the loss of its output" in text
    assert "head dim 7 is not supported" in text
    assert (tmp_path / "worst.json").exists()
    assert run.left() == []


@pytest.mark.parametrize("end", [TextIOWrapper.close, TextIOWrapper.detach])
def test_output_outlives_the_stream_that_a_module_takes(
    end: Callable[[TextIOWrapper], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = (tmp_path / "printed").open("w")
    monkeypatch.setattr(sys, "stdout", stream)
    output = ending.Output()
    end(stream)
    output.write("1 bug")
    output.close()
    assert not output.lost
    assert (tmp_path / "printed").read_text() == "1 bug"


def test_a_text_that_no_encoding_has_is_written(fuzz: Fuzz, tmp_path: Path) -> None:
    code, printed = fuzz("misspelling", "--report", "seen", "--resume", "kept", "--no-shrink")
    assert code == 1
    assert "no file '\\udcff'" in printed
    assert "not written" not in printed
    assert "no file &#39;\\udcff&#39;" in (tmp_path / "seen" / "report.html").read_text()


def test_a_page_that_cannot_be_made_does_not_end_the_run(
    fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: object) -> None:
        raise ZeroDivisionError("in a plot")

    monkeypatch.setattr(report, "write", mistaken)
    code, printed = fuzz("raising", "--report", "seen", "--no-shrink")
    assert code == 1
    assert "--report not written: in a plot" in printed
    assert "1 bug in" in printed


def test_a_night_goes_on_after_its_process_was_killed(
    fuzz: Fuzz, mark: Path, tmp_path: Path
) -> None:
    run = _Run(tmp_path, "slow")
    path = tmp_path / "kept" / "night.json"
    while not path.exists():
        time.sleep(0.05)
    run.process.kill()
    run.printed()
    assert run.left() == []
    _wait_for_the_end_of(int((tmp_path / "mark").read_text()))
    before = Log.read(tmp_path / "kept")
    assert before is not None
    examples = before.total.examples
    code, printed = fuzz(
        "slow", "--resume", str(tmp_path / "kept"), "--examples", str(examples + 5)
    )
    assert code == 0
    assert f"seed {before.seed}" in printed
    after = Log.read(tmp_path / "kept")
    assert after is not None
    assert after.turns > before.turns
    assert after.total.examples >= examples + 5


def test_pytest_tries_the_fuzzers_findings_first(fuzz: Fuzz, tmp_path: Path) -> None:
    fuzz("raising", "--no-shrink")
    job = Job("l2norm", "fused", "differential", "float32")
    subject = Subject(planted.raising(CPU), CPU)
    subject.target.name = f"{planted.__name__}:raising"
    database = DirectoryBasedExampleDatabase(tmp_path / FOLDER)
    again = settings(database=database, phases=[Phase.reuse], deadline=None)
    with pytest.raises(Violation):
        again(hypothesis_test(job, subject))()


@pytest.mark.parametrize("terminal", ["", "dumb"])
def test_where_no_table_can_be_redrawn_a_line_is_printed_every_minute(
    terminal: str, fuzz: Fuzz, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr("properties.fuzz.__main__._LINE", 0.5)
    _, printed = fuzz("slow", "--minutes", "0.05")
    lines = re.findall("^no bugs in .* left; latest l2norm-fused", printed, re.MULTILINE)
    assert len(lines) >= 3


def test_resuming_a_finished_night_runs_no_case(tmp_path: Path, fuzz: Fuzz) -> None:
    fuzz("raising", "--resume", "kept", "--no-shrink")
    shutil.rmtree(tmp_path / ".hypothesis", ignore_errors=True)
    code, printed = fuzz("raising", "--resume", "kept", "--no-shrink")
    assert code == 1
    assert "1 bug in" in printed
    assert "REPRO" not in printed
