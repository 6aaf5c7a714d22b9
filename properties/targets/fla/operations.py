"""Every public operation of `fla.ops`, and a call of it that is small and ragged.

A tensor is declared as its dims, behind a word where its numbers are not just any numbers:

    gate    natural logarithm of a decay, at most 0
    rate    between 0 and 1
    unit    of norm 1 along the last dim
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

MODES = (
    "fused_chunk",
    "fused_recurrent",
    "fused_mul_recurrent",
    "chunk",
    "parallel",
    "fused",
)
# Building blocks of the others, not operations: they have no backward of their own.
BUILDING_BLOCKS = ("atk", "cp", "utils")
# One chunk of 64 tokens and a rest, a sequence without tokens, and a part of a chunk.
TOKENS = 70
LENGTHS = (70, 0, 33)
# Levels of log-linear attention: seven within a chunk, and one above.
SIZES = {"H": 2, "HQ": 4, "K": 32, "V": 64, "M": 16, "L": 8, "C": 15}


@dataclass(frozen=True)
class Operation:
    """How an operation is called.

    Args:
        tensors: arguments by name; a function is given those that it takes.
        others: arguments that are no tensors.
        sizes: of dims, where it does not take the usual ones.
        dtype: of the activations.
    """

    tensors: Mapping[str, str]
    others: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32


QKV = {"q": "B T H K", "k": "B T H K", "v": "B T H V"}
UNIT = {**QKV, "k": "unit B T H K"}
GROUPED = {"q": "B T HQ K", "k": "B T H K", "v": "B T H V"}
RWKV = {"r": "B T H K", "k": "B T H K", "v": "B T H V", "w": "gate B T H K"}
STATE = {"initial_state": "N H K V"}
PER_HEAD = {"g": "gate B T H", "beta": "rate B T H"}
PRECONDITIONED = {"g_atk": "gate B T H", "beta_atk": "rate B T H"}
CYFA = {
    "g": "gate B T H",
    "delta": "rate B T H",
    "beta": "rate B T H",
    "readout": "H C C",
    "q_norm_weight": "K",
    "k_norm_weight": "K",
}
SQUARE = {"K": 32, "V": 32}

OPERATIONS: dict[str, Operation] = {
    "abc": Operation({**QKV, "s": "B T H M"}),
    "attn": Operation({**GROUPED, "g": "gate B T HQ", "sink_bias": "HQ"}, {"window_size": 20}),
    "attnres": Operation({"query": "V", "residuals": "list B T V", "rms_weight": "V"}),
    "based": Operation(QKV, sizes={"K": 16}),
    "comba": Operation({**UNIT, "p": "unit B T H K", **PER_HEAD, **STATE}),
    "cyfa": Operation({**QKV, **CYFA}, {"q_norm_eps": 1e-6, "k_norm_eps": 1e-6}),
    "delta_rule": Operation({**UNIT, "beta": "rate B T H", **STATE}, dtype=torch.bfloat16),
    "dplr_delta_rule": Operation(
        {**QKV, "a": "unit B T H K", "b": "unit B T H K", "gk": "gate B T H K", **STATE}
    ),
    "forgetting_attn": Operation({**GROUPED, "g": "gate B T HQ"}),
    "gated_delta_product": Operation(
        {
            "q": "B T H K",
            "k": "unit B 2T H K",
            "v": "B 2T H V",
            "g": "gate B T H",
            "beta": "rate B 2T H",
            **STATE,
        },
        {"num_householder": 2},
        dtype=torch.bfloat16,
    ),
    "gated_delta_rule": Operation({**UNIT, **PER_HEAD, **STATE}),
    "gated_oja_rule": Operation(
        {**QKV, "v": "unit B T H V", "gv": "gate B T H V", "beta": "rate B T H", **STATE}
    ),
    "gdn2": Operation(
        {**UNIT, "g": "gate B T H K", "b": "rate B T H K", "w": "rate B T H V", **STATE}
    ),
    "gla": Operation({**QKV, "g": "gate B T H K", "gk": "gate B T H K", **STATE}),
    "gsa": Operation({**QKV, "s": "B T H M", "g": "gate B T H M"}),
    "hgrn": Operation({"x": "B T V", "g": "gate B T V"}),
    "iplr_delta_rule": Operation({**QKV, "a": "unit B T H K", "b": "unit B T H K", **STATE}),
    "kda": Operation({**UNIT, "g": "gate B T H K", "beta": "rate B T H", **STATE}),
    "lightnet": Operation(QKV),
    "lightning_attn": Operation({**QKV, **STATE}, {"layer_idx": 1, "num_layers": 4}),
    "linear_attn": Operation({**QKV, **STATE}, {"normalize": False}),
    "log_linear_attn": Operation(
        {**QKV, "g": "gate B T H", "level_scales": "rate B T H L"}, sizes={"K": 64}
    ),
    "mesa_net": Operation({**UNIT, **PER_HEAD, "lamb": "rate H K"}, sizes=SQUARE),
    "moba": Operation(QKV, {"max_seqlen": TOKENS, "chunk_size": 32, "topk": 2}),
    "momentum_delta_rule": Operation(
        {**QKV, "log_alpha": "gate B T H", "log_mu": "gate B T H", "beta": "rate B T H"},
        dtype=torch.bfloat16,
    ),
    "nsa": Operation(
        {**GROUPED, "g_cmp": "rate B T HQ", "g_slc": "rate B T HQ"},
        {"block_counts": 2, "block_size": 32},
        sizes={"HQ": 32},
    ),
    "parallax": Operation({**GROUPED, "r": "B T HQ K"}, sizes=SQUARE, dtype=torch.bfloat16),
    "path_attn": Operation(
        {**GROUPED, "w": "unit B T H K", "beta": "rate B T H", "g": "gate B T HQ"}
    ),
    "precond_gated_delta_rule": Operation({**UNIT, **PER_HEAD, **PRECONDITIONED, **STATE}),
    "precond_kda": Operation(
        {**UNIT, "g": "gate B T H K", "beta": "rate B T H", **PRECONDITIONED, **STATE}
    ),
    "rebased": Operation(QKV, sizes={"K": 16}),
    "retention": Operation({**QKV, **STATE}),
    "rwkv4": Operation({"w": "V", "u": "V", "k": "B T V", "v": "B T V", "state": "B 3 1 V"}),
    "rwkv6": Operation({**RWKV, "u": "H K", **STATE}),
    "rwkv7": Operation(
        {**RWKV, "a": "unit B T H K", "b": "unit B T H K", "kk": "unit B T H K", **STATE}
    ),
    "simple_gla": Operation({**QKV, "g": "gate B T H", **STATE}),
    "stickbreaking_attn": Operation(GROUPED),
    "titans_linear": Operation(
        {
            "q": "B H 64 K",
            "k": "B H 64 K",
            "v": "B H 64 K",
            "w": "H K",
            "b": "H K",
            "theta": "rate B H 64 1",
            "alpha": "rate B H 64 1",
            "eta": "rate B H 64 1",
        },
        {"eps": 1e-6, "chunk_size": 16, "initial_state": None},
    ),
    "ttt_linear": Operation(
        {**QKV, "w": "H V", "b": "H V", "eta": "rate B T H 1", **STATE}, sizes=SQUARE
    ),
    "wall_attn": Operation({**GROUPED, "g": "gate B T HQ K", "sink_bias": "HQ"}),
    "wall_attn_decode": Operation(
        {
            "q": "B 1 HQ K",
            "p_curr": "gate B 1 HQ K",
            "k_tilde": "B T HQ K",
            "v": "B T H V",
            "r_cache": "gate B 3 HQ K",
            "sink_bias": "HQ",
        },
        {"scale": 0.5, "cache_chunk_size": 32},
    ),
}


@dataclass(frozen=True)
class Call:
    """A public function of `fla.ops`: an operation in a mode."""

    module: str
    function: str

    @property
    def mode(self) -> str:
        return next(mode for mode in MODES if self.function.startswith(f"{mode}_"))

    @property
    def operation(self) -> str:
        return self.function.removeprefix(f"{self.mode}_")

    def load(self) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(importlib.import_module(self.module), self.function)
        return found


def public() -> tuple[list[Call], dict[str, str]]:
    """Return the operations that the folders of `fla.ops` export, a function per mode.

    Returns:
        The functions, each of them once, and the folders that cannot be imported, with the reason.
    """
    package = importlib.import_module("fla.ops")
    calls: dict[Callable[..., Any], Call] = {}
    broken: dict[str, str] = {}
    for folder in sorted(entry.name for entry in pkgutil.iter_modules(package.__path__)):
        if folder in BUILDING_BLOCKS:
            continue
        try:
            module = importlib.import_module(f"fla.ops.{folder}")
        except ImportError as error:
            broken[folder] = str(error)
            continue
        for name in getattr(module, "__all__", ()):
            if name.startswith(MODES) and not name.endswith("_ref"):
                calls.setdefault(getattr(module, name), Call(module.__name__, name))
    return list(calls.values()), broken


def arguments(call: Call, device: torch.device, *, packed: bool) -> dict[str, Any]:
    """The arguments of the function: a batch, or sequences of `LENGTHS` behind `cu_seqlens`."""
    operation = OPERATIONS[call.operation]
    generator = torch.Generator().manual_seed(0)
    tokens = sum(LENGTHS) if packed else TOKENS
    batch = {"B": 1, "N": len(LENGTHS)} if packed else {"B": 2, "N": 2}
    sizes = {**SIZES, **batch, "T": tokens, "2T": 2 * tokens, **operation.sizes}
    given: dict[str, Any] = {
        name: _filled(declared.split(), sizes, operation.dtype, device, generator)
        for name, declared in operation.tensors.items()
    }
    given.update(operation.others)
    given["output_final_state"] = True
    if packed:
        given["cu_seqlens"] = torch.tensor([0, *LENGTHS], device=device).cumsum(0)
    names = inspect.signature(call.load()).parameters
    return {name: value for name, value in given.items() if name in names}


def _filled(
    declared: list[str],
    sizes: Mapping[str, int],
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> Tensor | list[Any]:
    word, dims = (declared[0], declared[1:]) if declared[0].islower() else ("", declared)
    if word == "list":
        return [_filled(dims, sizes, dtype, device, generator) for _ in range(3)]
    x = torch.randn([sizes[dim] if dim in sizes else int(dim) for dim in dims], generator=generator)
    if word == "gate":
        x = logsigmoid(x)
    elif word == "rate":
        x = x.sigmoid()
    elif word == "unit":
        x = normalize(x, dim=-1)
    # Gates, rates and states are float32 whatever the activations are.
    own = torch.float32 if word in ("gate", "rate") or dims[0] == "N" else dtype
    return x.to(device, own).requires_grad_()
