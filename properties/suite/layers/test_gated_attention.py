"""The gated attention layer against its reference, as a whole and in pieces."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import reference
from kernels import ContiguousCache, KVCache, PagedCache, SlidingWindowCache
from kernels.layers import GatedAttention
from properties.laws import Subject
from properties.verdict import BY_DTYPE, Computation, budgets, compare
from reference.layers import gated_attention

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 20, 4, 2, 8
BASE = 100.0
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _exact(tensors: Any, factor: float, **options: Any) -> Tensor:
    """The oracle for the weights of a state dict."""
    w_q, w_g = tensors["q_proj.weight"].view(HEADS, 2, HEAD_DIM, HIDDEN).unbind(1)
    w_k, w_v = (
        tensors[name].view(KV_HEADS, HEAD_DIM, HIDDEN)
        for name in ("k_proj.weight", "v_proj.weight")
    )
    x = tensors["x"]
    cos, sin = reference.rotary_tables(
        x.shape[1], round(factor * HEAD_DIM), base=BASE, dtype=x.dtype
    )
    return gated_attention.second_form(
        x,
        w_q,
        w_g,
        w_k,
        w_v,
        tensors["o_proj.weight"].view(HIDDEN, HEADS, HEAD_DIM),
        tensors["q_norm.weight"],
        tensors["k_norm.weight"],
        cos,
        sin,
        **options,
    )


def _values(layer: GatedAttention, dtype: torch.dtype, batch: int, T: int, seed: int) -> Any:
    """Values of x, of a cotangent and of all weights that `dtype` holds."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    shapes |= {"x": (batch, T, HIDDEN), "dy": (batch, T, HIDDEN)}
    return {
        name: torch.randn(*shape, generator=generator).mul(shape[-1] ** -0.5).to(dtype)
        for name, shape in shapes.items()
    }


def _cache(kind: str, batch: int, window: int, dtype: torch.dtype, device: Any) -> KVCache:
    dims = KV_HEADS, HEAD_DIM, HEAD_DIM
    more: Any = {"dtype": dtype, "device": device}
    if kind == "paged":
        return PagedCache(batch, 17 * batch, 3, *dims, **more)
    if kind == "sliding":
        return SlidingWindowCache(batch, window, *dims, **more)
    return ContiguousCache(batch, 51, *dims, **more)


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
def test_the_layer_is_its_formula_with_every_cache(dtype: torch.dtype, subject: Subject) -> None:
    @given(
        batch=st.integers(1, 3),
        # Never 4 or 2 tokens, the numbers of heads: a count of one must not pass for the other.
        parts=st.lists(st.sampled_from([0, 1, 1, 3, 7, 17]), min_size=1, max_size=3),
        factor=st.sampled_from([0.25, 0.5, 1.0]),
        window=st.none() | st.integers(1, 6),
        kind=st.sampled_from(["contiguous", "paged", "sliding"]),
        seed=st.integers(0, 99),
    )
    def holds(
        batch: int, parts: list[int], factor: float, window: int | None, kind: str, seed: int
    ) -> None:
        if kind == "sliding":
            window = window or 5
        layer = GatedAttention(
            HIDDEN, HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, partial_rotary_factor=factor,
            rope_base=BASE, window=window,
        )  # fmt: skip
        tensors = _values(layer, dtype, batch, sum(parts), seed)
        layer = layer.to(subject.device, dtype)
        weights = [name for name, _ in layer.named_parameters()]
        layer.load_state_dict({name: tensors[name] for name in weights})
        x = tensors["x"].clone().to(subject.device).requires_grad_()
        y = layer(x)
        trained = (x, *layer.parameters())
        gradients = torch.autograd.grad(y, trained, tensors["dy"].to(subject.device))
        found = {"y": y, "dx": gradients[0]}
        found |= {f"d{name}": dw for name, dw in zip(weights, gradients[1:], strict=True)}

        def oracle(given: Any) -> dict[str, Tensor]:
            def run(named: dict[str, Tensor]) -> Tensor:
                return _exact(named, factor, window=window)

            found: Any = torch.func.vjp(run, {name: given[name] for name in ("x", *weights)})
            y, pullback = found
            (gradients,) = pullback(given["dy"])
            return {"y": y, **{f"d{name}": dw for name, dw in gradients.items()}}

        exact = {name: t.double() for name, t in tensors.items()}
        want = oracle(exact)
        how = Computation(
            precision=BY_DTYPE[dtype],
            output_dtypes=dict.fromkeys(want, dtype),
            terms=batch * sum(parts) + HIDDEN + HEADS * HEAD_DIM,
        )
        allowed = budgets(oracle, exact, want, how)
        with torch.no_grad():
            cache = _cache(kind, batch, window or 0, dtype, subject.device)
            pieces = [layer(piece, cache=cache) for piece in x.split(parts, 1)]
        assert cache.length.tolist() == [sum(parts)] * batch
        for name, got in [*found.items(), ("y", torch.cat(pieces, 1))]:
            comparison = compare(name, got.detach(), want[name], allowed[name])
            assert comparison.passed, (name, comparison.reason, comparison.ratio)

    holds()
