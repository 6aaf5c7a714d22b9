"""Assumptions about devices larger than the one at hand."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change


@kind("every device gets the tiles of Hopper")
def tiles_of_hopper(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Compare(comparators=[ast.Name(id="arch") as arch, *_]):
            yield at.put("max(arch, 90)", arch)
