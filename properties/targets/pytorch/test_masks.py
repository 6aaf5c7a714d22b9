"""A mask as a function of indices is the catalogue's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from properties.targets.pytorch.masks import seen
from reference.softmax.structure import Structure, of_sequences, pairs

DOCUMENTS = torch.tensor([[3, 3, 5, 5, 5, 0, 0], [1, 1, 1, 1, 2, 2, 2]])
BLOCKS = torch.tensor([[True, False], [False, True], [True, True]])
RULES: dict[str, Any] = {
    "none": {},
    "documents": {"document_ids": DOCUMENTS},
    "prefix": {"prefix": torch.tensor([2, 5])},
    "chunk": {"chunk": 3},
    "block_causal": {"block_causal": 2},
    "dilation": {"dilation": 2},
    "parents": {"parents": torch.tensor([-1, 0, 0, 1, -1])},
    "blocks": {"blocks": torch.stack([BLOCKS, ~BLOCKS]), "block_size": 2},
    "two": {"chunk": 4, "parents": torch.tensor([-1, -1, 1, 2, 0])},
}


def table(structure: Structure, T_q: int, T_k: int) -> Tensor:
    """By the catalogue's rules, of two sequences and heads."""
    i, j = torch.arange(T_q)[:, None], torch.arange(T_k)[None]
    all_ = torch.ones(2, 2, T_q, T_k, dtype=torch.bool)
    for rule in pairs(structure, i, j, i + T_k - T_q):
        all_ = all_ & rule
    return all_


def seen_by(q: Tensor, k: Tensor, *bounds: Tensor, structure: Structure) -> Tensor:
    sizes = (len(q), 2, q.shape[1], k.shape[1])
    b, h, i, j = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    rules: dict[str, Any] = {"causal": False, "window": None, "mask": None}
    return seen(q, k, *bounds, structure=structure, **rules)(b, h, i, j)


# A tree has a key of each query.
@pytest.mark.parametrize(
    ("name", "T_q"), [(n, T) for n in RULES for T in (5, 8) if T == 5 or "parents" not in RULES[n]]
)
def test_rules_hide_what_the_catalogue_hides(name: str, T_q: int) -> None:
    structure, T_k = dict(RULES[name]), 7
    if "blocks" in structure:
        structure["blocks"] = structure["blocks"].repeat(1, 2, 2)[:, : -(-T_q // 2), :4]
    q, k = torch.zeros(2, T_q, 2, 1), torch.zeros(2, T_k, 2, 1)
    assert torch.equal(seen_by(q, k, structure=structure), table(structure, T_q, T_k))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in RULES if name != "blocks"])
def test_sequences_of_a_pack_see_their_own(name: str) -> None:
    queries, keys = torch.tensor([0, 2, 5]), torch.tensor([0, 3, 7])
    structure = dict(RULES[name])
    if "document_ids" in structure:
        structure["document_ids"] = structure["document_ids"][:1]
    if "parents" in structure:
        structure["parents"] = torch.tensor([-1, 0, -1, 0, 0])
    if "prefix" in structure:
        structure["prefix"] = torch.tensor([2, 3])
    want = torch.zeros(1, 2, 5, 7, dtype=torch.bool)
    for n in range(2):
        i, j = (slice(int(ends[n]), int(ends[n + 1])) for ends in (queries, keys))
        part = of_sequences(structure, slice(n, n + 1), i, j)  # type: ignore[arg-type]
        want[:, :, i, j] = table(part, i.stop - i.start, j.stop - j.start)[:1]
    q, k = torch.zeros(1, 5, 2, 1), torch.zeros(1, 7, 2, 1)
    assert torch.equal(seen_by(q, k, queries, keys, structure=structure), want)  # type: ignore[arg-type]
