"""The fate of each mutant, kept on disk so that a run can continue another.

When many mutants pass a unit of the suite together, that is kept as a fate of the unit, with the
mutants in `tried`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Fate:
    """Whether a mutant was killed, and by what.

    Args:
        caught_by: the law, the test file, or the type of the error that killed it; None if it
            survived.
        check: the law and case, or the test.
        seconds: processor time of its trials.
        tried: checks that it survived, by law or test file.
        suite: a digest of everything that could kill it.
    """

    key: str
    caught_by: str | None
    check: str = ""
    seconds: float = 0.0
    tried: Mapping[str, int] = field(default_factory=dict)
    suite: str = ""


class Fates:
    """Fates by the mutant's key, written as they come.

    A killed mutant stays killed until its function changes. A survivor is tried again when the
    suite changes.

    Attributes:
        unwritten: why some were not kept, as on a full disk; empty if all were.
    """

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path, self.unwritten = path, ""
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        self.known: dict[str, Fate] = {}
        for line in path.read_bytes().splitlines() if path.exists() else []:
            try:
                fate = Fate(**json.loads(line))
            except (ValueError, TypeError):
                continue  # half a line of a run that was cut off
            self.known[fate.key] = fate

    def get(self, key: str, suite: str) -> Fate | None:
        fate = self.known.get(key)
        if fate is None or (fate.caught_by is None and fate.suite != suite):
            return None
        return fate

    def add(self, fate: Fate) -> None:
        self.known[fate.key] = fate
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(fate)) + "\n")
        except OSError as error:
            self.unwritten = str(error)
