"""Types for command-line arguments."""

import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from math import inf
from pathlib import Path


def count(text: str) -> int:
    """Parse a count of at least one."""
    return int(_number(int, text, 1, "an integer of at least 1"))


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    return _number(float, text, 5e-324, "a finite number above 0")


def file(text: str) -> Path:
    """Parse the path of a file to write."""
    path = Path(text)
    # Unlike those of `Path`, these raise nothing for a name that is too long.
    if os.path.isdir(path) or not (os.path.isdir(path.parent) and os.access(path.parent, os.W_OK)):
        raise ArgumentTypeError(f"{text!r}, expected a file in a folder that exists")
    if os.path.exists(path) and not os.path.isfile(path):
        # A device such as /dev/null would be replaced by a file, and reading a pipe may never end.
        raise ArgumentTypeError(f"{text!r}, expected a regular file")
    return path


def file_to_read(text: str) -> Path:
    """Parse the path of a file to read."""
    path = Path(text)
    if not (os.path.isfile(path) and os.access(path, os.R_OK)):
        raise ArgumentTypeError(f"{text!r}, expected a file that can be read")
    return path


def folder(text: str) -> Path:
    """Parse the path of a folder to write to, which need not exist yet."""
    path = Path(text)
    # A link that leads nowhere is there.
    there = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
    # An unset variable of a shell gives an empty text.
    if not text or not (os.path.isdir(there) and os.access(there, os.W_OK)):
        raise ArgumentTypeError(f"{text!r}, expected a folder that can be written to")
    return path


def _number(kind: Callable[[str], float], text: str, least: float, expected: str) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = inf
    if not least <= number < inf:
        raise ArgumentTypeError(f"{text!r}, expected {expected}")
    return number
