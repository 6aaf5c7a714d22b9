"""Which lines of the project run, in Python code and in launched Triton kernels.

Triton's frontend visits a kernel line by line with its constants known and skips branches not
taken; the lines that it visits can run. It visits a kernel once per set of constants, so the lines
are kept between processes.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from coverage import Coverage

from properties import ROOT
from properties.files import write_atomically
from properties.planting.closure import INSTALLED

Lines = dict[str, set[int]]


def below(path: Path) -> Path:
    """A file of the project by its name below the root, and another by all of its name."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


class LineCoverage:
    """Records the lines that run in some files.

    Args:
        places: files and folders, named as `below` does.
        remembered: folder for the lines of each compiled kernel.
    """

    def __init__(self, places: Iterable[str], remembered: Path) -> None:
        paths = [ROOT / place for place in places]
        self.roots = tuple(f"{place}/" if place.is_dir() else str(place) for place in paths)
        self.remembered = remembered
        self.lines: Lines = {}
        self._compiled: dict[str, Lines] = {}
        self._restore: Callable[[], None] | None = None
        inside = [f"{root}**" if root.endswith("/") else root for root in self.roots]
        self._python = Coverage(data_file=None, config_file=False, include=inside)
        self._python.set_option("run:disable_warnings", ["no-data-collected"])

    def start(self) -> None:
        from triton.runtime.jit import JITFunction

        from properties.simulator import compilation

        self.stop()
        self.lines = {}
        launch, compiled = JITFunction.run, compilation.ttir

        def run(function: Any, *args: Any, **kwargs: Any) -> Any:
            kernel = launch(function, *args, **kwargs)
            self._launched(kernel)
            return kernel

        def ttir(source: Any, options: dict[str, Any]) -> str:
            text, seen = _read(compiled, source, options)
            self._remember(source, seen)
            return text

        def restore() -> None:
            JITFunction.run, compilation.ttir = launch, compiled

        JITFunction.run, compilation.ttir = run, ttir
        self._restore = restore
        self._python.erase()
        self._python.start()

    def stop(self) -> Lines:
        """Return the lines that ran since the start."""
        if self._restore is None:
            return self.lines
        self._python.stop()
        self._restore()
        self._restore = None
        data = self._python.get_data()
        for name in data.measured_files():
            self.lines.setdefault(name, set()).update(data.lines(name) or ())
        return self.lines

    def _launched(self, kernel: Any) -> None:
        source = getattr(kernel, "src", None)
        if source is None:
            return
        for name, lines in self._lines_of(source).items():
            if name.startswith(self.roots):
                self.lines.setdefault(name, set()).update(lines)

    def _lines_of(self, source: Any) -> Lines:
        """The lines of a kernel that its constants leave."""
        key = _key(source)
        if key not in self._compiled:
            try:
                lines = json.loads(self._path(key).read_text())
            except (FileNotFoundError, ValueError):
                # Compiled by a process that did not record.
                from properties.simulator import compilation

                compilation.ttir(source, {})
            else:
                self._compiled[key] = _absolute(lines)
        return self._compiled[key]

    def _remember(self, source: Any, seen: Lines) -> None:
        key = _key(source)
        path = self._path(key)
        # A full disk fails no check.
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({name: sorted(lines) for name, lines in seen.items()})
            write_atomically(path, text)
        self._compiled[key] = _absolute(seen)

    def _path(self, key: str) -> Path:
        return self.remembered / f"{key}.json"


def _absolute(lines: Mapping[str, Iterable[int]]) -> Lines:
    return {str(ROOT / name): set(numbers) for name, numbers in lines.items()}


def _key(source: Any) -> str:
    constants = sorted((path, str(value)) for path, value in source.constants.items())
    parts = source.name, source.fn.cache_key, list(source.signature.items()), constants
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _read(
    compiled: Callable[[Any, dict[str, Any]], str], source: Any, options: dict[str, Any]
) -> tuple[str, Lines]:
    """The compiled text of a kernel, and the lines that Triton's frontend visits, by file."""
    from triton.compiler.code_generator import CodeGenerator

    seen: Lines = {}
    original = CodeGenerator.visit

    def visit(self: Any, node: Any) -> Any:
        line = getattr(node, "lineno", None)
        if line is not None:
            name = below(Path(self.file_name))
            if not name.is_absolute() or INSTALLED.isdisjoint(name.parts):
                seen.setdefault(name.as_posix(), set()).add(self.begin_line + line)
        return original(self, node)

    CodeGenerator.visit = visit
    try:
        return compiled(source, options), seen
    finally:
        CodeGenerator.visit = original


def packed(lines: Lines) -> dict[str, str]:
    """Lines by file, as `below` names it, as one hexadecimal number per file, for JSON."""
    return {
        below(Path(name)).as_posix(): f"{sum(1 << n for n in numbers):x}"
        for name, numbers in sorted(lines.items())
        if numbers
    }


def meets(packed_lines: Mapping[str, str], path: Path, lines: range) -> bool:
    """Whether any of these lines of a file was recorded."""
    recorded = int(packed_lines.get(path.as_posix(), "0"), 16)
    return bool(recorded >> lines.start & (1 << len(lines)) - 1)
