"""The console that commands print to."""

from typing import Any

from rich.console import Console


def screen(**options: Any) -> Console:
    """A console; 80 columns wide where COLUMNS is 0, since rich prints nothing at all there."""
    made = Console(**options)
    if not made.width:
        made.width = 80
    return made
