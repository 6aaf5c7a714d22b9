"""The names that other repositories import, to test kernels of their own.

    from attention_oracles import Adapter, Implementation, reference

In a checkout the four packages lie beside this file. Where they are installed they lie in a package
that this file begins, as `attention_oracles.kernels`: another distribution may have a `kernels`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from properties.cases.case import Case
    from properties.command import main
    from properties.planting.edit import Edit
    from properties.planting.trial import LawAbout, TestAt
    from properties.targets import Adapter, Implementation, Target
    from properties.targets.bare import Bare
    from properties.targets.ledger import KnownFailure, Raised, Told, Wrong
    from properties.targets.modules import Unsupported
    from regressions.known_bug import KnownBug

_HOME = f"{__name__}." if "__path__" in globals() else ""
_PACKAGES = ("kernels", "properties", "reference", "regressions")
_MODULES = {"bounds": "properties.targets.bounds", "plugin": "properties.plugin"}
_FROM = {
    "Adapter": "properties.targets",
    "Bare": "properties.targets.bare",
    "Case": "properties.cases.case",
    "Edit": "properties.planting.edit",
    "Implementation": "properties.targets",
    "KnownBug": "regressions.known_bug",
    "KnownFailure": "properties.targets.ledger",
    "LawAbout": "properties.planting.trial",
    "Raised": "properties.targets.ledger",
    "Target": "properties.targets",
    "TestAt": "properties.planting.trial",
    "Told": "properties.targets.ledger",
    "Unsupported": "properties.targets.modules",
    "Wrong": "properties.targets.ledger",
    "main": "properties.command",
}

__all__ = [
    "Adapter",
    "Bare",
    "Case",
    "Edit",
    "Implementation",
    "KnownBug",
    "KnownFailure",
    "LawAbout",
    "Raised",
    "Target",
    "TestAt",
    "Told",
    "Unsupported",
    "Wrong",
    "main",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: pytest and the command import this file, and need little of it."""
    if name in _PACKAGES:
        return import_module(f"{_HOME}{name}")
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ == "__main__":
    raise SystemExit(__getattr__("main")())
