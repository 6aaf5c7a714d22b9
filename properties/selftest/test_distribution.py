"""Test the build's rewritten sources, pytest's plugin and the command, all in a checkout.

`tox -e example` tests an installed wheel.
"""

import argparse
import ast
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

import attention_oracles
from properties import ROOT, command, plugin
from properties.mutants.mutant import own_modules


@pytest.fixture
def distribution(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    return import_module("distribution")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch\n", "import torch\n"),
        ("import kernels\n", "from attention_oracles import kernels\n"),
        ("import kernels.gla as gla\n", "import attention_oracles.kernels.gla as gla\n"),
        (
            "import properties.jobs\n",
            "import attention_oracles.properties.jobs; from attention_oracles import properties\n",
        ),
        (
            "def f():\n    from properties.a import b\n",
            "def f():\n    from attention_oracles.properties.a import b\n",
        ),
        ("from . import kernels\n", "from . import kernels\n"),
        ("x = 'kernels.linear.chunk'\n", "x = 'attention_oracles.kernels.linear.chunk'\n"),
        ('x = f"run kernels.a {y}", "c"\n', 'x = f"run attention_oracles.kernels.a {y}", "c"\n'),
        ('x = """a\n`kernels.b`\n""", y\n', 'x = """a\n`attention_oracles.kernels.b`\n""", y\n'),
        # Paths, words and attributes are no names of modules.
        ("x = 'kernels/gla.py'\n", "x = 'kernels/gla.py'\n"),
        ("x = 'our kernels. They', 'kernels'\n", "x = 'our kernels. They', 'kernels'\n"),
        ("x = entry.kernels.a\n", "x = entry.kernels.a\n"),
    ],
)
def test_a_module_of_the_wheel_names_the_others_as_they_are_there(
    before: str, after: str, distribution: ModuleType
) -> None:
    assert distribution.moved(before) == after
    ast.parse(after)


def test_data_names_functions_as_they_are_in_the_wheel(distribution: ModuleType) -> None:
    text = '{"law {\\"op\\":1}": {"kernels.linear.gla.gla": 2}}'
    assert distribution.renamed(text) == text.replace("kernels.", "attention_oracles.kernels.")


def test_two_packages_in_one_import_are_refused(distribution: ModuleType) -> None:
    with pytest.raises(ValueError, match="expected one import a line"):
        distribution.moved("import kernels, reference\n")


def test_what_other_repositories_import_is_there() -> None:
    for name in attention_oracles.__all__:
        assert getattr(attention_oracles, name).__name__ == name
    assert attention_oracles.reference is import_module("reference")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attention_oracles.nothing  # noqa: B018


def test_pytest_refuses_the_suite_of_another_checkout(tmp_path: Path) -> None:
    copied = tmp_path / "conftest.py"
    copied.write_text((ROOT / "conftest.py").read_text())
    spec = spec_from_file_location("copied", copied)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(pytest.UsageError, match=f"{tmp_path}: expected its own `properties`"):
        module.pytest_addoption(Mock(), Mock())


class _Parser:
    """Some options of a repository, and those that are added."""

    def __init__(self, taken: str) -> None:
        self.taken, self.added = taken, dict[str, str]()

    def getgroup(self, name: str) -> "_Parser":
        return self

    def addoption(self, flag: str, *, dest: str, **about: object) -> None:
        if flag == self.taken:
            raise argparse.ArgumentError(None, "conflicting option string")
        self.added[dest] = flag


def test_an_option_that_a_repository_has_gets_a_longer_name() -> None:
    parser = _Parser("--device")
    plugin.add_options(parser)  # type: ignore[arg-type]
    assert parser.added["oracles_device"] == "--oracles-device"
    assert parser.added["oracles_target"] == "--target"


@pytest.mark.parametrize("name", command.COMMANDS)
def test_a_command_goes_on_as_its_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    went_on: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda path, given: went_on.append(given))
    command.main([name, "--help"])
    ((python, dash, module, *given),) = went_on
    assert (python, dash) == (sys.executable, "-m")
    assert find_spec(module) is not None
    assert given[-1] == "--help"


@pytest.mark.parametrize("given", [[], ["nothing"]])
def test_an_unknown_command_is_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(given)
    assert refused.value.code == 2
    assert "usage: attention-oracles" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["torch", "json", "kernels.linear.gla", "nothing_at_all"])
def test_mutants_are_made_of_modules_of_ones_own_alone(name: str) -> None:
    with pytest.raises(ValueError, match="expected a module of yours"):
        next(own_modules(name))
