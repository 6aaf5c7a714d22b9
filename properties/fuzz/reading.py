"""Dataclasses from the JSON of `dataclasses.asdict`, which somebody may have edited."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from properties.cases.case import Case


def read(data: Any, kind: Any, name: str) -> Any:
    """A value of some type from JSON.

    Args:
        kind: an annotation: a class, `X | None`, a container, a dataclass.
        name: of the value, in errors.

    Raises:
        ValueError: the value or a part of it has another type.
    """
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return data
    if outer is UnionType:
        return None if data is None and NoneType in inner else read(data, inner[0], name)
    if outer is Case:
        return Case.from_json(json.dumps(data))
    if is_dataclass(outer) and isinstance(outer, type):
        return outer(**read_fields(data, get_type_hints(outer), outer, name))
    if issubclass(outer, Mapping):
        _expect(data, dict, name)
        # A counter states the type of its keys alone.
        each = int if outer is Counter else inner[1]
        return outer({key: read(one, each, f"{name}.{key}") for key, one in data.items()})
    if issubclass(outer, tuple | list | set | frozenset):
        _expect(data, list, name)
        several = inner if outer is tuple and inner[-1] is not Ellipsis else inner[:1] * len(data)
        if len(several) != len(data):
            raise ValueError(f"{name}: {data!r}, expected {len(several)} values")
        parts = enumerate(zip(data, several, strict=True))
        return outer(read(one, each, f"{name}[{place}]") for place, (one, each) in parts)
    _expect(data, outer, name)
    return data


def read_fields(data: Any, kinds: Mapping[str, Any], whole: Any, name: str) -> dict[str, Any]:
    """The fields of a dataclass, from an object.

    Args:
        kinds: the type of each field in the file.
        whole: the dataclass, whose fields without a default must be there.

    Raises:
        ValueError: a field is missing, unknown, or of another type.
    """
    _expect(data, dict, name)
    known = {field.name: field for field in fields(whole) if field.init}
    missing = [n for n, f in known.items() if f.default is f.default_factory is MISSING]
    for one in [*(n for n in missing if n not in data), *(n for n in data if n not in known)]:
        raise ValueError(f"{name}: {one!r} is {'unknown' if one in data else 'missing'}")
    return {one: read(value, kinds[one], f"{name}.{one}") for one, value in data.items()}


def _expect(data: Any, kind: type, name: str) -> None:
    # An integer is a number too; a truth value is none.
    wanted = (int, float) if kind is float else kind
    if not isinstance(data, wanted) or (isinstance(data, bool) and kind is not bool):
        names = {dict: "an object", list: "a list", str: "text", int: "an integer"}
        names |= {float: "a number", bool: "true or false"}
        raise ValueError(f"{name}: {data!r}, expected {names[kind]}")
