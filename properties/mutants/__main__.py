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

import json
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
from properties.device import activate, resolve
from properties.files import told_unwritten, write_atomically
from properties.mutants import equivalents, killers, shares
from properties.mutants.fates import Fate, Fates
from properties.mutants.hunt import Suite, Unit, fate_of, killed_among, units
from properties.mutants.mutant import KINDS, PACKAGES, Mutant, mutants
from properties.mutants.options import Options, parser, recorded
from properties.mutants.scoreboard import Scoreboard
from properties.mutants.triggers import run as triggers
from properties.screen import screen
from properties.targets import load
from properties.targets.ours import Ours

# Seconds between lines of progress where there is no terminal.
_LINE = 60


def main(arguments: Sequence[str] | None = None) -> int:
    parse = parser(__doc__)
    options = Options(**vars(parse.parse_args(arguments)))
    console = screen()
    profiles.register()
    try:
        if options.triggers:
            return _triggers(options, console)
        own = options.own()
        jobs = options.selection.jobs(load(options.target, activate(options.device)))
        entries = options.entries
        before = killers.joined(killers.read(), killers.read(killers.SEMANTIC_PATH))
        options.check()
        every = mutants([*own] or PACKAGES, options.operator, semantic=options.semantic)
        for name in options.within:
            if not any(_is_within(mutant, name) for mutant in every):
                raise ValueError(
                    f"--within: {name!r}, expected a module, package or function with mutants"
                )
    except ValueError as error:
        parse.error(str(error))
    suite = Suite(
        jobs,
        options.device,
        options.results,
        options.jobs,
        tests=not (options.law or options.dtype or own),
        killers={} if own else before,
        target=options.target,
        own=own,
    )
    fates = Fates(options.results / "fates.jsonl", options.fresh)
    wanted = [m for m in every if _wanted(m, options, suite)]
    try:
        scoreboard, code = _run(wanted, entries, suite, fates, options, console)
    except KeyboardInterrupt:
        suite.close(at_once=True)
        console.print("stopped; the same command goes on from here", highlight=False)
        return 130
    except BaseException:
        suite.close(at_once=True)
        raise
    suite.close(at_once=False)
    unwritten: dict[str, str] = {}
    if options.record and not suite.failing:
        with told_unwritten("--record", unwritten):
            _record(options.record, scoreboard, every, semantic=options.semantic)
    elif options.record:
        console.print("not recorded, as not all that may notice a mutant could be tried")
    for why in unwritten.values():
        console.print(why, markup=False, highlight=False, soft_wrap=True)
    return code or int(bool(unwritten))


def _triggers(options: Options, console: Console) -> int:
    """Measure which predicates about calls the suite reaches; plant nothing."""
    options.check_triggers()
    device = activate(options.device)
    ours = load("ours", device)
    assert isinstance(ours, Ours)
    return triggers.measure_all(
        options.selection,
        ours,
        device,
        console,
        nights=options.night,
        listing=options.json,
        folder=options.record,
    )


def _record(
    folder: Path, scoreboard: Scoreboard, every: Sequence[Mutant], *, semantic: bool
) -> None:
    """Record the results of modules of which every mutant was tried."""
    whole = shares.whole(scoreboard.shares(), every, semantic=semantic)
    path, path_of_killers = recorded(folder, semantic=semantic)
    shares.write(path, {**shares.read(path), **whole})
    known, functions = killers.read(path_of_killers), {mutant.where for mutant in every}
    killers.write(path_of_killers, killers.replaced(known, scoreboard.killers(), whole, functions))


def _is_within(mutant: Mutant, name: str) -> bool:
    return f"{mutant.where}.".startswith(f"{name}.")


def _wanted(mutant: Mutant, options: Options, suite: Suite) -> bool:
    if options.within and not any(_is_within(mutant, name) for name in options.within):
        return False
    limited = options.op or options.mode
    return not limited or any(mutant.module in s.modules for s in suite.sources.values())


def _run(
    wanted: Sequence[Mutant],
    entries: Sequence[equivalents.Equivalent],
    suite: Suite,
    fates: Fates,
    options: Options,
    console: Console,
) -> tuple[Scoreboard, int]:
    listed, gone = equivalents.match(entries, wanted)
    device = resolve(options.device)
    elsewhere = {m.key for m in wanted if KINDS[m.operator].only_on not in (None, device)}
    scoreboard = Scoreboard(wanted, listed, frozenset(elsewhere - set(listed)))
    for mutant in scoreboard.open:
        known = fates.get(mutant.key, suite.code(mutant))
        if known is not None:
            scoreboard.fates[mutant.key] = known
    known_before = f", {len(scoreboard.fates)} of them known" if scoreboard.fates else ""
    console.print(f"{len(wanted)} mutants{known_before}; {options.jobs} processes", highlight=False)
    suspects = _try_alone(scoreboard, suite, fates, options.jobs, console)
    retried = [m for m in wanted if m.key in listed] if options.listed else []
    killed = _together([*suspects, *retried], suite, fates, options.jobs, console)
    _settle(suspects, killed, scoreboard, fates)

    for table in scoreboard.tables():
        console.print(table)
    for mutant in scoreboard.survivors:
        console.print(scoreboard.survivor(mutant), markup=False, highlight=False, soft_wrap=True)
    problems = [f"listed and killed: {m.where}\n{m.text}" for m in retried if m in killed]
    if not options.narrowed:
        problems += [f"listed and gone: {e.function}\n{e.change}" for e in gone]
    problems += [f"left out: {report}" for report in suite.failing]
    for problem in problems:
        console.print(problem, "", markup=False, highlight=False, soft_wrap=True)
    console.print(scoreboard.summary(), highlight=False)
    unwritten: dict[str, str] = {}
    if fates.unwritten:
        unwritten["--cache"] = f"{fates.path} not written: {fates.unwritten}"
    if options.json:
        text = json.dumps(scoreboard.to_json(), indent=1, ensure_ascii=False)
        with told_unwritten("--json", unwritten):
            write_atomically(options.json, f"{text}\n")
    for line in unwritten.values():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return scoreboard, 1 if scoreboard.survivors or problems or unwritten else 0


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
        disable=not console.is_interactive,
        transient=True,
    )
    task = bar.add_task(what, total=total, survivors=0)

    def step(survivors: int) -> None:
        nonlocal done, printed
        done += 1
        bar.update(task, advance=1, survivors=survivors)
        if not console.is_interactive and (monotonic() - printed > _LINE or done == total):
            line = f"{what}: {done} of {total}, {survivors} survive"
            console.print(line, highlight=False, soft_wrap=True)
            printed = monotonic()

    with bar:
        yield step


if __name__ == "__main__":
    sys.exit(main())
