"""The gated attention layer against its reference, as a whole and in pieces."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import reference
from kernels import ContiguousCache, KVCache, PagedCache, SlidingWindowCache
from kernels.layers import GatedAttention
from properties.cases.contexts import checkpointed
from properties.laws import Subject
from properties.verdict import BY_DTYPE, Computation, budgets, compare
from reference.layers import gated_attention

pytestmark = pytest.mark.ops("attention", "rotary_embedding")

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 20, 4, 2, 8
BASE = 100.0
# With all tokens of a case as its original maximum: only padding could reach beyond it.
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.0],
    "long_factor": [2.0, 4.0],
    "factor": 4.0,
}
OPTIONS = st.fixed_dictionaries(
    {
        "partial_rotary_factor": st.sampled_from([0.25, 0.5, 1.0]),
        "rope_scaling": st.sampled_from([DYNAMIC, None, {"rope_type": "linear", "factor": 4.0}]),
        "window": st.none() | st.integers(1, 6),
        "bias": st.booleans(),
        "norm_eps": st.sampled_from([1e-6, 0.5]),
    }
)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _exact(tensors: Mapping[str, Tensor], options: Mapping[str, Any], **more: Any) -> Tensor:
    """The oracle for the weights of a state dict. A bias is the weight of a channel of ones."""
    x = tensors["x"]

    def weights(name: str) -> Tensor:
        bias = tensors.get(f"{name}.bias")
        w = tensors[f"{name}.weight"]
        return w if bias is None else torch.cat([w, bias[:, None]], 1)

    ones = [torch.ones_like(x[..., :1])] if options["bias"] else []
    w_q, w_g = weights("q_proj").unflatten(0, (HEADS, 2, HEAD_DIM)).unbind(1)
    w_k, w_v = (weights(n).unflatten(0, (KV_HEADS, HEAD_DIM)) for n in ("k_proj", "v_proj"))
    w_o = tensors["o_proj.weight"]
    cos, sin = reference.rotary_tables(
        x.shape[1],
        round(options["partial_rotary_factor"] * HEAD_DIM),
        base=BASE,
        scaling=options["rope_scaling"],
        dtype=x.dtype,
    )
    # As wide as x with its channel of ones; what comes out in that channel is dropped.
    wide = torch.cat([w_o, torch.zeros_like(w_o[: len(ones)])])
    y = gated_attention.second_form(
        torch.cat([x, *ones], -1),
        w_q,
        w_g,
        w_k,
        w_v,
        wide.unflatten(1, (HEADS, HEAD_DIM)),
        tensors["q_norm.weight"],
        tensors["k_norm.weight"],
        cos,
        sin,
        eps=options["norm_eps"],
        window=options["window"],
        **more,
    )
    return y[..., :HIDDEN] + tensors.get("o_proj.bias", 0)


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


def _in_pieces(
    layer: GatedAttention,
    x: Tensor,
    cache: KVCache,
    parts: list[int],
    fewer: list[int],
    padding: int,
    want: Tensor,
) -> Tensor:
    """Call the layer with a cache on pieces of x, of which sequence n lacks the last
    `fewer[n % len(fewer)]` tokens, and each has `padding` more; return y, and for missing tokens
    what is wanted.
    """
    y = want.to(x)
    done = [0] * len(x)
    with torch.no_grad():
        for part in parts:
            counts = [max(0, part - fewer[n % len(fewer)]) for n in range(len(x))]
            # Padding follows a sequence's own tokens, whatever its numbers.
            piece = x.new_full((len(x), part + padding, HIDDEN), 1e4)
            for n, (start, count) in enumerate(zip(done, counts, strict=True)):
                piece[n, :count] = x[n, start : start + count]
            ragged = counts != [part + padding] * len(x)
            got = layer(piece, cache=cache, offset=torch.tensor(counts) if ragged else None)
            for n, (start, count) in enumerate(zip(done, counts, strict=True)):
                y[n, start : start + count] = got[n, :count]
                done[n] = start + count
    assert cache.length.tolist() == done
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
def test_the_layer_is_its_formula_with_every_cache(dtype: torch.dtype, subject: Subject) -> None:
    @given(
        batch=st.integers(1, 3),
        # Never 4 or 2 tokens, the numbers of heads: a count of one must not pass for the other.
        parts=st.lists(st.sampled_from([0, 1, 1, 3, 7, 17]), min_size=1, max_size=3),
        options=OPTIONS,
        packed=st.booleans(),
        fewer=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        padding=st.sampled_from([6, 0]),
        frozen=st.sets(st.integers(0, 10)),
        where=st.sampled_from(["grad", "checkpointed"]),
        seed=st.integers(0, 99),
    )
    def holds(
        batch: int,
        parts: list[int],
        options: dict[str, Any],
        packed: bool,
        fewer: list[int],
        padding: int,
        frozen: set[int],
        where: str,
        seed: int,
    ) -> None:
        if options["rope_scaling"] is DYNAMIC:
            tokens = max(2, sum(parts))
            options["rope_scaling"] = {**DYNAMIC, "original_max_position_embeddings": tokens}
        layer = GatedAttention(
            HIDDEN, HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, rope_base=BASE, **options
        )
        tensors = _values(layer, dtype, 1 if packed else batch, sum(parts), seed)
        layer = layer.to(subject.device, dtype)
        weights = [name for name, _ in layer.named_parameters()]
        layer.load_state_dict({name: tensors[name] for name in weights})
        x = tensors["x"].clone().to(subject.device)
        trained = {"x": x, **dict(layer.named_parameters())}
        trained = {n: t for i, (n, t) in enumerate(trained.items()) if i not in frozen}
        for name, t in (("x", x), *layer.named_parameters()):
            t.requires_grad_(name in trained)
        ends = torch.tensor([0, *parts]).cumsum(0)
        bounds: Any = {"cu_seqlens": ends.to(subject.device)} if packed else {}
        y = (checkpointed(layer) if where == "checkpointed" else layer)(x, **bounds)
        found = {"y": y}
        if trained:
            gradients = torch.autograd.grad(y, [*trained.values()], tensors["dy"].to(y))
            found |= {f"d{name}": d for name, d in zip(trained, gradients, strict=True)}

        def oracle(given: Any) -> dict[str, Tensor]:
            def run(named: dict[str, Tensor]) -> Tensor:
                more: Any = {"cu_seqlens": ends} if packed else {}
                return _exact({**given, **named}, options, **more)

            found: Any = torch.func.vjp(run, {name: given[name] for name in trained})
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
        judged = [*found.items()]
        kinds = ["contiguous", "paged"] + (["sliding"] if options["window"] else [])
        for kind in kinds if not packed else ():
            cache = _cache(kind, batch, options["window"] or 0, dtype, subject.device)
            y = _in_pieces(layer, x.detach(), cache, parts, fewer, padding, want["y"])
            judged.append(("y", y))
        for name, got in judged:
            comparison = compare(name, got.detach(), want[name], allowed[name])
            assert comparison.passed, (name, comparison.reason, comparison.ratio)

    holds()


@pytest.mark.parametrize("kind", ["contiguous", "paged", "sliding"])
def test_the_last_new_token_of_all_sequences_sets_the_scaling(kind: str, subject: Subject) -> None:
    """Not their padding, nor a sequence without new tokens."""
    most, device = 6, subject.device

    @given(
        lengths=st.lists(st.integers(0, most), min_size=3, max_size=3),
        counts=st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
        padding=st.sampled_from([2, 0]),
        scaling=st.sampled_from([DYNAMIC, LONGROPE]),
        seed=st.integers(0, 99),
    )
    def holds(
        lengths: list[int], counts: list[int], padding: int, scaling: dict[str, Any], seed: int
    ) -> None:
        n = max(range(3), key=lambda n: lengths[n] + counts[n] if counts[n] else 0)
        layer = GatedAttention(
            HIDDEN,
            HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            partial_rotary_factor=0.5,
            rope_scaling={**scaling, "original_max_position_embeddings": 4},
            window=4 if kind == "sliding" else None,
        )
        tensors = _values(layer, torch.float32, 3, max(counts) + padding, seed)
        layer.load_state_dict({name: tensors[name] for name, _ in layer.named_parameters()})
        layer, x = layer.to(device), tensors["x"].to(device)
        keys = torch.randn(
            3, most, KV_HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(seed)
        )
        caches = [_cache(kind, 3, 4, torch.float32, device) for _ in range(2)]
        for cache in caches:
            cache.update(keys.to(device), keys.to(device), offset=torch.tensor(lengths))
        together, alone = caches
        alone.reorder(torch.tensor([n]))
        with torch.no_grad():
            y = layer(x, cache=together, offset=torch.tensor(counts))[n, : counts[n]]
            want = layer(x[n : n + 1, : counts[n]], cache=alone)[0]
        torch.testing.assert_close(y, want)

    holds()
