"""The same ops in other libraries, as functions of the same inputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import conv1d, elu, normalize, scaled_dot_product_attention

from kernels.bench.shapes import Form

Given = dict[str, Any]

KINDS = ("fla", "torch")


def name_of(kind: str, mode: str) -> str:
    """The name of a mode in tables: ours as it is, others' behind the name of their library."""
    return mode if kind == "ours" else f"{kind} {mode}"


@dataclass(frozen=True)
class Contender:
    """One way to compute an op.

    Args:
        kind: whose it is, "ours" or one of `KINDS`.
        mode: its name there.
        function: from the inputs of a problem, the output or a tuple that begins with it.
        around: what its forward and backward pass run in.
    """

    kind: str
    mode: str
    function: Callable[..., Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def name(self) -> str:
        """Mode, and before it whose it is."""
        return name_of(self.kind, self.mode)


@dataclass(frozen=True)
class _Fla:
    """A function of fla.

    Args:
        function: "package.module:function", where {} is the mode.
        modes: those that it has.
        options: further arguments.
        adapted: in a mode, its arguments from the inputs, where they are not the same.
        gated: modes whose backward pass fla refuses under some releases of Triton.
    """

    function: str
    modes: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    adapted: Mapping[str, Callable[[Given], Given]] = field(default_factory=dict)
    gated: tuple[str, ...] = ()


def _renamed(**names: str) -> Callable[[Given], Given]:
    return lambda given: {names.get(name, name): x for name, x in given.items()}


def _rates_of_columns(given: Given) -> Given:
    renamed = _renamed(weight="w", bias="b", mini_batch_size="chunk_size")(given)
    return {**renamed, "eta": given["eta"].unsqueeze(-1).to(given["q"].dtype)}


def _scales_like_queries(given: Given) -> Given:
    return {**given, "level_scales": given["level_scales"].to(given["q"].dtype)}


def _sources(given: Given) -> Given:
    """The sources apart, as fla takes them."""
    renamed = _renamed(weight="rms_weight", x="residuals")(given)
    return {**renamed, "residuals": _apart(given["x"])}


# A model has them apart, so copying them is no part of the op; stacking gradients is not saved.
@lru_cache(maxsize=1)
def _apart(x: Tensor) -> list[Tensor]:
    return [source.contiguous() for source in x.unbind(2)]


def _row_of_biases(given: Given) -> Given:
    return {"g": given["x"], "A_log": given["A_log"], "dt_bias": given["dt_bias"].flatten()}


def _gates_of_scores(given: Given) -> Given:
    """fla scales the gates too."""
    return {**given, "g": given["g"] * given["q"].shape[-1] ** 0.5}


def _removal(given: Given) -> Given:
    """The removal keys of RWKV-7 as the two factors of its transition."""
    others = {name: x for name, x in given.items() if name != "kk"}
    return {**others, "a": -given["kk"], "b": given["kk"] * given["a"]}


FLA = {
    "linear_attn": _Fla(
        "fla.ops.linear_attn:{}_linear_attn",
        ("chunk", "fused_chunk", "fused_recurrent"),
        options={"normalize": False},
    ),
    "gla": _Fla(
        "fla.ops.gla:{}_gla",
        ("chunk", "fused_recurrent"),
        adapted={"fused_recurrent": _renamed(g="gk")},
    ),
    "simple_gla": _Fla(
        "fla.ops.simple_gla:{}_simple_gla",
        ("chunk", "fused_chunk", "fused_recurrent", "parallel"),
        gated=("chunk",),
    ),
    "retention": _Fla(
        "fla.ops.retention:{}_retention", ("chunk", "fused_chunk", "fused_recurrent", "parallel")
    ),
    "lightning_attn": _Fla(
        "fla.ops.lightning_attn:{}_lightning_attn",
        ("chunk", "fused_recurrent"),
        options={"layer_idx": 1, "num_layers": 4},
    ),
    "delta_rule": _Fla("fla.ops.delta_rule:{}_delta_rule", ("chunk", "fused_recurrent")),
    "gated_delta_rule": _Fla(
        "fla.ops.gated_delta_rule:{}_gated_delta_rule",
        ("chunk", "fused_recurrent"),
        gated=("chunk",),
    ),
    "kda": _Fla("fla.ops.kda:{}_kda", ("chunk", "fused_recurrent")),
    "dplr": _Fla("fla.ops.generalized_delta_rule:{}_dplr_delta_rule", ("chunk", "fused_recurrent")),
    "rwkv7": _Fla(
        "fla.ops.rwkv7:{}_rwkv7",
        ("chunk", "fused_recurrent", "fused_mul_recurrent"),
        options={"scale": 1.0},
        adapted={"chunk": _removal, "fused_recurrent": _removal},
    ),
    "attention": _Fla("fla.ops.attn:{}_attn", ("parallel",)),
    "rotary_embedding": _Fla("fla.modules.rotary:rotary_embedding", ("fused",)),
    "short_conv": _Fla("fla.modules.convolution:causal_conv1d", ("fused",)),
    "l2norm": _Fla("fla.modules.l2norm:l2norm", ("fused",)),
    "hgrn": _Fla("fla.ops.hgrn:{}_hgrn", ("chunk", "fused_recurrent")),
    "log_linear_attn": _Fla(
        "fla.ops.log_linear_attn:{}_log_linear_attn",
        ("chunk",),
        options={"scale": None},
        adapted={"chunk": _scales_like_queries},
    ),
    "momentum_delta_rule": _Fla(
        "fla.ops.momentum_delta_rule:{}_momentum_delta_rule",
        ("chunk", "fused_recurrent"),
        options={"use_qk_l2norm_in_kernel": False, "use_p_times_alpha": False},
    ),
    "mesa_net": _Fla("fla.ops.mesa_net:{}_mesa_net", ("chunk",)),
    "ttt_linear": _Fla(
        "fla.ops.ttt:{}_ttt_linear",
        ("chunk", "fused_chunk"),
        options={"eps": 1e-2},
        adapted={"chunk": _rates_of_columns, "fused_chunk": _rates_of_columns},
    ),
    "based": _Fla("fla.ops.based:{}_based", ("parallel",)),
    "rebased": _Fla("fla.ops.rebased:{}_rebased", ("parallel",)),
    "stickbreaking_attn": _Fla("fla.ops.stickbreaking_attn:{}_stickbreaking_attn", ("parallel",)),
    "path_attn": _Fla(
        "fla.ops.path_attn:{}_path_attn", ("parallel",), adapted={"parallel": _gates_of_scores}
    ),
    "wall_attn": _Fla("fla.ops.wall_attn:{}_wall_attn", ("parallel",)),
    "parallax": _Fla("fla.ops.parallax:{}_parallax", ("parallel",)),
    "selected_attention": _Fla(
        "fla.ops.nsa:{}_nsa",
        ("parallel",),
        adapted={"parallel": _renamed(indices="block_indices")},
    ),
    "attnres": _Fla("fla.ops.attnres:{}_attnres", ("fused",), adapted={"fused": _sources}),
    "feature_map": _Fla("fla.modules.activations:elu_p1", ("fused",)),
    "decay_gate": _Fla(
        "fla.ops.kda.gate:{}_kda_gate", ("fused",), adapted={"fused": _row_of_biases}
    ),
    "rms_norm_gated": _Fla(
        "fla.modules.norm.fused_norm_gate:rms_norm_gated",
        ("fused",),
        options={"bias": None},
        adapted={"fused": _renamed(z="g")},
    ),
    "mean_pooling": _Fla(
        "fla.ops.utils.pooling:mean_pooling", ("fused",), options={"chunk_size": 64}
    ),
    "solve_tril": _Fla(
        "fla.ops.utils.solve_tril:solve_tril", ("fused",), options={"output_dtype": None}
    ),
}


def available() -> tuple[str, ...]:
    """The kinds of baselines that this machine has."""
    return tuple(kind for kind in KINDS if find_spec(kind) is not None)


def contenders(
    op: str, against: tuple[str, ...], *, form: Form = "dense", backward: bool = False
) -> list[Contender]:
    """The baselines of an op, of the kinds that are wanted."""
    found = []
    if "fla" in against and op in FLA:
        modes = [mode for mode in FLA[op].modes if form != "decode" or "recurrent" in mode]
        found += [_fla(op, mode, backward=backward) for mode in modes]
    if "torch" in against:
        found += _TORCH.get((op, form), [])
    return found


def import_fla(ops: Iterable[str]) -> None:
    """Import whatever is timed of these ops, lest it fails in the middle of a run."""
    for op in FLA.keys() & ops:
        for mode in FLA[op].modes:
            fla_function(op, mode)


@cache
def fla_function(op: str, mode: str) -> Callable[..., Any]:
    """The function itself, which imports fla."""
    module, _, name = FLA[op].function.format(mode).partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _fla(op: str, mode: str, *, backward: bool) -> Contender:
    entry = FLA[op]
    adapted = entry.adapted.get(mode, dict)

    def function(**inputs: Any) -> Any:
        return fla_function(op, mode)(**adapted(inputs), **entry.options)

    if backward and mode in entry.gated and _guarded():
        return Contender("fla", f"{mode} unguarded", function, _unguarded)
    return Contender("fla", mode, function)


def _guarded() -> bool:
    """Whether fla refuses the backward pass of `gated` modes, which this Triton miscompiles."""
    chunk_o = import_module("fla.ops.common.chunk_o")
    return (
        chunk_o.IS_NVIDIA_HOPPER and chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1
    )


@contextmanager
def _unguarded() -> Iterator[None]:
    """Have it run anyway."""
    chunk_o = import_module("fla.ops.common.chunk_o")
    before = chunk_o.TRITON_ABOVE_3_7_1
    chunk_o.TRITON_ABOVE_3_7_1 = True
    try:
        yield
    finally:
        chunk_o.TRITON_ABOVE_3_7_1 = before


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _packed_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    # Not every release that is supported has it.
    from torch.nn.attention.varlen import varlen_attn

    boundaries, longest = _boundaries(cu_seqlens)
    # Causal was an argument of its own once.
    old = "is_causal" in signature(varlen_attn).parameters
    causal: dict[str, Any] = {"is_causal": True} if old else {"window_size": (-1, 0)}
    o: Tensor = varlen_attn(q[0], k[0], v[0], boundaries, boundaries, longest, longest, **causal)
    return o[None]


# The host has to know the longest sequence, which it need not ask the GPU for each time.
@lru_cache(maxsize=1)
def _boundaries(cu_seqlens: Tensor) -> tuple[Tensor, int]:
    return cu_seqlens.to(torch.int32), int(cu_seqlens.diff().max())


def _differential(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, lam: Tensor) -> Tensor:
    return _attention(q1, k1, v) - lam[:, None] * _attention(q2, k2, v)


def _paged(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor
) -> Tensor:
    """Without a mask: all sequences are as long."""
    longest = _longest(lengths)
    k, v = (x[block_table].flatten(1, 2)[:, :longest].transpose(1, 2) for x in (k_pages, v_pages))
    return scaled_dot_product_attention(q.transpose(1, 2), k, v).transpose(1, 2)


@lru_cache(maxsize=1)
def _longest(lengths: Tensor) -> int:
    return int(lengths.max())


def _merged(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> Tensor:
    a = torch.sigmoid(lse_a - lse_b).transpose(1, 2)[..., None].to(o_a.dtype)
    return torch.lerp(o_b, o_a, a)


def _features(x: Tensor) -> Tensor:
    return elu(x) + 1


def _sums(x: Tensor) -> Tensor:
    return x.cumsum(1)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos[:, None], sin[:, None]
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


def _multiaxis(x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor, axes: Tensor) -> Tensor:
    row, pair = position_ids[axes].movedim(0, -1), torch.arange(len(axes), device=x.device)
    cos, sin = cos[row, pair][:, :, None], sin[row, pair][:, :, None]
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


def _convolution(x: Tensor, weight: Tensor) -> Tensor:
    channels, width = weight.shape
    y = conv1d(x.transpose(1, 2), weight[:, None], padding=width - 1, groups=channels)
    return y[..., : x.shape[1]].transpose(1, 2)


def _normalized(x: Tensor) -> Tensor:
    return normalize(x, dim=-1)


def _append(
    k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, length: Tensor, **_: Any
) -> Tensor:
    position = length[:, None] + torch.arange(k.shape[1], device=k.device)
    page = table.gather(1, position // k_pages.shape[1])
    row = position % k_pages.shape[1]
    k_pages[page, row] = k
    v_pages[page, row] = v
    return k_pages


_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_TORCH: dict[tuple[str, Form], list[Contender]] = {
    ("attention", "dense"): [
        Contender("torch", name, _attention, partial(sdpa_kernel, backend))
        for name, backend in _BACKENDS.items()
    ],
    ("attention", "packed"): [Contender("torch", "varlen_attn", _packed_attention)],
    ("rotary_embedding", "dense"): [Contender("torch", "composed", _rotary)],
    ("multiaxis_rotary", "dense"): [Contender("torch", "composed", _multiaxis)],
    ("short_conv", "dense"): [Contender("torch", "conv1d", _convolution)],
    ("l2norm", "dense"): [Contender("torch", "normalize", _normalized)],
    ("differential_attention", "dense"): [
        Contender("torch", f"two {name}", _differential, partial(sdpa_kernel, backend))
        for name, backend in _BACKENDS.items()
    ],
    ("paged_attention", "dense"): [
        Contender("torch", f"gather, {name}", _paged, partial(sdpa_kernel, backend))
        for name, backend in _BACKENDS.items()
    ],
    ("merge_attention", "dense"): [Contender("torch", "composed", _merged)],
    ("feature_map", "dense"): [Contender("torch", "composed", _features)],
    ("cumsum", "dense"): [Contender("torch", "cumsum", _sums)],
    ("cache_append", "dense"): [Contender("torch", "index_put", _append)],
}
