"""Simple gated linear attention: linear attention whose state forgets, all channels alike."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels.linear.recurrence import run


def simple_gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_chunk", "fused_recurrent", "parallel"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """Linear attention with one decay per head and token.

        S_t = exp(g_t) S_{t-1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Differentiable once, through both returns. All sums are float32.

    Args:
        q: queries `[B, T, H, K]`, float32, bfloat16 or float16; K is 1 to 256. Any strides.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q; V is 1 to 256.
        g: natural logarithm of the decay `[B, T, H]`, in the dtype of q or float32, meant to be
            <= 0, -inf included. None means no decay.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        initial_state: state before the first token `[N, H, K, V]`, float32. None means zero.
        output_final_state: return the state after the last token as well.
        reverse: run from the last token to the first. `initial_state` is then before the last
            token, and the final state after the first. `fused_recurrent` alone can.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode: `fused_recurrent` walks token by token in one kernel, with little to start up: for
            decoding and short sequences. `chunk` works on all chunks of tokens at once, between
            kernels that carry the state from chunk to chunk. `fused_chunk` carries the state in
            one kernel, and goes back as `chunk` does. So does `parallel`, which takes all pairs of
            tokens. `auto` chooses by the length.
        tile: index into `kernels.tiles.TABLE["simple_gla", mode]`; None chooses by head dim,
            dtype, device and how many sequences and heads there are.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]`, float32; None unless `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes or devices that do not match; K or V above 256; a scale that is NaN or
            infinite; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not
            end at T; an unknown mode or tile; `reverse` with a mode that has not got it.
        NotImplementedError: a gradient of a gradient.

    Source: Dao and Gu, Transformers are SSMs, arXiv 2405.21060 (a state matrix that is a number
        times the identity); Yang et al., arXiv 2312.06635 (chunks).
    """
    return run(
        "simple_gla",
        q,
        k,
        v,
        g,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        reverse=reverse,
        cu_seqlens=cu_seqlens,
        mode=mode,
        tile=tile,
    )
