"""Random tensors for each problem, of numbers that trained models have."""

from collections.abc import Callable

import torch
import triton
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

from kernels import rotary_axes, rotary_tables
from kernels.bench.shapes import Shape

Tensors = dict[str, Tensor]
Make = Callable[[Shape, torch.dtype, torch.device], Tensors]

PAGE = 16


def queries_keys_values(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    widths = {"q": shape.K, "k": shape.K, "v": shape.V}
    return {
        name: torch.randn(*shape.rows, shape.H, width, dtype=dtype, device=device)
        for name, width in widths.items()
    }


def _gates(*sizes: int, device: torch.device) -> Tensor:
    """Log decays whose memory is some tens of tokens, as trained ones have."""
    return logsigmoid(torch.randn(sizes, dtype=torch.float32, device=device)) / 16


def _gates_of_heads(shape: Shape, device: torch.device) -> Tensor:
    return _gates(*shape.rows, shape.H, device=device)


def _gates_of_keys(shape: Shape, device: torch.device) -> Tensor:
    return _gates(*shape.rows, shape.H, shape.K, device=device)


def _with_gates(make: Make, gates: Callable[[Shape, torch.device], Tensor]) -> Make:
    def gated(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
        return {**make(shape, dtype, device), "g": gates(shape, device)}

    return gated


def delta(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """With keys of length 1 and strengths from 0 to 1."""
    tensors = queries_keys_values(shape, dtype, device)
    beta = torch.rand(*shape.rows, shape.H, dtype=torch.float32, device=device)
    return {**tensors, "k": normalize(tensors["k"], dim=-1), "beta": beta}


gated = _with_gates(queries_keys_values, _gates_of_keys)
gated_heads = _with_gates(queries_keys_values, _gates_of_heads)
gated_delta = _with_gates(delta, _gates_of_heads)
kda = _with_gates(delta, _gates_of_keys)


def dplr(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """With a and b of length 1/2 each."""
    tensors = queries_keys_values(shape, dtype, device)
    a, b = (normalize(torch.randn_like(tensors["k"]), dim=-1) / 2 for _ in range(2))
    return {**tensors, "a": a, "b": b, "gk": _gates_of_keys(shape, device)}


def rwkv7(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """With removal keys of length 1 and strengths from 0 to 1."""
    tensors = queries_keys_values(shape, dtype, device)
    kk, a = normalize(torch.randn_like(tensors["k"]), dim=-1), torch.rand_like(tensors["k"])
    w = _gates_of_keys(shape, device)
    return {"r": tensors["q"], "w": w, "k": tensors["k"], "v": tensors["v"], "kk": kk, "a": a}


def mamba2(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """With one group of B and C."""
    x = torch.randn(*shape.rows, shape.H, shape.V, dtype=dtype, device=device)
    B, C = (torch.randn(*shape.rows, 1, shape.K, dtype=dtype, device=device) for _ in range(2))
    dt = softplus(torch.randn(*shape.rows, shape.H, dtype=torch.float32, device=device))
    A = -torch.rand(shape.H, dtype=torch.float32, device=device) / 16
    return {"x": x, "dt": dt, "A": A, "B": B, "C": C}


def vectors(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {"x": torch.randn(*shape.rows, shape.H, shape.K, dtype=dtype, device=device)}


def channels(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    x = torch.randn(*shape.rows, shape.H * shape.K, dtype=dtype, device=device)
    return {"x": x, "weight": torch.randn(shape.H * shape.K, 4, dtype=dtype, device=device)}


def rotary_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    # fla takes no tables shorter than the whole pack, though no sequence reads so far.
    cos, sin = rotary_tables(shape.rows[1], shape.K, dtype=dtype, device=device)
    x = torch.randn(*shape.rows, shape.H, shape.K, dtype=dtype, device=device)
    return {"x": x, "cos": cos, "sin": sin}


def multiaxis_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Three axes, as for videos."""
    pairs = shape.K // 2
    sections = [len(range(axis, pairs, 3)) for axis in range(3)]
    return {
        **rotary_inputs(shape, dtype, device),
        "position_ids": torch.arange(shape.rows[1], device=device).expand(3, *shape.rows),
        "axes": rotary_axes(pairs, sections, interleaved=True, device=device),
    }


def cached(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """New tokens, as many as there are before them, and pages of 16 tokens in no order."""
    tensors = queries_keys_values(shape, dtype, device)
    blocks = triton.cdiv(2 * shape.T, PAGE)
    pages = shape.B * blocks
    shuffled = torch.randperm(pages, dtype=torch.int32, device=device)
    length, offset = torch.full((2, shape.B), shape.T, device=device)
    return {
        "k": tensors["k"],
        "v": tensors["v"],
        "k_pages": torch.zeros(pages, PAGE, shape.H, shape.K, dtype=dtype, device=device),
        "v_pages": torch.zeros(pages, PAGE, shape.H, shape.V, dtype=dtype, device=device),
        "table": shuffled.view(shape.B, blocks),
        "length": length,
        "offset": offset,
    }


def of_form(shape: Shape, device: torch.device) -> Tensors:
    """Inputs of a form: boundaries of sequences, or the state before the first token."""
    if shape.form == "packed":
        return {"cu_seqlens": torch.tensor(shape.boundaries, device=device)}
    if shape.form == "decode":
        sizes = (shape.B, shape.H, shape.K, shape.V)
        return {"initial_state": torch.randn(sizes, dtype=torch.float32, device=device)}
    return {}
