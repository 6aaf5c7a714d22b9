"""Exceptions of a target, whose types may be its own and answer a question with an error."""

from contextlib import suppress
from types import TracebackType

# Exceptions that one was raised from.
_MOST_CAUSES = 20
# Characters of an exception's text: a compiler may put a whole program there.
_MOST_TEXT = 4000
# Characters of the name of an exception's type.
_MOST_NAME = 100


def first_cause(error: BaseException) -> BaseException:
    """The exception that others were raised from, as by Triton for each call within a kernel, or
    the first of a group.
    """
    for _ in range(_MOST_CAUSES):
        cause = BaseException.__dict__["__cause__"].__get__(error)
        if cause is None and isinstance(error, BaseExceptionGroup):
            cause = BaseExceptionGroup.__dict__["exceptions"].__get__(error)[0]
        if cause is None:
            break
        error = plain(cause)
    return error


def message_of(error: BaseException) -> str:
    """The text of an exception, whose type may be the target's own and fail to say it."""
    try:
        # The text may be a str of the target's own type, too.
        return str.__str__(str(error))
    except BaseException as worse:
        return f"its text raises {type(worse).__name__}"


def plain(error: BaseException) -> BaseException:
    """An exception as it is, or with the name, text and traceback alone if its type, which may be
    the target's own, answers other questions of a report with an error or a value that is none.
    """
    kind = type(error)
    name = printable(type.__dict__["__name__"].__get__(kind)[:_MOST_NAME])
    with suppress(BaseException):
        notes = getattr(error, "__notes__", [])
        if (
            type(kind.__name__) is str
            and kind.__name__ == name
            and error.__class__ is kind
            and isinstance(error.__traceback__, TracebackType | None)
            and type(notes) is list
            and all(type(note) is str for note in notes)
            and isinstance(getattr(error, "errno", None), int | None)
        ):
            return error
    base = Exception if issubclass(kind, Exception) else BaseException
    traceback = BaseException.__dict__["__traceback__"].__get__(error)
    made: BaseException = type(name, (base,), {})(message_of(error))
    return made.with_traceback(traceback)


def printable(text: str) -> str:
    """A text of the target's, not too long, for a terminal and for a page."""
    # Colours and other control characters are a terminal's commands, and no text of a page.
    parts = (c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text[:_MOST_TEXT])
    more = len(text) - _MOST_TEXT
    return "".join(parts) + (f" … and {more} more characters" if more > 0 else "")
