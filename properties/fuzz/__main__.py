"""Run kernels on drawn cases for a fixed time and report each bug once."""

import argparse
import os
import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep
from typing import TextIO, cast

if __name__ == "__main__":
    # The imports below take seconds, in which Ctrl-C would print a traceback.
    _before = signal.signal(
        signal.SIGINT, lambda *_: (os.write(2, b"stopped by SIGINT\n"), os._exit(130))
    )

from rich.console import Console
from rich.live import Live

from properties import scope
from properties.arguments import count, file, folder, positive
from properties.cases.case import Case
from properties.catalogue import DTYPES, OPS
from properties.counted import counted
from properties.device import DEVICES, describe
from properties.fuzz import record, report
from properties.fuzz.answer import Broken, Judge, Lost, Origin
from properties.fuzz.bucket import Bucket
from properties.fuzz.corpus import FOLDER, Corpus
from properties.fuzz.display import Display
from properties.fuzz.ending import Output, leave, signals
from properties.fuzz.fork_server import prepare
from properties.fuzz.lanes import Lanes
from properties.fuzz.log import Log, Tally
from properties.fuzz.night import Night
from properties.fuzz.worker import GROWTH, Worker, crew
from properties.jobs import Selection
from properties.laws import LAWS, Subject
from properties.screen import screen
from properties.targets import NAMES, Target

# Seconds between checks for signals, between copies of the log, and between lines of output.
_LOOK, _COPY, _LINE = 0.2, 10.0, 60.0


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m properties.fuzz",
        usage="%(prog)s [options]",
        description=__doc__,
        epilog="Exit code: 0 nothing found, 1 findings, 2 bad arguments. Ctrl-C, SIGTERM, and the "
        "loss of its terminal or of the pipe that it writes to end it with a summary. "
        f"{FOLDER} keeps failing cases and those with the largest errors: "
        "the next run tries them first, and pytest replays those that break a law. A process that "
        f"grows by more than {GROWTH >> 30} GiB, or by its part of half the machine's memory, is "
        "replaced between two cases. What kernels print is not shown, except with --case.",
    )
    _add_selection(parse)
    _add_target(parse)
    _add_processes(parse)
    _add_files(parse)
    return parse


def _add_selection(parse: argparse.ArgumentParser) -> None:
    budget = parse.add_mutually_exclusive_group()
    budget.add_argument(
        "--minutes", type=positive, default=2.0, help="how long to fuzz (default: 2)"
    )
    budget.add_argument("--examples", type=count, help="how many examples, instead of --minutes")
    for name, known in (("op", OPS), ("law", LAWS), ("dtype", DTYPES)):
        text = f"only this {name} (repeatable): {', '.join(known)}"
        parse.add_argument(
            f"--{name}", action="append", default=[], choices=tuple(known), metavar=name.upper(),
            help=text,
        )  # fmt: skip
    parse.add_argument(
        "--mode", action="append", default=[], help="only this mode of the target (repeatable)"
    )
    parse.add_argument("--case", help="run this one case, as JSON, under --law or all laws")
    parse.add_argument(
        "--seed", type=int, help="the seed of a run to repeat (default: drawn and printed)"
    )
    parse.add_argument(
        "--no-shrink", dest="shrink", action="store_false", help="do not shrink failing cases"
    )


def _add_target(parse: argparse.ArgumentParser) -> None:
    text = "where kernels run (default: auto, the GPU if there is one, else the simulator)"
    parse.add_argument("--device", choices=DEVICES, default="auto", help=text)
    text = f"whose kernels: {', '.join(NAMES)}, or package.module:attribute (default: ours)"
    parse.add_argument("--target", default="ours", help=text)
    text = (
        "file of the target's known failures, which are counted and not reported; 'none' "
        "reports them all (default: the one in regressions/targets)"
    )
    parse.add_argument("--ledger", default="auto", help=text)


def _add_processes(parse: argparse.ArgumentParser) -> None:
    text = "processes (default: one for each GPU, or for each core)"
    parse.add_argument("--jobs", type=count, help=text)
    text = (
        "run the processes on the nodes of this Ray cluster: host:port, or 'auto' if this "
        "machine is a node. Each node needs this machine's device and packages, but not this "
        "suite, which is sent to it; the loss of a node loses no example (extra: ray)"
    )
    parse.add_argument("--ray", metavar="ADDRESS", help=text)
    text = (
        "time limit of a case, in which waiting for a core does not count; the first case of "
        "an op in a process compiles, so it may take half as long again. A case that hangs is "
        "repeated once, and runs on a second engine at the same time, so a hang costs at most 3 "
        "times as long (default: 60)"
    )
    parse.add_argument("--case-timeout", type=positive, default=60.0, metavar="SECONDS", help=text)


def _add_files(parse: argparse.ArgumentParser) -> None:
    text = (
        "folder for a file of each finding: a regression, or an entry of the target's ledger "
        "(default: findings)"
    )
    parse.add_argument("--findings", type=folder, default="findings", help=text)
    text = "add the examples and the largest error / budget of every op and dtype to FILE"
    parse.add_argument("--record", type=file, metavar="FILE", help=text)
    text = (
        "keep the run's log in this folder, and continue one that is kept there: --minutes "
        "and --examples count both together"
    )
    parse.add_argument("--resume", type=folder, metavar="DIR", help=text)
    text = (
        "write the current state every few seconds into this folder: report.html for people, "
        "report.json and junit.xml for programs"
    )
    parse.add_argument("--report", type=folder, metavar="DIR", help=text)


def main(arguments: Sequence[str] | None = None) -> int:
    parse = parser()
    try:
        return _main(parse, parse.parse_args(arguments))
    except KeyboardInterrupt:
        # There is no night yet, or one case alone.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        parse.exit(128 + signal.SIGINT, "stopped by SIGINT\n")


def _main(parse: argparse.ArgumentParser, chosen: argparse.Namespace) -> int:
    output = Output()
    console = screen(file=cast(TextIO, output))
    origin = Origin(chosen.target, chosen.device, chosen.ledger)
    with ExitStack() as held:
        try:
            _check_paths(chosen)
            subject = origin.subject()
            if chosen.case is not None:
                case = Case.from_json(chosen.case)
                laws = _laws_of(case, subject.target, chosen.law)
            else:
                wanted = map(tuple, (chosen.op, chosen.mode, chosen.law, chosen.dtype))
                kept = {"--resume": chosen.resume, "--report": chosen.report}
                held.enter_context(_alone(kept))
                log = _log(Selection(*wanted), subject.target, chosen)
                # Before our signal handlers: Ray installs its own.
                workers = _crew(origin, chosen)
        except ValueError as error:
            parse.error(str(error))
        if chosen.case is not None:
            return replay(case, laws, Worker(origin, chosen.case_timeout, prints=True), console)
        for line in scope.missing(subject.target, chosen.op, chosen.mode):
            _say(console, line)
        with signals(output.lost) as asked:
            return fuzz(log, subject, origin, workers, chosen, console, asked)


def _laws_of(case: Case, target: Target, wanted: Sequence[str]) -> Sequence[str]:
    """The laws to judge one case by: those that are wanted, or all.

    Raises:
        ValueError: the target does not have the case, or the case does not obey such a law.
    """
    scope.check(target, case)
    scope.check_call(target, case)
    laws = scope.laws(target, case.op, case.mode)
    for law in wanted:
        if law not in laws:
            what = f"--law: {law!r} is not stated of {case.op} ({case.mode})"
            raise ValueError(f"{what}, expected one of {', '.join(laws)}")
    return wanted or laws


def _check_paths(chosen: argparse.Namespace) -> None:
    """Check before the run what its end would need.

    Raises:
        ValueError: there is no room for temporary files, or the file of --record is none.
    """
    try:
        gettempdir()
    except FileNotFoundError as error:
        raise ValueError(f"TMPDIR: {error.strerror}, expected a disk with some space") from error
    if chosen.record is not None:
        record.read(chosen.record)


@contextmanager
def _alone(folders: Mapping[str, Path | None]) -> Iterator[None]:
    """Keep other runs out of these folders.

    Args:
        folders: by option; one folder may be that of several.

    Raises:
        ValueError: another run has one, or it cannot be made.
    """
    with ExitStack() as held:
        locked: set[Path] = set()
        for option, folder in folders.items():
            if folder is None or folder.resolve() in locked:
                continue
            locked.add(folder.resolve())
            try:
                folder.mkdir(parents=True, exist_ok=True)
                handle = os.open(folder, os.O_RDONLY)
                held.callback(os.close, handle)
                flock(handle, LOCK_EX | LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{option}: {folder} belongs to a run that goes on") from error
            except OSError as error:
                raise ValueError(f"{option}: {folder}: {error.strerror}") from error
        yield


def _log(selection: Selection, target: Target, chosen: argparse.Namespace) -> Log:
    """The log kept in `--resume`, or a new one.

    Raises:
        ValueError: it is of another target or seed, or of jobs that are not selected.
    """
    jobs = selection.jobs(target)
    log = Log.read(chosen.resume) if chosen.resume is not None else None
    if log is None:
        seed = random.randrange(2**31) if chosen.seed is None else chosen.seed
        return Log(chosen.target, seed, {job: Tally() for job in jobs})
    for name, before in (("target", log.target), ("seed", log.seed)):
        now = getattr(chosen, name)
        if now is not None and now != before:
            raise ValueError(f"--{name}: {now}, expected {before} as in {chosen.resume}")
    # Jobs and bugs of ops that the target no longer has are dropped.
    every = Selection().jobs(target)
    without = [job.name for job in log.tallies if job in every and job not in jobs]
    if without:
        others = counted(len(without), "other job")
        what = f"--resume: {chosen.resume} has {others}, as {without[0]}"
        raise ValueError(f"{what}, expected all of them selected")
    return replace(
        log,
        tallies={job: log.tallies.get(job, Tally()) for job in jobs},
        buckets=[bucket for bucket in log.buckets if _has(target, bucket)],
    )


def _has(target: Target, bucket: Bucket) -> bool:
    """Whether the target still has the ops of a bucket's cases."""
    try:
        for failure in bucket.smallest:
            scope.declared(target, failure.case.op, failure.case.mode)
    except ValueError:
        return False
    return True


def _crew(origin: Origin, chosen: argparse.Namespace) -> Sequence[Judge]:
    """Start the workers, here or on the cluster of `--ray`.

    Raises:
        ValueError: there is no such cluster.
    """
    if chosen.ray is None:
        return crew(origin, chosen.case_timeout, chosen.jobs)
    try:
        from properties.fuzz import cluster
    except ImportError as error:
        raise ValueError(f"--ray: {error}; try: pip install 'ray>=2.40'") from error
    return cluster.crew(chosen.ray, origin, chosen.case_timeout, chosen.jobs)


def replay(case: Case, laws: Sequence[str], worker: Worker, console: Console) -> int:
    broken = 0
    prepare()
    try:
        for name in laws:
            answer = worker.ask(name, case)
            if answer.failure is not None:
                _say(console, answer.failure.report)
                broken += 1
            elif answer.excused:
                known = ", ".join(sorted({*answer.excused}))
                _say(console, f"{name} fails with {known}, which is known")
            else:
                worst = f"worst error {answer.worst:.2f} of the budget"
                _say(console, f"{name} holds: {worst if answer.worst else 'exact'}")
    except (Broken, Lost) as error:
        _say(console, str(error))
        broken += 1
    finally:
        worker.close()
    return 1 if broken else 0


def fuzz(
    log: Log,
    subject: Subject,
    origin: Origin,
    workers: Sequence[Judge],
    chosen: argparse.Namespace,
    console: Console,
    asked: list[str],
) -> int:
    """Draw until the budget is spent or a signal asks for the end."""
    where = describe(chosen.device)
    _say(
        console,
        f"{counted(len(log.tallies), 'job')} of target {chosen.target} on {where}; "
        f"seed {log.seed}, {counted(len(workers), 'process')}"
        f"{' of a Ray cluster' if chosen.ray else ''}",
    )

    def tell(bucket: Bucket) -> None:
        bucket.write(chosen.findings, chosen.target)
        cause = next((cause for cause in log.causes if bucket in cause.buckets), None)
        # Those of one cause are told whole until it is known, and in the end all in its place.
        _say(console, *((bucket.line, f"  {cause.line}") if cause else (bucket.report,)), "")

    night = Night(
        log,
        subject.target,
        origin,
        Corpus(chosen.target),
        minutes=None if chosen.examples else chosen.minutes,
        examples=chosen.examples,
        limit=chosen.case_timeout,
        shrink=chosen.shrink,
        tell=tell,
    )
    display = Display(night)
    lanes, keep = Lanes(night), _Kept(night, chosen, console)
    prepare()
    with Live(display, console=console, refresh_per_second=2, transient=not console.is_terminal):
        lanes.start(workers)
        try:
            _watch(lanes, asked, keep, display, console)
        except BaseException:
            # The threads would go on until the deadline.
            night.stop()
            raise
    for bucket in log.buckets:
        # A smaller case may have come later.
        bucket.write(chosen.findings, chosen.target)
    keep(f"stopped by {asked[0]}" if asked else "ended")
    if chosen.record is not None:
        _add_to_record(log, where, chosen.record, console)
    if not console.is_terminal:
        console.print(display)
    _say(console, display.summary(), *display.closing())
    lanes.check()
    code = 1 if log.buckets or log.errors else 0
    if night.abandoned:
        for worker in night.workers:
            worker.close()
    return code


def _watch(
    lanes: Lanes,
    asked: Sequence[str],
    keep: "_Kept",
    display: Display,
    console: Console,
) -> None:
    """Wait for the end of a night; meanwhile copy its log, print lines, and look for signals."""
    copied = printed = monotonic()
    while not lanes.ended:
        sleep(_LOOK)
        if asked and not lanes.night.stopped:
            _say(console, f"stopped by {asked[0]}")
            lanes.night.stop()
        lanes.watch()
        now = monotonic()
        if now - copied > _COPY:
            keep("running")
            copied = now
        if now - printed > _LINE and not console.is_terminal:
            _say(console, display.status())
            printed = now


def _add_to_record(log: Log, where: str, path: Path, console: Console) -> None:
    """Add to the file of --record; print what was to be added if it cannot be written."""
    rows = log.record(where.split(",")[0].removeprefix("the "))
    try:
        record.add(path, rows)
    except Exception as error:
        _say(console, f"--record not written: {error}", *map(str, rows.values()))


class _Kept:
    """Write the log and the report to their folders."""

    def __init__(self, night: Night, chosen: argparse.Namespace, console: Console) -> None:
        self.night, self.console = night, console
        self.folders: dict[str, Path | None] = {
            "--resume": chosen.resume,
            "--report": chosen.report,
        }
        self.printed: set[str] = set()

    def __call__(self, state: str) -> None:
        """Write both anew."""
        for name, where in self.folders.items():
            if where is None:
                continue
            try:
                where.mkdir(parents=True, exist_ok=True)
                with self.night.lock:
                    self.night.log.seconds = self.night.elapsed
                    if name == "--resume":
                        self.night.log.write(where)
                    else:
                        report.write(self.night, state, where)
            except Exception as error:
                # Neither a full disk nor a mistake in a page ends the night.
                self._tell(f"{name} not written: {error}")

    def _tell(self, text: str) -> None:
        """Print a repeated error once."""
        if text not in self.printed:
            self.printed.add(text)
            _say(self.console, text)


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _before)
    leave(main())
