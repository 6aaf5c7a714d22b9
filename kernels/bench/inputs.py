"""Random tensors for each problem, of numbers that trained models have."""

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize, softplus

from kernels import rotary_axes, rotary_tables
from kernels.bench.shapes import Shape
from kernels.op import axes

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


_DECAYS = ("g", "log_alpha", "log_mu", "log_eta")
_RATES = ("beta", "eta", "theta", "lamb", "level_scales")
_FLOAT32 = ("w", "A_log", "dt_bias", "lse_a", "lse_b")
_CHUNK = 64
# Selected blocks of a query.
_BLOCKS = 16


def annotated(function: Callable[..., Any], *, unit: tuple[str, ...] = (), **sizes: int) -> Make:
    """Tensors as an op annotates those that it takes by place.

    Gates, strengths and parameters of gates are float32. D is a head dim, or where an op has no
    heads all channels.

    Args:
        unit: keys of length 1.
        sizes: of letters that are not those of a shape.
    """
    found = {
        name: axes(parameter.annotation)
        for name, parameter in signature(function).parameters.items()
        if parameter.kind is not parameter.KEYWORD_ONLY and axes(parameter.annotation)
    }
    heads = any("H" in letters for letters in found.values())

    def make(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
        B, T = shape.rows
        known = {"B": B, "T": T, "T_q": T, "T_k": T, "H": shape.H, "G": shape.H, "K": shape.K}
        known |= {"V": shape.V, "D": shape.K if heads else shape.H * shape.K}
        known |= {"L": T.bit_length() + 1, **sizes}
        tensors = {}
        for name, letters in found.items():
            size = [known[letter] for letter in letters]
            if name in _DECAYS:
                tensors[name] = _gates(*size, device=device)
            elif name in _RATES:
                # A ridge of 0 leaves a system that may have no solution.
                least = 1 if name == "lamb" else 0
                tensors[name] = least + torch.rand(size, dtype=torch.float32, device=device)
            else:
                kind = torch.float32 if name in _FLOAT32 else dtype
                x = torch.randn(size, dtype=kind, device=device)
                tensors[name] = normalize(x, dim=-1) if name in unit else x
        return tensors

    return make


def triangles(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """Rows of length 1 at most, of chunks of 64 tokens, below the diagonal."""
    A = torch.randn(*shape.rows, shape.H, _CHUNK, dtype=dtype, device=device) / 8
    row = torch.arange(shape.rows[1], device=device) % _CHUNK
    below = row[:, None] > torch.arange(_CHUNK, device=device)
    return {"A": A.where(below[:, None], 0)}


def selected(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """One head of keys, and for each query its own block and others before it, 16 in all."""
    tensors = queries_keys_values(shape, dtype, device)
    B, T = shape.rows
    block = torch.arange(triton.cdiv(T, _CHUNK), device=device)
    own = (torch.arange(T, device=device) // _CHUNK)[:, None, None]
    chance = torch.rand(B, T, 1, len(block), device=device)
    chance = chance.masked_fill(block == own, 2).masked_fill(block > own, -1)
    chance, indices = chance.topk(min(_BLOCKS, len(block)))
    alone = {name: tensors[name][:, :, :1].contiguous() for name in ("k", "v")}
    return {**tensors, **alone, "indices": indices.masked_fill(chance < 0, -1)}


def paged(shape: Shape, dtype: torch.dtype, device: torch.device) -> Tensors:
    """A query of each sequence, behind as many tokens as the shape has, in pages in no order."""
    tensors = cached(replace(shape, T=triton.cdiv(shape.T, 2)), dtype, device)
    pages = {name: torch.randn_like(tensors[name]) for name in ("k_pages", "v_pages")}
    q = torch.randn(shape.B, 1, shape.H, shape.K, dtype=dtype, device=device)
    lengths = torch.full((shape.B,), shape.T, device=device)
    return {"q": q, **pages, "block_table": tensors["table"], "lengths": lengths}


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
