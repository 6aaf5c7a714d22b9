"""Which lines of the project run: of Python code, and of the Triton code of what is launched.

Triton's frontend reads a kernel line by line with its constants known, and leaves out the branches
not taken; what it reads is what can run. It reads a kernel once for each set of constants, so that
is remembered between processes.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from properties.mutants.closure import ROOT

Lines = dict[str, set[int]]


class Reach:
    """Records what runs, of the files below some folders of the project.

    Args:
        folders: names of packages.
        remembered: where it is kept which lines of a kernel its constants let through.
    """

    def __init__(self, folders: Iterable[str], remembered: Path) -> None:
        self.roots = tuple(f"{ROOT / folder}/" for folder in folders)
        self.remembered = remembered
        self.lines: Lines = {}
        self._compiled: dict[str, Lines] = {}
        self._inside: dict[CodeType, bool] = {}
        self._restored: tuple[Any, Any] | None = None

    def start(self) -> None:
        """Record from here on."""
        from triton.runtime.jit import JITFunction

        self.stop()
        self.lines = {}
        launch = JITFunction.run

        def run(function: Any, *args: Any, **kwargs: Any) -> Any:
            kernel = launch(function, *args, **kwargs)
            self._launched(kernel)
            return kernel

        self._restored = launch, sys.gettrace()
        JITFunction.run = run
        sys.settrace(self._trace)

    def stop(self) -> Lines:
        """What ran since the start."""
        from triton.runtime.jit import JITFunction

        if self._restored is not None:
            JITFunction.run, trace = self._restored
            sys.settrace(trace)
            self._restored = None
        return self.lines

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        inside = self._inside.get(code)
        if inside is None:
            inside = self._inside[code] = code.co_filename.startswith(self.roots)
        if not inside:
            return None
        seen = self.lines.setdefault(code.co_filename, set())

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            seen.add(frame.f_lineno)
            return line

        return line

    def _launched(self, kernel: Any) -> None:
        source = getattr(kernel, "src", None)
        if source is None:
            return
        key = _key(source)
        if key not in self._compiled:
            trace = sys.gettrace()
            sys.settrace(None)
            self._compiled[key] = self._read(source, self.remembered / f"{key}.json")
            sys.settrace(trace)
        for name, lines in self._compiled[key].items():
            if name.startswith(self.roots):
                self.lines.setdefault(name, set()).update(lines)

    def _read(self, source: Any, path: Path) -> Lines:
        try:
            told = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            told = {name: sorted(lines) for name, lines in _lines_read(source).items()}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(told))
        return {str(ROOT / name): set(lines) for name, lines in told.items()}


def _key(source: Any) -> str:
    constants = sorted((path, str(value)) for path, value in source.constants.items())
    parts = source.name, source.fn.cache_key, list(source.signature.items()), constants
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _lines_read(source: Any) -> Lines:
    """The lines that Triton's frontend reads, by file below the root."""
    from triton.compiler.code_generator import CodeGenerator

    from properties.simulator.compilation import ttir

    seen: Lines = {}
    original = CodeGenerator.visit

    def visit(self: Any, node: Any) -> Any:
        if hasattr(node, "lineno"):
            path = Path(self.file_name)
            if path.is_relative_to(ROOT):
                name = path.relative_to(ROOT).as_posix()
                seen.setdefault(name, set()).add(self.begin_line + node.lineno)
        return original(self, node)

    CodeGenerator.visit = visit
    try:
        ttir(source, {})
    finally:
        CodeGenerator.visit = original
    return seen


def packed(lines: Lines) -> dict[str, str]:
    """Lines by file below the root, as one hexadecimal number per file, for JSON."""
    return {
        Path(name).relative_to(ROOT).as_posix(): f"{sum(1 << n for n in numbers):x}"
        for name, numbers in sorted(lines.items())
        if numbers
    }


def meets(packed_lines: Mapping[str, str], path: Path, lines: range) -> bool:
    """Whether any of the lines of a file is among those recorded."""
    recorded = int(packed_lines.get(path.as_posix(), "0"), 16)
    return bool(recorded >> lines.start & (1 << len(lines)) - 1)
