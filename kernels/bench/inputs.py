"""Random tensors for each problem, of numbers that trained models have."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from kernels import rotary_tables
from kernels.bench.shapes import Shape

Tensors = dict[str, Tensor]


def queries_keys_values(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    widths = {"q": shape.K, "k": shape.K, "v": shape.V}
    return {
        name: torch.randn(shape.B, shape.T, shape.H, width, dtype=dtype, device=device)
        for name, width in widths.items()
    }


def _gates(*sizes: int, device: torch.device) -> Tensor:
    """Log decays whose memory is some tens of tokens, as trained ones have."""
    return logsigmoid(torch.randn(sizes, dtype=torch.float32, device=device)) / 16


def _gates_of_heads(shape: Shape, device: torch.device) -> Tensor:
    return _gates(shape.B, shape.T, shape.H, device=device)


def _gates_of_keys(shape: Shape, device: torch.device) -> Tensor:
    return _gates(shape.B, shape.T, shape.H, shape.K, device=device)


def gated(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {**queries_keys_values(shape, dtype, device), "g": _gates_of_keys(shape, device)}


def gated_heads(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {**queries_keys_values(shape, dtype, device), "g": _gates_of_heads(shape, device)}


def delta(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """With keys of length 1 and strengths from 0 to 1."""
    tensors = queries_keys_values(shape, dtype, device)
    beta = torch.rand(shape.B, shape.T, shape.H, dtype=torch.float32, device=device)
    return {**tensors, "k": normalize(tensors["k"], dim=-1), "beta": beta}


def gated_delta(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {**delta(shape, dtype, device), "g": _gates_of_heads(shape, device)}


def kda(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {**delta(shape, dtype, device), "g": _gates_of_keys(shape, device)}


def dplr(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """With a and b of length 1/2 each."""
    tensors = queries_keys_values(shape, dtype, device)
    a, b = (normalize(torch.randn_like(tensors["k"]), dim=-1) / 2 for _ in range(2))
    return {**tensors, "a": a, "b": b, "gk": _gates_of_keys(shape, device)}


def vectors(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {"x": torch.randn(shape.B, shape.T, shape.H, shape.K, dtype=dtype, device=device)}


def channels(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    x = torch.randn(shape.B, shape.T, shape.H * shape.K, dtype=dtype, device=device)
    return {"x": x, "weight": torch.randn(shape.H * shape.K, 4, dtype=dtype, device=device)}


def rotary_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    cos, sin = rotary_tables(shape.T, shape.K, dtype=dtype, device=device)
    x = torch.randn(shape.B, shape.T, shape.H, shape.K, dtype=dtype, device=device)
    return {"x": x, "cos": cos, "sin": sin}
