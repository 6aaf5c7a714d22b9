"""The general delta rule: the state is multiplied by a diagonal plus a matrix of rank one."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels.delta.rule import run


def dplr(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    a: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H K"],
    gk: Float[Tensor, "B T H K"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """A linear attention with a transition that is diagonal plus low rank (DPLR).

        r_t = S_{t-1}ᵀ a_t                  what is read, before the state decays
        S_t = diag(exp gk_t) S_{t-1} + b_t r_tᵀ + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    so that S_{t-1} is multiplied by A_t = diag(exp gk_t) + b_t a_tᵀ.

    Stable where no A_t makes a vector longer. For gk <= 0 that is so if
    |a_t| |b_t| <= 1 - max exp(gk_t), and also if a_t = exp(gk_t) ∘ c_t and b_t = -β_t c_t with
    0 <= β_t |c_t|² <= 2 for some c_t, which is the transition of `kda`. It is not enough that the
    eigenvalues of each A_t lie in [-1, 1]: A_t is not symmetric, and products of such matrices may
    grow.

    Differentiable once, through both returns. All sums are float32.

    Args:
        q: queries `[B, T, H, K]`, float32, bfloat16 or float16; K is 1 to 256. Any strides.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q; V is 1 to 256.
        a: what is read of the state `[B, T, H, K]`, in the dtype of q.
        b: where that is written `[B, T, H, K]`, in the dtype of q.
        gk: natural logarithm of the decay of each key channel `[B, T, H, K]`, in the dtype of q
            or float32, meant to be <= 0, -inf included. None means no decay.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        initial_state: state before the first token `[N, H, K, V]`, float32. None means zero.
        output_final_state: return the state after the last token as well.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode: `fused_recurrent` walks token by token in one kernel, with little to start up: for
            decoding and short sequences. `chunk` solves the system of every chunk at once, and then
            carries the state from chunk to chunk. `auto` chooses by the length.
        tile: index into `kernels.tiles.TABLE["dplr", mode]`; None chooses by head dim,
            dtype, device and how many sequences and heads there are.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]`, float32; None unless `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v, a, b not of one dtype.
        ValueError: shapes or devices that do not match; K or V above 256; a scale that is NaN or
            infinite; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not
            end at T; an unknown mode or tile.
        NotImplementedError: a gradient of a gradient.

    Source: Peng et al., RWKV-7, arXiv 2503.14456, table 1 ("generalized delta rule").
    """
    return run(
        "dplr",
        q,
        k,
        v,
        gk,
        a=a,
        b=b,
        gate_name="gk",
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        mode=mode,
        tile=tile,
    )
