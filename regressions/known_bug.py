"""Known bugs: what one is, how to pin it, where all are."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from properties.cases.case import Case
from properties.catalogue import OPS
from properties.device import resolve
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout, Pinned

FAMILIES = ("cache", "conv", "delta", "layers", "linear", "norm", "position", "softmax")


@dataclass(frozen=True, kw_only=True)
class KnownBug:
    """A bug that really happened, and its twin in today's code.

    Args:
        happened: what people saw.
        cause: why, as far as it is known.
        source: project, and number of the report or fix.
        pinned: what notices it: a law about one case, or one test.
        planted: an edit that brings the bug back.
        only_on: the device that the bug shows on, "cuda" for one of a GPU's compiler, "simulator"
            for a wrong address whose numbers are right; the pinned case itself has to pass
            everywhere.
    """

    happened: str
    cause: str
    source: str
    pinned: Pinned
    planted: Edit
    only_on: str | None = None

    def shows_on(self, device: str) -> bool:
        """Whether the planted bug can be seen on `device`, a name of `properties.device`."""
        return self.only_on in (None, resolve(device))


def pin(
    op: str,
    mode: str,
    dims: Mapping[str, int],
    lengths: tuple[int, ...],
    *,
    law: str = "differential",
    options: Mapping[str, Any] | None = None,
    **fields: Any,
) -> LawAbout:
    """Pin a law and a case.

    Args:
        options: those that differ from the op's defaults, in a call that asks for every output.
        fields: the other fields of `Case`; the dtype is float32 unless it is one of them.
    """
    asked = {output.asked_by: True for output in OPS[op].outputs if output.asked_by}
    defaults = {option.name: option.default for option in OPS[op].options}
    options = {**defaults, **asked, **(options or {})}
    return LawAbout(law, Case.of(op, mode, dims, lengths, options=options, **fields))


def known_bugs() -> dict[str, KnownBug]:
    """Every bug of the families, by family and name."""
    return {
        f"{family}.{name}": bug
        for family in FAMILIES
        for name, bug in import_module(f"{__package__}.{family}").BUGS.items()
    }


def bugs_in(module: str) -> dict[str, KnownBug]:
    """Every `BUG` of a module of another repository, or of all modules of a package, by name.

    Raises:
        ValueError: there is no such module, or no `BUG` in it.
    """
    try:
        package = import_module(module)
    except ImportError as error:
        raise ValueError(f"--module: {module!r} cannot be imported: {error}") from error
    below = walk_packages(getattr(package, "__path__", []), prefix=f"{module}.")
    names = [module, *(found.name for found in below if not found.ispkg)]
    bugs = {
        name.removeprefix(f"{module}."): bug
        for name in names
        if isinstance(bug := getattr(import_module(name), "BUG", None), KnownBug)
    }
    if not bugs:
        raise ValueError(f"--module: {module!r} has no BUG, expected a KnownBug in its modules")
    return bugs
