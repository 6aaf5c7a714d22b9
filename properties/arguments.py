"""Numbers on command lines."""

from argparse import ArgumentTypeError


def count(text: str) -> int:
    """How many of something there are to be, at least one."""
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"{number}, expected 1 or more")
    return number


def duration(text: str) -> float:
    """A time, in whatever unit."""
    number = float(text)
    if not number > 0:
        raise ArgumentTypeError(f"{number}, expected more than 0")
    return number
