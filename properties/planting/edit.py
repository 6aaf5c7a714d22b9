"""An edit of one module, made in memory at import. No file changes."""

import importlib.abc
import importlib.machinery
import linecache
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from properties.planting.closure import find_file, is_ours, path_of


@dataclass(frozen=True)
class Edit:
    """Replace one piece of a module's source.

    Args:
        module: its dotted name.
        before: the piece as it stands; it occurs exactly once.
        after: what takes its place.
    """

    module: str
    before: str
    after: str

    def path(self) -> Path:
        """The module's file, found without importing it.

        Raises:
            ValueError: there is no such module.
        """
        path = path_of(self.module) if is_ours(self.module) else find_file(self.module)
        if path is None:
            raise ValueError(f"module: {self.module}, expected a module that Python can import")
        return path

    def source(self) -> str:
        """The module's source with the edit made.

        Raises:
            ValueError: there is no such module, or `before` is not in it exactly once.
        """
        text = self.path().read_text()
        count = text.count(self.before)
        if count != 1:
            raise ValueError(
                f"before: {self.before!r} stands {count} times in {self.module}, expected once"
            )
        return text.replace(self.before, self.after)

    def plant(self) -> None:
        """Make this process import the edited module.

        Raises:
            ValueError: the module has been imported already, or the edit does not apply.
        """
        if self.module in sys.modules:
            raise ValueError(f"module: {self.module} is imported already, expected a fresh process")
        sys.meta_path.insert(0, _Planter(self.module, self.source()))


def edits_first() -> None:
    """Prefer edited modules to what pytest, whose finder takes the first place, would import."""
    sys.meta_path.sort(key=lambda finder: not isinstance(finder, _Planter))


class _Planter(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, source: str) -> None:
        self.module = module
        self.source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Edited(name, spec.origin, self.source)
        return spec


class _Edited(importlib.machinery.SourceFileLoader):
    """Load the edited source under the original file name."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.edited = source
        # Triton reads source through linecache, which keeps an entry without a modification time.
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)

    def get_code(self, fullname: str) -> CodeType:
        # Bypass the bytecode cached beside the file.
        return compile(self.edited, self.path, "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        return self.edited
