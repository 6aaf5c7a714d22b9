"""The ops of the catalogue that fla has, in its own modes and under our names."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import Tensor, cat, zeros_like

from properties.case import Case
from properties.catalogue.op import Function
from properties.targets.adapter import Bound, Implementation
from properties.targets.fla.library import Kernel, kernel
from properties.verdict.budgets import Telescope

Pair = tuple[Tensor, Tensor]

_SCALE = "-1 is a number; the sentinel becomes the default"
_PAIR = "the state of a normalised op is a pair: its last column is apart, in the keys' dtype"


def implementations() -> dict[str, dict[str, Implementation]]:
    """Op → mode → what the release that is installed has of it."""
    made: dict[str, dict[str, Implementation]] = {}
    for op, modes in _MODES.items():
        for mode, (adapt, name, bounds) in modes.items():
            found = kernel(name)
            if found is not None:
                one = adapt(found)
                both = {**one.bounds, **bounds}
                made.setdefault(op, {})[mode] = replace(one, bounds=both)
    return made


def _linear_attn(kernel: Kernel) -> Implementation:
    def linear_attn(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        normalize: bool = False,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        o, state = kernel(
            q=q,
            k=k,
            v=v,
            scale=_scale(scale, kernel),
            normalize=normalize,
            initial_state=_apart(initial_state) if normalize else initial_state,
            output_final_state=output_final_state,
            **more,
        )
        if not output_final_state:
            return o, None
        return o, _together(state) if normalize else state

    return Implementation(
        _also(linear_attn, kernel, "reverse", "cu_seqlens"), conventions=(_SCALE, _PAIR)
    )


def _gla(kernel: Kernel, gate: str = "g") -> Implementation:
    required = signature(kernel).parameters[gate].default is Parameter.empty

    def gla(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor | None = None,
        *,
        scale: float | None = None,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if g is None and required:
            g = zeros_like(k)
        o, state = kernel(
            q=q,
            k=k,
            v=v,
            scale=_scale(scale, kernel),
            initial_state=initial_state,
            output_final_state=output_final_state,
            **{gate: g},
            **more,
        )
        return o, state

    conventions = (_SCALE, "the gate is required; none becomes zeros") if required else (_SCALE,)
    return Implementation(
        _also(gla, kernel, "gv", "reverse", "cu_seqlens"),
        conventions=conventions,
        telescopes=_telescopes,
    )


def _parallel_simple_gla(kernel: Kernel) -> Implementation:
    def simple_gla(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor | None = None,
        *,
        scale: float | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        o, _ = kernel(q=q, k=k, v=v, g=g, scale=_scale(scale, kernel), cu_seqlens=cu_seqlens)
        return o, None

    return Implementation(simple_gla, conventions=(_SCALE,), telescopes=_telescopes)


def _attention(kernel: Kernel) -> Implementation:
    theirs = {"window": "window_size", "sink": "sink_bias"}

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        causal: bool = False,
        **more: Any,
    ) -> tuple[Tensor, None]:
        if not causal:
            raise ValueError("causal: False, expected True, as fla has no other attention")
        renamed = {theirs.get(name, name): value for name, value in more.items()}
        return kernel(q=q, k=k, v=v, scale=_scale(scale, kernel), **renamed), None

    return Implementation(
        _also(attention, kernel, "window", "sink", "g", "cu_seqlens", **theirs),
        conventions=(_SCALE, "window is window_size, sink is sink_bias"),
        bounds={"causal": _causal, "keys that are the queries' tokens": _one_length},
    )


def _rotary_embedding(kernel: Kernel) -> Implementation:
    def rotary_embedding(
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        interleaved: bool = False,
        seqlen_offsets: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        inplace: bool = False,
    ) -> Tensor:
        y: Tensor = kernel(
            x,
            cos,
            sin,
            interleaved=interleaved,
            inplace=inplace,
            seqlen_offsets=seqlen_offsets,
            cu_seqlens=cu_seqlens,
        )
        return y

    return Implementation(rotary_embedding, bounds={"tables in the dtype of x": _tables_like_x})


def _also(function: Function, kernel: Kernel, *names: str, **theirs: str) -> Function:
    """`function`, whose `**more` are those of `names` that the kernel takes, as `theirs`."""
    own = [p for p in signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
    taken = [name for name in names if theirs.get(name, name) in signature(kernel).parameters]
    more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in taken]
    signed: Any = partial(function)
    signed.__signature__ = signature(function).replace(parameters=[*own, *more])
    return signed  # type: ignore[no-any-return]


def _scale(scale: float | None, kernel: Kernel) -> float | None:
    """The kernel's default, which means what ours does, or the number itself."""
    default: float | None = signature(kernel).parameters["scale"].default
    return default if scale is None or scale == -1 else scale


def _apart(state: Tensor | None) -> Pair | None:
    """Our state with a column more, as fla's pair."""
    return None if state is None else (state[..., :-1].contiguous(), state[..., -1].unsqueeze(1))


def _together(state: Pair) -> Tensor:
    """fla's pair as our state."""
    values, keys = state
    return cat([values, keys.squeeze(1).unsqueeze(-1).to(values.dtype)], -1)


def _telescopes(case: Case) -> tuple[Telescope, ...]:
    """Gradients of gates: what the queries see of the tokens, less what the keys are seen."""
    reverse = bool(case.options.get("reverse"))
    state = ("N H K V", "gradient of final_state", "final_state")
    carried = (state,) if case.options.get("output_final_state") else ()
    heads = "B T H" if case.op == "simple_gla" else "B T H K"
    keys = (("B T H K", "q", "dq"), ("B T H K", "k", "dk"), *carried)
    values = (("B T H V", "gradient of o", "o"), ("B T H V", "v", "dv"), *carried)
    return (
        Telescope("dg", heads, keys, reverse),
        Telescope("dgv", "B T H V", values, reverse),
    )


def _at_least(least: int, *names: str) -> Bound:
    """Dims moved above what a product of tiles takes."""

    def bound(case: Case) -> Case:
        moved = {n: case.dims[n] + least for n in names if case.dims[n] < least}
        return replace(case, dims={**case.dims, **moved})

    return bound


def _even_in_16_bits(case: Case) -> Case:
    if case.dtype == "float32":
        return case
    even = {n: case.dims[n] + case.dims[n] % 2 for n in ("K", "V")}
    return replace(case, dims={**case.dims, **even})


def _causal(case: Case) -> Case:
    return replace(case, options={**case.options, "causal": True})


def _one_length(case: Case) -> Case:
    return replace(case, key_lengths=None)


def _tables_like_x(case: Case) -> Case:
    return replace(case, float32=())


_EVEN = {"even K and V in 16 bits": _even_in_16_bits}
_MODES: Mapping[
    str, Mapping[str, tuple[Callable[[Kernel], Implementation], str, Mapping[str, Bound]]]
] = {
    "linear_attn": {
        "chunk": (_linear_attn, "fla.ops.linear_attn:chunk_linear_attn", _EVEN),
        "fused_chunk": (_linear_attn, "fla.ops.linear_attn:fused_chunk_linear_attn", {}),
        "fused_recurrent": (_linear_attn, "fla.ops.linear_attn:fused_recurrent_linear_attn", {}),
    },
    "gla": {
        "chunk": (_gla, "fla.ops.gla:chunk_gla", {"V above 8": _at_least(9, "V")}),
        "fused_chunk": (_gla, "fla.ops.gla:fused_chunk_gla", {}),
        "fused_recurrent": (partial(_gla, gate="gk"), "fla.ops.gla:fused_recurrent_gla", {}),
    },
    "simple_gla": {
        "chunk": (_gla, "fla.ops.simple_gla:chunk_simple_gla", _EVEN),
        "fused_chunk": (_gla, "fla.ops.simple_gla:fused_chunk_simple_gla", {}),
        "fused_recurrent": (_gla, "fla.ops.simple_gla:fused_recurrent_simple_gla", {}),
        "parallel": (
            _parallel_simple_gla,
            "fla.ops.simple_gla:parallel_simple_gla",
            {"K and V above 8": _at_least(9, "K", "V")},
        ),
    },
    "attention": {"parallel": (_attention, "fla.ops.attn:parallel_attn", {})},
    "rotary_embedding": {
        "fused": (
            _rotary_embedding,
            "fla.modules.rotary:rotary_embedding",
            {"some pairs": _at_least(1, "P")},
        ),
    },
}
