"""The share of each module's mutants that the suite killed when all of them were last tried.

    python -m properties.mutants --record properties/mutants

A run replaces the rows of modules of which it tried every mutant.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from properties.files import reading_record, write_record
from properties.mutants.mutant import Mutant, modules

PATH = Path(__file__).with_suffix(".json")
SEMANTIC_PATH = PATH.with_name("semantic_shares.json")


@dataclass(frozen=True)
class Share:
    """Counts of a module's mutants.

    Args:
        equivalent: those listed as equivalent.
        elsewhere: those that only another device can show.
    """

    mutants: int
    killed: int
    equivalent: int = 0
    elsewhere: int = 0


def read(path: Path = PATH) -> dict[str, Share]:
    """Read the known shares; empty if there is no file.

    Raises:
        ValueError: the file has other contents.
    """
    if not path.exists():
        return {}
    with reading_record(path):
        return {name: Share(**row) for name, row in json.loads(path.read_text()).items()}


def write(path: Path, shares: Mapping[str, Share]) -> None:
    """Replace the file's contents, in order."""
    write_record(path, {name: asdict(share) for name, share in shares.items()})


def whole(
    shares: Mapping[str, Share], every: Iterable[Mutant], *, semantic: bool = False
) -> dict[str, Share]:
    """The shares of modules of which every mutant was tried; 0 of 0 for a module without
    mutants.
    """
    sizes = Counter(mutant.module for mutant in every)
    tried = {name: shares.get(name, Share(0, 0)) for name, _ in modules(semantic=semantic)}
    return {name: share for name, share in tried.items() if share.mutants == sizes[name]}
