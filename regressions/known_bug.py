"""What a pinned bug is, and where to find all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from properties.device import resolve
from properties.planting.edit import Edit
from properties.planting.trial import Pinned

_HERE = f"{__package__}."


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


def known_bugs() -> dict[str, KnownBug]:
    """Every `BUG` of the modules below `regressions`, by family and file name."""
    return {name.removeprefix(_HERE): import_module(name).BUG for name in _modules(Path(__file__))}


def _modules(package: Path) -> Iterator[str]:
    """The modules of the families, which are the folders here."""
    for module in walk_packages([str(package.parent)], prefix=_HERE):
        if not module.ispkg and module.name.removeprefix(_HERE).count(".") == 1:
            yield module.name


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
