"""Tests of the last tokens of sequences."""

import torch

from kernels.primitives.shift import last_tokens


def test_an_empty_sequence_has_no_last_token_whatever_the_dims_of_a_tensor() -> None:
    boundaries = torch.tensor([0, 2, 2, 3])
    tensors = [torch.arange(1.0, 1 + 3 * 2**n).view(1, 3, *[2] * n) for n in range(3)]
    found, empty = last_tokens(tensors, boundaries)
    assert empty.tolist() == [False, True, False]
    for x, last in zip(tensors, found, strict=True):
        assert torch.equal(last, torch.stack([x[0, 1], torch.zeros_like(x[0, 0]), x[0, 2]]))
