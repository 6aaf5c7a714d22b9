"""Where the chunks of packed sequences are: each row is in one, and none is past its sequence."""

from itertools import accumulate

import pytest
import torch
import triton
import triton.language as tl

from kernels.primitives.chunks import cut, locate_chunk, locate_sequence


@triton.jit
def _places(places, first_chunks, cu_seqlens, sequences, C: tl.constexpr):
    chunk = tl.program_id(0)
    first, left, sequence, before = locate_chunk(chunk, cu_seqlens, sequences, 0, C, True)
    _, _, first_chunk = locate_sequence(sequence, cu_seqlens, 0, C, True)
    tl.store(places + 4 * chunk, first)
    tl.store(places + 4 * chunk + 1, left)
    tl.store(places + 4 * chunk + 2, sequence)
    tl.store(places + 4 * chunk + 3, before)
    tl.store(first_chunks + chunk, first_chunk)


_FAR = 2**30
_LENGTHS = {
    "one": (5,),
    "empty": (0,),
    "two": (7, 1),
    "full": (8, 4, 12),
    "none_between": (0, 0, 3, 0, 9, 4, 0, 0),
    "parts_of_one_chunk": (1,) * 9,
    "many": tuple(n * n % 11 for n in range(33)),
    "thousands": tuple(n * n % 3 for n in range(3000)),
}


@pytest.mark.parametrize(
    ("lengths", "length"),
    [
        *(pytest.param(lengths, 4, id=name) for name, lengths in _LENGTHS.items()),
        pytest.param((_FAR, _FAR, 7, _FAR), 2**28, id="past_32_bits"),
        pytest.param((_FAR, _FAR - 9, 8), 2**28, id="the_last_of_32_bits"),
    ],
)
def test_each_chunk_of_packed_sequences_is_located(
    lengths: tuple[int, ...], length: int, device: torch.device
) -> None:
    bounds = [0, *accumulate(lengths)]
    cu_seqlens = torch.tensor(bounds, device=device)
    chunks = cut(1, bounds[-1], cu_seqlens, length)
    places = torch.full((chunks.count, 4), -1, dtype=torch.int64, device=device)
    first_chunks = torch.full((chunks.count,), -1, dtype=torch.int64, device=device)
    _places[(chunks.count,)](places, first_chunks, cu_seqlens, chunks.sequences, length)
    want = [
        [bounds[n] + before, total - before, n, before]
        for n, total in enumerate(lengths)
        for before in range(0, total, length)
    ]
    assert [place for place in places.tolist() if place[1]] == want
    for chunk, (first, left, n, before) in enumerate(places.tolist()):
        if left:
            assert chunk == first_chunks[chunk] + before // length
        else:
            assert first == bounds[n + 1]
            assert before == lengths[n]
