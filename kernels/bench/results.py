"""All numbers of a run, in a file."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernels.bench.groups import Row


@dataclass
class Results:
    """The measurements of a run so far.

    Args:
        setting: device, versions, command, ceilings.
        rows: in the order in which they were measured.
        left_out: groups that there was no time for.
        unwritten: why the last write failed, as on a full disk; empty if it did not.
    """

    setting: Mapping[str, Any]
    rows: list[Row] = field(default_factory=list)
    left_out: Sequence[str] = ()
    unwritten: str = ""

    def write(self, path: Path) -> None:
        """Write them as JSON; the file is the one before or the new one, never a part.

        A file that cannot be written ends no run.
        """
        found = {
            **self.setting,
            "left_out": list(self.left_out),
            "rows": [asdict(row) for row in self.rows],
        }
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(found, indent=1) + "\n")
            beside.replace(path)
            self.unwritten = ""
        except OSError as error:
            self.unwritten = str(error)
        finally:
            with suppress(OSError):
                beside.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> "Results":
        """From a file.

        Raises:
            ValueError: it is no file of results.
        """
        try:
            found = json.loads(path.read_text())
            rows = [Row.read(fields) for fields in found.pop("rows")]
            return cls(setting=found, left_out=found.pop("left_out"), rows=rows)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: no results of kernels.bench ({error})") from error
