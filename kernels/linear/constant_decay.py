"""Linear attentions whose decay is a constant of the head: retention and lightning attention."""

from typing import Any, Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from kernels.arguments import bind_dims, check_size
from kernels.linear.simple_gla import simple_gla
from kernels.recurrence import ReversibleOptions, wrapper


def retained(*, q: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
    return simple_gla(q=q, g=_of_retention(q), **given)


def retained_in_layer(
    *, q: Tensor, layer_idx: int, num_layers: int, **given: Any
) -> tuple[Tensor, Tensor | None]:
    return simple_gla(q=q, g=_of_lightning(q, layer_idx, num_layers), **given)


@wrapper(retained, "simple_gla")
def retention(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Retention, `reference.retention`: `simple_gla` with g = log γ_h."""


@wrapper(retained_in_layer, "simple_gla", raises=["a layer below 0 or above L, no layers"])
def lightning_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    layer_idx: int,
    num_layers: int,
    *,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    **options: Unpack[ReversibleOptions],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Lightning attention, `reference.lightning_attn`: `simple_gla` with g = log λ_h."""


def _of_retention(q: Tensor) -> Float[Tensor, "B T H"]:
    return _everywhere(q, torch.log1p(-torch.exp2(-5 - _numbers_of_heads(q))))


def _of_lightning(q: Tensor, layer_idx: int, num_layers: int) -> Float[Tensor, "B T H"]:
    check_size("num_layers", num_layers)
    check_size("layer_idx", layer_idx, 0)
    if layer_idx > num_layers:
        raise ValueError(f"layer_idx: {layer_idx}, expected 0 to num_layers={num_layers}")
    h = _numbers_of_heads(q)
    return _everywhere(q, -8 * h / len(h) * (1 - layer_idx / num_layers))


def _numbers_of_heads(q: Tensor) -> Float[Tensor, " H"]:
    """Make 0 to H - 1 on the device: a copy from the host waits, and a CUDA graph has none."""
    heads = bind_dims(q=(q, "B T H K"))["H"]
    return torch.arange(heads, dtype=torch.float64, device=q.device)


def _everywhere(q: Tensor, log_decay: Float[Tensor, " H"]) -> Float[Tensor, "B T H"]:
    return log_decay.float().expand(q.shape[:3])
