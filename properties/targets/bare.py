"""Single modules of an installed package, without what its own `__init__`s import.

An inference server keeps its Triton kernels in modules that need torch and Triton alone, inside
packages that import the server and compiled code.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


class Answers(ModuleType):
    """Stands for a module that says what the machine is: yes to "is_cuda" on a GPU, no otherwise.

    Args:
        answers: question → another answer.
    """

    def __init__(self, name: str, **answers: object) -> None:
        super().__init__(name)
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name in self._answers:
            return lambda *_, **__: self._answers[name]
        if not name.startswith(("is_", "get_", "has_")):
            raise AttributeError(name)
        return lambda *_, **__: name == "is_cuda" and torch.cuda.is_available()


class Settings(ModuleType):
    """Stands for a module of environment variables: none is set."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def get(self) -> bool:
        return False

    def __bool__(self) -> bool:
        return False


class Absent(ValueError):
    """A kernel that the installed release does not have."""


@dataclass(frozen=True)
class Bare:
    """A package whose modules are imported alone.

    Args:
        name: of the package.
        folders: where its releases keep their kernels, the newest first.
        install: the command that installs it.
        stand_ins: dotted name → a module in its place.
    """

    name: str
    folders: tuple[str, ...]
    install: str
    stand_ins: Mapping[str, ModuleType] = field(default_factory=dict)

    def function(self, name: str) -> Callable[..., Any]:
        """A function of the kernels, "module:function".

        Raises:
            Absent: the installed release has no such function.
            ImportError: it imports what is not installed.
            ValueError: the package is not installed.
        """
        module, _, function = name.partition(":")
        folder = self._folder_of(module)
        if folder is not None:
            self._make_bare(folder)
            found: object = getattr(import_module(f"{folder}.{module}"), function, None)
            if callable(found):
                return found
        raise Absent(f"this release of {self.name} has no {name}")

    def _folder_of(self, module: str) -> str | None:
        root = self._root()
        for folder in self.folders:
            if (root.parent.joinpath(*folder.split(".")) / f"{module}.py").exists():
                return folder
        return None

    def _root(self) -> Path:
        if self.name in sys.modules:
            return Path(next(iter(sys.modules[self.name].__path__)))
        spec = find_spec(self.name)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"target: {self.name} is not installed: {self.install}")
        return Path(next(iter(spec.submodule_search_locations)))

    def _make_bare(self, folder: str) -> None:
        """Enter the packages above a folder and the stand-ins, without running an `__init__`."""
        root = self._root()
        for path in (*self.stand_ins, folder + "."):
            parts = path.split(".")
            for end in range(1, len(parts)):
                name = ".".join(parts[:end])
                if name not in sys.modules and name not in self.stand_ins:
                    place = root.joinpath(*parts[1:end])
                    spec = spec_from_file_location(
                        name, place / "__init__.py", submodule_search_locations=[str(place)]
                    )
                    assert spec is not None
                    sys.modules[name] = module_from_spec(spec)
        for name, module in self.stand_ins.items():
            sys.modules.setdefault(name, module)
