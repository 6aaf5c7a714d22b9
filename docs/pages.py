"""Write the pages of the documentation site into build/docs.

They are the repository's documents as they are, a page for each op of the catalogue, and the laws.
"""

import inspect
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

from docstrings import Docstring

import kernels
from properties.catalogue import OPS, Op
from properties.laws import LAWS

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LOG.md",
    "examples/scalar_decay/README.md",
    "kernels/BENCHMARKS.md",
    "properties/README.md",
    "properties/mutants/README.md",
    "properties/targets/README.md",
    "reference/README.md",
    "regressions/targets/fla/README.md",
    "regressions/targets/sglang/README.md",
    "regressions/targets/torch/README.md",
    "regressions/targets/transformers/README.md",
    "regressions/targets/vllm/README.md",
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
examples/scalar_decay/README
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
regressions/targets/transformers/README
regressions/targets/sglang/README
regressions/targets/vllm/README
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


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in DOCUMENTS:
        _copy(name)
    _write(PAGES / "index.md", INDEX.format(ops="\n".join(f"ops/{name}" for name in OPS)))
    _write(PAGES / "laws.md", laws())
    for op in OPS.values():
        _write(PAGES / "ops" / f"{op.name}.md", page(op))


def _copy(name: str) -> None:
    """Copy a document, and the files that it links to: they become downloads."""
    text = (ROOT / name).read_text()
    _write(PAGES / name, text)
    for link in re.findall(r"\]\(([\w./-]+)[)#]", text):
        file = (ROOT / name).parent / link
        if file.suffix != ".md":
            _write(PAGES / file.resolve().relative_to(ROOT), file.read_text())


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
            f"`{_call(op)}`",
            "## Arguments",
            _table(("argument", "meaning"), _arguments(op, first)),
            f"Gradients: {', '.join(f'`{a.name}`' for a in op.arguments if a.differentiable)}.",
            "## Returns",
            _table(("result", "meaning"), _named(first.entries("Returns"))),
            "## Raises",
            _table(("error", "if"), _named(first.entries("Raises"))),
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
            f"```\npytest properties/suite/test_laws.py --op {op.name}\n```",
        )
        if part
    )


def _call(op: Op) -> str:
    """The names of the arguments, in their order."""
    positional, named = [], []
    for parameter in inspect.signature(op.oracle).parameters.values():
        (named if parameter.kind is parameter.KEYWORD_ONLY else positional).append(parameter.name)
    return f"reference.{op.name}({', '.join(positional)}, *, {', '.join(named)})"


def _arguments(op: Op, said: Docstring) -> Iterator[tuple[str, str]]:
    """Each argument with its default, and what the docstring says of it."""
    entries = said.entries("Args")
    for name, parameter in inspect.signature(op.oracle).parameters.items():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        yield f"`{name}{default}`", entries[name]


def _named(entries: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", text) for name, text in entries.items()]


def _table(heading: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(op: Op) -> str:
    """The page of the spec with both forms, to be unfolded."""
    module = inspect.getmodule(inspect.unwrap(op.oracle))
    assert module is not None
    file = Path(inspect.getfile(module))
    text, name = file.read_text(), file.relative_to(ROOT)
    return f"<details><summary>{name}</summary>\n\n```python\n{text}```\n\n</details>"


def _kernels(op: Op) -> str:
    """The modes, and what the kernels' docstring says beside the spec's."""
    if not op.modes:
        return "No kernel yet: `reference` and the adapters of other libraries have it."
    theirs, ours = Docstring.of(op.oracle), Docstring.of(getattr(kernels, op.name))
    modes = ", ".join(f"`{mode.name}`" for mode in op.modes)
    parts = [f"`kernels.{op.name}` takes the same arguments and `mode` and `tile`. Modes: {modes}."]
    parts += [
        f"`{mode.name}` has no {', '.join(f'`{name}`' for name in sorted(mode.refuses))}."
        for mode in op.modes
        if mode.refuses
    ]
    said = [text for text in ours.paragraphs() if not text.startswith("`help(")]
    parts += [text for text in said if text not in theirs.paragraphs()]
    arguments = ours.entries("Args")
    own = {name: arguments[name] for name in _OWN if name in arguments}
    parts.append(_table(("argument", "meaning"), _named(own)))
    return "\n\n".join(parts)


def laws() -> str:
    """Return the laws: the table of CONTRIBUTING, and what the docstring of each adds."""
    _, _, section = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Laws\n")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
    parts = ["# Laws", "A law is a promise about every case of an op."]
    for name in LAWS:
        said = Docstring.of(import_module(f"properties.laws.{name}"))
        obeyed = [f"[{op.name}](ops/{op.name}.md)" for op in OPS.values() if name in op.laws]
        who = "All ops." if len(obeyed) == len(OPS) else f"Ops: {', '.join(obeyed)}."
        parts += [f"## {_words(name)}", rows[name], said.prose(), who]
    return "\n\n".join(part for part in parts if part)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _anchor(name: str) -> str:
    return name.replace("_", "-")


if __name__ == "__main__":
    main()
