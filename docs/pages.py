"""Write the pages of the documentation site: the repository's documents, and a page for each op.

Usage: python docs/pages.py FOLDER
"""

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path

from docstrings import Docstring

import kernels
import reference
from properties.catalogue import OPS, Op
from properties.laws import LAWS

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LOG.md",
    "kernels/BENCHMARKS.md",
    "properties/README.md",
    "properties/mutants/README.md",
    "properties/targets/README.md",
    "reference/README.md",
    "regressions/targets/fla/README.md",
    "regressions/targets/torch/README.md",
)
# Arguments that kernels alone have.
_OWN = ("mode", "tile")
INDEX = """\
```{{include}} README.md
```

```{{toctree}}
:hidden:
:caption: Testing
Test your own kernel <properties/targets/README>
laws
What is tested <properties/README>
properties/mutants/README
```

```{{toctree}}
:hidden:
:caption: The spec
Conventions <reference/README>
{ops}
```

```{{toctree}}
:hidden:
:caption: Results
regressions/targets/torch/README
regressions/targets/fla/README
Benchmarks <kernels/BENCHMARKS>
LOG
```

```{{toctree}}
:hidden:
:caption: Project
Contributing <CONTRIBUTING>
CHANGELOG
```
"""


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in (*DOCUMENTS, "README.md"):
        _copy(name, folder)
    _write(folder / "index.md", INDEX.format(ops="\n".join(f"ops/{name}" for name in OPS)))
    # It is part of the index.
    _write(folder / "README.md", (ROOT / "README.md").read_text())
    _write(folder / "laws.md", laws())
    for op in OPS.values():
        _write(folder / "ops" / f"{op.name}.md", page(op))


def _copy(name: str, folder: Path) -> None:
    """Copy a document, and the files that it links to: they become downloads."""
    text = (ROOT / name).read_text()
    _write(folder / name, text)
    for link in re.findall(r"\]\(([^)\s#:]+)", text):
        file = (ROOT / name).parent / link
        if file.suffix != ".md":
            _write(folder / file.resolve().relative_to(ROOT), file.read_text())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def page(op: Op) -> str:
    """Return the page of an op: equation, shapes, both forms, kernels, laws."""
    first, second = Docstring.of(op.oracle), Docstring.of(op.second_form)
    return "\n\n".join(
        part
        for part in (
            f"# {op.name}",
            first.summary,
            first.prose(),
            f"```python\n{_call(op.oracle)}\n```",
            "## Arguments",
            _table(("argument", "meaning", "default", "gradient"), _arguments(op, first)),
            "## Returns",
            _table(("result", "meaning"), first.entries("Returns").items()),
            "## Raises",
            _table(("error", "if"), first.entries("Raises").items()),
            "## Second form",
            second.summary,
            second.prose(),
            "## Source",
            first.source(),
            f"Second form: {second.source()}" if second.source() else "",
            _code(op),
            "## Kernels",
            _kernels(op),
            "## Laws",
            ", ".join(f"[{_words(law)}](../laws.md#{_anchor(law)})" for law in op.laws),
            f"```\npytest properties/test_laws.py --op {op.name}\n```",
        )
        if part
    )


def _call(function: Callable[..., object]) -> str:
    """The call of a function with its defaults, an argument to a line."""
    lines, marked = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            lines.append("*")
            marked = True
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        lines.append(f"{parameter.name}{default}")
    text = f"reference.{function.__name__}({', '.join(lines)})"
    return text if len(text) <= 88 else _broken(function.__name__, lines)


def _broken(name: str, lines: Iterable[str]) -> str:
    return "\n".join([f"reference.{name}(", *(f"    {line}," for line in lines), ")"])


def _arguments(op: Op, said: Docstring) -> Iterator[tuple[str, ...]]:
    """What the docstring and the catalogue know of each argument."""
    tensors = {argument.name: argument for argument in op.arguments}
    entries = said.entries("Args")
    for name, parameter in inspect.signature(op.oracle).parameters.items():
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        gradient = "yes" if name in tensors and tensors[name].differentiable else ""
        yield f"`{name}`", entries[name], default, gradient


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(op: Op) -> str:
    """The page of the spec with both forms, to be unfolded."""
    module = inspect.getmodule(inspect.unwrap(op.oracle))
    assert module is not None and module.__file__ is not None
    text = Path(module.__file__).read_text()
    name = Path(module.__file__).relative_to(ROOT)
    return f"````{{dropdown}} {name}\n```python\n{text}```\n````"


def _kernels(op: Op) -> str:
    """The modes, and what the kernels' docstring says beside the spec's."""
    theirs, ours = Docstring.of(op.oracle), Docstring.of(getattr(kernels, op.name))
    modes = ", ".join(f"`{mode.name}`" for mode in op.modes)
    parts = [f"`kernels.{op.name}` takes the same arguments and `mode` and `tile`. Modes: {modes}."]
    parts += [
        f"`{mode.name}` has no {', '.join(f'`{name}`' for name in sorted(mode.refuses))}."
        for mode in op.modes
        if mode.refuses
    ]
    parts += [text for text in ours.paragraphs() if text not in theirs.paragraphs()]
    said = ours.entries("Args")
    parts.append(_table(("argument", "meaning"), [(f"`{n}`", said[n]) for n in _OWN if n in said]))
    return "\n\n".join(parts)


def laws() -> str:
    """Return the laws: the table of CONTRIBUTING, and what the docstring of each adds."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Laws\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    parts = ["# Laws", "A law is a promise about every case of an op."]
    for name in LAWS:
        said = Docstring.of(import_module(f"properties.laws.{name}"))
        obeyed = [op.name for op in OPS.values() if name in op.laws]
        who = "All ops." if len(obeyed) == len(OPS) else f"Ops: {', '.join(obeyed)}."
        parts += [f"## {_words(name)}", rows[name], said.prose(), who]
    return "\n\n".join(part for part in parts if part)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _anchor(name: str) -> str:
    return name.replace("_", "-")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
