"""The options of the command, and what they must not be together."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from properties.arguments import count, file, file_to_read, folder
from properties.device import DEVICES
from properties.jobs import Selection
from properties.mutants import equivalents, killers, shares
from properties.mutants.equivalents import Equivalent
from properties.mutants.mutant import KINDS, own_modules
from properties.mutants.operators import OPERATORS, Operator
from properties.mutants.semantic import SEMANTIC
from properties.mutants.triggers import run as triggers
from properties.targets import NAMES

# Options that mean nothing where nothing is planted.
_OF_MUTANTS = ("module", "within", "operator", "semantic", "listed", "fresh")


@dataclass(frozen=True)
class Options:
    """The options by name; `parser` has the help of each."""

    op: Sequence[str]
    mode: Sequence[str]
    law: Sequence[str]
    dtype: Sequence[str]
    module: Sequence[str]
    target: str
    within: Sequence[str]
    operator: Sequence[str]
    semantic: bool
    triggers: bool
    night: int
    device: str
    jobs: int
    json: Path | None
    record: Path | None
    listed: bool
    fresh: bool
    cache: Path
    equivalents: Path

    @property
    def selection(self) -> Selection:
        return Selection(*map(tuple, (self.op, self.mode, self.law, self.dtype)))

    @property
    def results(self) -> Path:
        """The folder of kept results; those about other targets have one for each."""
        return self.cache / re.sub(r"\W+", "_", self.target) if self.module else self.cache

    @property
    def entries(self) -> list[Equivalent]:
        """The mutants that are listed as equivalent.

        Raises:
            ValueError: the list is malformed.
        """
        if self.module and self.equivalents == equivalents.PATH:
            return []
        return equivalents.read(self.equivalents, "semantic" if self.semantic else "equivalent")

    @property
    def narrowed(self) -> bool:
        """Whether only some mutants are tried, which cannot tell which entries are stale."""
        return bool(self.op or self.mode or self.within or self.operator)

    def own(self) -> dict[str, Path]:
        """The modules of another repository that mutants are made of, by name and file.

        Raises:
            ValueError: there is no such module, or an option is about our kernels alone.
        """
        if not self.module:
            if self.target != "ours":
                raise ValueError(f"--target: {self.target!r}, not allowed without --module")
            return {}
        if self.target in NAMES:
            raise ValueError("--module: not allowed without --target package.module:attribute")
        if self.record:
            raise ValueError("--record: not allowed with --module, as it records our kernels alone")
        return dict(module for name in self.module for module in own_modules(name))

    def check(self) -> None:
        """Check what `--record` replaces, and `--operator`.

        Raises:
            ValueError: the files have other contents, the run uses only part of the suite, or it
                does not have such a kind of mistakes.
        """
        if self.night:
            raise ValueError("--night: not allowed without --triggers")
        if self.record is not None:
            _check_folder(self.record, self, ("op", "mode", "law", "dtype", "operator"))
            path, path_of_killers = recorded(self.record, semantic=self.semantic)
            shares.read(path)
            killers.read(path_of_killers)
        known = SEMANTIC if self.semantic else OPERATORS
        for name in self.operator:
            if name not in known:
                beside = "with" if self.semantic else "without"
                raise ValueError(f"--operator: {name}, not allowed {beside} --semantic")

    def check_triggers(self) -> None:
        """Check what `--record` replaces with `--triggers`.

        Raises:
            ValueError: the file has other contents, the run uses only part of the suite, or an
                option is about mutants.
        """
        for name in _OF_MUTANTS:
            if getattr(self, name):
                raise ValueError(f"--{name}: not allowed with --triggers, which plants nothing")
        if self.target != "ours":
            raise ValueError(f"--target: {self.target!r}, expected 'ours' with --triggers")
        if self.record is not None:
            _check_folder(self.record, self, ("mode", "law", "dtype"))
            triggers.read(self.record / triggers.PATH.name)


def recorded(folder: Path, *, semantic: bool) -> tuple[Path, Path]:
    """The files of `--record`: how many mutants were killed, and by what."""
    if semantic:
        return folder / shares.SEMANTIC_PATH.name, folder / killers.SEMANTIC_PATH.name
    return folder / shares.PATH.name, folder / killers.PATH.name


def _check_folder(folder: Path, options: Options, parts: Sequence[str]) -> None:
    """Reject a folder for results of only part of the suite."""
    if not folder.is_dir():
        raise ValueError(f"--record: {folder}, expected a folder")
    for name in parts:
        if getattr(options, name):
            raise ValueError(f"--record: not allowed with --{name}, as it wants all results")


def parser(description: str | None) -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(
        prog="python -m properties.mutants",
        usage="%(prog)s [options]",
        description=description,
        epilog=_listed("single edits", OPERATORS) + _listed("with --semantic", SEMANTIC),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("op", "mode"):
        text = f"only the mutants and the laws of this {name} (repeatable)"
        parse.add_argument(f"--{name}", action="append", default=[], help=text)
    for name in ("law", "dtype"):
        text = f"try this {name} only, and no tests (repeatable)"
        parse.add_argument(f"--{name}", action="append", default=[], help=text)
    text = "make mutants of this module or package of yours instead, for the laws of --target"
    parse.add_argument("--module", action="append", default=[], metavar="NAME", help=text)
    text = "with --module, whose kernels the laws are about: package.module:attribute"
    parse.add_argument("--target", default="ours", metavar="NAME", help=text)
    parse.add_argument(
        "--within",
        action="append",
        default=[],
        metavar="NAME",
        help="only mutants of this module, package or function (repeatable)",
    )
    parse.add_argument(
        "--operator",
        action="append",
        default=[],
        choices=list(KINDS),
        metavar="NAME",
        help="only this kind of mistake, of those below (repeatable)",
    )
    text = "plant mistakes of a few lines that are wrong in some calls only, not single edits"
    parse.add_argument("--semantic", action="store_true", help=text)
    text = "measure which predicates about calls the laws reach; nothing is edited"
    parse.add_argument("--triggers", action="store_true", help=text)
    text = "with --triggers, draw N times the profile's examples more, with other seeds"
    parse.add_argument("--night", type=count, default=0, metavar="N", help=text)
    parse.add_argument("--device", choices=DEVICES, default="auto", help="default: auto")
    parse.add_argument("--jobs", type=count, default=os.cpu_count(), help="default: one per core")
    text = "write every mutant to FILE; with --triggers, every predicate that is not reached"
    parse.add_argument("--json", type=file, metavar="FILE", help=text)
    text = "write to DIR how many mutants of each module were killed, and by which checks"
    parse.add_argument("--record", type=folder, metavar="DIR", help=text)
    text = "try listed equivalents too, together with the survivors; takes twice as long"
    parse.add_argument("--listed", action="store_true", help=text)
    parse.add_argument("--fresh", action="store_true", help="ignore kept results")
    text = "folder of kept results (%(default)s)"
    parse.add_argument("--cache", type=folder, default=_cache(), metavar="DIR", help=text)
    text = "the list of mutants that nothing can kill (default: ours, and none with --module)"
    parse.add_argument(
        "--equivalents", type=file_to_read, default=equivalents.PATH, metavar="FILE", help=text
    )
    return parse


def _listed(title: str, operators: Mapping[str, Operator]) -> str:
    rows = [f"  {operator.name:27}{operator.what}" for operator in operators.values()]
    return "\n".join([f"kinds of mistakes, {title}:", *rows, "", ""])


def _cache() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(home) / "attention-oracles" / "mutants")
