"""A pack of hundreds of sequences, as many as no drawn case has, gives the results of its parts."""

from dataclasses import replace

import pytest
import torch

from properties.cases.case import Case
from properties.cases.sequences import join, separate, summed_gradients, tensors_of
from properties.cases.tensors import build, build_cotangents
from properties.catalogue import OPS
from properties.laws import Subject
from properties.targets.ours import MODES_WITH_KERNELS

# Sequences of a part, and the number of parts.
_OF_A_PART, _PARTS = 100, 6
_LENGTHS = (1, 0, 2)
_PACKED = [(op, mode) for op, mode in MODES_WITH_KERNELS if OPS[op].packed_by]


@pytest.mark.parametrize(("name", "mode"), _PACKED)
def test_a_pack_of_many_sequences_is_its_parts(name: str, mode: str, subject: Subject) -> None:
    op = OPS[name]
    lengths = tuple(_LENGTHS[n % len(_LENGTHS)] for n in range(_OF_A_PART * _PARTS))
    dims = {letter: 1 if letter in "BHGR" else 2 for letter in op.dims}
    options = {o.name: o.default for o in op.options}
    case = op.settle(Case.of(name, mode, dims, lengths, packed=True, options=options))
    inputs, cotangents = build(op, case, subject.device), build_cotangents(op, case, subject.device)
    got = subject.run(op, case, inputs, cotangents)
    pieces = separate(op, case, tensors_of(op, inputs))
    of_pieces = separate(op, case, cotangents)
    each = separate(op, case, {n: x for n, x in got.items() if n not in summed_gradients(op, case)})
    for start in range(len(lengths) // 2, len(lengths), _OF_A_PART):
        part = slice(start, start + _OF_A_PART)
        own = replace(case, lengths=lengths[part])
        made = build(op, own, subject.device).with_tensors(join(op, own, pieces[part]))
        alone = subject.run(op, own, made, join(op, own, of_pieces[part]))
        for result, x in join(op, own, each[part]).items():
            torch.testing.assert_close(x, alone[result])
