"""The largest error / budget of each op, kept over many runs.

    python -m properties.fuzz --record properties/verdict/worst.json

The file has a row for every op, dtype and device. A run adds its examples and raises the largest
error / budget.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from properties.files import only_here, reading_record, write_atomically

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Record:
    """Examples and largest error of one op, dtype and device.

    Args:
        device: "simulator", "interpreter" or the name of a GPU.
        worst: largest error as a fraction of its budget.
    """

    op: str
    dtype: str
    device: str
    examples: int
    worst: float

    @property
    def key(self) -> Key:
        return self.op, self.dtype, self.device

    def __add__(self, other: "Record") -> "Record":
        assert self.key == other.key
        return Record(*self.key, self.examples + other.examples, max(self.worst, other.worst))


def read(path: Path) -> dict[Key, Record]:
    """The records in a file; none if it does not exist.

    Raises:
        ValueError: the file has other contents.
    """
    with reading_record(path):
        text = path.read_text() if path.exists() else ""
        # `add` makes an empty file first.
        data = json.loads(text) if text else []
        if not isinstance(data, list):
            raise TypeError("no list")
        rows = [Record(**row) for row in data]
        for row in rows:
            if [*map(type, (*row.key, row.examples))] != [str, str, str, int]:
                raise TypeError(f"{row} is none of its rows")
            float(row.worst)
        return {row.key: row for row in rows}


def write(path: Path, rows: Mapping[Key, Record]) -> None:
    """Replace the file's contents, in order."""
    text = ",\n".join(json.dumps(asdict(rows[key])) for key in sorted(rows))
    write_atomically(path, f"[\n{text}\n]\n")


def add(path: Path, rows: Mapping[Key, Record]) -> None:
    """Add to a file, to which other runs may add at the same time.

    Raises:
        ValueError: the file has other contents.
        OSError: it cannot be written.
    """
    with only_here(path):
        write(path, added(read(path), rows))


def added(known: Mapping[Key, Record], new: Mapping[Key, Record]) -> dict[Key, Record]:
    """Merge two sets of records, adding those with one key."""
    return {**known, **{k: known[k] + row if k in known else row for k, row in new.items()}}
