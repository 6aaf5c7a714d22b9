"""Linear recurrences."""
