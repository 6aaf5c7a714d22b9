"""Turn the docstring of a function into Markdown, with its equations typeset."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from textwrap import dedent

from equations import block, typeset

_HEADING = re.compile(r"^(Args|Returns|Raises|Source):(.*)$")
_MARKUP = re.compile(r"([\\*_|<\[\]$])")
# A name with a subscript: k_t, S_{t-1}, k_tᵀ.
_FORMULA = re.compile(r"(\b[^\W\d_]+_(?:\{[^{}]*\}|[^\W_ᵀ²]{1,2}(?![^\W_ᵀ²]))[ᵀ²]?)")
_ENTRY = re.compile(r"^(\w[\w*, ]*): (.*)$")


@dataclass(frozen=True)
class Docstring:
    """
    Args:
        summary: the first line.
        body: the lines between the summary and the first section.
        sections: heading → its lines.
    """

    summary: str
    body: list[str]
    sections: dict[str, list[str]]

    @classmethod
    def of(cls, function: Callable[..., object]) -> "Docstring":
        summary, *lines = (inspect.getdoc(function) or "").splitlines()
        sections: dict[str, list[str]] = {"": []}
        here = ""
        for line in lines:
            if found := _HEADING.match(line):
                here = found[1]
                sections[here] = [found[2].strip()] if found[2].strip() else []
            else:
                sections[here].append(line)
        return cls(summary, sections.pop(""), sections)

    def prose(self) -> str:
        """Return the body, its indented blocks as equations."""
        parts = []
        for indented, some in groupby(self.body, lambda line: line.startswith("    ")):
            lines = [*some]
            parts.append(block(lines) if indented else _markdown(lines))
        return "\n\n".join(part for part in parts if part.strip())

    def paragraphs(self) -> list[str]:
        """Return the paragraphs of the body that are no equations, as Markdown."""
        lines = (line for line in self.body if not line.startswith("    "))
        return [_markdown([text]) for text in "\n".join(lines).split("\n\n") if text.strip()]

    def entries(self, heading: str) -> dict[str, str]:
        """Return the entries of Args, Returns or Raises: name → Markdown."""
        found: dict[str, str] = {}
        name = ""
        for line in dedent("\n".join(self.sections.get(heading, ()))).splitlines():
            if entry := _ENTRY.match(line):
                name = entry[1]
                found[name] = entry[2]
            elif name:
                found[name] += f" {line.strip()}"
        return {name: _markdown([text]) for name, text in found.items()}

    def source(self) -> str:
        return _markdown(" ".join(map(str.strip, self.sections.get("Source", ()))).splitlines())


def _markdown(lines: list[str]) -> str:
    """The lines with their formulas typeset, and signs escaped that Markdown has for itself."""
    pieces = re.split(r"(`[^`]*`)", "\n".join(lines).strip())
    return "".join(piece if piece.startswith("`") else _escaped(piece) for piece in pieces)


def _escaped(text: str) -> str:
    # Every second piece is a formula.
    pieces = enumerate(_FORMULA.split(text))
    return "".join(typeset(x) if n % 2 else _MARKUP.sub(r"\\\1", x) for n, x in pieces)
