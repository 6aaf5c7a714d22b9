"""Linear attentions whose decay is a constant of the head: retention and lightning attention."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.arguments import bind_dims, describe
from kernels.linear.simple_gla import simple_gla


def retention(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Retention.

        γ_h = 1 - 2 ** (-5 - h)             head h = 0, 1, ..., H - 1
        S_t = γ_h S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    It is `simple_gla` with g = log γ_h, without the rotation of q and k and the normalisation of o
    that a layer adds. Always stable, as 0 < γ_h < 1.

    Differentiable once, through both returns. All sums are float32.

    Args:
        q: queries `[B, T, H, K]`, float32, bfloat16 or float16; K is 1 to 256. Any strides.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q; V is 1 to 256.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        initial_state: state before the first token `[N, H, K, V]`, float32. None means zero.
        output_final_state: return the state after the last token as well.
        reverse: run from the last token to the first. `initial_state` is then before the last
            token, and the final state after the first. `fused_recurrent` alone can.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode, tile: those of `simple_gla`.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]`, float32; None unless `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes or devices that do not match; K or V above 256; a scale that is NaN or
            infinite; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not
            end at T; an unknown mode or tile.
        NotImplementedError: a gradient of a gradient.

    Source: Sun et al., Retentive Network, arXiv 2307.08621, equations 6 and 8.
    """
    return simple_gla(
        q,
        k,
        v,
        _of_retention(q),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        mode=mode,
        tile=tile,
    )


def lightning_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    layer_idx: int,
    num_layers: int,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Lightning attention.

        λ_h = exp(-8 h / H · (1 - l / L))   head h = 0, 1, ..., H - 1, layer l of L
        S_t = λ_h S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    It is `simple_gla` with g = log λ_h: head 0 never forgets, and the later the layer the less the
    others do. Always stable, as 0 < λ_h <= 1.

    Differentiable once, through both returns. All sums are float32.

    Args:
        q: queries `[B, T, H, K]`, float32, bfloat16 or float16; K is 1 to 256. Any strides.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q; V is 1 to 256.
        layer_idx: l, from 0 to L.
        num_layers: L, at least 1.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        initial_state: state before the first token `[N, H, K, V]`, float32. None means zero.
        output_final_state: return the state after the last token as well.
        reverse: run from the last token to the first. `initial_state` is then before the last
            token, and the final state after the first. `fused_recurrent` alone can.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode, tile: those of `simple_gla`.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]`, float32; None unless `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes or devices that do not match; K or V above 256; a layer that is not
            there; a scale that is NaN or infinite; `cu_seqlens` with B != 1, or that does not start
            at 0, decreases, or does not end at T; an unknown mode or tile.
        NotImplementedError: a gradient of a gradient.

    Source: Qin et al., Lightning Attention-2, arXiv 2401.04658 (the recurrence); TransNormerLLM,
        arXiv 2307.14995, equation 2 (the decay).
    """
    return simple_gla(
        q,
        k,
        v,
        _of_lightning(q, layer_idx, num_layers),
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        mode=mode,
        tile=tile,
    )


def _of_retention(q: Tensor) -> Float[Tensor, "B T H"]:
    return _everywhere(q, torch.log1p(-torch.exp2(-5 - _numbers_of_heads(q))))


def _of_lightning(q: Tensor, layer_idx: int, num_layers: int) -> Float[Tensor, "B T H"]:
    for name, value in (("layer_idx", layer_idx), ("num_layers", num_layers)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: {describe(value)}, expected an int")
    if num_layers < 1:
        raise ValueError(f"num_layers: {num_layers}, expected at least 1")
    if not 0 <= layer_idx <= num_layers:
        raise ValueError(f"layer_idx: {layer_idx}, expected 0 to num_layers={num_layers}")
    h = _numbers_of_heads(q)
    return _everywhere(q, -8 * h / len(h) * (1 - layer_idx / num_layers))


def _numbers_of_heads(q: Tensor) -> Float[Tensor, " H"]:
    """Made on the device: a copy from the host waits for it, and CUDA graphs cannot hold one."""
    heads = bind_dims(q=(q, "B T H K"))["H"]
    return torch.arange(heads, dtype=torch.float64, device=q.device)


def _everywhere(q: Tensor, log_decay: Float[Tensor, " H"]) -> Float[Tensor, "B T H"]:
    return log_decay.float().expand(q.shape[:3])
