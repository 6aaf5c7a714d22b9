"""Files that commands record in, and that other processes read or write at the same time."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any


@contextmanager
def reading_record(path: Path, options: str = "--record") -> Iterator[None]:
    """Turn errors of reading a record into one that names the options that write it.

    Raises:
        ValueError: the file cannot be read, or has other contents.
    """
    try:
        yield
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        expected = f"expected a file that {options} wrote"
        # The last one has the file.
        raise ValueError(f"{options.split()[-1]}: {path}, {expected}: {error}") from error


@contextmanager
def told_unwritten(option: str, told: dict[str, str]) -> Iterator[None]:
    """Note the last reason why the file of an option was not written, as on a full disk, which
    ends no run.
    """
    told.pop(option, None)
    try:
        yield
    except OSError as error:
        told[option] = f"{option} not written: {error}"


def write_record(path: Path, rows: Mapping[str, Any]) -> None:
    """Replace a record by a JSON object, with a line for each key, in order."""
    lines = [f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows)]
    write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")


def write_atomically(path: Path, contents: str | bytes) -> None:
    """Replace the contents of a file, or of the one that a link leads to; nobody reads a part of
    them.
    """
    path = Path(os.path.realpath(path))
    if isinstance(contents, str):
        # The name of a file, in a traceback, may have bytes that are no text.
        contents = contents.encode("utf-8", errors="backslashreplace")
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        partial.write_bytes(contents)
        partial.replace(path)
    except OSError:
        # A full disk has room for a part only.
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def only_here(path: Path) -> Iterator[None]:
    """Keep others who ask for it from changing a file meanwhile; make an empty one if there is
    none.
    """
    while True:
        with path.open("a") as file:
            flock(file, LOCK_EX)
            # Whoever had it may have replaced it, which leaves a lock on what is gone.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield
                return
