"""Calls of every mode that have no token, or sequences without one, with everything given: a state
passes through, and so does its gradient.
"""

from dataclasses import replace

import pytest

from properties.catalogue import OPS
from properties.jobs import judge
from properties.laws import Subject

_SIZES = {"B": 2, "H": 2, "G": 1, "R": 2, "K": 3, "V": 4, "D": 6, "P": 3}
_OTHER_SIZE = 4
# Lengths, and whether they are packed.
_CALLS = {
    "batch": ((0,), False),
    "pack": ((0, 0), True),
    "among others": ((0, 3, 0, 1, 0), True),
}


@pytest.mark.parametrize(
    ("name", "mode", "call"),
    [
        (op.name, mode.name, call)
        for op in OPS.values()
        # A wrapper does the same around every mode.
        for mode in (op.modes[:1] if op.wraps else op.modes)
        for call, (_, packed) in _CALLS.items()
        if op.packed_by or not packed
    ],
)
def test_a_call_without_tokens_agrees_with_the_oracle(
    name: str, mode: str, call: str, subject: Subject
) -> None:
    op, (lengths, packed) = OPS[name], _CALLS[call]
    dims = {letter: _SIZES.get(letter, _OTHER_SIZE) for letter in op.dims}
    case = replace(op.full(mode, dims, lengths, packed=packed), dtype=op.dtypes[0])
    case = op.settle(case)
    # A state that passes through is a tensor of its own, and a bad call is bad without tokens too.
    for law in ("differential", "untouched_inputs", "rejection"):
        judge(law, case, subject)
