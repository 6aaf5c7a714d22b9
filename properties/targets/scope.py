"""What of the catalogue a target is tested on, and what is missing, with the reason."""

from collections.abc import Iterator

from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.laws import LAWS
from properties.targets.target import Target


def declared(target: Target, op: str, mode: str) -> Op:
    """The op as this mode of the target has it.

    Raises:
        ValueError: the catalogue has no such op, or the target no such op or mode.
    """
    if op not in OPS:
        raise ValueError(f"op: {op!r}, expected one of {', '.join(OPS)}")
    modes = target.modes(OPS[op])
    if mode not in modes:
        expected = f"one of {', '.join(modes)}" if modes else "another op"
        raise ValueError(f"mode: {mode!r} of {op} in target {target.name}, expected {expected}")
    return target.declaration(OPS[op], mode)


def unstated(target: Target, op: str, mode: str) -> dict[str, str]:
    """Laws of the op that cannot be stated for the target → why."""
    whole, part = OPS[op], declared(target, op, mode)
    reasons = dict(target.unstated(whole, mode))
    for law in whole.laws:
        missing = [n for n in LAWS[law].uses if n in whole.names and n not in part.names]
        if missing:
            reasons.setdefault(law, f"it has no {' and no '.join(missing)}")
    return reasons


def laws(target: Target, op: str, mode: str) -> tuple[str, ...]:
    """Laws that are stated for the target."""
    without = unstated(target, op, mode)
    return tuple(law for law in declared(target, op, mode).laws if law not in without)


def missing(target: Target) -> Iterator[str]:
    """A line for all modes of an op that lack or translate the same of what is declared."""
    absent = [op.name for op in OPS.values() if not target.modes(op)]
    if absent:
        yield f"target {target.name} has no {', '.join(absent)}"
    for op in OPS.values():
        alike: dict[str, list[str]] = {}
        for mode in target.modes(op):
            parts = "; ".join(_missing_of(target, op, mode))
            alike.setdefault(parts, []).append(mode)
        for parts, modes in alike.items():
            if parts:
                yield f"{op.name} ({', '.join(modes)}): {parts}"


def _missing_of(target: Target, op: Op, mode: str) -> Iterator[str]:
    part = declared(target, op.name, mode)
    lacking = [f"no `{n}`" for n in op.names if n not in part.names and n not in op.packed_by]
    if op.packed_by and not part.packed_by:
        lacking.append("no packed sequences")
    elif len(part.packed_by) < len(op.packed_by):
        lacking.append("no packed keys but the queries' own")
    if lacking:
        yield ", ".join(lacking)
        yield f"{len(part.options)} of {len(op.options)} options drawn"
    dtypes = [dtype for dtype in op.dtypes if dtype not in part.dtypes]
    if dtypes:
        yield f"not in {' or '.join(dtypes)}"
    limits = target.limits(op, mode)
    if limits:
        yield "only " + " and ".join(limits)
    conventions = target.conventions(op, mode)
    if conventions:
        yield "translated: " + ", ".join(conventions)
    reasons = unstated(target, op.name, mode)
    if reasons:
        listed = ", ".join(f"{law} ({why})" for law, why in reasons.items())
        yield f"laws not stated: {listed}"
