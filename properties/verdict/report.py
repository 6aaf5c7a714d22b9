"""The report of a failure: what, where, how large, on which versions, and how to reproduce it."""

import ast
import os
import platform
import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from traceback import FrameSummary
from types import TracebackType

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.verdict.compare import Comparison

# Dim → what its indices count.
NAMES = {
    "B": "sequence",
    "N": "sequence",
    "T": "token",
    "S": "key token",
    "H": "head",
    "G": "kv head",
    "K": "key dim",
    "V": "value dim",
    "V+normalize": "value dim",
    "D": "dim",
}
_TILES = (16, 32, 64, 128)
_FRAMES = 3
# Exceptions that one was raised from.
_CAUSES = 20
# Characters of an exception's text: those of a compiler may hold a whole program.
_TEXT = 4000
# Those of an exception's name.
_NAME = 100


def report(
    law: str,
    case: Case,
    comparison: Comparison,
    dims: Sequence[str],
    against: str,
    device: torch.device,
    target: str = "ours",
) -> str:
    """The report of a failed comparison.

    Args:
        law: the law that does not hold.
        comparison: a failed one.
        dims: the letter of each dim of the result, ("B", "T", "H", "V").
        against: what the result was compared with, "the oracle".
        device: where it was computed.
        target: whose kernels computed it.
    """
    c = comparison
    shape = ", ".join(f"{d}={n}" for d, n in zip(dims, c.got.shape, strict=False))
    dtype = str(c.got.dtype).removeprefix("torch.")
    lines = [
        f"{law} does not hold for {case.op} ({case.mode}, {case.dtype}): {c.name} differs from "
        f"{against}",
        "",
        f"  {c.reason}",
        "",
        f"  result    {c.name} [{shape}] {dtype}",
    ]
    index = c.worst
    if index is not None:
        lines += _numbers(c, case, dims, index)
    return "\n".join([*lines, *_context(law, case, device, target)])


def error_report(
    law: str,
    case: Case,
    error: BaseException,
    frames: Sequence[FrameSummary],
    device: torch.device,
    target: str = "ours",
) -> str:
    """The report of an exception that a target raised under a law.

    Args:
        error: `plain`; its notes say which call raised it.
        frames: the traceback's frames in the target's own code.
    """
    message = _shown(message_of(error))
    lines = [f"{law}: {type(error).__name__}{message and f': {message}'}", ""]
    for frame in frames[-_FRAMES:]:
        lines += [f"  at        {frame.filename}:{frame.lineno} in {frame.name}"]
        lines += [f"            {frame.line}"] if frame.line else []
    if not frames:
        lines += ["  at        no line of the target's own code"]
    lines += [f"  call      {_shown(note)}" for note in getattr(error, "__notes__", ())]
    cause = _first_cause(error)
    if cause is not error:
        lines += [f"  because   {type(cause).__name__}: {_shown(message_of(cause))}"]
    return "\n".join([*lines, *_context(law, case, device, target)])


def _first_cause(error: BaseException) -> BaseException:
    """The exception that others were raised from, as by Triton for each call within a kernel."""
    for _ in range(_CAUSES):
        cause = BaseException.__dict__["__cause__"].__get__(error)
        if cause is None:
            break
        error = plain(cause)
    return error


def message_of(error: BaseException) -> str:
    """The text of an exception, whose type may be the target's own and fail to say it."""
    try:
        # Of a type of ours, not of its own.
        return str.__str__(str(error))
    except BaseException as worse:
        return f"its text raises {type(worse).__name__}"


def plain(error: BaseException) -> BaseException:
    """An exception as it is, or with the name, text and traceback alone if its type, which may be
    the target's own, answers other questions of a report with an error or a value that is none.
    """
    kind = type(error)
    name = _shown(type.__dict__["__name__"].__get__(kind)[:_NAME])
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


def _shown(text: str) -> str:
    """A text of the target's, not too long, for a terminal and for a page."""
    # Colours and other control characters are a terminal's commands, and no text of a page.
    parts = (c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text[:_TEXT])
    more = len(text) - _TEXT
    return "".join(parts) + (f" … and {more} more characters" if more > 0 else "")


def end_report(
    law: str,
    case: Case,
    how: str,
    lines: Sequence[str],
    device: torch.device,
    target: str = "ours",
) -> str:
    """The report of a case whose process hangs or dies.

    Args:
        how: "hangs", "ends with SIGSEGV".
        lines: where it was, innermost first.
    """
    text = [f"{law}: the process that ran it {how}", ""]
    text += [f"  at        {line}" for line in lines[:_FRAMES]]
    return "\n".join([*text, *_context(law, case, device, target)])


def _context(law: str, case: Case, device: torch.device, target: str) -> list[str]:
    """The last lines of every report."""
    return [
        f"  case      {case.line()}",
        f"  versions  {versions()}, {_device(device)}",
        "",
        repro(law, case, device, target),
    ]


def repro(law: str, case: Case, device: torch.device, target: str) -> str:
    command = f"python -m properties.fuzz --law {law} --case {shlex.quote(case.to_json())}"
    if target != "ours":
        command += f" --target {target}"
    if device.type != "cpu":
        command += f" --device {device.type}"
    return f"REPRO: {command}"


def _numbers(c: Comparison, case: Case, dims: Sequence[str], index: tuple[int, ...]) -> list[str]:
    got, want = float(c.got[index]), float(c.want[index])
    allowed = float(c.allowed[index])
    error = abs(got - want)
    times = f", {error / allowed:.3g} times the budget" if allowed > 0 and error >= 0 else ""
    lines = [
        f"  worst     {_place(case, dims, index)}",
        f"            got {got:.9g}, want {want:.9g}",
        f"            error {error:.3g}, budget {allowed:.3g} ({c.rule}){times}",
    ]
    if c.loss > 0:
        lines += [f"            mean error/sigma at {c.loss:.3g} of its limit"]
    count = int(c.wrong.sum())
    if count:
        lines += [
            f"  wrong     {count} of {c.wrong.numel()} elements ({c.fraction_wrong:.3%})"
            + _not_finite(c.got),
            *_extent(c.wrong, case, dims),
            *_first(c.wrong, case, dims),
        ]
    return lines


def _place(case: Case, dims: Sequence[str], index: Sequence[int]) -> str:
    """The index in words; tokens of packed sequences are counted within their own."""
    words = []
    for letter, i in zip(dims, index, strict=True):
        if case.packed and letter in "TS":
            sequence, token = _in_sequence(case, letter, i)
            words += [f"sequence {sequence}", f"{NAMES[letter]} {token} ({i} of the pack)"]
        elif not (case.packed and letter == "B"):
            words.append(f"{NAMES.get(letter, letter)} {i}")
    return ", ".join(words) or "the only element"


def _in_sequence(case: Case, letter: str, token: int) -> tuple[int, int]:
    lengths = case.lengths if letter == "T" else case.key_lengths or case.lengths
    ends = list(accumulate(lengths))
    sequence = next((n for n, end in enumerate(ends) if token < end), len(ends) - 1)
    return sequence, token - ends[sequence] + lengths[sequence]


def _not_finite(got: Tensor) -> str:
    nan, infinite = int(got.isnan().sum()), int(got.isinf().sum())
    return f", of the result {nan} NaN and {infinite} infinite" if nan or infinite else ""


def _extent(wrong: Tensor, case: Case, dims: Sequence[str]) -> list[str]:
    """The indices of each dim that have wrong elements."""
    parts = []
    for axis, letter in enumerate(dims):
        if case.packed and letter == "B":
            continue
        others = [a for a in range(wrong.ndim) if a != axis]
        hit = wrong.any(dim=others) if others else wrong
        indices = [int(i) for i in hit.nonzero()]
        name = NAMES.get(letter, letter)
        if len(indices) == len(hit):
            parts.append(f"every {name}")
        else:
            parts.append(f"{name} {_ranges(indices)}")
    return [f"            in {', '.join(parts)}"] if parts else []


def _ranges(indices: list[int], most: int = 6) -> str:
    """ "0 3-7 9", and how many more there are."""
    runs: list[list[int]] = []
    for i in indices:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:most]]
    more = sum(b - a + 1 for a, b in runs[most:])
    return " ".join(shown) + (f" and {more} more" if more else "")


def _first(wrong: Tensor, case: Case, dims: Sequence[str]) -> list[str]:
    """The first wrong token, and its tile for the usual sizes."""
    axis = next((a for a, letter in enumerate(dims) if letter in ("T", "S")), None)
    if axis is None:
        return []
    others = [a for a in range(wrong.ndim) if a != axis]
    hit = wrong.any(dim=others) if others else wrong
    token = int(hit.nonzero()[0])
    text = f"{NAMES[dims[axis]]} {token}"
    if case.packed:
        sequence, token = _in_sequence(case, dims[axis], token)
        text = f"{NAMES[dims[axis]]} {token} of sequence {sequence}"
    tiles = ", ".join(f"{token // size} of {size}" for size in _TILES)
    return [f"  first     {text}, in tile {tiles} tokens"]


@cache
def versions() -> str:
    known = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    try:
        known.append(f"triton {version('triton')}")
    except PackageNotFoundError:
        known.append("no triton")
    return ", ".join(known)


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "interpreter" if os.environ.get("TRITON_INTERPRET") == "1" else "simulator"


def regression_file(case: Case, law: str, module: str = "kernels.") -> str:
    """The source of a module for `regressions/`, with blanks for what only a person knows.

    An edit that is not filled in does not apply, so the file cannot pass by accident.

    Args:
        module: where the bug is likely to be.
    """
    call = ast.parse(case.line(), mode="eval").body
    assert isinstance(call, ast.Call)
    lines = [f"            {ast.unparse(keyword)}," for keyword in call.keywords]
    arguments = "\n".join(lines).replace("'", '"')
    return f'''"""{case.op} ({case.mode}): the law "{law}" does not hold.

Here a bug is an entry of `BUGS` in the module of its family; elsewhere it is a module with a `BUG`.
"""

from properties.cases.case import Case
from properties.planting.edit import Edit
from properties.planting.trial import LawAbout
from regressions.known_bug import KnownBug

BUG = KnownBug(
    happened="what people see",
    cause="why",
    source="found by python -m properties.fuzz",
    pinned=LawAbout(
        "{law}",
        Case(
{arguments}
        ),
    ),
    # The edit that undoes the fix.
    planted=Edit(module="{module}", before="", after=""),
)
'''
