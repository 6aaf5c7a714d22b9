"""Translate inline PTX assembly of one lane, straight float32 code, to NumPy.

It supports arithmetic, comparisons into predicates, and predicated instructions, as elementwise
helpers use them. Other statements raise an error that names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

OPERATIONS = {
    "mov": "{0}",
    "neg": "-{0}",
    "abs": "np.abs({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "min": "np.fmin({0}, {1})",
    "max": "np.fmax({0}, {1})",
    "fma": "fused_multiply_add({0}, {1}, {2})",
    "ex2": "np.exp2({0})",
    "lg2": "np.log2({0})",
    "rcp": "1 / {0}",
    "sqrt": "np.sqrt({0})",
    "rsqrt": "1 / np.sqrt({0})",
    "sin": "np.sin({0})",
    "cos": "np.cos({0})",
    "tanh": "np.tanh({0})",
}
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
MODIFIERS = {"rn", "approx", "full", "ftz", "f32"}
STATEMENT = re.compile(r"(?:@(!?)(%?\w+) )?([a-z]\w*)((?:\.\w+)+) (.*)")


LAUNCH_ORDER = re.compile(r"\s*griddepcontrol\.(wait|launch_dependents)\s*;\s*(//.*)?\s*")


class UnknownAssembly(ValueError):
    """Assembly that is not understood; the message is the statement."""


def orders_launches(text: str) -> bool:
    """Whether all that assembly does is to let the next launch begin, or to wait for the last."""
    return LAUNCH_ORDER.fullmatch(text) is not None


def translate(
    text: str, results: int, arguments: list[str], fresh: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    """Translate assembly to Python.

    Args:
        text: the assembly; its operands `$0`, `$1`, ... are the results, then the arguments.
        results: how many of them are results.
        arguments: expressions of the others.
        fresh: makes a new Python name like the given one.

    Returns:
        Lines of Python, and the expressions of the results.

    Raises:
        UnknownAssembly: a statement that is not float32 arithmetic of one lane.
    """
    values = {f"${results + n}": name for n, name in enumerate(arguments)}
    lines: list[str] = []
    for statement in re.split(r"[;{}\n]", text):
        statement = " ".join(statement.split())
        if not statement or statement.startswith(".reg "):
            continue
        match = STATEMENT.fullmatch(statement)
        if match is None:
            raise UnknownAssembly(statement)
        negated, guard, name, suffix, rest = match.groups()
        target, *operands = re.split(r", ?", rest)
        value = _value(name, suffix[1:].split("."), [_operand(o, values) for o in operands])
        if value is None or (guard is not None and guard not in values):
            raise UnknownAssembly(statement)
        if guard is not None and target in values:
            sides = (value, values[target])
            chosen, other = reversed(sides) if negated else sides
            value = f"np.where({values[guard]}, {chosen}, {other})"
        # First assignment: inactive lanes are undefined.
        variable = fresh("asm")
        lines.append(f"{variable} = {value}")
        values[target] = variable
    missing = [f"${n}" for n in range(results) if f"${n}" not in values]
    if missing:
        raise UnknownAssembly(f"{missing[0]} is never written")
    return lines, [values[f"${n}"] for n in range(results)]


def _operand(text: str, values: dict[str, str]) -> str:
    if text in values:
        return values[text]
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
        return f"np.uint32(0x{match[1]}).view(np.float32)"
    if re.fullmatch(r"-?\d+\.?\d*(?:[eE][+-]?\d+)?", text):
        return f"np.float32({text})"
    raise UnknownAssembly(text)


def _value(name: str, suffix: list[str], operands: list[str]) -> str | None:
    if "f32" not in suffix:
        return None
    if name == "setp" and suffix[0] in COMPARISONS and set(suffix[1:]) <= MODIFIERS:
        return f"{operands[0]} {COMPARISONS[suffix[0]]} {operands[1]}"
    if name not in OPERATIONS or not set(suffix) <= MODIFIERS:
        return None
    return OPERATIONS[name].format(*operands)
