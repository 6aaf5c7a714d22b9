import pytest
import torch

from reference.sequences import check_cu_seqlens, sequences


def test_a_dense_batch_is_one_group() -> None:
    assert list(sequences(None, 3, 5)) == [(slice(0, 3), slice(0, 5))]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_packed_batch_is_one_group_per_sequence_empty_ones_too(dtype: torch.dtype) -> None:
    cu_seqlens = torch.tensor([0, 2, 2, 7], dtype=dtype)
    assert list(sequences(cu_seqlens, 1, 7)) == [
        (slice(0, 1), slice(0, 2)),
        (slice(1, 2), slice(2, 2)),
        (slice(2, 3), slice(2, 7)),
    ]


@pytest.mark.parametrize(
    ("boundaries", "batch", "message"),
    [
        ([0, 3, 7], 2, r"given with B=2, expected B=1"),
        ([0], 1, r"\[0\], expected at least two boundaries"),
        ([1, 3, 7], 1, r"starts at 1, expected 0"),
        ([-1, 3, 7], 1, r"starts at -1, expected 0"),
        ([0, 5, 3, 7], 1, r"decreases from 5 to 3 at index 2, expected"),
        ([0, 3, 6], 1, r"ends at 6, expected T=7"),
        ([0, 3, 8], 1, r"ends at 8, expected T=7"),
    ],
)
def test_wrong_boundaries_are_refused(boundaries: list[int], batch: int, message: str) -> None:
    with pytest.raises(ValueError, match="^lengths: " + message):
        check_cu_seqlens(torch.tensor(boundaries), batch, 7, "lengths")
