"""The needs of a failure: the parts of its case without which the case passes.

Two bugs may make the same result wrong. One that needs an empty sequence does not explain a case
that has none.
"""

from collections.abc import Iterator
from dataclasses import fields, replace

from properties.cases.case import Case
from properties.catalogue import OPS

# Fields that are a part of a case each, if they differ from their defaults.
_FIELDS = (
    *("auto", "float32", "broadcast", "tile", "architecture", "values", "same", "frozen"),
    *("silent", "cotangents", "context", "earlier", "numbers"),
)


def parts(case: Case) -> dict[str, Case]:
    """Each part of a case that a plainer one lacks → the case without it, not settled yet."""
    return dict(_parts(case))


def _parts(case: Case) -> Iterator[tuple[str, Case]]:
    if not case.packed and case.dims.get("B") == 0:
        yield "no rows", case.with_dims(B=1)
    if not any(case.lengths):
        yield "no tokens", replace(case, lengths=(1,) * len(case.lengths))
    elif 0 in case.lengths:
        yield "an empty sequence", _without_empty_sequences(case)
    if case.packed:
        yield "packed sequences", _dense(case)
    if case.key_lengths is not None:
        yield "other keys", replace(case, key_lengths=None)
    for name in case.given:
        yield name, case.without(name)
    for option in OPS[case.op].options:
        if case.options.get(option.name, option.default) != option.default:
            plain = {**case.options, option.name: option.default}
            yield option.name, replace(case, options=plain)
    plain_case = Case(op=case.op, mode=case.mode, dtype=case.dtype, dims={}, lengths=())
    for field in fields(case):
        plain_value = getattr(plain_case, field.name)
        if field.name in _FIELDS and getattr(case, field.name) != plain_value:
            yield field.name, replace(case, **{field.name: plain_value})
    if case.layouts or case.layout != plain_case.layout:
        yield "layouts", replace(case, layout=plain_case.layout, layouts={})


def told(case: Case, part: str) -> str:
    """A part of a case, with its value if it is an option or a field."""
    values = {**case.options, **{field: getattr(case, field) for field in _FIELDS}}
    return f"{part}={values[part]!r}" if part in values else part


def _without_empty_sequences(case: Case) -> Case:
    filled = [n for n, length in enumerate(case.lengths) if length]
    keys = case.key_lengths
    return replace(
        case,
        lengths=tuple(case.lengths[n] for n in filled),
        key_lengths=None if keys is None else tuple(keys[n] for n in filled),
    )


def _dense(case: Case) -> Case:
    """The longest sequence alone."""
    long = max(range(len(case.lengths)), key=case.lengths.__getitem__)
    keys = case.key_lengths
    boundaries = OPS[case.op].packed_by
    return replace(
        case,
        packed=False,
        lengths=(case.lengths[long],),
        key_lengths=None if keys is None else (keys[long],),
        layouts={n: x for n, x in case.layouts.items() if n not in boundaries},
    )
