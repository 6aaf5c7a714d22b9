"""A count of more than 64 bits is refused by its name, where PyTorch would fail in its own words.

It is no mistake of `rejection`: adapters of libraries make masks and bounds of counts.
"""

import pytest

import kernels
import reference
from properties.cases.tensors import build
from properties.catalogue import OPS
from properties.suite.caches.calls import check_refusal

_COUNTS = [
    (op.name, option.name)
    for op in OPS.values()
    if op.modes
    for option in op.options
    if any(type(wrong) is int and wrong == 0 for wrong in option.bad)
]


@pytest.mark.parametrize("count", [2**63, 10**30])
@pytest.mark.parametrize(("op", "option"), _COUNTS)
def test_a_count_of_more_than_64_bits_is_refused(op: str, option: str, count: int) -> None:
    declared = OPS[op]
    dims = dict.fromkeys(declared.dims, 2)
    case = declared.full(declared.modes[0].name, dims, (3,), packed=False)
    given = {**build(declared, case).tensors, **case.options, option: count}
    check_refusal(option, lambda: getattr(reference, op)(**given))
    check_refusal(option, lambda: getattr(kernels, op)(**given, mode=case.mode))
