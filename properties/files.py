"""Files that other processes read or write at the same time."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace the contents of a file atomically."""
    half = path.with_suffix(f".{os.getpid()}")
    # The name of a file, in a traceback, may have bytes that are no text.
    half.write_text(text, encoding="utf-8", errors="backslashreplace")
    half.replace(path)
