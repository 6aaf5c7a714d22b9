"""The options of the command, and what they must not be together."""

import argparse
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir

from properties import scope
from properties.arguments import count, file, folder, positive
from properties.cases.case import Case
from properties.catalogue import DTYPES, OPS
from properties.counted import counted
from properties.device import DEVICES
from properties.fuzz import record
from properties.fuzz.answer import Origin
from properties.fuzz.bucket import Bucket
from properties.fuzz.corpus import FOLDER
from properties.fuzz.log import Log, Tally
from properties.fuzz.worker import GROWTH
from properties.jobs import Selection
from properties.laws import LAWS
from properties.targets import NAMES, Target

# Options that `--case` excludes, since it draws and keeps nothing.
_OF_DRAWING = ("op", "mode", "dtype", "seed", "jobs", "ray", "record", "resume", "report")
_FINDINGS = Path("findings")
# Bytes of the folder of temporary files: in a socket's name, of 107, multiprocessing adds 32.
_TEMPORARY = 75


@dataclass(frozen=True)
class Options:
    """The options by name; `parser` has the help of each."""

    minutes: float
    examples: int | None
    op: Sequence[str]
    law: Sequence[str]
    dtype: Sequence[str]
    mode: Sequence[str]
    case: str | None
    seed: int | None
    shrink: bool
    device: str
    target: str
    ledger: str
    jobs: int | None
    ray: str | None
    case_timeout: float
    findings: Path
    record: Path | None
    resume: Path | None
    report: Path | None

    @property
    def origin(self) -> Origin:
        return Origin(self.target, self.device, self.ledger)

    @property
    def folders(self) -> Mapping[str, Path | None]:
        """The folders that a run needs for itself, by option."""
        return {"--resume": self.resume, "--report": self.report}

    def check(self) -> None:
        """Check options that exclude each other, and what the end of the run would need.

        Raises:
            ValueError: --case beside an option of drawing, no room for temporary files, a name of
                their folder that is too long, or a file of --record with other contents.
        """
        beside = [name for name in _OF_DRAWING if getattr(self, name) not in (None, [])]
        beside += [] if self.shrink else ["no-shrink"]
        beside += [] if self.findings == _FINDINGS else ["findings"]
        if self.case is not None and beside:
            raise ValueError(f"--{beside[0]}: not allowed with --case, which is not drawn")
        try:
            temporary = gettempdir()
        except FileNotFoundError as error:
            raise ValueError(
                f"TMPDIR: {error.strerror}, expected a disk with some space"
            ) from error
        if len(os.fsencode(temporary)) > _TEMPORARY:
            raise ValueError(f"TMPDIR: {temporary!r}, expected at most {_TEMPORARY} bytes")
        if self.record is not None:
            record.read(self.record)

    def laws_of(self, case: Case, target: Target) -> Sequence[str]:
        """The laws to judge one case by: those of `--law`, or all.

        Raises:
            ValueError: the target does not have the case, or the case does not obey such a law.
        """
        scope.check(target, case)
        scope.check_call(target, case)
        laws = scope.laws(target, case.op, case.mode)
        for law in self.law:
            if law not in laws:
                what = f"--law: {law!r} is not stated of {case.op} ({case.mode})"
                raise ValueError(f"{what}, expected one of {', '.join(laws)}")
        return self.law or laws

    def log(self, target: Target) -> Log:
        """The log kept in `--resume`, or a new one.

        Raises:
            ValueError: it is of another target or seed, or of jobs that are not selected, or the
                target has no op.
        """
        selection = Selection(*map(tuple, (self.op, self.mode, self.law, self.dtype)))
        jobs = selection.jobs(target)
        if not jobs:
            raise ValueError(f"target {target.name}: it has no op; pytest tests the rest")
        log = Log.read(self.resume) if self.resume is not None else None
        if log is None:
            seed = random.randrange(2**31) if self.seed is None else self.seed
            return Log(self.target, seed, {job: Tally() for job in jobs})
        for name, before in (("target", log.target), ("seed", log.seed)):
            now = getattr(self, name)
            if now is not None and now != before:
                raise ValueError(f"--{name}: {now}, expected {before} as in {self.resume}")
        # Jobs and bugs of ops that the target no longer has are dropped.
        every = Selection().jobs(target)
        without = [job.name for job in log.tallies if job in every and job not in jobs]
        if without:
            others = counted(len(without), "other job")
            what = f"--resume: {self.resume} has {others}, as {without[0]}"
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


def parser(description: str | None) -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m properties.fuzz",
        usage="%(prog)s [options]",
        description=description,
        epilog="Exit code: 0 nothing found, 1 findings, or kernels that could not be tested, 2 bad "
        "arguments. Ctrl-C, Ctrl-\\, SIGTERM, and the loss of its terminal or of the pipe that it "
        "writes to end it with a summary. "
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
    budget.add_argument("--case", help="run this one case, as JSON, under --law or all laws")
    for name, known in (("op", OPS), ("law", LAWS), ("dtype", DTYPES)):
        text = f"only this {name} (repeatable): {', '.join(known)}"
        parse.add_argument(
            f"--{name}", action="append", default=[], choices=tuple(known), metavar=name.upper(),
            help=text,
        )  # fmt: skip
    parse.add_argument(
        "--mode", action="append", default=[], help="only this mode of the target (repeatable)"
    )
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
        "time limit of a case between answers of its oracle, and of each of those, in which "
        "waiting for a core does not count; the first case of "
        "an op in a process compiles, so it may take half as long again. A case that hangs is "
        "repeated once, and runs on a second engine at the same time, so a hang costs at most 3 "
        "times as long (default: 60)"
    )
    parse.add_argument("--case-timeout", type=positive, default=60.0, metavar="SECONDS", help=text)


def _add_files(parse: argparse.ArgumentParser) -> None:
    text = (
        "folder for a file of each finding: a regression, or an entry of the target's ledger "
        "(default: %(default)s)"
    )
    parse.add_argument("--findings", type=folder, default=str(_FINDINGS), help=text)
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
