"""Record the suite's calls, plant predicates, and report those that no case reaches."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from rich.console import Console
from rich.table import Table

from properties.catalogue import OPS
from properties.files import reading_record, told_unwritten, write_atomically, write_record
from properties.jobs import Job, Selection
from properties.laws import Subject
from properties.mutants.triggers.grammar import atoms
from properties.mutants.triggers.planting import Reach, explore
from properties.mutants.triggers.recording import Witness, hollow, record
from properties.targets.ours import Ours

PATH = Path(__file__).parents[1] / "triggers.json"
# The laws of a night that count: those that compare with the oracle at once and notice nearly
# everything, and the only one that compiles calls.
_AT_NIGHT = ("differential", "exactness", "context_invariance")
# Kinds of pairs to print for an op.
_SHOWN = 12


@dataclass
class OpReach:
    """The measured reach of an op.

    Args:
        reach: the predicates that the profile `ci` and the nights reach.
        ci: those that the profile reaches, as in `Reach.reached`.
        nights: how many were measured.
        evaluations: how many the profile made.
        seconds: processor time.
    """

    reach: Reach
    ci: Any
    nights: int
    evaluations: int
    seconds: float
    _every: Any = field(init=False)

    def __post_init__(self) -> None:
        self._every = self.reach.wanted == 1

    def share(self) -> dict[str, int]:
        """The number of predicates, and of those reached; without a night if none was measured."""
        share = {"predicates": self._every, "ci": self.ci & self._every}
        if self.nights:
            share["night"] = self.reach.reached & self._every
        return {name: int(mask.sum()) for name, mask in share.items()}

    def row(self) -> list[str]:
        """The cells of the op in the table that is printed; see `_table`."""
        alone = np.eye(len(self.reach.atoms), dtype=bool) & self._every
        share, cells = self.share(), [self.reach.op.name]
        for among in (alone, self._every & ~alone):
            cells += [f"{(mask & among).sum()}" for mask in (self._every, self.reach.held, self.ci)]
        cells += [
            f"{100 * share[by] / share['predicates']:.1f}" if by in share else ""
            for by in ("ci", "night")
        ]
        return [*cells, f"{(self.reach.wanted == -1).sum()}", f"{self.seconds:.0f}"]

    def atoms_missing(self) -> dict[str, list[str]]:
        """Kind → atoms not reached; "!" follows those that hold in some call."""
        missing = defaultdict(list)
        for n, atom in enumerate(self.reach.atoms):
            if not self.reach.reached[n, n]:
                missing[atom.kind].append(atom.text + "!" * bool(self.reach.held[n, n]))
        return missing

    def pairs_missing(self) -> list[str]:
        """Pairs not reached whose atoms are."""
        return [f"{a} & {b}{'!' * held}" for a, b, held, _ in self._pairs()]

    def kinds_missing(self) -> list[tuple[str, int, int]]:
        """For each two kinds, how many pairs are missing and how many there are; the worst
        first.
        """
        missing = Counter(kinds for *_, kinds in self._pairs())
        number: Counter[str] = Counter()
        for i, j in zip(*np.nonzero(self._every), strict=True):
            if i != j:
                number[self._kinds(i, j)] += 1
        return [(kinds, count, number[kinds]) for kinds, count in missing.most_common()]

    def _pairs(self) -> list[tuple[str, str, bool, str]]:
        every, reached = self.reach.atoms, self.reach.reached
        pairs = zip(*np.nonzero(self._every & ~reached), strict=True)
        return [
            (every[i].text, every[j].text, bool(self.reach.held[i, j]), self._kinds(i, j))
            for i, j in pairs
            if i != j and reached[i, i] and reached[j, j]
        ]

    def _kinds(self, i: int, j: int) -> str:
        return " & ".join(sorted((self.reach.atoms[i].kind, self.reach.atoms[j].kind)))


def measure(jobs: Sequence[Job], ours: Ours, device: torch.device, nights: int = 0) -> OpReach:
    """Measure the reach of one op's jobs with the profile `ci`, and with more examples for each
    night.
    """
    started = process_time()
    op = OPS[jobs[0].op]
    modes = {job.mode for job in jobs}
    op = replace(op, modes=tuple(mode for mode in op.modes if mode.name in modes))
    most = settings.get_profile("ci").max_examples
    reach, witness = Reach.of(hollow(op), atoms(op, ours)), Witness(ours)
    subject = Subject(witness, device)
    shares = {job: job.share(most) for job in jobs if job.share(most) > 0}
    made = [evaluation for job in shares for evaluation in record(job, subject, shares[job])]
    explore(reach, made, subject)
    ci = reach.reached.copy()
    reach.tries[:] = 0
    for night in range(nights):
        for job in (job for job in jobs if job.law in _AT_NIGHT):
            # At night all jobs get equally many.
            seen = record(job, subject, max(most, job.share(most)), 1 + night)
            explore(reach, seen, subject)
    return OpReach(reach, ci, nights, len(made), process_time() - started)


def measure_all(
    selection: Selection,
    ours: Ours,
    device: torch.device,
    console: Console,
    *,
    nights: int,
    listing: Path | None,
    folder: Path | None,
) -> int:
    """Measure each op; print and record the results.

    Args:
        nights: how many to measure besides the profile `ci`.
        listing: a file for the predicates that are not reached.
        folder: where to record the shares.
    """
    # Rejected calls have no results to judge.
    jobs = [job for job in selection.jobs(Witness(ours)) if job.law != "rejection"]
    reached: dict[str, OpReach] = {}
    unwritten: dict[str, str] = {}
    for name in dict.fromkeys(job.op for job in jobs):
        reached[name] = measure([job for job in jobs if job.op == name], ours, device, nights)
        _print_missing(reached[name], console)
        if listing is not None:
            lists = {
                op: {"atoms": measured.atoms_missing(), "pairs": measured.pairs_missing()}
                for op, measured in reached.items()
            }
            text = json.dumps(lists, indent=1, ensure_ascii=False)
            with told_unwritten("--json", unwritten):
                write_atomically(listing, f"{text}\n")
    console.print(_table(reached))
    if folder is not None:
        path = folder / PATH.name
        with told_unwritten("--record", unwritten):
            write_record(path, {**read(path), **_shares(reached)})
    for why in unwritten.values():
        console.print(why, markup=False, highlight=False, soft_wrap=True)
    return int(bool(unwritten))


def _print_missing(measured: OpReach, console: Console) -> None:
    lines = [f"{measured.reach.op.name}: not reached (! holds in a call that no law judges by it)"]
    lines += [f"  {kind}: {'; '.join(each)}" for kind, each in measured.atoms_missing().items()]
    lines.append("  pairs of what is reached alone, by kinds:")
    lines += [f"    {kinds}: {n} of {of}" for kinds, n, of in measured.kinds_missing()[:_SHOWN]]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _table(reached: Mapping[str, OpReach]) -> Table:
    table = Table(title="predicates of calls that are reached")
    names = [
        "op",
        *("atoms", "held", "ci"),
        *("pairs", "held", "ci"),
        "ci %",
        "night %",
        "costly",
        "s",
    ]
    for name in names:
        table.add_column(name, justify="left" if name == "op" else "right")
    for measured in reached.values():
        table.add_row(*measured.row())
    return table


def _shares(reached: Mapping[str, OpReach]) -> dict[str, dict[str, int]]:
    return {name: measured.share() for name, measured in reached.items()}


def _row(row: Mapping[str, int]) -> dict[str, int]:
    night = {"night": row["night"]} if "night" in row else {}
    return {"predicates": row["predicates"], "ci": row["ci"], **night}


def read(path: Path = PATH) -> dict[str, dict[str, int]]:
    """Op → number of predicates and of reached ones; empty if not recorded.

    Raises:
        ValueError: the file has other contents.
    """
    if not path.exists():
        return {}
    with reading_record(path, "--triggers --record"):
        return {op: _row(row) for op, row in json.loads(path.read_text()).items()}
