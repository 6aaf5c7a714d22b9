"""Wrappers keep promises that none of their laws checks."""

from dataclasses import replace

import pytest

from properties.catalogue import OPS
from properties.laws import LAWS, Run, Subject

WRAPPERS = [op.name for op in OPS.values() if op.wraps is not None and op.modes]


@pytest.mark.parametrize("name", WRAPPERS)
def test_outputs_are_new_and_contiguous_and_inputs_stay(name: str, subject: Subject) -> None:
    op = OPS[name]
    dims = dict.fromkeys(op.dims, 3)
    for packed in (False, True)[: 1 + bool(op.packed_by)]:
        case = op.full(op.modes[0].name, dims, (2, 3) if packed else (3,), packed=packed)
        run = Run("untouched_inputs", op, replace(case, dtype="float32"), subject)
        LAWS[run.law].check(run)
