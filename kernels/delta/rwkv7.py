"""RWKV-7: a delta rule whose decay and strength are vectors, and that removes along another key."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.arguments import bind_dims, check_dtype, check_one_dtype
from kernels.delta.dplr import dplr


def rwkv7(
    r: Float[Tensor, "B T H K"],
    w: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    kk: Float[Tensor, "B T H K"],
    a: Float[Tensor, "B T H K"],
    *,
    scale: float | None = 1.0,
    initial_state: Float[Tensor, "N H K V"] | None = None,
    output_final_state: bool = False,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    mode: Literal["auto", "chunk", "fused_recurrent"] = "auto",
    tile: int | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V"] | None]:
    """The weighted key values of RWKV-7.

        n_t = S_{t-1}ᵀ kk_t                 what the removal key finds, before the state decays
        S_t = diag(exp w_t) S_{t-1} - (a_t ∘ kk_t) n_tᵀ + k_t v_tᵀ
        o_t = scale · S_tᵀ r_t              (read after write)

    It is `dplr` with q = r, gk = w, a = -kk and b = a ∘ kk.

    In the model |kk_t| = 1, a is in [0, 1] and exp w in [exp(-exp(-1/2)), 1], and the eigenvalues
    of A_t = diag(exp w_t) - (a_t ∘ kk_t) kk_tᵀ lie in [-1, 1]. Where all channels of a_t are equal,
    A_t is symmetric and the rule is stable: neither the state nor an error of it ever grows. Where
    they differ, A_t may make a vector longer, by at most 2 / √3 if w = 0. Random keys shrink the
    state all the same, but not all keys do: (1, √5) / √6 and (√5, 1) / √6 in turn, with a = (1, 0)
    and (0, 1), make it grow by 5/4 every two tokens.

    Differentiable once, through both returns. All sums are float32.

    Args:
        r: receptance `[B, T, H, K]`, which reads; float32, bfloat16 or float16; K is 1 to 256. Any
            strides.
        w: natural logarithm of the decay of each key channel `[B, T, H, K]`, in the dtype of r
            or float32, meant to be <= 0, -inf included.
        k: replacement keys `[B, T, H, K]`, in the dtype of r.
        v: values `[B, T, H, V]`, in the dtype of r; V is 1 to 256.
        kk: removal keys `[B, T, H, K]`, in the dtype of r, meant to have the length 1.
        a: in-context learning rate of each key channel `[B, T, H, K]`, in the dtype of r, meant
            to be in [0, 1].
        scale: factor of `r · k`, by default 1. None and -1 mean `K ** -0.5`, any other finite
            number itself.
        initial_state: state before the first token `[N, H, K, V]`, float32. None means zero.
        output_final_state: return the state after the last token as well.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64, in tokens; B is
            then 1. The state of an empty sequence passes through. None means N = B sequences.
        mode, tile: those of `dplr`.

    Returns:
        o: `[B, T, H, V]`, in the dtype of r.
        final_state: `[N, H, K, V]`, float32; None unless `output_final_state`. The paper's
            state is its transpose.

    Raises:
        TypeError: an argument of a wrong type or dtype; r, k, v, kk, a not of one dtype.
        ValueError: shapes or devices that do not match; K or V above 256; a scale that is NaN or
            infinite; `cu_seqlens` with B != 1, or that does not start at 0, decreases, or does not
            end at T; an unknown mode or tile.
        NotImplementedError: a gradient of a gradient.

    Source: Peng et al., RWKV-7, arXiv 2503.14456, equations 16, 17 and 21 (without norm and bonus),
        and appendix C (eigenvalues).
    """
    bind_dims(
        r=(r, "B T H K"),
        w=(w, "B T H K"),
        k=(k, "B T H K"),
        v=(v, "B T H V"),
        kk=(kk, "B T H K"),
        a=(a, "B T H K"),
    )
    check_one_dtype(r=r, k=k, v=v, kk=kk, a=a)
    check_dtype("w", w, torch.float32, r.dtype)
    return dplr(
        r,
        k,
        v,
        -kk,
        a * kk,
        w,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        cu_seqlens=cu_seqlens,
        mode=mode,
        tile=tile,
    )
