"""The ledger of a target is current: each known failure still fails as its entry says."""

from dataclasses import replace

from properties import scope
from properties.cases.case import Case
from properties.laws import LAWS, Subject, Violation
from properties.targets.ledger import KnownFailure, Ledger


def trouble(entry: KnownFailure, case: Case, subject: Subject) -> str | None:
    """Say how one of an entry's cases contradicts it; None if it does not."""
    op = scope.declared(subject.target, case.op, case.mode)
    stated = scope.laws(subject.target, case.op, case.mode)
    if case.mode not in entry.modes or entry.law not in stated:
        return f"{entry.name}: {entry.law} of {case.op} ({case.mode}), expected one of its modes"
    try:
        LAWS[entry.law](op, case, subject)
    except Violation as violation:
        return f"{entry.name} fails in another way than its ledger says: {violation}"
    except Exception as error:
        if not subject.ledger.excuses(error):
            raise
    if entry.name not in subject.ledger.used:
        return f"{entry.name} passes again: delete it from the ledger of {subject.target.name}"
    return None


def beside(entry: KnownFailure, entries: tuple[KnownFailure, ...]) -> Ledger:
    """The entry alone; of mistakes that are not refused, a case makes those of all entries."""
    return Ledger([e for e in entries if e.law == "rejection" == entry.law] or [entry])


def test_every_known_failure_still_fails(subject: Subject) -> None:
    entries = subject.ledger.entries
    found = [
        trouble(entry, case, replace(subject, ledger=beside(entry, entries)))
        for entry in entries
        for case in entry.cases
    ]
    assert not any(found), "\n".join(filter(None, found))
