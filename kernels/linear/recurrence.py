"""From a pair of plain functions to a differentiable op, and what the public functions share."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
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
from kernels.differentiable import differentiable
from kernels.linear import chunk, fused_chunk, fused_recurrent, parallel
from kernels.linear.tiles import walks
from kernels.modes import choose_mode
from kernels.primitives.groups import keys_gradient_dtype, of_each_group, of_each_head
from kernels.primitives.states import output_and_states
from kernels.scale import resolve_scale

_FORMS = {
    "chunk": chunk,
    "fused_chunk": fused_chunk,
    "fused_recurrent": fused_recurrent,
    "parallel": parallel,
}
# What has a decay of its own.
_GATES = {"gla": "B T H K", "simple_gla": "B T H"}

_Op = Callable[..., tuple[Tensor, Tensor]]


def _register(op: str, mode: str) -> _Op:
    """Make the two functions of a mode the `torch.library` op `attention_oracles::op_mode`."""
    form = _FORMS[mode]

    def own(gv: Tensor | None, reverse: bool) -> dict:
        """The arguments that one form alone has."""
        if form is fused_recurrent:
            return {"gv": gv, "reverse": reverse}
        assert gv is None
        assert not reverse
        return {}

    def forward(*, q, k, v, gv, reverse, cu_seqlens, tile, **given):
        check_boundaries("cu_seqlens", cu_seqlens, q.shape[1])
        entry = tiles.TABLE[op, mode][tile]
        q, k = (of_each_head(x, v.shape[2]) for x in (q, k))
        return form.forward(q, k, v, cu_seqlens=cu_seqlens, tile=entry, **own(gv, reverse), **given)

    def backward(*, q, k, v, gv, reverse, tile, d0, d1, output_final_state, out_dtype, **given):
        entry = tiles.TABLE[op, mode][tile]
        heads, groups = v.shape[2], q.shape[2]
        dq, dk, dv, *dlog_decays, dinitial_state = form.backward(
            of_each_head(q, heads), of_each_head(k, heads), v,
            tile=entry, do=d0, dfinal_state=d1, keys_dtype=keys_gradient_dtype(q, heads),
            **own(gv, reverse), **given,
        )  # fmt: skip
        dq, dk = of_each_group(dq, groups).to(q.dtype), of_each_group(dk, groups).to(k.dtype)
        dg, dgv = [*dlog_decays, None][:2]
        return dq, dk, dv, dg, dgv, dinitial_state, None

    def shapes(given):
        return output_and_states(given, given["out_dtype"])

    return differentiable(
        f"{op}_{mode}",
        tensors=("q", "k", "v", "g?", "gv?", "initial_state?", "cu_seqlens?"),
        settings={
            "scale": "float",
            "reverse": "bool",
            "output_final_state": "bool",
            "out_dtype": "ScalarType",
            "tile": "int",
        },
        outputs=2,
        forward=forward,
        backward=backward,
        shapes=shapes,
    )


_OPS = {
    (op, mode): _register(op, mode)
    for op, mode in (
        ("linear_attn", "chunk"),
        ("linear_attn", "fused_chunk"),
        ("linear_attn", "fused_recurrent"),
        ("gla", "chunk"),
        ("gla", "fused_recurrent"),
        ("simple_gla", "chunk"),
        ("simple_gla", "fused_chunk"),
        ("simple_gla", "fused_recurrent"),
        ("simple_gla", "parallel"),
    )
}


def run(
    op: str,
    q: Float[Tensor, "B T G K"],
    k: Float[Tensor, "B T G K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H *K"] | None = None,
    gv: Float[Tensor, "B T H V"] | None = None,
    *,
    scale: float | None,
    grouped: bool = False,
    normalize: bool = False,
    initial_state: Float[Tensor, "N H K V+normalize"] | None,
    output_final_state: bool,
    reverse: bool,
    cu_seqlens: Int[Tensor, " N+1"] | None,
    mode: str,
    tile: int | None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "N H K V+normalize"] | None]:
    """Check the arguments of a public op, settle its options, and call the op of its mode.

    Args:
        grouped: q and k have G heads, H a multiple, and head h reads head h // (H / G) of them;
            else they have H. The caller has checked the multiple.
    """
    keys = "B T G K" if grouped else "B T H K"
    check_flags(normalize=normalize, output_final_state=output_final_state, reverse=reverse)
    sizes = bind_dims(
        q=(q, keys),
        k=(k, keys),
        v=(v, "B T H V"),
        g=(g, _GATES.get(op, "")),
        gv=(gv, "B T H V"),
        initial_state=(initial_state, "N H K V+1" if normalize else "N H K V"),
    )
    dtype = check_one_dtype(q=q, k=k, v=v)
    check_dtype("g", g, torch.float32, dtype)
    check_dtype("gv", gv, torch.float32, dtype)
    check_dtype("initial_state", initial_state, torch.float32)
    check_range("K (the last dim of q)", sizes["K"], 1, 256)
    check_range("V (the last dim of v)", sizes["V"], 1, 256)
    cu_seqlens = check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], q.device)
    sequences = count_sequences(sizes["B"], cu_seqlens)
    width = sizes["V"] + 1 if normalize else sizes["V"]
    if initial_state is not None and (
        initial_state.shape[0] != sequences or initial_state.shape[3] != width
    ):
        raise ValueError(
            f"initial_state: {describe(initial_state)}, expected [N, H, K, "
            f"{'V+1' if normalize else 'V'}] with N={sequences}, V={sizes['V']}"
        )
    scale = resolve_scale(scale, sizes["K"])
    mode = choose_mode(
        mode,
        [each for name, each in _OPS if name == op],
        tokens=sizes["B"] * sizes["T"],
        sequences=sequences,
        recurrent_only={"gv": gv is not None, "reverse": reverse},
    )
    tile = tiles.choose(
        op, mode, dim=max(sizes["K"], sizes["V"]), dtype=dtype, device=q.device, tile=tile,
        walks=walks(sequences, sizes["H"], sizes["V"], cu_seqlens),
    )  # fmt: skip

    if normalize:
        # Not by `torch.cat`, which refuses some dtypes under autocast.
        v = torch.nn.functional.pad(v, (0, 1), value=1.0)
        gv = None if gv is None else torch.nn.functional.pad(gv, (0, 1))
        scale = 0.0 if scale == 0 else 1.0  # any other scale cancels
    o, final_state = _OPS[op, mode](
        q, k, v, g, gv, initial_state, cu_seqlens,
        scale, bool(reverse), bool(output_final_state),
        torch.float32 if normalize else dtype,  # a quotient is rounded once, not its two parts
        tile,
    )  # fmt: skip
    if normalize:
        weights = o[..., -1:]
        empty = weights == 0
        # Both quotient and divisor are replaced: a gradient of 0 times 1/0 would be NaN.
        o = torch.where(empty, 0.0, o[..., :-1] / torch.where(empty, 1.0, weights)).to(dtype)
    return o, final_state if output_final_state else None
