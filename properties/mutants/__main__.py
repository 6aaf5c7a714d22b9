"""Plant mistakes in kernels and oracles, one at a time, and list those that the suite misses.

A mutant is a single edit or, with --semantic, a mistake of a few lines that is wrong in some calls
only. It is made in memory while a fresh process imports the code; no file changes. Each mutant is
first tried alone: on the checks that killed others of its function, the float32 cases of the
differential law, some cases of other laws and dtypes, and quick tests; on all tests if no law runs
it. The first failure kills it. The survivors are then planted together and tried on everything.
equivalents.toml lists mutants that nothing can kill, with reasons; a stale entry fails the run.

Results are kept, and a run continues where another stopped. A killed mutant is tried again when its
function changes, a survivor also when the suite changes.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from properties import profiles
from properties.arguments import count, file, folder
from properties.device import DEVICES, activate, resolve
from properties.jobs import Selection
from properties.mutants import equivalents, killers, shares
from properties.mutants.fates import Fate, Fates
from properties.mutants.hunt import Suite, Unit, fate_of, killed_among, units
from properties.mutants.mutant import KINDS, PACKAGES, Mutant, mutants, own_modules
from properties.mutants.operators import OPERATORS, Operator
from properties.mutants.scoreboard import Scoreboard
from properties.mutants.semantic import SEMANTIC
from properties.mutants.triggers import run as triggers
from properties.screen import screen
from properties.targets import NAMES, load
from properties.targets.ours import Ours

# Seconds between lines of progress where there is no terminal.
_LINE = 60


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _arguments(arguments)
    console = screen()
    profiles.register()
    if chosen.triggers:
        return _triggers(chosen, console)
    try:
        own = _own(chosen)
        target = load(chosen.target, activate(chosen.device))
        wanted = (tuple(n) for n in (chosen.op, chosen.mode, chosen.law, chosen.dtype))
        jobs = Selection(*wanted).jobs(target)
        table = "semantic" if chosen.semantic else "equivalent"
        listed = equivalents.read(chosen.equivalents, table) if chosen.equivalents else []
        before = killers.joined(killers.read(), killers.read(killers.SEMANTIC_PATH))
        if chosen.record:
            _check_record(chosen)
        _check_operators(chosen)
        every = mutants([*own] or PACKAGES, chosen.operator, semantic=chosen.semantic)
        for name in chosen.within:
            if not any(_is_within(mutant, name) for mutant in every):
                raise ValueError(f"--within: {name}, expected what has mutants to be tried")
    except ValueError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    suite = Suite(
        jobs,
        chosen.device,
        chosen.cache,
        chosen.jobs,
        tests=not (chosen.law or chosen.dtype or own),
        killers={} if own else before,
        target=chosen.target,
        own=own,
    )
    fates = Fates(chosen.cache / "fates.jsonl", chosen.fresh)
    found = [m for m in every if _wanted(m, chosen, suite)]
    try:
        scoreboard, code = _run(found, listed, suite, fates, chosen, console)
    except KeyboardInterrupt:
        suite.close(at_once=True)
        console.print("stopped; the same command goes on from here", highlight=False)
        return 130
    except BaseException:
        suite.close(at_once=True)
        raise
    suite.close(at_once=False)
    if chosen.record and not suite.failing:
        _record(chosen.record, scoreboard, every, semantic=chosen.semantic)
    elif chosen.record:
        console.print("not recorded, as not all that may notice a mutant could be tried")
    return code


def _own(chosen: argparse.Namespace) -> dict[str, Path]:
    """The modules of another repository that mutants are made of, by name and file.

    Raises:
        ValueError: there is no such module, or an argument is about our kernels alone.
    """
    if not chosen.module:
        if chosen.target != "ours":
            raise ValueError("--target: expected with --module, which says where mutants are made")
        return {}
    if chosen.target in NAMES:
        raise ValueError("--module: expected with --target package.module:attribute")
    if chosen.record:
        raise ValueError("--record: beside --module, expected without")
    own = dict(found for name in chosen.module for found in own_modules(name))
    # Findings about several targets are kept in a file for each.
    chosen.cache /= re.sub(r"\W+", "_", chosen.target)
    if chosen.equivalents == equivalents.PATH:
        chosen.equivalents = None
    return own


def _triggers(chosen: argparse.Namespace, console: Console) -> int:
    """Measure which predicates about calls the suite reaches; plant nothing."""
    try:
        if chosen.record is not None:
            _check_folder(chosen.record, chosen, ("mode", "law", "dtype"))
            triggers.read(chosen.record / triggers.PATH.name)
        device = activate(chosen.device)
        ours = load("ours", device)
        assert isinstance(ours, Ours)
        wanted = (tuple(n) for n in (chosen.op, chosen.mode, chosen.law, chosen.dtype))
        return triggers.measure_all(
            Selection(*wanted),
            ours,
            device,
            console,
            nights=chosen.night,
            listing=chosen.json,
            folder=chosen.record,
        )
    except ValueError as error:
        console.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2


def _record(
    folder: Path, scoreboard: Scoreboard, every: Sequence[Mutant], *, semantic: bool
) -> None:
    """Record the results of modules of which every mutant was tried."""
    whole = shares.whole(scoreboard.shares(), every, semantic=semantic)
    path, path_of_killers = _recorded(folder, semantic=semantic)
    shares.write(path, {**shares.read(path), **whole})
    known = killers.read(path_of_killers)
    killers.write(path_of_killers, killers.replaced(known, scoreboard.killers(), whole))


def _recorded(folder: Path, *, semantic: bool) -> tuple[Path, Path]:
    """The files of --record: how many mutants were killed, and by what."""
    if semantic:
        return folder / shares.SEMANTIC_PATH.name, folder / killers.SEMANTIC_PATH.name
    return folder / shares.PATH.name, folder / killers.PATH.name


def _check_operators(chosen: argparse.Namespace) -> None:
    """Reject kinds of mistakes that the run does not have."""
    known = SEMANTIC if chosen.semantic else OPERATORS
    for name in chosen.operator:
        if name not in known:
            beside = "without" if chosen.semantic else "with"
            raise ValueError(f"--operator: {name}, expected {beside} --semantic")


def _check_record(chosen: argparse.Namespace) -> None:
    """Reject files with other contents, and runs that use only part of the suite."""
    _check_folder(chosen.record, chosen, ("op", "mode", "law", "dtype", "operator"))
    path, path_of_killers = _recorded(chosen.record, semantic=chosen.semantic)
    shares.read(path)
    killers.read(path_of_killers)


def _check_folder(folder: Path, chosen: argparse.Namespace, parts: Sequence[str]) -> None:
    """Reject a folder for results of only part of the suite."""
    if not folder.is_dir():
        raise ValueError(f"--record: {folder}, expected a folder")
    for name in parts:
        if getattr(chosen, name):
            raise ValueError(f"--record: beside --{name}, expected all that may notice a mutant")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parse = argparse.ArgumentParser(
        prog="python -m properties.mutants",
        usage="%(prog)s [options]",
        description=__doc__,
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
        "--equivalents", type=Path, default=equivalents.PATH, metavar="FILE", help=text
    )
    return parse.parse_args(arguments)


def _listed(title: str, operators: Mapping[str, Operator]) -> str:
    rows = [f"  {operator.name:27}{operator.what}" for operator in operators.values()]
    return "\n".join([f"kinds of mistakes, {title}:", *rows, "", ""])


def _cache() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(home) / "attention-oracles" / "mutants")


def _is_within(mutant: Mutant, name: str) -> bool:
    return f"{mutant.where}.".startswith(f"{name}.")


def _wanted(mutant: Mutant, chosen: argparse.Namespace, suite: Suite) -> bool:
    if chosen.within and not any(_is_within(mutant, name) for name in chosen.within):
        return False
    limited = chosen.op or chosen.mode
    return not limited or any(mutant.module in s.modules for s in suite.sources.values())


def _run(
    wanted: Sequence[Mutant],
    entries: Sequence[equivalents.Equivalent],
    suite: Suite,
    fates: Fates,
    chosen: argparse.Namespace,
    console: Console,
) -> tuple[Scoreboard, int]:
    listed, gone = equivalents.match(entries, wanted)
    device = resolve(chosen.device)
    elsewhere = {m.key for m in wanted if KINDS[m.operator].only_on not in (None, device)}
    scoreboard = Scoreboard(wanted, listed, frozenset(elsewhere - set(listed)))
    for mutant in scoreboard.open:
        known = fates.get(mutant.key, suite.code(mutant))
        if known is not None:
            scoreboard.fates[mutant.key] = known
    known_before = f", {len(scoreboard.fates)} of them known" if scoreboard.fates else ""
    console.print(f"{len(wanted)} mutants{known_before}; {chosen.jobs} processes", highlight=False)
    suspects = _try_alone(scoreboard, suite, fates, chosen.jobs, console)
    retried = [m for m in wanted if m.key in listed] if chosen.listed else []
    killed = _together([*suspects, *retried], suite, fates, chosen.jobs, console)
    _settle(suspects, killed, scoreboard, fates)

    for table in scoreboard.tables():
        console.print(table)
    for mutant in scoreboard.survivors:
        console.print(scoreboard.survivor(mutant), markup=False, highlight=False, soft_wrap=True)
    # A narrowed run cannot tell which entries are stale.
    narrowed = chosen.op or chosen.mode or chosen.within or chosen.operator
    problems = [f"listed and killed: {m.where}\n{m.text}" for m in retried if m in killed]
    if not narrowed:
        problems += [f"listed and gone: {e.function}\n{e.change}" for e in gone]
    problems += [f"left out: {report}" for report in suite.failing]
    for problem in problems:
        console.print(problem, "", markup=False, highlight=False, soft_wrap=True)
    console.print(scoreboard.summary(), highlight=False)
    if chosen.json:
        chosen.json.write_text(
            json.dumps(scoreboard.to_json(), indent=1, ensure_ascii=False) + "\n"
        )
    return scoreboard, 1 if scoreboard.survivors or problems else 0


def _try_alone(
    scoreboard: Scoreboard, suite: Suite, fates: Fates, workers: int, console: Console
) -> dict[Mutant, Fate]:
    suspects: dict[Mutant, Fate] = {}
    left = scoreboard.open
    if not left:
        return suspects
    with _progress(console, "mutants", len(left)) as step, _pool(workers, suite) as pool:
        futures = {pool.submit(fate_of, mutant, suite, fates): mutant for mutant in left}
        for future in as_completed(futures):
            mutant, fate = futures[future], future.result()
            if fate.caught_by is None:
                suspects[mutant] = fate
            else:
                scoreboard.fates[fate.key] = fate
                fates.add(fate)
            step(len(suspects))
    return suspects


def _settle(
    suspects: Mapping[Mutant, Fate],
    killed: Mapping[Mutant, tuple[str, str]],
    scoreboard: Scoreboard,
    fates: Fates,
) -> None:
    """Record the fates of mutants that were tried together."""
    for mutant, fate in suspects.items():
        if mutant in killed:
            fate = replace(fate, caught_by=killed[mutant][0], check=killed[mutant][1])
        else:
            fate = replace(fate, tried={**fate.tried, "all else, with others": 1})
        scoreboard.fates[fate.key] = fate
        fates.add(fate)


def _together(
    mutants: Sequence[Mutant],
    suite: Suite,
    fates: Fates,
    workers: int,
    console: Console,
) -> dict[Mutant, tuple[str, str]]:
    """Try mutants on everything: mutant → what killed it, and which check."""
    parts = [
        unit
        for package in suite.packages
        for unit in units(suite, package)
        if any(m.package == package and m.module in unit.modules for m in mutants)
    ]
    killed: dict[Mutant, tuple[str, str]] = {}

    def kill_in(unit: Unit) -> dict[Mutant, tuple[str, str]]:
        left = [m for m in mutants if m.package == unit.package and m not in killed]
        failures = killed_among(left, suite, fates, unit)
        return {mutant: unit.told(failure) for mutant, failure in failures.items()}

    if not parts:
        return killed
    with _progress(console, "all together", len(parts)) as step, _pool(workers, suite) as pool:
        for kills in pool.map(kill_in, parts):
            killed |= kills
            step(len(mutants) - len(killed))
    return killed


@contextmanager
def _pool(workers: int, suite: Suite) -> Iterator[ThreadPoolExecutor]:
    """Threads that wait for trials. An error ends all trials at once instead of waiting."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            suite.close(at_once=True)
            raise


@contextmanager
def _progress(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far a run is: a bar on a terminal, else a line now and then. The result takes one
    step, and the number of survivors after it.
    """
    done, printed = 0, monotonic()
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[survivors]} survive"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task(what, total=total, survivors=0)

    def step(survivors: int) -> None:
        nonlocal done, printed
        done += 1
        bar.update(task, advance=1, survivors=survivors)
        if not console.is_terminal and (monotonic() - printed > _LINE or done == total):
            line = f"{what}: {done} of {total}, {survivors} survive"
            console.print(line, highlight=False, soft_wrap=True)
            printed = monotonic()

    with bar:
        yield step


if __name__ == "__main__":
    sys.exit(main())
