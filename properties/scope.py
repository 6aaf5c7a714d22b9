"""The part of the catalogue that a target is tested on, and why the rest is missing."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import Signature, signature
from typing import Any

import torch

from properties.architectures import ARCHITECTURES
from properties.cases import structures
from properties.cases.case import Case
from properties.cases.contexts import CONTEXTS
from properties.cases.inputs import Inputs
from properties.cases.layouts import LAYOUTS
from properties.cases.tensors import build
from properties.cases.values import COTANGENTS
from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.counted import counted
from properties.laws import LAWS
from properties.targets.target import Target
from reference.arguments import arrays
from reference.arguments import check as checked

# Integers of a case are smaller.
_INTEGERS = 1 << 63


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
    """Laws of the op that do not apply to the target → why."""
    whole, part = OPS[op], declared(target, op, mode)
    reasons = dict(target.unstated(whole, mode))
    for law in whole.laws:
        missing = [n for n in LAWS[law].uses if n in whole.names and n not in part.names]
        if missing:
            reasons.setdefault(law, f"it has no {' and no '.join(missing)}")
    return reasons


def laws(target: Target, op: str, mode: str) -> tuple[str, ...]:
    without = unstated(target, op, mode)
    return tuple(law for law in declared(target, op, mode).laws if law not in without)


def check(target: Target, case: Case) -> None:
    """Check that a hand-written case belongs to the target.

    Raises:
        ValueError: it does not; the message names the field, its value and what was expected.
    """
    op = declared(target, case.op, case.mode)
    inputs = {argument.name for argument in op.arguments}
    optional = {argument.name for argument in op.arguments if argument.optional}
    outputs = {output.name for output in op.outputs}
    options = {option.name for option in op.options}
    laid_out = inputs | {f"d{name}" for name in outputs} | _tensors(op) | {*op.packed_by}
    for field, values, known in (
        ("dtype", (case.dtype,), op.dtypes),
        ("dims", case.dims, op.dims),
        ("given", case.given, optional),
        ("float32", case.float32, inputs),
        ("broadcast", case.broadcast, inputs),
        ("options", case.options, options),
        ("earlier", case.earlier or (), options),
        ("tile", () if case.tile is None else (case.tile,), _tiles(target, case)),
        ("architecture", filter(None, [case.architecture]), ARCHITECTURES),
        ("values", (case.values,), op.recipes),
        ("layout", (case.layout,), LAYOUTS),
        ("layouts", case.layouts, laid_out),
        ("layouts", case.layouts.values(), LAYOUTS),
        ("auto", (case.auto,), (False, True) if target.takes_auto else (False,)),
        ("same", case.same, inputs),
        ("same", case.same.values(), inputs - case.same.keys()),
        ("frozen", case.frozen, inputs),
        ("silent", case.silent, outputs),
        ("cotangents", (case.cotangents,), COTANGENTS),
        ("context", (case.context,), CONTEXTS),
        ("numbers", (case.numbers,), ("python", "numpy")),
    ):
        _expect_known(field, values, known)
    absent = sorted(op.dims.keys() - case.dims.keys())
    if absent:
        raise ValueError(f"case: no {', '.join(absent)} among its dims, expected all")
    for field, sizes in (
        *((f"dims: {name}", (size,)) for name, size in case.dims.items()),
        ("lengths", case.lengths),
        ("key_lengths", case.key_lengths or ()),
    ):
        for size in sizes:
            if type(size) is not int or size < 0:
                raise ValueError(f"case: {field}: {size!r}, expected an integer of at least 0")
    if not 0 <= case.seed < _INTEGERS - 1:
        raise ValueError(f"case: seed: {case.seed}, expected an integer from 0 to {_INTEGERS - 2}")
    for field, stated in (("options", case.options), ("earlier", case.earlier or {})):
        _expect_types(op, field, stated)
    _expect_lengths(op, case)
    _built(op, case)


def _expect_types(op: Op, field: str, options: Mapping[str, Any]) -> None:
    """Check options against the annotations of the op."""
    for name, value in options.items():
        parameter = signature(op.oracle).parameters[name]
        try:
            if type(value) is int and not -_INTEGERS <= value < _INTEGERS:
                raise ValueError(f"{name}: {value}, expected an integer of 64 bits")
            given = torch.tensor(value) if isinstance(value, (list, tuple)) else value
            checked(Signature([parameter]), {name: given}, ())
        except (ValueError, TypeError, RuntimeError) as error:
            told = str(error) if str(error).startswith(name) else f"{name}: {value!r}: {error}"
            raise ValueError(f"case: {field}: {told}") from error


def _tensors(op: Op) -> set[str]:
    """Options that may be tensors."""
    parameters = signature(op.oracle).parameters
    kinds = {option.name: parameters[option.name].annotation for option in op.options}
    return {name for name, kind in kinds.items() if arrays(kind) or name == "structure"}


def _built(op: Op, case: Case) -> Inputs:
    try:
        if case.earlier and case.earlier.get("structure"):
            structures.build(replace(case, options=case.earlier), "cpu")
        return build(op, case)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise ValueError(f"case: {case.line()}, of which no tensors can be made: {told}") from error


def check_call(target: Target, case: Case) -> None:
    """Check that the op takes the options of a hand-written case, by calling its oracle.

    Raises:
        ValueError: it does not; the message names the option, its value and what was expected.
    """
    op = declared(target, case.op, case.mode)
    inputs = _built(op, case).to(torch.float64)
    try:
        with torch.no_grad():
            op.oracle(**inputs.given())
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"case: options: {error}") from error


def _tiles(target: Target, case: Case) -> Iterator[int]:
    # Asked for once the dtype and the dims are known to be right.
    known = case.architecture is None or case.architecture in ARCHITECTURES
    yield from target.tiles(case) if known and case.tile is not None else ()


def _expect_known(field: str, values: Iterable[object], known: Iterable[object]) -> None:
    expected = list(known)
    for value in values:
        if value not in expected:
            names = ", ".join(sorted(map(str, expected)))
            raise ValueError(f"case: {field}: {value!r}, expected one of {names or 'nothing'}")


def _expect_lengths(op: Op, case: Case) -> None:
    lengths, keys = case.lengths, case.key_lengths
    if case.packed and not op.packed_by:
        raise ValueError(f"case: packed: True, expected False of {op.name}, which packs nothing")
    if case.packed and case.dims["B"] != 1:
        raise ValueError(f"case: dims: B: {case.dims['B']}, expected 1 where sequences are packed")
    if not lengths or (len(lengths) > 1 and not case.packed):
        raise ValueError(f"case: lengths: {lengths!r}, expected one, or several of a pack")
    if keys is not None and (not op.own_keys or len(keys) != len(lengths)):
        expected = f"{len(lengths)} of them" if op.own_keys else "None"
        raise ValueError(f"case: key_lengths: {keys!r}, expected {expected}")


def missing(
    target: Target, ops: Collection[str] = (), modes: Collection[str] = ()
) -> Iterator[str]:
    """Say what a target lacks or translates: one line for the modes of an op that do the same.

    Args:
        ops, modes: those that are asked for; all if empty.
    """
    wanted = [op for op in OPS.values() if op.name in (ops or OPS)]
    has = [op.name for op in wanted if target.modes(op)]
    absent = [op.name for op in wanted if op.name not in has]
    if not ops and len(has) < len(absent):
        yield f"target {target.name} has {', '.join(has) or 'none'} of {counted(len(OPS), 'op')}"
    elif absent:
        yield f"target {target.name} has no {', '.join(absent)}"
    yield from target.remarks
    for op in wanted:
        alike: dict[str, list[str]] = {}
        for mode in target.modes(op):
            if not modes or mode in modes:
                parts = "; ".join(_missing_of(target, op, mode))
                alike.setdefault(parts, []).append(mode)
        for parts, those in alike.items():
            if parts:
                yield f"{op.name} ({', '.join(those)}): {parts}"


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
