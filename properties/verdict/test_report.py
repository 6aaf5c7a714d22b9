"""A report has what a person needs, and its regression file is valid Python for the case."""

import ast
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError

from properties.cases.case import Case
from properties.simulator import simulating
from properties.verdict import Budget, Comparison, compare
from properties.verdict.exceptions import plain
from properties.verdict.report import Repro, error_report, regression_file, report

DIMS = ("B", "T", "H", "V")
DENSE = Case.of(
    "linear_attn",
    "chunk",
    {"B": 2, "H": 3, "K": 5, "V": 7},
    (65,),
    dtype="bfloat16",
    options={"scale": -1.5},
)
PACKED = replace(DENSE, lengths=(70, 0, 59), packed=True, options={}).with_dims(B=1)


def repro(case: Case) -> Repro:
    return Repro("differential", case, torch.device("cpu"))


def failure(case: Case, tokens: int, at: tuple[int | slice, ...]) -> Comparison:
    want = torch.ones(case.dims["B"], tokens, 3, 7, dtype=torch.float64)
    got = want.bfloat16()
    got[at] = 1.5
    return compare("o", got, want, Budget(0.125 * want, "magnitude and sigma"))


@pytest.fixture
def text() -> str:
    comparison = failure(DENSE, 65, (1, slice(64, None), 2))
    return report(repro(DENSE), comparison, DIMS, "the oracle")


def test_the_first_line_says_what_happened(text: str) -> None:
    first = text.splitlines()[0]
    assert first.startswith("differential does not hold for linear_attn (chunk, bfloat16)")
    assert first.endswith("o differs from the oracle")


def test_the_worst_element_is_named_by_its_dims(text: str) -> None:
    assert "sequence 1, token 64, head 2, value dim 0" in text
    assert "got 1.5, want 1\n" in text
    assert "error 0.5, budget 0.125 (magnitude and sigma), 4 times the budget" in text


def test_the_report_gives_the_fraction_and_place_of_wrong_elements(text: str) -> None:
    assert "7 of 2730 elements (0.256%)" in text
    assert "in sequence 1, token 64, head 2, every value dim" in text
    assert "token 64, in tile 4 of 16, 2 of 32, 1 of 64, 0 of 128 tokens" in text


def test_tokens_of_packed_sequences_are_counted_in_their_own() -> None:
    comparison = failure(PACKED, 129, (0, slice(94, 97)))
    text = report(repro(PACKED), comparison, DIMS, "the oracle")
    assert "sequence 2, token 24 (94 of the pack), head 0, value dim 0" in text
    assert "in token 94-96, every head, every value dim" in text
    assert "token 24 of sequence 2, in tile 1 of 16" in text


def test_the_repro_command_holds_the_case(text: str) -> None:
    found = re.search(r"^REPRO: (.*)$", text, re.MULTILINE)
    assert found is not None
    words = shlex.split(found[1])
    assert words[:3] == ["python", "-m", "properties.fuzz"]
    assert words[words.index("--law") + 1] == "differential"
    assert Case.from_json(words[words.index("--case") + 1]) == DENSE


def test_versions_and_device_are_named(text: str) -> None:
    assert f"torch {torch.__version__}" in text
    assert "triton " in text


def test_nan_and_a_wrong_shape_are_reported_too() -> None:
    want = torch.ones(1, 129, 3, 7, dtype=torch.float64)
    got = want.float()
    got[0, 5, 0, 0] = torch.nan
    comparison = compare("o", got, want, None)
    text = report(repro(PACKED), comparison, DIMS, "the oracle")
    assert "NaN where a number is expected" in text
    assert "of the result 1 NaN and 0 infinite" in text
    comparison = compare("o", got[:, 1:], want, None)
    text = report(repro(PACKED), comparison, DIMS, "the oracle")
    assert "shape [1, 128, 3, 7], expected [1, 129, 3, 7]" in text


@pytest.mark.parametrize("case", [DENSE, PACKED])
def test_a_regression_file_is_python_that_builds_the_case(case: Case) -> None:
    tree = ast.parse(regression_file(case, "differential"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    call = next(n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "Case")
    assert eval(ast.unparse(call), {"Case": Case}) == case


@pytest.mark.parametrize("notes", [3, ["said"], [None]])
def test_notes_of_a_target_may_be_anything(notes: object) -> None:
    error = ValueError("no")
    error.__dict__["__notes__"] = notes
    told = error_report(repro(DENSE), plain(error), ())
    assert told.startswith("differential: ValueError: no\n")
    assert ("  call      said\n" in told) == (notes == ["said"])


@triton.jit
def _inner(x):  # type: ignore[no-untyped-def]
    tl.store(x, _NO_CONSTANT)


@triton.jit
def _outer(x):  # type: ignore[no-untyped-def]
    _inner(x)


_NO_CONSTANT = 3


def test_an_error_within_a_function_that_a_kernel_calls_is_told() -> None:
    with simulating(), pytest.raises(CompilationError) as raised:
        _outer[(1,)](torch.zeros(1))
    told = error_report(repro(DENSE), plain(raised.value), ())
    assert "Cannot access global variable _NO_CONSTANT" in told


def test_causes_of_an_error_may_turn_in_a_ring() -> None:
    error, other = ValueError("no"), KeyError("why")
    error.__cause__, other.__cause__ = other, error
    told = error_report(repro(DENSE), error, ())
    assert told.startswith("differential: ValueError: no\n")


def test_the_first_error_of_a_group_is_told() -> None:
    group = ExceptionGroup("two", [ExceptionGroup("one", [KeyError("why")]), ValueError("no")])
    told = error_report(repro(DENSE), group, ())
    assert told.startswith("differential: ExceptionGroup: two (2 sub-exceptions)\n")
    assert "  because   KeyError: 'why'\n" in told


class _Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError


_REFUSING = property(lambda self: 1 / 0)


@pytest.mark.parametrize(
    "kind",
    [
        _Nameless("Refusing", (OSError,), {}),
        type("Refusing", (OSError,), {"__class__": _REFUSING}),
        type("Refusing", (OSError,), {"errno": _REFUSING}),
        type("Refusing" * 1000, (SystemExit,), {}),
        type("Refusing\x1b[31m", (ValueError,), {}),
    ],
    ids=["name", "class", "number", "long name", "coloured name"],
)
def test_an_exception_that_refuses_a_question_has_its_name_text_and_place(
    kind: type[BaseException],
) -> None:
    with pytest.raises(kind) as raised:
        raise kind("said")
    error = plain(raised.value)
    assert error.__traceback__ is raised.value.__traceback__
    assert isinstance(error, Exception) == issubclass(kind, Exception)
    told = error_report(repro(DENSE), error, ())
    assert told.startswith("differential: Refusing")
    assert ": said\n" in told
    assert "\x1b" not in told
    assert len(told) < 2000


def test_an_ordinary_exception_stays_itself() -> None:
    with pytest.raises(FileNotFoundError) as raised:
        Path("/nowhere").stat()
    raised.value.add_note("a note")
    assert plain(raised.value) is raised.value
