"""Drive kernels with drawn cases until the time is up, and report what breaks a law."""

import argparse
import hashlib
import os
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import count as counting
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from rich.console import Console
from rich.live import Live

from properties.arguments import count, duration
from properties.case import Case
from properties.catalogue import DTYPES, OPS
from properties.device import DEVICES, describe
from properties.fuzz import record
from properties.fuzz.board import Board
from properties.fuzz.rounds import Finding, Round, ended, make_subject, play, start_worker
from properties.jobs import Job, Selection
from properties.laws import LAWS, Subject, Violation
from properties.targets import NAMES, scope
from properties.verdict.report import regression_file

EXAMPLES_PER_ROUND = 5


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m properties.fuzz",
        description=__doc__,
        epilog="Exit code: 0 nothing found, 1 findings, 2 bad arguments. Ctrl-C ends it with the "
        "summary. Failing cases stay in .hypothesis and are replayed by pytest.",
    )
    budget = parse.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=duration, default=2.0, help="for how long (default: 2)")
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
    parse.add_argument("--device", choices=DEVICES, default="auto", help="default: auto")
    parse.add_argument(
        "--target",
        default="ours",
        help=f"whose kernels: {', '.join(NAMES)}, or package.module:attribute (default: ours)",
    )
    parse.add_argument(
        "--ledger",
        default="auto",
        help="file of the target's known failures, which are counted and not reported; 'none' "
        "reports them all (default: the one in regressions/targets)",
    )
    parse.add_argument("--seed", type=int, help="repeat a run (default: drawn and printed)")
    parse.add_argument("--jobs", type=count, help="processes (default: one per core; one on a GPU)")
    parse.add_argument(
        "--no-shrink",
        dest="shrink",
        action="store_false",
        help="report failing cases as they were drawn, without making them smaller",
    )
    parse.add_argument("--case", help="run this one case, as JSON, under --law or all laws")
    parse.add_argument(
        "--findings",
        type=Path,
        default=Path("findings"),
        help="folder for the regression file of each finding (default: findings)",
    )
    parse.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="add the examples and the largest error / budget of every op and dtype to FILE",
    )
    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    parse = parser()
    chosen = parse.parse_args(arguments)
    console = Console()
    try:
        subject = make_subject(chosen.target, chosen.device, chosen.ledger)
        if chosen.case is not None:
            case = _case(chosen.case, subject)
        else:
            wanted = map(tuple, (chosen.op, chosen.mode, chosen.law, chosen.dtype))
            jobs = Selection(*wanted).jobs(subject.target)
        if chosen.record is not None:
            record.check(chosen.record)
    except ValueError as error:
        parse.error(str(error))
    if chosen.case is not None:
        return replay(case, subject, chosen, console)
    for line in scope.missing(subject.target):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return fuzz(jobs, subject, chosen, console)


def _case(text: str, subject: Subject) -> Case:
    """The case of `--case`.

    Raises:
        ValueError: it is no case, or not one of an op and mode that the target has.
    """
    case = Case.from_json(text)
    missing = scope.declared(subject.target, case.op, case.mode).dims.keys() - case.dims.keys()
    if missing:
        raise ValueError(f"case: no {', '.join(sorted(missing))} among its dims, expected all")
    return case


def replay(case: Case, subject: Subject, chosen: argparse.Namespace, console: Console) -> int:
    """Run one case under the laws that were asked for."""
    op = scope.declared(subject.target, case.op, case.mode)
    broken = 0
    for name in chosen.law or scope.laws(subject.target, case.op, case.mode):
        subject.ledger.start()
        ratio = 0.0
        try:
            ratio = LAWS[name](op, case, subject)
        except Exception as error:
            if isinstance(error, Violation) or not subject.ledger.excuses(error):
                told = "" if isinstance(error, Violation) else f"{name}: {type(error).__name__}: "
                console.print(f"{told}{error}", markup=False, highlight=False, soft_wrap=True)
                broken += 1
                continue
        if subject.ledger.used:
            known = ", ".join(sorted(subject.ledger.used))
            console.print(f"{name} fails with {known}, which is known", highlight=False)
        else:
            detail = f"worst error {ratio:.2f} of the budget" if ratio else "exact"
            console.print(f"{name} holds: {detail}", highlight=False)
    return 1 if broken else 0


def fuzz(jobs: list[Job], subject: Subject, chosen: argparse.Namespace, console: Console) -> int:
    """Interleave the jobs, round by round, until the budget is spent."""
    seed = random.randrange(2**31) if chosen.seed is None else chosen.seed
    where = describe(chosen.device)
    workers: int = chosen.jobs or (1 if where.startswith("NVIDIA") else os.cpu_count() or 1)
    console.print(
        f"{len(jobs)} jobs of target {chosen.target} on {where}; seed {seed}, {workers} processes",
        highlight=False,
        soft_wrap=True,
    )
    board = Board(jobs)
    crew = [Worker(chosen.target, chosen.device, chosen.ledger) for _ in range(workers)]
    with Live(board, console=console, refresh_per_second=2, transient=not console.is_terminal):
        try:
            for outcome in _rounds(crew, jobs, board, seed, chosen, subject):
                board.add(outcome)
                if outcome.finding is not None:
                    text = _keep(outcome.finding, chosen)
                    console.print(text, "", markup=False, highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            console.print("stopped by Ctrl-C", highlight=False)
        finally:
            for worker in crew:
                worker.close()
    if not console.is_terminal:
        console.print(board)
    console.print(board.summary(), highlight=False)
    if chosen.record is not None:
        name = where.split(",")[0].removeprefix("the ")
        record.write(chosen.record, record.added(record.read(chosen.record), board.record(name)))
    if board.known():
        console.print(board.known(), highlight=False)
    return 1 if board.findings else 0


class Worker:
    """One process, replaced when it ends or the device is lost to it: no other job may suffer for
    that. It announces each case in a file.
    """

    def __init__(self, target: str, device: str, ledger: str) -> None:
        self.origin = (target, device, ledger)
        self.folder = TemporaryDirectory()
        self.announced = Path(self.folder.name) / "case.json"
        self.start()

    def start(self) -> None:
        self.pool = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=start_worker, initargs=self.origin
        )

    def submit(self, job: Job, seed: int, shrink: bool) -> Future[Round]:
        self.announced.unlink(missing_ok=True)
        return self.pool.submit(play, job, EXAMPLES_PER_ROUND, seed, shrink, self.announced)

    def restart(self) -> None:
        self.pool.shutdown(wait=False)
        self.start()

    def close(self) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.folder.cleanup()


def _rounds(
    crew: list[Worker],
    jobs: list[Job],
    board: Board,
    seed: int,
    chosen: argparse.Namespace,
    subject: Subject,
) -> Iterator[Round]:
    """Rounds as they end. A job with a finding is retired: it would only find it again."""
    examples: int | None = chosen.examples
    deadline: float = monotonic() + 60 * chosen.minutes
    turns = _turns(jobs, seed)
    retired: set[Job] = set()
    idle = list(crew)
    running: dict[Future[Round], tuple[Worker, Job]] = {}

    def over() -> bool:
        if examples is not None:
            return board.examples + EXAMPLES_PER_ROUND * len(running) >= examples
        return monotonic() >= deadline

    while True:
        while idle and not over() and len(retired) < len(jobs):
            number, job = next(turns)
            if job not in retired:
                worker = idle.pop()
                future = worker.submit(job, _seed(seed, number), chosen.shrink)
                running[future] = worker, job
        if not running:
            return
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            worker, job = running.pop(future)
            try:
                outcome = future.result()
            except BrokenProcessPool:
                outcome = ended(job, worker.announced, subject)
            if outcome.finding is not None:
                retired.add(outcome.job)
            if outcome.device_lost:
                worker.restart()
            idle.append(worker)
            yield outcome


def _seed(seed: int, lap: int) -> int:
    """That of a lap of a run: of no other lap and no other run, of a neighbouring seed neither."""
    return random.Random(f"{seed} {lap}").randrange(2**31)


def _turns(jobs: list[Job], seed: int) -> Iterator[tuple[int, Job]]:
    """Every job once per lap, in a new order each time: a short run is a fair sample too."""
    shuffler = random.Random(seed)
    for number in counting():
        yield from ((number, job) for job in shuffler.sample(jobs, len(jobs)))


def _keep(finding: Finding, chosen: argparse.Namespace) -> str:
    """Write a finding of ours as a file that can be moved into `regressions/`; return the report.

    One of another's kernels belongs into the target's ledger, see `properties/targets/README.md`.
    """
    if finding.case is None or chosen.target != "ours":
        return finding.report
    chosen.findings.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(finding.case.to_json().encode()).hexdigest()[:8]
    path: Path = chosen.findings / f"{finding.job.name.replace('-', '_')}_{digest}.py"
    path.write_text(regression_file(finding.case, finding.job.law))
    return f"{finding.report}\nWritten for regressions/: {path}"


if __name__ == "__main__":
    sys.exit(main())
