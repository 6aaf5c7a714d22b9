"""Ops are named where they are made: who needs ops of a kind asks the catalogue."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from properties.catalogue import OPS

ROOT = Path(__file__).parents[2]
FAMILIES = ("conv", "delta", "gate", "linear", "norm", "position", "softmax", "sums")
# Where modules may name ops, and why.
PLACES = {
    "kernels/__init__.py": "exports",
    **{f"kernels/{family}": "pages and their kernels" for family in FAMILIES},
    "kernels/cache": "built on attention",
    "kernels/layers": "built on an op",
    "kernels/bench": "problems and other libraries' functions",
    "kernels/tiles.py": "the table of tiles",
    "properties/tune/grids.py": "the tiles that are searched",
    "properties/catalogue": "declarations",
    "properties/targets": "adapters",
    "properties/fuzz/planted.py": "the op with which the fuzzer is tested",
    "properties/simulator/bench.py": "the kernels with which simulators are timed",
    "properties/suite/layers/adapted.py": "rotary embeddings of a target turn as the op does",
    "properties/suite/caches": "tests of caches, which are built on attention",
    "properties/verdict/noise.py": "operations of PyTorch, some of one name with ours",
    "properties/verdict/calibrate.py": "kernels that are emulated",
}


def _modules() -> Iterator[Path]:
    for package in ("kernels", "properties"):
        yield from (ROOT / package).rglob("*.py")


def _is_test(path: Path) -> bool:
    return path.name.startswith("test_") or path.name == "conftest.py"


def _has_place(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / place) for place in PLACES)


def named(node: ast.AST) -> Iterator[str]:
    """The ops that a node of a syntax tree names: "kda", `kernels.kda`, or an import of it."""
    match node:
        case ast.Constant(value=str(name)) if name in OPS:
            yield name
        case ast.Attribute(value=ast.Name(id="reference" | "kernels"), attr=name) if name in OPS:
            yield name
        case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in (
            "reference",
            "kernels",
        ):
            yield from (alias.name for alias in node.names if alias.name in OPS)


def lists(node: ast.AST) -> set[str]:
    """The ops that a node names as one of several, or compares with something."""
    match node:
        case ast.Tuple(elts=several) | ast.List(elts=several) | ast.Set(elts=several):
            names = {name for each in several for name in named(each)}
            return names if len(names) > 1 else set()
        case ast.Dict(keys=keys):
            names = {name for key in keys if key for each in ast.walk(key) for name in named(each)}
            return names if len(names) > 1 else set()
        case ast.Compare(left=left, comparators=others):
            return {name for each in (left, *others) for name in named(each)}
    return set()


def _nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text()))


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    "path", [p for p in _modules() if not _is_test(p) and not _has_place(p)], ids=_shown
)
def test_a_module_names_no_op(path: Path) -> None:
    assert not {name for node in _nodes(path) for name in named(node)}


@pytest.mark.parametrize(
    "path", [p for p in _modules() if _is_test(p) and "suite" in p.parts], ids=_shown
)
def test_a_test_of_kernels_lists_no_ops_and_asks_for_none(path: Path) -> None:
    """It may name its own; tests of the suite take ops as examples."""
    assert not {name for node in _nodes(path) for name in lists(node)}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_is_there_and_names_an_op(place: str) -> None:
    path = ROOT / place
    files = [path] if path.is_file() else [*path.rglob("*.py")]
    assert any(name for file in files for node in _nodes(file) for name in named(node))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('"kda"', {"kda"}),
        ("kernels.kda(q)", {"kda"}),
        ("from kernels.delta import kda", {"kda"}),
        ('kda = {"kda_": 1}', set()),
    ],
)
def test_a_name_is_found(text: str, names: set[str]) -> None:
    assert {name for node in ast.walk(ast.parse(text)) for name in named(node)} == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["kda", "gla"]', {"kda", "gla"}),
        ('{("kda", "chunk"): 1, ("gla", "chunk"): 2}', {"kda", "gla"}),
        ('op == "kda"', {"kda"}),
        ('f("kda", ["kda", "chunk"])', set()),
    ],
)
def test_a_list_or_a_question_is_found(text: str, names: set[str]) -> None:
    assert {name for node in ast.walk(ast.parse(text)) for name in lists(node)} == names
