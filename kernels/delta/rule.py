"""What the public delta rules share: their arguments checked and settled, and the ops of a mode.

Where a rule is not stable and overflows, the rows before the overflow in the same chunk may be NaN
too: a product with the triangle of a chunk multiplies what is not seen by 0.
"""

import torch
from torch import Tensor

from kernels import tiles
from kernels.arguments import (
    bind_dims,
    check_boundaries,
    check_cu_seqlens,
    check_dtype,
    check_flags,
    check_one_dtype,
    check_range,
    count_sequences,
    describe,
)
from kernels.delta import chunk, fused_recurrent
from kernels.differentiable import differentiable
from kernels.linear.tiles import walks
from kernels.modes import choose_mode
from kernels.norm.l2norm import normalized, normalized_backward
from kernels.primitives.groups import keys_gradient_dtype, of_each_group, of_each_head
from kernels.primitives.states import output_and_states
from kernels.scale import resolve_scale

_FORMS = {"chunk": chunk, "fused_recurrent": fused_recurrent}
_MODES = {
    "delta_rule": ("chunk", "fused_recurrent"),
    "gated_delta_rule": ("chunk", "fused_recurrent"),
    "kda": ("chunk", "fused_recurrent"),
    "dplr": ("chunk", "fused_recurrent"),
}
# The log decays of each op.
_GATES = {"gated_delta_rule": "B T H", "kda": "B T H K", "dplr": "B T H K"}


def _register(op: str, mode: str):
    """Make the two functions of a mode the `torch.library` op `attention_oracles::op_mode`."""
    form = _FORMS[mode]

    def forward(*, q, k, v, cu_seqlens, normalize, tile, **given):
        check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
        q, k = (of_each_head(x, v.shape[2]) for x in _readers(q, k, normalize))
        return form.forward(
            q, k, v,
            cu_seqlens=cu_seqlens, tile=tiles.TABLE[op, mode][tile], **given,
        )  # fmt: skip

    def backward(*, q, k, v, normalize, tile, d0, d1, output_final_state, **given):
        heads, groups = v.shape[2], q.shape[2]
        dq, dk, *others = form.backward(
            *(of_each_head(x, heads) for x in _readers(q, k, normalize)), v,
            tile=tiles.TABLE[op, mode][tile], do=d0, dfinal_state=d1,
            keys_dtype=keys_gradient_dtype(q, heads), **given,
        )  # fmt: skip
        dq, dk = of_each_group(dq, groups), of_each_group(dk, groups)
        if normalize:
            dq, dk = normalized_backward(q, dq), normalized_backward(k, dk)
        return dq.to(q.dtype), dk.to(k.dtype), *others, None

    def shapes(given):
        return output_and_states(given, given["v"].dtype)

    return differentiable(
        f"{op}_{mode}",
        tensors=("q", "k", "v", "g?", "beta?", "a?", "b?", "initial_state?", "cu_seqlens?"),
        settings={
            "scale": "float",
            "normalize": "bool",
            "output_final_state": "bool",
            "tile": "int",
        },
        outputs=2,
        forward=forward,
        backward=backward,
        shapes=shapes,
    )


def _readers(q: Tensor, k: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    return (normalized(q), normalized(k)) if normalize else (q, k)


_OPS = {(op, mode): _register(op, mode) for op, modes in _MODES.items() for mode in modes}


def run(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    gate_name: str = "g",
    scale: float | None,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    mode: str,
    tile: int | None,
) -> tuple[Tensor, Tensor | None]:
    """Check the arguments of a public op, settle its options, and call the op of its mode.

    Args:
        q, k: `[B, T, G, K]`, where G divides H; G is H for ops that do not group heads.
        gate_name: what the op calls g.
    """
    check_flags(
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, output_final_state=output_final_state
    )
    grouped = op in ("gated_delta_rule", "kda")
    keys = "B T G K" if grouped else "B T H K"
    sizes = bind_dims(
        q=(q, keys),
        k=(k, keys),
        v=(v, "B T H V"),
        **{gate_name: (g, _GATES.get(op, ""))},
        beta=(beta, "B T H"),
        a=(a, keys),
        b=(b, keys),
        initial_state=(initial_state, "N H K V"),
    )
    groups, heads = sizes["G" if grouped else "H"], sizes["H"]
    dtype = check_one_dtype(q=q, k=k, v=v, a=a, b=b)
    check_dtype(gate_name, g, torch.float32, dtype)
    check_dtype("beta", beta, torch.float32, dtype)
    check_dtype("initial_state", initial_state, torch.float32)
    check_range("K (the last dim of q)", sizes["K"], 1, 256)
    check_range("V (the last dim of v)", sizes["V"], 1, 256)
    if groups == 0 or heads % groups:
        raise ValueError(f"v: {describe(v)}, expected a multiple of the {groups} heads of q and k")
    cu_seqlens = check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], q.device)
    sequences = count_sequences(sizes["B"], cu_seqlens)
    if initial_state is not None and initial_state.shape[0] != sequences:
        raise ValueError(
            f"initial_state: {describe(initial_state)}, expected [N, H, K, V] with N={sequences}"
        )
    scale = resolve_scale(scale, sizes["K"])
    tokens = sizes["B"] * sizes["T"]
    mode = choose_mode(mode, _MODES[op], tokens=tokens, sequences=sequences)
    tile = tiles.choose(
        op, mode, dim=max(sizes["K"], sizes["V"]), dtype=dtype, device=q.device, tile=tile,
        walks=walks(sequences, heads, sizes["V"], cu_seqlens),
    )  # fmt: skip

    if beta is None and a is None:
        beta = torch.ones(v.shape[:3], dtype=torch.float32, device=v.device)
    o, final_state = _OPS[op, mode](
        q, k, v, g, beta, a, b, initial_state, cu_seqlens,
        scale, use_qk_l2norm_in_kernel, output_final_state, tile,
    )  # fmt: skip
    return o, final_state if output_final_state else None
