"""The files of `--report`: a page for people, `report.json` and JUnit's XML for programs."""

import inspect
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from junitparser import Error, JUnitXml, Skipped, TestCase, TestSuite
from junitparser import Failure as JUnitFailure

from properties.counted import counted
from properties.device import describe, resolve
from properties.files import write_atomically
from properties.fuzz import svg
from properties.fuzz.answer import Failure
from properties.fuzz.bucket import Bucket
from properties.fuzz.cause import Cause
from properties.fuzz.display import duration
from properties.fuzz.log import Log, Tally
from properties.fuzz.night import Night
from properties.laws import LAWS
from properties.verdict.picture import LEVELS
from properties.verdict.report import Repro, release

_PAGE, _DATA, _JUNIT = "report.html", "report.json", "junit.xml"
_PACKAGES = ("torch", "triton", "hypothesis", "attention-oracles")
# Characters that XML cannot represent.
_CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(night: Night, state: str, folder: Path) -> None:
    """Replace the files with the current state.

    Args:
        state: "running", or how the night ended.
    """
    values = data(night, state)
    write_atomically(folder / _DATA, json.dumps(values, indent=1))
    write_atomically(folder / _JUNIT, _junit(night.log))
    write_atomically(folder / _PAGE, _page(values, night.log))


def data(night: Night, state: str) -> dict[str, Any]:
    log, device = night.log, resolve(night.origin.device)
    causes = log.causes
    releases = {package: found for package in _PACKAGES if (found := release(package))}
    jobs = [
        asdict(job) | _numbers(tally) | {"rests": night.rests(job)}
        for job, tally in log.tallies.items()
    ]
    return {
        "state": state,
        "target": log.target,
        "seed": log.seed,
        "device": describe(device),
        "versions": {"python": platform.python_version()} | releases,
        "host": f"{platform.node()}, {platform.platform(terse=True)}",
        "written": datetime.now().astimezone().isoformat(timespec="seconds"),
        "seconds": round(night.elapsed, 1),
        "left": night.left,
        **_numbers(log.total),
        "bug_count": log.bug_count,
        "judged": log.total.judged,
        "causes": [
            {"line": cause.line, "bugs": [bucket.name for bucket in cause.buckets]}
            for cause in causes
        ],
        "bugs": [_bug(bucket, log.target, device) for bucket in _in_order(log.buckets, causes)],
        "jobs": jobs,
        "history": {
            "step": log.history.step,
            "bins": [{op: _numbers(t) for op, t in counts.items()} for counts in log.history.bins],
        },
        "known_failures": log.excused,
        "not_repeated": log.unrepeated,
        "not_tested": log.untested,
        "errors_of_the_suite": log.errors,
        "changed_files": sorted(log.changed),
    }


def _numbers(tally: Tally) -> dict[str, Any]:
    rate = tally.examples / tally.seconds if tally.seconds else None
    return {
        "examples": tally.examples,
        "failed": tally.failed,
        "seconds_of_workers": round(tally.seconds, 3),
        "examples_per_second_of_a_worker": rate and round(rate, 3),
        "error_over_budget": tally.worst,
    }


def _in_order(buckets: Sequence[Bucket], causes: Sequence[Cause]) -> list[Bucket]:
    """Order buckets: those of each cause first, then the others."""
    explained = [bucket for cause in causes for bucket in cause.buckets]
    return explained + [bucket for bucket in buckets if bucket not in explained]


def _bug(bucket: Bucket, target: str, device: str) -> dict[str, Any]:
    return {
        "name": bucket.name,
        "fingerprint": str(bucket.first.fingerprint),
        "title": bucket.first.report.strip().partition("\n")[0],
        "promise": _promise(bucket.first.law),
        "report": bucket.report,
        "count": bucket.count,
        "jobs": dict(bucket.seen.most_common()),
        "found": round(bucket.found, 1),
        "how_far": bucket.how_far,
        "signs": [_sign(failure, target, device) for failure in bucket.smallest],
        "at_worst": _sign(bucket.at_worst, target, device) if bucket.at_worst else None,
    }


def _promise(law: str) -> str:
    """The first paragraph of a law's docstring."""
    text = inspect.getdoc(inspect.getmodule(LAWS[law].check)) if law in LAWS else None
    return " ".join((text or "").partition("\n\n")[0].split())


def _sign(failure: Failure, target: str, device: str) -> dict[str, Any]:
    where = torch.device("cuda" if device == "cuda" else "cpu")
    return {
        "fingerprint": str(failure.fingerprint),
        "law": failure.law,
        "case": json.loads(failure.case.to_json()),
        "line": failure.case.line(),
        "command": Repro(failure.law, failure.case, where, target).command,
        "script": script(failure, target, device),
        "picture": failure.picture and asdict(failure.picture),
        "excess": failure.excess and asdict(failure.excess),
    }


def script(failure: Failure, target: str, device: str) -> str:
    """A program that reproduces a failure, to edit and step through."""
    return f'''"""{failure.fingerprint}. Run it where the suite is installed."""

from properties.cases.case import Case
from properties.device import activate
from properties.jobs import judge
from properties.laws import Subject
from properties import scope
from properties.targets import load

device = activate("{device}")
subject = Subject(load("{target}", device), device)
case = {failure.case.line()}

op = scope.declared(subject.target, case.op, case.mode)
inputs = subject.inputs(op, case)
for name, tensor in inputs.tensors.items():
    print(name, tensor.dtype, list(tensor.shape), tensor.stride())

print("error / budget", judge("{failure.law}", case, subject))
'''


def _junit(log: Log) -> str:
    """A test for each job. A bug is reported in the first job that found it and named in others."""
    suites = JUnitXml(f"night of {log.target}")
    by_op: dict[str, TestSuite] = {}
    reported: set[str] = set()
    for job, tally in log.tallies.items():
        test = TestCase(f"{job.law}[{job.dtype}]", f"{job.op}.{job.mode}", tally.seconds)
        results: list[Any] = []
        for bucket in log.buckets:
            if job.name in bucket.seen:
                result = JUnitFailure(_plain(bucket.line), "bug")
                result.text = "" if bucket.name in reported else _plain(bucket.report)
                reported.add(bucket.name)
                results.append(result)
        if tally.broken:
            results.append(Error("an error of the suite or of the target's adapter"))
        if tally.untested:
            results.append(Error("most examples could not be judged"))
        if not tally.examples and not results:
            results.append(Skipped("no example"))
        test.result = results
        by_op.setdefault(job.op, TestSuite(job.op)).add_testcase(test)
    for suite in by_op.values():
        suites.add_testsuite(suite)
    text: bytes = suites.tostring()
    return text.decode()


def _plain(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _page(values: dict[str, Any], log: Log) -> str:
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"duration": duration, "counted": counted}
    table: dict[str, dict[str, Tally]] = {}
    for (op, law), tally in log.rows().items():
        table.setdefault(op, {})[law] = tally
    return pages.get_template("page.html").render(
        values,
        table={op: {n: _numbers(tally) for n, tally in row.items()} for op, row in table.items()},
        totals={op: _numbers(sum(row.values(), Tally())) for op, row in table.items()},
        laws=list(dict.fromkeys(law for _, law in log.rows())),
        curves=svg.curves(values["history"], values["seconds"], [*table]),
        cells=svg.cells,
        levels=LEVELS,
    )
