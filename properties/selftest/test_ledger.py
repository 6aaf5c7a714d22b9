"""An entry of a ledger excuses one symptom of some calls of some releases, and no other."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from properties.catalogue import Op
from properties.laws import LAWS, Subject, Violation
from properties.selftest.test_targets import ATTENTION, CPU, SQUARE, causal_only, some
from properties.targets import Target
from properties.targets.ledger import KnownFailure, Ledger, Raised, Wrong, read


class Buggy(Target):
    """Returns half the output if the scale is 0 or 2; more may be wrong too."""

    name = "buggy"

    def __init__(self, more: Callable[[Tensor, Tensor], Tensor] = lambda o, q: o) -> None:
        self.more = more

    def function(self, op: Op) -> Any:
        def wrong(*, mode: str, tile: int | None, **given: Any) -> Tensor:
            o = causal_only(**given)
            o = o / 2 if given["scale"] in (0.0, 2.0) else o
            return self.more(o, given["q"])

        return wrong

    def declaration(self, op: Op, mode: str) -> Op:
        return some().declaration(op, mode)


def scale_is_zero(given: Mapping[str, Any]) -> bool:
    return bool(given["scale"] == 0)


RELEASE = f"torch {torch.__version__.partition('+')[0]}"


KNOWN = KnownFailure(
    name="half_at_scale_0",
    law="differential",
    releases=("torch 1.0.0", RELEASE),
    cases=(SQUARE,),
    modes=("some",),
    shows=scale_is_zero,
    symptoms=(Wrong(("o", "dv"), most=2.0**23),),
    expected="1",
    got="0.5",
    cause="planted",
)


def broken(subject: Subject, scale: float = 0.0) -> Exception | None:
    """The exception from the differential law for the square case, unless excused."""
    subject.ledger.start()
    case = replace(SQUARE, options={"scale": scale, "causal": True})
    op = subject.target.declaration(ATTENTION, "some")
    try:
        LAWS["differential"](op, case, subject)
    except Exception as error:
        return error
    return None


def test_a_known_failure_is_excused_and_counted_and_no_other() -> None:
    subject = Subject(Buggy(), CPU, Ledger([KNOWN]))
    assert broken(subject) is None
    assert subject.ledger.excused == {"half_at_scale_0": 1}
    assert "o differs from the oracle" in str(broken(subject, scale=2.0))
    assert subject.ledger.excused == {"half_at_scale_0": 1}


def with_nan(o: Tensor, q: Tensor) -> Tensor:
    return o + torch.where(torch.arange(o.numel()).view(o.shape) == 0, torch.nan, 0.0)


def with_a_gradient_of_q(o: Tensor, q: Tensor) -> Tensor:
    """`o`, with a gradient of q that is off by ones."""
    return o + (q - q.detach()).sum()


def a_thousand_times(o: Tensor, q: Tensor) -> Tensor:
    return 1000 * o


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        (with_nan, "o differs from the oracle\n\n  NaN where a number is expected"),
        (with_a_gradient_of_q, "dq differs from the oracle"),
        (a_thousand_times, "o differs from the oracle\n\n  the error exceeds its budget"),
    ],
)
def test_another_symptom_of_the_same_call_is_reported(more: Any, reported: str) -> None:
    error = broken(Subject(Buggy(more), CPU, Ledger([KNOWN])))
    assert isinstance(error, Violation)
    assert reported in str(error)


def test_how_large_an_error_may_be_follows_from_the_call() -> None:
    small = replace(KNOWN, symptoms=(Wrong(most=lambda given: 2.0 ** given["q"].shape[1]),))
    assert broken(Subject(Buggy(), CPU, Ledger([small]))) is not None
    large = replace(KNOWN, symptoms=(Wrong(most=lambda given: 2.0 ** (5 * given["q"].shape[1])),))
    assert broken(Subject(Buggy(), CPU, Ledger([large]))) is None


def test_an_exception_is_excused_by_its_type_and_message() -> None:
    def refusing(o: Tensor, q: Tensor) -> Tensor:
        raise IndexError(f"no row {len(o)}")

    for kind, message, excused in (
        ("IndexError", "no row", True),
        ("IndexError", "no column", False),
        ("IndexError", "", False),
        ("KeyError", "no row", False),
    ):
        ledger = Ledger([replace(KNOWN, symptoms=(Raised(kind, message),))])
        error = broken(Subject(Buggy(refusing), CPU, ledger))
        assert isinstance(error, IndexError)
        assert ledger.excuses(error) is excused


def test_an_entry_is_about_releases() -> None:
    assert KNOWN.installed
    assert not replace(KNOWN, releases=("torch 1.0.0", "no_such_package 1.0")).installed


def test_an_entry_is_not_about_a_release_that_another_one_shadows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    in_front = PathFinder.find_spec("torch", [str(tmp_path)])
    monkeypatch.setattr("properties.targets.ledger.find_spec", lambda name: in_front)
    assert not KNOWN.installed


def test_a_ledger_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from properties.selftest.test_ledger import KNOWN\n"
        "LEDGER = (KNOWN, replace(KNOWN, name='old', releases=('torch 1.0.0',)))\n"
    )
    assert [entry.name for entry in read(str(path), "mine", "cpu").entries] == [KNOWN.name]
    assert len(read(str(path), "mine", None).entries) == 2
    assert read(str(path), "mine", "cuda").entries == ()
    assert read("none", "torch", "cpu").entries == ()
    assert read("auto", "mine:target", "cpu").entries == ()
    with pytest.raises(ValueError, match="ledger: 'no/such/file', expected a file"):
        read("no/such/file", "mine", "cpu")
