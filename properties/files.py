"""Files that others may read, or write, at the same time."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace a file by this text, or leave it as it is: nobody sees a half."""
    half = path.with_suffix(f".{os.getpid()}")
    half.write_text(text)
    half.replace(path)
