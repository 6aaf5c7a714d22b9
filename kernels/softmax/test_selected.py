from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.softmax.select import select_of_dsa, select_of_moba, select_of_msa, select_of_nsa
from kernels.softmax.selected import select


def test_slots_hold_each_visible_block_once_the_largest_first() -> None:
    indices = torch.tensor([[[[2, 0, 0, -1]], [[1, 1, 2, 0]], [[0, 2, 2, 1]]]])
    selection = select(indices, 2, None, None, 5)
    # Queries 0 to 2 are at positions 2 to 4, in blocks 1, 1 and 2.
    assert selection.positions.tolist() == [2, 3, 4]
    assert selection.slots[0, :, 0].tolist() == [[0, -1, -1, -1], [1, 0, -1, -1], [2, 1, 0, -1]]
    assert selection.counts[0, :, 0].tolist() == [1, 2, 3]


def test_queries_are_listed_by_block_in_their_order() -> None:
    indices = torch.tensor([[[[0]], [[1]], [[0]], [[1]], [[0]]]])
    queries, starts = select(indices, 2, None, None, 5).queries_by_block()
    assert queries.tolist() == [0, 2, 4, 3]  # block 1 is the future of query 1
    assert starts.tolist() == [0, 3, 4, 4]


def test_blocks_of_packed_sequences_start_with_them() -> None:
    bounds = torch.tensor([0, 3, 3, 5])
    selection = select(torch.zeros(1, 5, 1, 1, dtype=torch.int32), 2, bounds, bounds, 5)
    assert selection.blocks.tolist() == [[0, 0, 3], [2, 2, 3], [3, 0, 5]]
    assert selection.positions.tolist() == [0, 1, 2, 0, 1]
    assert selection.starts.tolist() == [0, 0, 0, 3, 3]
    assert selection.first_block.tolist() == [0, 0, 0, 2, 2]


def test_an_index_past_the_blocks_of_its_own_sequence_is_refused() -> None:
    bounds = torch.tensor([0, 3, 5])
    indices = torch.zeros(1, 5, 1, 1, dtype=torch.int64)
    indices[0, 1] = 1
    select(indices, 2, bounds, bounds, 5)
    indices[0, 3] = 1
    with pytest.raises(ValueError, match="indices: 0 to 1, expected -1 to the last"):
        select(indices, 2, bounds, bounds, 5)


_SELECTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "moba": lambda q, k, w: select_of_moba(q, k, None, None, 7, 3),
    "nsa": lambda q, k, w: select_of_nsa(q, k, None, None, 7, 4, 1, 0.25),
    "dsa": lambda q, k, w: select_of_dsa(q, k[:, :, 0], w, None, None, 5),
    "msa": lambda q, k, w: select_of_msa(q, k[:, :, 0], None, None, 7, 3),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", _SELECTIONS)
def test_16_bits_select_what_their_numbers_select_in_float32(op: str, dtype: torch.dtype) -> None:
    """Scores are never rounded to 16 bits; budgets of an oracle with rounded scores allow it."""
    seeded = torch.Generator().manual_seed(0)
    shapes = (2, 16), (1, 16), (2,)
    q, k, w = (torch.randn(1, 2000, *s, generator=seeded).to(dtype) for s in shapes)
    wide = _SELECTIONS[op](q.float(), k.float(), w.float())
    assert torch.equal(_SELECTIONS[op](q, k, w), wide)
