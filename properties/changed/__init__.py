"""The tests that a change can reach: `pytest --changed`."""

from properties.changed.reach import Changed
from properties.changed.revision import files_since

__all__ = ["Changed", "files_since"]
