"""Run kernels on drawn cases for a fixed time and report each bug once."""

import argparse
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from time import monotonic
from typing import TextIO, cast

if __name__ == "__main__":
    # The imports below take seconds, in which Ctrl-C would print a traceback.
    _before = signal.signal(
        signal.SIGINT, lambda *_: (os.write(2, b"stopped by SIGINT\n"), os._exit(130))
    )

from rich.console import Console
from rich.live import Live

from properties import scope
from properties.cases.case import Case
from properties.clock import pause
from properties.counted import counted
from properties.device import describe
from properties.fuzz import record, report
from properties.fuzz.answer import Broken, Judge, Lost, Origin
from properties.fuzz.bucket import Bucket
from properties.fuzz.corpus import Corpus
from properties.fuzz.display import Display
from properties.fuzz.ending import Output, leave, signals, tolerating_a_removed_folder
from properties.fuzz.fork_server import end_strays
from properties.fuzz.lanes import Lanes
from properties.fuzz.log import Log
from properties.fuzz.night import Night
from properties.fuzz.options import Options, parser
from properties.fuzz.worker import Worker, crew
from properties.laws import Subject
from properties.screen import screen
from properties.targets import NAMES

# Seconds between checks for signals, between copies of the log, and between lines of output.
_LOOK, _COPY, _LINE = 0.2, 10.0, 60.0


@tolerating_a_removed_folder()
def main(arguments: Sequence[str] | None = None) -> int:
    parse = parser(__doc__)
    try:
        return _main(parse, Options(**vars(parse.parse_args(arguments))))
    except KeyboardInterrupt:
        # Before the night begins, or while `--case` is judged.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        parse.exit(128 + signal.SIGINT, "stopped by SIGINT\n")


def _main(parse: argparse.ArgumentParser, options: Options) -> int:
    output = Output()
    console = screen(file=cast(TextIO, output))
    origin = options.origin
    with ExitStack() as locks:
        locks.callback(end_strays)
        workers: Sequence[Judge] = ()
        try:
            options.check()
            if options.case is None:
                locks.enter_context(_alone(options.folders))
            # Before our signal handlers: Ray installs its own.
            workers = _crew(origin, options)
            if options.target not in NAMES and isinstance(workers[0], Worker):
                # In a worker first: the import of a target may end its process, or hang.
                workers[0].load()
            subject = origin.subject()
            if options.case is None:
                log = options.log(subject.target)
            else:
                case = Case.from_json(options.case)
                laws = options.laws_of(case, subject.target)
        except (ValueError, Lost) as error:
            for worker in workers:
                # Python would wait for its process, and for those that replace it meanwhile.
                worker.close()
            parse.error(str(error))
        if options.case is not None:
            return replay(case, laws, workers[0], console)
        for line in scope.missing(subject.target, options.op, options.mode):
            _say(console, line)
        with signals(output.lost) as asked:
            return fuzz(log, subject, workers, options, console, asked)


@contextmanager
def _alone(folders: Mapping[str, Path | None]) -> Iterator[None]:
    """Keep other runs out of these folders.

    Args:
        folders: by option; one folder may be that of several.

    Raises:
        ValueError: another run has one, or it cannot be made.
    """
    with ExitStack() as locks:
        locked: set[Path] = set()
        for option, folder in folders.items():
            if folder is None or folder.resolve() in locked:
                continue
            locked.add(folder.resolve())
            try:
                folder.mkdir(parents=True, exist_ok=True)
                handle = os.open(folder, os.O_RDONLY)
                locks.callback(os.close, handle)
                flock(handle, LOCK_EX | LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{option}: {folder} belongs to a run that goes on") from error
            except OSError as error:
                raise ValueError(f"{option}: {folder}: {error.strerror}") from error
        yield


def _crew(origin: Origin, options: Options) -> Sequence[Judge]:
    """Start the workers, here or on the cluster of `--ray`; one for `--case`.

    Raises:
        ValueError: there is no such cluster.
    """
    if options.case is not None:
        return [Worker(origin, options.case_timeout, prints=True)]
    if options.ray is None:
        return crew(origin, options.case_timeout, options.jobs)
    try:
        from properties.fuzz import cluster
    except ImportError as error:
        raise ValueError(f"--ray: {error}; try: pip install 'ray>=2.40'") from error
    return cluster.crew(options.ray, origin, options.case_timeout, options.jobs)


def replay(case: Case, laws: Sequence[str], worker: Judge, console: Console) -> int:
    """Judge one case by each law, and return the exit code."""
    broken = 0
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
    workers: Sequence[Judge],
    options: Options,
    console: Console,
    asked: list[str],
) -> int:
    """Draw until the budget is spent or a signal asks for the end; return the exit code."""
    where = describe(options.device)
    _say(
        console,
        f"{counted(len(log.tallies), 'job')} of target {options.target} on {where}; "
        f"seed {log.seed}, {counted(len(workers), 'process')}"
        f"{' of a Ray cluster' if options.ray else ''}",
    )
    night = _night(log, subject, options, console)
    display = Display(night)
    lanes, keep = Lanes(night), _Kept(night, options, console)
    with Live(display, console=console, refresh_per_second=2, transient=not console.is_interactive):
        lanes.start(workers)
        try:
            _watch(lanes, asked, keep, display, console)
        except BaseException:
            # The threads would go on until the deadline.
            night.stop()
            raise
    _write_again(log.buckets, options, console)
    keep(f"stopped by {asked[0]}" if asked else "ended")
    if options.record is not None:
        _add_to_record(log, where, options.record, console)
    if not console.is_interactive:
        console.print(display)
    _say(console, display.summary(), *display.closing())
    lanes.check()
    code = 1 if log.failed else 0
    if night.abandoned:
        for worker in night.workers:
            worker.close()
    return code


def _night(log: Log, subject: Subject, options: Options, console: Console) -> Night:
    """A night that writes and prints each bug once it is shrunk."""

    def tell(bucket: Bucket) -> None:
        bucket.write(options.findings, options.target)
        cause = next((cause for cause in log.causes if bucket in cause.buckets), None)
        # A bug whose cause is known takes two lines; in the end each cause lists its bugs.
        _say(console, *((bucket.line, f"  {cause.line}") if cause else (bucket.report,)), "")

    return Night(
        log,
        subject.target,
        options.origin,
        Corpus(options.target),
        minutes=None if options.examples else options.minutes,
        examples=options.examples,
        limit=options.case_timeout,
        shrink=options.shrink,
        tell=tell,
    )


def _write_again(buckets: Sequence[Bucket], options: Options, console: Console) -> None:
    """Write the files of all bugs, whose smallest cases may have come later than their reports."""
    for bucket in buckets:
        told = bucket.file
        bucket.write(options.findings, options.target)
        if bucket.file != told:
            _say(console, bucket.file)


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
        pause(_LOOK)
        if asked and not lanes.night.stopped:
            _say(console, f"stopped by {asked[0]}")
            lanes.night.stop()
        lanes.watch()
        now = monotonic()
        if now - copied > _COPY:
            keep("running")
            copied = now
        if now - printed > _LINE and not console.is_interactive:
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

    def __init__(self, night: Night, options: Options, console: Console) -> None:
        self.night, self.console = night, console
        self.folders = options.folders
        self.printed: set[str] = set()

    def __call__(self, state: str) -> None:
        """Write both anew."""
        self.night.note_changes()
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
