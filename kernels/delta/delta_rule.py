"""The delta rule: a linear attention that writes what its state did not yet say of a key."""

from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from kernels.delta.rule import run


def delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"] | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The delta rule.

        u_t = β_t (v_t - S_{t-1}ᵀ k_t)      what the state lacks
        S_t = S_{t-1} + k_t u_tᵀ            = (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ
        o_t = scale · S_tᵀ q_t              (read after write)

    Stable for 0 <= β_t |k_t|² <= 2: the matrix I - β_t k_t k_tᵀ has the eigenvalues 1 and
    1 - β_t |k_t|², so that neither the state nor an error of it ever grows. For |k_t| = 1 that is
    β in [0, 2]: 0 writes nothing, 1 replaces what k_t stood for, 2 reflects it. Outside, whatever
    lies along k_t grows by |1 - β_t |k_t|²| at each such token; the rule is as well defined, but
    its results soon are infinite.

    Differentiable once, through both returns. All sums are float32.

    Args:
        q: queries `[B, T, H, K]`, float32, bfloat16 or float16; K is 1 to 256. Any strides.
        k: keys `[B, T, H, K]`, in the dtype of q.
        v: values `[B, T, H, V]`, in the dtype of q; V is 1 to 256.
        beta: strength of each write `[B, T, H]`, in the dtype of q or
            float32, meant to be in [0, 2]. None
            means 1.
        scale: factor of `q · k`. None and -1 mean `K ** -0.5`, any other finite number itself.
        use_qk_l2norm_in_kernel: run `l2norm` on q and k first, with its default ε; then
            every β in [0, 2] is stable.
        initial_state: state before the first token `[N, H, K, V]`, float32. None means zero.
        output_final_state: return the state after the last token as well.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode: `fused_recurrent` walks token by token in one kernel, with little to start up: for
            decoding and short sequences. `chunk` solves the system of every chunk at once, and then
            carries the state from chunk to chunk. `auto` chooses by the length.
        tile: index into `kernels.tiles.TABLE["delta_rule", mode]`; None chooses by head dim,
            dtype, device and how many sequences and heads there are.

    Returns:
        o: `[B, T, H, V]`, in the dtype of q.
        final_state: `[N, H, K, V]`, float32; None unless `output_final_state`.

    Raises:
        TypeError: an argument of a wrong type or dtype; q, k, v not of one dtype.
        ValueError: shapes or devices that do not match; K or V above 256; a scale that is NaN or
            infinite; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not
            end at T; an unknown mode or tile.
        NotImplementedError: a gradient of a gradient.

    Source: Schlag et al., Linear Transformers Are Secretly Fast Weight Programmers, arXiv
        2102.11174, equation 23; Yang et al., arXiv 2406.06484, section 2.2, and section 3.3 (the
        eigenvalues).
    """
    return run(
        "delta_rule",
        q,
        k,
        v,
        beta=beta,
        scale=scale,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        mode=mode,
        tile=tile,
    )
