"""The documents are current: examples run, tables match, links lead to files."""

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from properties.laws import LAWS
from properties.table import main as table
from properties.table import with_table
from properties.targets.ledger import read

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
OPS_TABLE = ROOT / "properties" / "README.md"
# Tools' folders and their outputs contain other documents.
DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not re.match(r"\.|build/", str(path.relative_to(ROOT)))
]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def test_table_of_ops_is_current() -> None:
    text = OPS_TABLE.read_text()
    assert text == with_table(text), "run python -m properties.table --write properties/README.md"


@pytest.mark.parametrize(
    ("name", "told"), [("none.md", "a document with"), ("CONTRIBUTING.md", "no table")]
)
def test_a_document_without_a_table_is_refused(
    name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        table(["--check", str(ROOT / name)])
    assert refused.value.code == 2
    message = capsys.readouterr().err
    assert f"--check: {ROOT / name}" in message
    assert told in message


def test_contributing_explains_every_law_once() -> None:
    section = CONTRIBUTING.read_text().partition("\n## Laws\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(LAWS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_document_lead_to_files(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        file, _, heading = link.partition("#")
        if "://" in file:
            continue
        found = (path.parent / file) if file else path
        assert found.exists(), link
        if heading:
            assert heading in map(
                _anchor, re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            )


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _blocks(language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


def test_the_spec_computes_the_numbers_in_the_readme() -> None:
    session = next(block for block in _blocks("python") if block.startswith(">>>"))
    example = doctest.DocTestParser().get_doctest(session, {}, "README.md", None, None)
    failed, tried = doctest.DocTestRunner().run(example)
    assert tried > 5
    assert failed == 0


@pytest.mark.parametrize("target", ["torch", "fla", "transformers", "sglang", "vllm"])
def test_the_bugs_of_a_target_are_listed_as_the_ledger_has_them(target: str) -> None:
    names = [entry.name for entry in read("auto", target, None).entries]
    folder = ROOT / "regressions" / "targets" / target
    linked = re.findall(r"\]\((\w+)\.py\)", (folder / "README.md").read_text())
    assert sorted(linked) == sorted([*names, "ledger"])
    table = re.escape(f"([table](regressions/targets/{target}/README.md))")
    counts = re.findall(rf"(\d+) bugs? in [^()]*{table}", README.read_text())
    assert counts == [str(len(names))]


@pytest.fixture
def own_kernel(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run pytest on the README's own kernel, with one piece of its text replaced."""

    def run(*arguments: str, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
        text = next(block for block in _blocks("python") if "def target(device)" in block)
        assert before in text
        (tmp_path / "mine.py").write_text(text.replace(before, after) if before else text)
        # Without options of an outer run, with CI's examples.
        kept = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
        given = ["--device", "simulator", "--target", "mine:target", *arguments]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "properties/suite/test_laws.py", *given],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**kept, "PYTHONPATH": str(tmp_path), "CI": "true"},
        )

    return run


@pytest.mark.ops("l2norm")
def test_several_bugs_are_reported_without_the_frames_of_the_suite(
    own_kernel: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    before = "    x, y ="
    bugs = "    if x.shape[1] > 2:\n        raise KeyError('long')\n    1 / (x.shape[2] > 1)\n"
    arguments = ("--law", "differential", "--dtype", "float32")
    said = own_kernel(*arguments, before=before, after=bugs + before).stdout
    assert "KeyError: 'long'" in said
    assert "ZeroDivisionError: division by zero" in said
    assert "in judge" not in said


@pytest.mark.ops("l2norm")
def test_the_readmes_kernel_passes(
    own_kernel: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ran = own_kernel()
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


@pytest.mark.ops("l2norm")
@pytest.mark.parametrize(
    ("before", "after", "first"),
    [
        ("tl.sqrt(tl.sum(x * x) + eps)", "(tl.sqrt(tl.sum(x * x)) + eps)", "differential does"),
        ("+ eps), mask=d < D)", "+ eps))", "store out of bounds"),
    ],
    ids=["a wrong formula", "a store without a mask"],
)
def test_a_bug_in_the_readmes_kernel_is_reported_as_the_readme_says(
    before: str,
    after: str,
    first: str,
    own_kernel: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ran = own_kernel("--law", "differential", "--dtype", "float32", before=before, after=after)
    assert ran.returncode == 1
    told = _without_numbers(ran.stdout)
    report = next(block for block in _blocks() if block.startswith(first))
    for line in report.splitlines():
        # The README shortens long lines, and its kernel is in the working directory.
        start = line.partition("...")[0].partition(" at mine.py")[0].strip()
        assert _without_numbers(start) in told, line


def _without_numbers(text: str) -> str:
    return re.sub(r"-?\d[\d.e+-]*", "0", text)
