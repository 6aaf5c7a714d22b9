"""Files that other processes read or write at the same time."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace the contents of a file atomically."""
    half = path.with_suffix(f".{os.getpid()}")
    half.write_text(text)
    half.replace(path)
