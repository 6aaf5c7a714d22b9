"""Types for command-line arguments."""

from argparse import ArgumentTypeError


def count(text: str) -> int:
    """Parse a count of at least one."""
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"{number}, expected 1 or more")
    return number


def positive(text: str) -> float:
    """Parse a number above 0."""
    number = float(text)
    if not number > 0:
        raise ArgumentTypeError(f"{number}, expected more than 0")
    return number
