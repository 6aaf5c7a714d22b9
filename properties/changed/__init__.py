"""What a change of the project can reach: `pytest --changed`."""

from properties.changed.reach import Changed
from properties.changed.revision import files_since

__all__ = ["Changed", "files_since"]
