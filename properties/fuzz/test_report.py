"""The files of `--report`."""

import json
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from junitparser import Failure as JUnitFailure
from junitparser import JUnitXml

from properties.fuzz import planted, report, svg
from properties.fuzz.bucket import Bucket
from properties.fuzz.conftest import Fuzz
from properties.fuzz.log import History, Log, Tally
from properties.fuzz.night import Night
from properties.fuzz.test_night import DX, JOB, Y, failure, night
from properties.jobs import Job
from properties.laws import Violation
from properties.verdict.picture import Picture, Strip

pytestmark = pytest.mark.ops("l2norm")

OTHER = Job("l2norm", "fused", "causality", "float32")
UNTRIED = Job("gla", "chunk", "differential", "float32")


def log() -> Log:
    """A bug that two jobs found, and a job without a turn."""
    bucket = Bucket([failure(Y, 5), failure(DX, 3)], found=2.0)
    bucket.seen.update({JOB.name: 2, OTHER.name: 1})
    logged = Log("oracle", 7, {job: Tally() for job in (JOB, OTHER, UNTRIED)}, [bucket])
    logged.add(JOB, Tally(9, 3.0, 0.5, 2), 1.0)
    logged.add(OTHER, Tally(4, 1.0, 0.0, 1), 12.0)
    return logged


class _Page(HTMLParser):
    """Collects what a browser would fetch, and checks that elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "path", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self.open.pop() == tag


def test_a_page_is_one_file_that_shows_bugs_first(tmp_path: Path) -> None:
    report.write(night(log()), "running", tmp_path)
    text = (tmp_path / "report.html").read_text()
    page = _Page(text)
    assert page.open == []
    assert page.fetched == []
    assert "@import" not in text
    assert "url(" not in text
    parts = (
        "1 bug",
        "<h3>what is wrong</h3>",
        "Outputs, states and all gradients agree",
        "Run it again",
        "python -m",
    )
    places = [text.index(part) for part in (*parts, "Over time", "Ops and laws")]
    assert places == sorted(places)
    assert "Also seen as norm differential dx" in text
    assert "python -m properties.fuzz --law differential --case" in text
    assert "2 broke 0.50" in text
    assert ">none<" in text


def test_a_targets_messages_are_escaped_in_html(tmp_path: Path) -> None:
    logged = log()
    logged.errors["<script>"] += 1
    logged.unrepeated["a\x00b & c"] += 1
    logged.buckets[0].repeats = ("  again     \x1b[31m ]]> </pre>",)
    report.write(night(logged), "running", tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "<script>" not in text
    assert _Page(text).open == []
    assert "]]> </pre>" in _failures(tmp_path)["l2norm.fused.differential[float32]"][0].text


def _failures(folder: Path) -> dict[str, list[Any]]:
    """Test → its failures, as programs read them."""
    return {
        f"{test.classname}.{test.name}": [
            one for one in test.result if isinstance(one, JUnitFailure)
        ]
        for suite in JUnitXml.fromfile(str(folder / "junit.xml"))
        for test in suite
    }


def test_programs_read_each_job_as_a_test_and_each_bug_once(tmp_path: Path) -> None:
    report.write(night(log()), "running", tmp_path)
    suites = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert (suites.tests, suites.failures, suites.skipped, suites.errors) == (3, 2, 1, 0)
    failures = _failures(tmp_path)
    first, second = (failures[f"l2norm.fused.{job.law}[float32]"] for job in (JOB, OTHER))
    assert "what is wrong" in first[0].text
    assert not second[0].text
    assert "norm differential y" in second[0].message


def test_the_data_are_json_that_any_program_reads(tmp_path: Path) -> None:
    report.write(night(log()), "stopped by SIGTERM", tmp_path)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    data = json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
    assert data["state"] == "stopped by SIGTERM"
    assert data["seed"] == 7
    assert data["examples"] == 13
    (bug,) = data["bugs"]
    assert bug["count"] == 3
    assert [sign["case"]["lengths"] for sign in bug["signs"]] == [[5], [3]]
    assert {"torch", "triton", "python"} <= set(data["versions"])
    assert [job["examples"] for job in data["jobs"]] == [9, 4, 0]


def test_code_that_is_not_installed_has_a_report_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_PACKAGES", ("torch", "not-installed"))
    report.write(night(log()), "running", tmp_path)
    data = json.loads((tmp_path / "report.json").read_text())
    assert {*data["versions"]} == {"python", "torch"}


def test_the_report_is_written_while_the_night_runs(
    fuzz: Fuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[tuple[str, int]] = []

    def write(of: Night, state: str, folder: Path) -> None:
        original(of, state, folder)
        states.append((state, json.loads((folder / "report.json").read_text())["examples"]))

    original = report.write
    monkeypatch.setattr(report, "write", write)
    monkeypatch.setattr("properties.fuzz.__main__._COPY", 0.3)
    monkeypatch.setenv(planted.MARK, str(tmp_path / "mark"))
    fuzz("slow", "--examples", "15", "--report", "looked at")
    assert {state for state, _ in states[:-1]} == {"running"}
    assert states[-1][0] == "ended"
    assert max(examples for _, examples in states[:-1]) > 0


def test_a_bug_comes_with_a_picture_and_a_script_that_reproduces_it(
    fuzz: Fuzz, tmp_path: Path
) -> None:
    fuzz("twofold", "--examples", "20", "--seed", "2", "--no-shrink", "--report", "seen")
    data = json.loads((tmp_path / "seen" / "report.json").read_text())
    # One by an error, the other by numbers.
    drawn = {sign["fingerprint"]: sign for bug in data["bugs"] for sign in bug["signs"]}
    assert drawn["norm differential y"]["picture"]["output"] == "y"
    assert "Where <code>y</code> is wrong" in (tmp_path / "seen" / "report.html").read_text()
    script = tmp_path / "script.py"
    for sign in drawn.values():
        script.write_text(sign["script"])
        with pytest.raises(Violation) as shown:
            runpy.run_path(str(script))
        assert str(shown.value.fingerprint) == sign["fingerprint"]


def test_a_bug_is_shown_by_its_smallest_case_and_told_by_its_worst(
    fuzz: Fuzz, tmp_path: Path
) -> None:
    _, printed = fuzz("worsening", "--examples", "20", "--seed", "2", "--report", "seen")
    (line,) = re.findall(r"^  \d+ x (norm differential y.*)$", printed, re.MULTILINE)
    assert line.startswith("norm differential y, not finite: l2norm-fused")
    assert re.search(r"^  at worst  not finite: Case\(op='l2norm'", printed, re.MULTILINE)
    page = (tmp_path / "seen" / "report.html").read_text()
    assert _Page(page).open == []
    assert "norm differential y, <strong>not finite</strong>, found after" in page
    assert "<summary>At worst not finite</summary>" in page
    (bug,) = json.loads((tmp_path / "seen" / "report.json").read_text())["bugs"]
    (first,), worst = bug["signs"], bug["at_worst"]
    assert bug["how_far"] == worst["excess"]["beyond"] == "not finite"
    assert first["excess"]["ratio"] > 1
    assert first["case"]["dims"]["D"] <= 40 < worst["case"]["dims"]["D"]
    (failed,) = _failures(tmp_path / "seen")["l2norm.fused.differential[float32]"]
    assert "norm differential y, not finite: l2norm" in failed.message


def test_a_history_takes_no_more_room_in_a_longer_night() -> None:
    history = History()
    for second in range(10_000):
        history.add(float(second), "gla" if second % 2 else "l2norm", Tally(1, 0.5, second / 1e4))
    assert len(history.bins) <= 240
    assert history.step == 80.0
    total = sum((counts["gla"] for counts in history.bins), Tally())
    assert (total.examples, total.seconds) == (5000, 2500.0)
    assert history.bins[-1]["gla"].worst == 0.9999
    # A night resumed after a day.
    history.add(90_000.0, "gla", Tally(1))
    assert len(history.bins) <= 240
    assert history.bins[-1]["gla"].examples == 1


def test_cells_of_a_level_are_one_path() -> None:
    assert svg.cells(["0110", "0004"]) == {1: "M1 0h2v1h-2z", 4: "M3 1h1v1h-1z"}


def test_a_curve_is_as_high_as_its_part_of_the_budget() -> None:
    history = report.data(night(log()), "running")["history"]
    drawn = svg.curves(history, 20.0, ["l2norm", "gla"])
    assert drawn["worst"][""] == drawn["worst"]["l2norm"] == "M0.0 100V50.0H500.0V100z"
    assert drawn["worst"]["gla"] == ""
    assert drawn["most"] == 0.9
    assert drawn["rate"].startswith("M0.0 100V0.0H500.0V100zM500.0 100V55.6")


def test_a_picture_is_kept_with_the_night(tmp_path: Path) -> None:
    logged = log()
    picture = Picture("y", "4 tokens", "2 dims", (0.5,), (Strip("head 1", ("0012",)),), 3)
    logged.buckets[0].smallest[0] = failure(Y, 5, picture=picture)
    logged.write(tmp_path)
    read = Log.read(tmp_path)
    assert read is not None
    assert read.buckets[0].first.picture == picture
    assert read.history == logged.history
    values = report.data(night(logged), "running")
    assert re.search('cells" role="img" aria-label="head 1"', report._page(values, logged))
