"""Gated linear attention: linear attention whose state forgets, channel by channel."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels.linear.recurrence import run


def gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None = None,
    *,
    gv: Float[Tensor, "B T H V"] | None = None,
    scale: float | None = None,
    normalize: bool = False,
    initial_state: Float[Tensor, "N H K V+normalize"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Gated linear attention.

        S_t = diag(exp g_t) S_{t-1} diag(exp gv_t) + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    With `normalize`, `o_t = (S_tᵀ q_t) / (z_tᵀ q_t)` where z_t = exp(g_t) z_{t-1} + k_t is the last
    column of the state: v gets one more channel that is 1 everywhere and that gv does not decay.
    The scale cancels; a row with scale = 0 or z_tᵀ q_t = 0 is 0, and so are its gradients.

    Differentiable once, through both returns. All sums are float32.

    Args:
        q: queries `[B, T, H, K]`, float32, bfloat16 or float16; K is 1 to 256. Any strides.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q; V is 1 to 256.
        g: natural logarithm of the decay of each key channel `[B, T, H, K]`, in the dtype of q or
            float32, meant to be <= 0, -inf included. None means no decay.
        gv: the same for each value channel `[B, T, H, V]`. `fused_recurrent` alone has it.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        normalize: divide each row by its sum of weights; meant for q, k >= 0 and so for a state
            whose last column is not negative: where the sum passes through 0 there is a pole.
        initial_state: state before the first token `[N, H, K, V]`, with `normalize`
            `[N, H, K, V+1]`; float32. None means zero.
        output_final_state: return the state after the last token as well.
        reverse: run from the last token to the first. `initial_state` is then before the last
            token, and the final state after the first. `fused_recurrent` alone can.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode: `fused_recurrent` walks token by token in one kernel, with little to start up: for
            decoding and short sequences. `chunk` works on all chunks of tokens at once, between
            kernels that carry the state from chunk to chunk. `auto` chooses by the length.
        tile: index into `kernels.tiles.TABLE["gla", mode]`; None chooses by head dim,
            dtype, device and how many sequences and heads there are.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]` (or V+1), float32; None unless `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes or devices that do not match; K or V above 256; a scale that is NaN or
            infinite; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not
            end at T; an unknown mode or tile; `reverse` or `gv` with a mode that has not got it.
        NotImplementedError: a gradient of a gradient.

    Source: Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training,
        arXiv 2312.06635, section 4.1.
    """
    return run(
        "gla",
        q,
        k,
        v,
        g,
        gv,
        scale=scale,
        normalize=normalize,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        mode=mode,
        tile=tile,
    )
