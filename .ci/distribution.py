"""The build backend: setuptools, but for what a wheel has.

A checkout has `reference`, `kernels`, `properties` and `regressions` at the top, and an editable
install leaves them there. A wheel has them in `attention_oracles`, as other distributions have
modules of these names. It is built from a copy of the checkout in which they have moved, and in
which import statements, and the names of modules in strings and data, begin with that.
"""

import ast
import re
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from tokenize import STRING, generate_tokens, tok_name
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

HOME = "attention_oracles"
PACKAGES = ("kernels", "properties", "reference", "regressions")
FILES = ("pyproject.toml", "README.md", "LICENSE")
_NAME = re.compile(rf"(?<![\w./{{}}-])(?=(?:{'|'.join(PACKAGES)})\.[a-zA-Z_])")
_TEXTS = (".toml", ".json", ".md")


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    folder = Path(wheel_directory).absolute()
    metadata = metadata_directory and Path(metadata_directory).absolute()
    with _staged():
        return str(build_meta.build_wheel(folder, config_settings, metadata))


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    folder = Path(metadata_directory).absolute()
    with _staged():
        return str(build_meta.prepare_metadata_for_build_wheel(folder, config_settings))


@contextmanager
def _staged() -> Iterator[None]:
    """Work in a copy of the checkout for a while."""
    with TemporaryDirectory() as folder:
        stage(Path.cwd(), Path(folder))
        with chdir(folder):
            yield


def stage(checkout: Path, folder: Path) -> None:
    """Copy a checkout with its packages moved into one."""
    for name in FILES:
        shutil.copy(checkout / name, folder / name)
    project = folder / "pyproject.toml"
    project.write_text(_without(f'py-modules = ["{HOME}"]\n', project.read_text()))
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(checkout / package, folder / HOME / package, ignore=ignored)
    shutil.copy(checkout / f"{HOME}.py", folder / HOME / "__init__.py")
    (folder / HOME / "__main__.py").write_text(
        f"from {HOME} import main\n\nraise SystemExit(main())\n"
    )
    (folder / HOME / "py.typed").touch()
    for path in (folder / HOME).rglob("*"):
        if path.suffix == ".py":
            path.write_text(moved(path.read_text()))
        elif path.suffix in _TEXTS:
            path.write_text(renamed(path.read_text()))


def _without(piece: str, text: str) -> str:
    if piece not in text:
        raise ValueError(f"pyproject.toml: expected {piece!r}")
    return text.replace(piece, "")


def renamed(text: str) -> str:
    """A text in which the names of modules are those that they have in the wheel."""
    return _NAME.sub(f"{HOME}.", text)


def moved(source: str) -> str:
    """The source of a module whose imports and strings have the names of the wheel."""
    lines = source.splitlines(keepends=True)
    for token in reversed([*_strings(source)]):
        (first, start), (last, stop) = token
        text = "".join(lines[first - 1 : last])
        end = len(text) - len(lines[last - 1]) + stop
        changed = text[:start] + renamed(text[start:end]) + text[end:]
        lines[first - 1 : last] = [changed, *[""] * (last - first)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and len(node.names) == 1 and _is_ours(node.names[0].name):
            lines[node.lineno - 1] = _imported(lines[node.lineno - 1], node.names[0])
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_ours(str(node.module)):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace("from ", f"from {HOME}.", 1)
        elif isinstance(node, ast.Import) and any(_is_ours(a.name) for a in node.names):
            raise ValueError(f"{ast.unparse(node)}: expected one import a line")
    return "".join(lines)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _imported(line: str, alias: ast.alias) -> str:
    """A line with an `import` statement."""
    first, dot, _ = alias.name.partition(".")
    if alias.asname:
        return line.replace(f"import {alias.name}", f"import {HOME}.{alias.name}", 1)
    statement = f"from {HOME} import {first}"
    if dot:
        statement = f"import {HOME}.{alias.name}; {statement}"
    return line.replace(f"import {alias.name}", statement, 1)


def _strings(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the start and end of each string, and of the text in formatted ones."""
    for token in generate_tokens(StringIO(source).readline):
        if token.type == STRING or tok_name[token.type] == "FSTRING_MIDDLE":
            yield token.start, token.end
