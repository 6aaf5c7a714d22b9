"""Masks, biases and structures: that what is skipped changes no bit, and what is refused."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import attention

module = import_module(attention.__module__)
QUERIES, KEYS = 70, 90


def _inputs(device: torch.device) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, QUERIES, 4, 5), (2, KEYS, 2, 5), (2, KEYS, 2, 3)
    return tuple(
        torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes
    )


def _masks(device: torch.device) -> Iterator[tuple[str, dict[str, Any]]]:
    """Masks with tiles that nobody sees: first, last and in the middle."""
    seen = torch.ones(1, 1, QUERIES, KEYS, dtype=torch.bool, device=device)
    seen[..., :, 20:70] = False
    seen[..., 40:, :] = False
    yield "mask", {"mask": seen}
    yield "bias", {"bias": torch.where(seen, 0.5, -torch.inf).requires_grad_()}
    ids = torch.arange(KEYS, device=device).expand(2, -1) // 35
    yield "documents", {"structure": {"document_ids": ids}}
    yield "chunk", {"structure": {"chunk": 18}, "causal": True}
    table = torch.tensor([[[1, 0, 1], [0, 0, 0], [0, 1, 0]]], device=device).bool()
    yield "blocks", {"structure": {"blocks": table, "block_size": 32}}
    tree = torch.tensor([-1, *range(33), -1, *range(34, QUERIES - 1)], device=device)
    yield "tree", {"structure": {"parents": tree}}
    gates = torch.full((2, KEYS, 4), -0.1, device=device).requires_grad_()
    yield "gates", {"structure": {"chunk": 18}, "causal": True, "g": gates}


NAMES = [name for name, _ in _masks(torch.device("cpu"))]


@pytest.mark.parametrize("name", NAMES)
def test_tiles_that_are_skipped_change_no_bit(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves, options = list(_inputs(device)), dict(_masks(device))[name]
    leaves += [options[tensor] for tensor in ("bias", "g") if tensor in options]

    def results() -> list[Tensor]:
        o, lse = attention(*leaves[:3], return_lse=True, **options)
        assert lse is not None
        gradients = torch.autograd.grad(o.sin().sum() + lse.nan_to_num(neginf=0.0).sum(), leaves)
        return [o, lse, *gradients]

    skipping = results()
    monkeypatch.setattr(module, "SKIP", False)
    for got, want in zip(skipping, results(), strict=True):
        assert torch.equal(got, want)


def test_a_tile_that_is_skipped_is_not_read(device: torch.device) -> None:
    q, k, v = _inputs(device)
    """Tiles divide 64."""
    ids = torch.arange(KEYS, device=device).expand(2, -1) // 64
    options: dict[str, Any] = {"structure": {"document_ids": ids}}
    want, _ = attention(q, k, v, **options)
    with torch.no_grad():
        k[:, :64] = v[:, :64] = torch.nan
    got, _ = attention(q, k, v, **options)
    assert torch.equal(got[:, 64:], want[:, 64:])


@pytest.mark.parametrize("packed", [False, True])
def test_documents_are_packed_sequences(packed: bool, device: torch.device) -> None:
    """Bit for bit where tiles begin with the documents."""
    q, k, v = (x[:1, :64].detach() for x in _inputs(device))
    ends = torch.tensor([0, 64], device=device)
    ids = torch.arange(64, device=device)[None] // 32
    options = {"cu_seqlens": ends} if packed else {}
    got, _ = attention(q, k, v, causal=True, structure={"document_ids": ids}, **options)
    documents = torch.tensor([0, 32, 64], device=device)
    want, _ = attention(q, k, v, causal=True, cu_seqlens=documents)
    assert torch.equal(got, want)


def test_a_bias_in_the_dtype_of_q_or_float32_gets_its_gradient_in_it(device: torch.device) -> None:
    q, k, v = _inputs(device)
    narrow = [x.detach().bfloat16() for x in (q, k, v)]
    bias = torch.full((1, 4, 1, KEYS), 0.25, device=device)
    with pytest.raises(TypeError, match=r"bias: .*float16.*, expected bfloat16 or float32"):
        attention(*narrow, bias=bias.half())
    for dtype in (torch.float32, torch.bfloat16):
        bias = bias.detach().to(dtype).requires_grad_()
        o, _ = attention(*narrow, bias=bias)
        (gradient,) = torch.autograd.grad(o.float().square().sum(), [bias])
        assert gradient.dtype == dtype
        assert gradient.any()
