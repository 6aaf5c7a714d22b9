"""Turn the docstring of a function into Markdown, with its equations typeset."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from textwrap import dedent

from equations import block

_HEADING = re.compile(r"^(Args|Returns|Raises|Source):(.*)$")
_ENTRY = re.compile(r"^([\w*, ]+): (.*)$")


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
        for indented, lines in groupby(self.body, lambda line: line.startswith("    ")):
            parts.append(block([*lines]) if indented else _markdown(lines))
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


def _markdown(lines: Iterator[str] | list[str]) -> str:
    r"""The lines with signs of the mathematics that Markdown would take for its own: x_t, |x|."""
    pieces = re.split(r"(`[^`]*`)", "\n".join(lines).strip())
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\\*_|<\[\]$])", r"\\\1", piece) for piece in pieces
    )
