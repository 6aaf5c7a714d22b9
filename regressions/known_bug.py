"""What a pinned bug is, and where to find all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from properties.mutants.edit import Edit
from properties.mutants.trial import Pinned


@dataclass(frozen=True, kw_only=True)
class KnownBug:
    """A bug that really happened, and its twin in today's code.

    Args:
        happened: what people saw.
        cause: why, as far as it is known.
        source: project, and number of the report or fix.
        pinned: what notices it: a law about one case, or one test.
        planted: an edit that brings the bug back.
    """

    happened: str
    cause: str
    source: str
    pinned: Pinned
    planted: Edit


def known_bugs() -> dict[str, KnownBug]:
    """Every `BUG` of the modules below `regressions`, by family and file name."""
    return {name: import_module(f"regressions.{name}").BUG for name in _names()}


def _names() -> Iterator[str]:
    for module in walk_packages([str(Path(__file__).parent)]):
        if not module.ispkg and "." in module.name:
            yield module.name
