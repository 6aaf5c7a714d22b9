"""What became of each mutant, kept on disk so that a run can go on where another stopped.

What has passed with many mutants made together is kept as well: as a fate about the part of the
suite that was run, whose `tried` are the mutants.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fate:
    """What became of a mutant.

    Args:
        caught_by: the law, the test file, or the type of the error, that killed it; None if it
            survived.
        check: the law and the case, or the test, that did.
        seconds: of processor time that it took, trials that it survived included.
        tried: checks that it survived, by law or test file.
        suite: a digest of all that could have killed it.
    """

    key: str
    caught_by: str | None
    check: str = ""
    seconds: float = 0.0
    tried: Mapping[str, int] = field(default_factory=dict)
    suite: str = ""


class Fates:
    """Fates by the key of the mutant, written as they come.

    A mutant that was killed once is dead: it would take an edit of its own function to bring it
    back. One that survived is tried again as soon as the suite is another.
    """

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        self.known: dict[str, Fate] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                fate = Fate(**json.loads(line))
            except (ValueError, TypeError):
                continue  # half a line, of a run that was cut off
            self.known[fate.key] = fate

    def get(self, key: str, suite: str) -> Fate | None:
        """The fate about a mutant, if it still stands."""
        fate = self.known.get(key)
        if fate is None or (fate.caught_by is None and fate.suite != suite):
            return None
        return fate

    def add(self, fate: Fate) -> None:
        self.known[fate.key] = fate
        told: dict[str, Any] = asdict(fate)
        with self.path.open("a") as file:
            file.write(json.dumps(told) + "\n")
