"""The report of a failure: what, where, how large, on which versions, and how to reproduce it."""

import ast
import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from traceback import FrameSummary

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.tensors import token_axis
from properties.verdict.compare import Comparison
from properties.verdict.exceptions import first_cause, message_of, printable

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


@dataclass(frozen=True)
class Repro:
    """A law about a case, on a device and of a target: enough to repeat a failure.

    Args:
        law: the law that does not hold.
        case: the case that breaks it.
        device: where its results were computed.
        target: whose kernels computed them.
    """

    law: str
    case: Case
    device: torch.device
    target: str = "ours"

    @property
    def command(self) -> str:
        """The shell command that repeats the failure."""
        case = shlex.quote(self.case.to_json())
        command = f"python -m properties.fuzz --law {self.law} --case {case}"
        if self.target != "ours":
            command += f" --target {self.target}"
        return command if self.device.type == "cpu" else f"{command} --device {self.device.type}"

    @property
    def line(self) -> str:
        return f"REPRO: {self.command}"

    @property
    def lines(self) -> list[str]:
        """The last lines of every report."""
        return [
            f"  case      {self.case.line()}",
            f"  versions  {versions()}, {_device(self.device)}",
            "",
            self.line,
        ]


def report(repro: Repro, comparison: Comparison, dims: Sequence[str], against: str) -> str:
    """The report of a failed comparison.

    Args:
        comparison: a failed one.
        dims: the letter of each dim of the result, ("B", "T", "H", "V").
        against: what the result was compared with, "the oracle".
    """
    c, case = comparison, repro.case
    shape = ", ".join(f"{d}={n}" for d, n in zip(dims, c.got.shape, strict=False))
    dtype = str(c.got.dtype).removeprefix("torch.")
    lines = [
        f"{repro.law} does not hold for {case.op} ({case.mode}, {case.dtype}): "
        f"{c.name} differs from {against}",
        "",
        f"  {c.reason}",
        "",
        f"  result    {c.name} [{shape}] {dtype}",
    ]
    index = c.worst
    if index is not None:
        lines += _numbers(c, case, dims, index)
    return "\n".join([*lines, *repro.lines])


def error_report(repro: Repro, error: BaseException, frames: Sequence[FrameSummary]) -> str:
    """The report of an exception that a target raised under a law.

    Args:
        error: `plain`; its notes say which call raised it.
        frames: the traceback's frames in the target's own code.
    """
    message = printable(message_of(error))
    lines = [f"{repro.law}: {type(error).__name__}{message and f': {message}'}", ""]
    for frame in frames[-_FRAMES:]:
        lines += [f"  at        {frame.filename}:{frame.lineno} in {frame.name}"]
        lines += [f"            {frame.line}"] if frame.line else []
    if not frames:
        lines += ["  at        no line of the target's own code"]
    lines += [f"  call      {printable(note)}" for note in getattr(error, "__notes__", ())]
    cause = first_cause(error)
    if cause is not error:
        lines += [f"  because   {type(cause).__name__}: {printable(message_of(cause))}"]
    return "\n".join([*lines, *repro.lines])


def end_report(repro: Repro, how: str, lines: Sequence[str]) -> str:
    """The report of a case whose process hangs or dies.

    Args:
        how: "hangs", "ends with SIGSEGV".
        lines: where it was, innermost first.
    """
    text = [f"{repro.law}: the process that ran it {how}", ""]
    text += [f"  at        {line}" for line in lines[:_FRAMES]]
    return "\n".join([*text, *repro.lines])


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
        indices = _hit(wrong, axis)
        name = NAMES.get(letter, letter)
        if len(indices) == wrong.shape[axis]:
            parts.append(f"every {name}")
        else:
            parts.append(f"{name} {_ranges(indices)}")
    return [f"            in {', '.join(parts)}"] if parts else []


def _hit(wrong: Tensor, axis: int) -> list[int]:
    """The indices on an axis at which some element is wrong."""
    others = [other for other in range(wrong.ndim) if other != axis]
    hit = wrong.any(dim=others) if others else wrong
    return [int(i) for i in hit.nonzero()]


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
    axis = token_axis(dims)
    if axis is None:
        return []
    token = _hit(wrong, axis)[0]
    text = f"{NAMES[dims[axis]]} {token}"
    if case.packed:
        sequence, token = _in_sequence(case, dims[axis], token)
        text = f"{NAMES[dims[axis]]} {token} of sequence {sequence}"
    tiles = ", ".join(f"{token // size} of {size}" for size in _TILES)
    return [f"  first     {text}, in tile {tiles} tokens"]


@cache
def versions() -> str:
    triton = release("triton")
    known = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    return ", ".join([*known, f"triton {triton}" if triton else "no triton"])


def release(package: str) -> str:
    """The installed release; empty for code that runs without being installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


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
