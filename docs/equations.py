"""Typeset the equations of docstrings as HTML: no script, and no font that has to be there.

A line is `left = right`, and after three spaces or more a condition or a remark. Subscripts are
`x_t` or `x_{t-1}`, powers `x ** n`; words of two letters or more are names or functions.
"""

import re
from html import escape

# Words between equations. Others of two letters or more are upright names.
_PROSE = {"if", "else", "unless", "and", "of", "the", "last", "rows", "tokens", "head", "layer"}
_SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "-": "−", "...": "…", "Σ": "∑", "Π": "∏", "'": "′"}
_RAISED = {"ᵀ": "T", "²": "2"}
_EQUATION = re.compile(r"^(.*?) += (.*)$")
_GAP = re.compile(r" {3,}")
_PIECE = re.compile(
    r"_\{(?P<braced>(?:[^{}]|\{[^{}]*\})*)\}"
    # x_ij, and not the underscore of a name like rotary_dim.
    r"|_(?P<index>[^\W_ᵀ²]{1,2}(?![^\W_ᵀ²]))"
    r"| ?\*\* ?(?:\((?P<group>[^()]*)\)|(?P<exponent>\w+))"
    r"|(?P<sign><=|>=|!=|\.\.\.|[ΣΠᵀ²]|[^\w{])"
    r"|(?P<name>[^\W\d_]+(?:_[^\W\d_]{3,})*)"
)


def block(lines: list[str]) -> str:
    """Return the lines of one indented block as a table."""
    rows = "".join(map(_row, lines))
    return f'<div class="equations"><table><tbody>{rows}</tbody></table></div>'


def _row(line: str) -> str:
    # A line that begins far to the right goes on with the one before.
    found = None if line.startswith(" " * 8) else _EQUATION.match(line.strip())
    left, right = found.groups() if found else ("", line.strip())
    right, *rest = _GAP.split(right)
    while rest and _is_mathematics(rest[0]):
        right += f"  {rest.pop(0)}"
    cells = (typeset(left), "=" if found else "", typeset(right), escape(" ".join(rest)))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _is_mathematics(text: str) -> bool:
    """Whether a piece behind an equation is a condition or another equation, not a remark."""
    return text.split()[0] in _PROSE or (text[0] != "(" and bool(re.search(r"[=<_]", text)))


def typeset(text: str) -> str:
    """Return one formula as HTML."""
    return _PIECE.sub(_piece, text)


def _piece(found: re.Match[str]) -> str:
    if (braced := found["braced"]) is not None:
        return f"<sub>{typeset(braced)}</sub>"
    if index := found["index"]:
        return f"<sub>{''.join(map(typeset, index))}</sub>"
    if power := found["group"] or found["exponent"]:
        return f"<sup>{typeset(power)}</sup>"
    if sign := found["sign"]:
        raised = _RAISED.get(sign)
        return f"<sup>{raised}</sup>" if raised else escape(_SIGNS.get(sign, sign))
    name = found["name"]
    return name if len(name) > 1 else f"<i>{name}</i>"
