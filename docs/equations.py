"""Typeset the equations of docstrings as MathML, which browsers show without a script.

A line is `left = right`, and after three spaces or more a condition or a remark. Subscripts are
`x_t` or `x_{t-1}`, powers `x ** n`, words of two letters or more are names or functions.
"""

import re
from collections.abc import Iterator
from html import escape

_FUNCTIONS = {"exp", "log", "tanh", "cos", "sin", "max", "min", "diag", "sigmoid", "softmax"}
_PROSE = {"if", "else", "unless", "and", "or", "of", "the", "last", "rows", "tokens", "head", "layer"}
_SUMS = {"Σ": "∑", "Π": "∏"}
_SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "-": "−", "...": "…", "*": "·"}
_TOKEN = re.compile(
    r"(?P<space> +)|(?P<number>\d+(\.\d+)?(e-?\d+)?)|(?P<sum>[ΣΠ])"
    r"|(?P<name>[^\W\d_]+(_[^\W\d_]{3,})*)|(?P<sign>\*\*|<=|>=|!=|\.\.\.|.)"
)
_REMARK = re.compile(r" {3,}")


def block(lines: list[str]) -> str:
    """Return the lines of one indented block as a table of MathML."""
    rows = "".join(map(_row, lines))
    return f'<div class="equations"><math display="block"><mtable>{rows}</mtable></math></div>'


def _row(line: str) -> str:
    if line.startswith(" " * 8):
        # The continuation of the line before.
        return _cells("", _maths(line.strip()), "")
    equation, *rest = _REMARK.split(line.strip())
    left, equals, right = equation.partition(" = ")
    if not equals:
        left, right = "", equation
    while rest and _is_maths(rest[0]):
        right += f"  {rest.pop(0)}"
    remark = f"<mtext>{escape(' '.join(rest))}</mtext>" if rest else ""
    return _cells(_maths(left), ("<mo>=</mo>" if equals else "") + _maths(right), remark)


def _cells(*cells: str) -> str:
    return f"<mtr>{''.join(f'<mtd>{cell}</mtd>' for cell in cells)}</mtr>"


def _is_maths(text: str) -> bool:
    """Whether a piece behind an equation is a condition or another equation, not a remark."""
    if text.startswith("("):
        return False
    return text.split()[0] in _PROSE or bool(re.search(r"[=<_]", text))


def _maths(text: str) -> str:
    return "".join(_Parser(text).sequence(()))


class _Parser:
    """Reads one line from left to right; whatever it does not know, it shows as it is."""

    def __init__(self, text: str) -> None:
        self.tokens = [(m.lastgroup or "sign", m[0]) for m in _tokens(text)]
        self.at = 0

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self.at += 1
        return token

    def skip_space(self) -> bool:
        found = self.peek()[0] == "space"
        self.at += found
        return found

    def sequence(self, closing: tuple[str, ...]) -> list[str]:
        """Everything up to a closing sign, or the end of the line."""
        found: list[str] = []
        before = ""
        while self.peek()[0] != "end" and self.peek()[1] not in closing:
            space = self.skip_space()
            kind, text = self.peek()
            if kind == "end" or text in closing:
                break
            if text == "/" and found and (below := self._denominator()) is not None:
                found[-1] = f"<mfrac>{_bare(found[-1])}{_bare(below)}</mfrac>"
                continue
            item = self.scripted()
            if space and before != "sign" and kind != "sign":
                found.append('<mspace width="0.25em"/>')
            found.append(item)
            before = "sign" if kind == "sign" and text not in ")]|" else kind
        return found

    def _denominator(self) -> str | None:
        """What stands below a slash, if that is one thing."""
        start = self.at
        self.take()
        self.skip_space()
        kind, text = self.peek()
        one = kind in ("name", "number") and text not in _FUNCTIONS or text == "("
        if one:
            return self.scripted()
        self.at = start
        return None

    def scripted(self) -> str:
        """One thing with its primes, subscript, transposition and power."""
        kind, text = self.peek()
        base = self.atom()
        below, above = "", ""
        while True:
            sign = self.peek()[1]
            if sign == "_":
                self.take()
                below = self._script()
            elif sign in ("'", "ᵀ", "²"):
                self.take()
                above += {"'": "<mo>′</mo>", "ᵀ": "<mo>⊤</mo>", "²": "<mn>2</mn>"}[sign]
            elif self._power():
                above += _bare(self.scripted())
            else:
                break
        under = kind == "sum"
        if below and above:
            return f"<msubsup>{base}<mrow>{below}</mrow><mrow>{above}</mrow></msubsup>"
        if below:
            tag = "munder" if under else "msub"
            return f"<{tag}>{base}<mrow>{below}</mrow></{tag}>"
        return f"<msup>{base}<mrow>{above}</mrow></msup>" if above else base

    def _power(self) -> bool:
        """Whether `**` comes next; it is taken then, and the spaces around it."""
        start = self.at
        self.skip_space()
        if self.peek()[1] == "**":
            self.take()
            self.skip_space()
            return True
        self.at = start
        return False

    def _script(self) -> str:
        if self.peek()[1] == "{":
            self.take()
            found = "".join(self.sequence(("}",)))
            self.take()
            return found
        kind, text = self.take()
        letters = "".join(f"<mi>{letter}</mi>" for letter in text) if kind == "name" else ""
        found = letters or f"<mn>{escape(text)}</mn>"
        if kind == "name" and self.peek()[0] == "number":
            found += f"<mn>{self.take()[1]}</mn>"
        return found

    def atom(self) -> str:
        kind, text = self.take()
        if text == "sqrt":
            self.skip_space()
            return f"<msqrt>{_bare(self.scripted())}</msqrt>"
        if text == "(":
            inside = "".join(self.sequence((")",)))
            self.take()
            return f"<mrow><mo>(</mo>{inside}<mo>)</mo></mrow>"
        if kind == "sum":
            return f'<mo movablelimits="false">{_SUMS[text]}</mo>'
        if kind == "number":
            return f"<mn>{text}</mn>"
        if kind == "name":
            return self._name(text)
        shown = escape(_SIGNS.get(text, text))
        return f'<mo stretchy="false">{shown}</mo>'

    def _name(self, text: str) -> str:
        if text in _PROSE:
            return f"<mtext>&nbsp;{text}&nbsp;</mtext>"
        if len(text) > 1:
            return f'<mi mathvariant="normal">{text}</mi>'
        if self.peek()[0] == "number":
            return f"<msub><mi>{text}</mi><mn>{self.take()[1]}</mn></msub>"
        return f"<mi>{text}</mi>"


def _tokens(text: str) -> Iterator[re.Match[str]]:
    return _TOKEN.finditer(text)


def _bare(item: str) -> str:
    """Without the parentheses around all of it."""
    opening, closing = "<mrow><mo>(</mo>", "<mo>)</mo></mrow>"
    if item.startswith(opening) and item.endswith(closing):
        return f"<mrow>{item[len(opening):-len(closing)]}</mrow>"
    return item
