"""The output of a run: how many mutants were killed, by what, how fast, and which survived."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from properties.mutants.equivalents import Equivalent
from properties.mutants.fates import Fate
from properties.mutants.killers import Killers
from properties.mutants.mutant import KINDS, Mutant
from properties.mutants.shares import Share
from properties.planting.trial import pinned_of


@dataclass
class Scoreboard:
    """Mutants and their fates.

    Args:
        mutants: all that were asked for.
        listed: equivalent ones by key.
        elsewhere: keys of those that only another device can show.
        fates: known fates of the others by key.
    """

    mutants: Sequence[Mutant]
    listed: Mapping[str, Equivalent]
    elsewhere: frozenset[str]
    fates: dict[str, Fate] = field(default_factory=dict)

    @property
    def open(self) -> list[Mutant]:
        return [
            m
            for m in self.mutants
            if m.key not in self.listed and m.key not in self.elsewhere and m.key not in self.fates
        ]

    @property
    def survivors(self) -> list[Mutant]:
        return [
            m for m in self.mutants if m.key in self.fates and self.fates[m.key].caught_by is None
        ]

    @property
    def killed(self) -> list[Fate]:
        return [v for v in self.fates.values() if v.caught_by is not None]

    def summary(self) -> str:
        parts = [f"{len(self.killed)} of {len(self.mutants)} mutants killed"]
        if self.listed:
            parts.append(f"{len(self.listed)} equivalent")
        if self.elsewhere:
            parts.append(f"{len(self.elsewhere)} for another device")
        parts.append(f"{len(self.survivors)} survive")
        seconds = sum(v.seconds for v in self.fates.values())
        return f"{', '.join(parts)}; {seconds:.0f} s of processor time"

    def shares(self) -> dict[str, Share]:
        """Counts of killed mutants by module."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for mutant in self.mutants:
            counts[mutant.module].update(("mutants", self._state(mutant)))
        return {
            module: Share(n["mutants"], n["killed"], n["equivalent"], n["for another device"])
            for module, n in counts.items()
        }

    def killers(self) -> Killers:
        """Checks that killed mutants of each function and can be run again."""
        kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for mutant in self.mutants:
            fate = self.fates.get(mutant.key)
            with suppress(ValueError):  # a process that ended names no check
                if fate is not None and fate.caught_by and pinned_of(fate.check):
                    kills[mutant.where][fate.check] += 1
        return dict(kills)

    def tables(self) -> list[Table]:
        """Tables by module, by operator, and by killer."""
        return [
            self._counts("module", lambda m: m.module),
            self._counts("operator", lambda m: m.operator),
            self._killers(),
        ]

    def _counts(self, title: str, group: Callable[[Mutant], str]) -> Table:
        table = Table()
        table.add_column(title)
        for name in ("mutants", "killed", "equivalent", "survive", "s each"):
            table.add_column(name, justify="right")
        rows: defaultdict[str, list[Mutant]] = defaultdict(list)
        for mutant in self.mutants:
            rows[group(mutant)].append(mutant)
        for name, mutants in rows.items():
            fates = [self.fates[m.key] for m in mutants if m.key in self.fates]
            survive = sum(v.caught_by is None for v in fates)
            table.add_row(
                f"{name}: {KINDS[name].what}" if name in KINDS else name,
                str(len(mutants)),
                str(len(fates) - survive),
                str(sum(m.key in self.listed for m in mutants) or ""),
                str(survive or ""),
                f"{sum(v.seconds for v in fates) / len(fates):.1f}" if fates else "",
                style="bold red" if survive else "",
            )
        return table

    def _killers(self) -> Table:
        table = Table()
        for name in ("killed by", "mutants", "s each"):
            table.add_column(name, justify="left" if name == "killed by" else "right")
        counts = Counter(v.caught_by for v in self.killed)
        for killer, count in counts.most_common():
            seconds = sum(v.seconds for v in self.killed if v.caught_by == killer)
            table.add_row(killer, str(count), f"{seconds / count:.1f}")
        return table

    def survivor(self, mutant: Mutant) -> str:
        """A survivor: its place, its diff, and the checks that missed it."""
        tried = self.fates[mutant.key].tried
        checks = ", ".join(f"{name} {count}" for name, count in tried.items())
        return (
            f"{mutant.path.as_posix()}:{mutant.line} {mutant.operator}, in {mutant.where}\n"
            f"{mutant.diff}\ntried: {checks or 'nothing runs it'}\n"
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [self._row(mutant) for mutant in self.mutants]

    def _state(self, mutant: Mutant) -> str:
        if mutant.key in self.listed:
            return "equivalent"
        if mutant.key in self.elsewhere:
            return "for another device"
        fate = self.fates.get(mutant.key)
        if fate is None:
            return "open"
        return "killed" if fate.caught_by else "survives"

    def _row(self, mutant: Mutant) -> dict[str, Any]:
        fate = self.fates.get(mutant.key)
        row: dict[str, Any] = {
            "file": mutant.path.as_posix(),
            "line": mutant.line,
            "function": mutant.where,
            "operator": mutant.operator,
            "change": mutant.text,
            "state": self._state(mutant),
        }
        if mutant.key in self.listed:
            row["reason"] = self.listed[mutant.key].reason
        if fate is not None:
            row |= {
                "killed by": fate.caught_by,
                "check": fate.check,
                "seconds": round(fate.seconds, 2),
                "tried": dict(fate.tried),
            }
        return row
