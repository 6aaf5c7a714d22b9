"""The gated linear attention layer, called in any order and compared with a new layer of the same
weights.

Results, gradients and states must equal those of a layer that was never called, bit for bit, and in
float32 those of the layer's formula, by the oracle in float64, as far as rounding allows.
"""

import copy
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor, nn

import reference
from kernels.cache import RecurrentCache
from kernels.layers import GatedLinearAttention
from properties.cases.contexts import WITHOUT_GRADIENTS
from properties.suite.caches.calls import CONTEXTS, context
from properties.suite.caches.machine import run, search, variant

HIDDEN = 8
LAYERS = 2
OPTIONS: tuple[dict[str, Any], ...] = (
    {"num_heads": 2, "layer_idx": 1},
    {"num_heads": 4, "num_kv_heads": 2, "expand_k": 1.0, "use_output_gate": False, "norm_eps": 0.1},
)
CASTS = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32}
CHANGES = (
    *("load_state_dict", "assign", "parameter", "step", "data", "in place"),
    *("train", "eval", "deepcopy", *CASTS),
)
SEEDS = st.integers(0, 2**16)


def formula(
    layer: GatedLinearAttention, x: Tensor, state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, float]:
    """y, the state behind x, and how many units in the last place of float32 y may be off.

    Where the terms of o nearly cancel, RMSNorm makes their rounding as large as the rest.
    """
    w = {name: p.detach().double() for name, p in layer.named_parameters()}
    x = x.detach().double()

    def heads(y: Tensor, dim: int) -> Tensor:
        y = y.unflatten(-1, (-1, dim))
        return y.repeat_interleave(layer.num_heads // y.shape[2], 2)

    q, k, v = (
        heads(x @ w[f"{name}_proj.weight"].T, dim)
        for name, dim in (("q", layer.key_dim), ("k", layer.key_dim), ("v", layer.value_dim))
    )
    decay = x @ w["decay_proj.0.weight"].T @ w["decay_proj.1.weight"].T + w["decay_proj.1.bias"]
    g = F.logsigmoid(heads(decay, layer.key_dim)) / layer.gate_logit_normalizer
    S = None if state is None else state.detach().double()
    packed: Any = {"output_final_state": True, "cu_seqlens": cu_seqlens}
    o, S_after = reference.gla(q, k, v, g, initial_state=S, **packed)
    assert S_after is not None
    sizes, _ = reference.gla(
        q.abs(), k.abs(), v.abs(), g, initial_state=None if S is None else S.abs(), **packed
    )
    eps = layer.norm.eps
    assert eps is not None
    rms = (o.square().mean(-1, keepdim=True) + eps).sqrt()
    ulps = float((sizes / rms).amax()) if o.numel() else 0.0
    y = (o / rms * w["norm.weight"]).flatten(2)
    if layer.gate_proj is not None:
        y = F.silu(x @ w["gate_proj.weight"].T + w["gate_proj.bias"]) * y
    return y @ w["o_proj.weight"].T, S_after, ulps


def check_formula(
    layer: GatedLinearAttention,
    x: Tensor,
    before: Tensor | None,
    cu_seqlens: Tensor | None,
    y: Tensor,
    after: Tensor | None,
) -> None:
    """Compare y of a call, and the state after it if there is a cache."""
    want, state, ulps = formula(layer, x, before, cu_seqlens)
    # Five products one after the other, each of at most 16 terms: half a unit a term at most.
    for got, exact, units in ((y, want, 8 * (1 + ulps)), (after, state, 8.0)):
        if got is not None and exact.numel():
            error = (got.double() - exact).abs().max()
            assert error <= units * 2.0**-23 * (1 + exact.abs().max()), "not what the formula says"


class LayerMachine(RuleBasedStateMachine):
    """Train, cast, freeze and copy a layer between calls that may share a cache.

    The new layer has its own cache and needs every gradient. The machine's layer may need those of
    unfrozen weights, of x and of the state.
    """

    device: ClassVar[torch.device] = torch.device("cpu")
    reached: ClassVar[set[str]] = set()
    times: ClassVar[int] = 8
    steps: ClassVar[int] = 12
    kind: ClassVar[type[GatedLinearAttention]] = GatedLinearAttention

    @initialize(
        batch=st.integers(1, 3),
        options=st.sampled_from(OPTIONS),
        mode=st.sampled_from(["auto", "chunk", "fused_recurrent"]),
        counted=st.sampled_from([0, None, 2]),
    )
    def create(self, batch: int, options: dict[str, Any], mode: str, counted: int | None) -> None:
        self.batch, self.options = batch, {"hidden_size": HIDDEN, "mode": mode, **options}
        self.dtype = torch.float32
        self.layer = self.kind(**self.options).to(self.device)
        self.cache = RecurrentCache(batch, LAYERS)
        self.twin = RecurrentCache(batch, LAYERS)
        self.bounds = torch.zeros(batch + 1, dtype=torch.int32, device=self.device)
        self.change(0, "load_state_dict")
        if counted is not None:
            self.start_from(0, counted)

    def normal(self, seed: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.device, self.dtype)

    def new(self) -> GatedLinearAttention:
        """A layer with the same weights, all trainable."""
        layer = GatedLinearAttention(**self.options).to(self.device, self.dtype)
        layer.load_state_dict(self.layer.state_dict())
        return layer

    @rule(
        lengths=st.lists(st.integers(0, 4), min_size=3, max_size=3),
        packed=st.booleans(),
        cached=st.booleans(),
        seed=SEEDS,
        where=st.sampled_from(CONTEXTS),
        trains_x=st.booleans(),
        trains_state=st.booleans(),
        frozen=st.sets(st.integers(0, 7)),
    )
    def call(
        self,
        lengths: list[int],
        packed: bool,
        cached: bool,
        seed: int,
        where: str,
        trains_x: bool,
        trains_state: bool,
        frozen: set[int],
    ) -> None:
        if where == "autocast" and self.dtype != torch.float32:
            where = "grad"
        lengths = lengths[: self.batch]
        cu_seqlens = None
        shape = (self.batch, lengths[0], HIDDEN)
        if packed:
            # The same tensor as in the last packed call.
            self.bounds[1:] = torch.tensor(lengths).cumsum(0)
            cu_seqlens, shape = self.bounds, (1, sum(lengths), HIDDEN)
        for n, p in enumerate(self.layer.parameters()):
            p.requires_grad_(n not in frozen)
        x = self.normal(seed, *shape).requires_grad_(trains_x)
        other = x.detach().clone().requires_grad_()
        layer = self.new()
        pairs = [(x, other), *zip(self.layer.parameters(), layer.parameters(), strict=True)]
        index = layer.layer_idx
        states = self.cache.state(index), self.twin.state(index)
        if cached and states[0] is not None and states[1] is not None:
            states = states[0].requires_grad_(trains_state), states[1].requires_grad_()
            pairs.append(states)
        with context(where, self.device):
            y = self.layer(x, cache=self.cache if cached else None, cu_seqlens=cu_seqlens)
            want = layer(other, cache=self.twin if cached else None, cu_seqlens=cu_seqlens)
        assert torch.equal(y, want), "another result than that of a new layer"
        self.caches_agree()
        if self.dtype == torch.float32 and where != "autocast":
            before = states[0] if cached else None
            after = self.cache.state(index) if cached else None
            check_formula(self.layer, x, before, cu_seqlens, y, after)
        if where not in WITHOUT_GRADIENTS:
            left = (self.cache.state(index), self.twin.state(index)) if cached else (None, None)
            self.gradients_agree((y, left[0]), (want, left[1]), pairs, seed)
        for cache in (self.cache, self.twin):
            self.cut_graph(cache)

    def caches_agree(self) -> None:
        for n in range(LAYERS):
            assert self.cache.layer_length(n).tolist() == self.twin.layer_length(n).tolist()
            got, want = self.cache.state(n), self.twin.state(n)
            assert (got is None) == (want is None)
            assert got is None or want is None or torch.equal(got, want), "another state"

    def gradients_agree(
        self,
        got: tuple[Tensor, Tensor | None],
        want: tuple[Tensor, Tensor | None],
        pairs: list[tuple[Tensor, Tensor]],
        seed: int,
    ) -> None:
        """Compare the gradients of trainable tensors, through y and through the final state.

        Args:
            got, want: y and the state.
            pairs: tensors that may need a gradient, in the call under test and in the other.
        """
        pairs = [(a, b) for a, b in pairs if a.requires_grad]
        if not pairs:
            assert not got[0].requires_grad, "a gradient that nobody asked for"
            return
        self.reached.add("some are frozen" if len(pairs) < 7 else "all are trained")
        gradients = []
        for results, wanted in zip((got, want), zip(*pairs, strict=True), strict=True):
            through = [r for r in results if r is not None and r.requires_grad]
            dy = [self.normal(seed + n, *r.shape).to(r.dtype) for n, r in enumerate(through)]
            gradients.append(torch.autograd.grad(through, wanted, dy, allow_unused=True))
        for a, b in zip(*gradients, strict=True):
            assert (a is None) == (b is None), "a gradient is there or not"
            assert a is None or torch.equal(a, b), "another gradient"

    def cut_graph(self, cache: RecurrentCache) -> None:
        """Detach between segments, as in truncated training; weights may change then."""
        for n in range(LAYERS):
            state = cache.state(n)
            if state is not None:
                cache.update(state.detach().clone(), n, offset=0)

    @rule(seed=SEEDS, how=st.sampled_from(CHANGES))
    def change(self, seed: int, how: str) -> None:
        """Do to a module what users do between two calls."""
        layer, parameters = self.layer, list(self.layer.parameters())
        if how in ("train", "eval"):
            layer.train(how == "train")
        elif how in CASTS:
            self.dtype = CASTS[how]
            layer.to(self.dtype)
        elif how == "deepcopy":
            self.layer = copy.deepcopy(layer)
            for p in parameters:
                p.data.fill_(torch.nan)
        elif how in ("load_state_dict", "assign"):
            other = {
                name: self.normal(seed + n, *p.shape)
                for n, (name, p) in enumerate(layer.named_parameters())
            }
            layer.load_state_dict(other, assign=how == "assign")
        elif how == "parameter":
            layer.k_proj.weight = nn.Parameter(self.normal(seed, *layer.k_proj.weight.shape))
        elif how == "step":
            for p in parameters:
                p.grad = self.normal(seed, *p.shape)
            torch.optim.SGD(parameters, lr=0.125).step()
            layer.zero_grad()
        elif how == "data":
            for p in parameters:
                p.data.mul_(-0.5)
        else:
            with torch.no_grad():
                for p in parameters:
                    p.mul_(-0.5)

    @rule(seed=SEEDS, counted=st.integers(0, 2))
    def start_from(self, seed: int, counted: int) -> None:
        """Go on from a state of the caller's, behind so many tokens."""
        index, layer = self.layer.layer_idx, self.layer
        shape = self.batch, layer.num_heads, layer.key_dim, layer.value_dim
        for cache in (self.cache, self.twin):
            cache.update(self.normal(seed, *shape).float(), index, offset=counted)

    @rule(
        picks=st.none() | st.lists(st.integers(0, 2), min_size=3, max_size=3),
    )
    def change_sequences(self, picks: list[int] | None) -> None:
        for cache in (self.cache, self.twin):
            if picks is None:
                cache.reset()
            else:
                cache.reorder(torch.tensor([pick % self.batch for pick in picks[: self.batch]]))


class KeepsItsWeights(GatedLinearAttention):
    """Fuses the projections into one matrix at the first call."""

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        if not hasattr(self, "_kept"):
            self._kept = self.k_proj.weight.detach().clone()
        old, self.k_proj.weight.data = self.k_proj.weight.data, self._kept.to(x.dtype)
        y: Tensor = super().forward(x, **options)
        self.k_proj.weight.data = old
        return y


class LosesGradientsOfFrozenWeights(GatedLinearAttention):
    """If values are not trained, passes no gradient through them."""

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        frozen = not self.v_proj.weight.requires_grad
        hook = self.v_proj.register_forward_hook(lambda *a: a[-1].detach() if frozen else None)
        y: Tensor = super().forward(x, **options)
        hook.remove()
        return y


class RoundsInInference(GatedLinearAttention):
    """Without gradients, sums squares in bfloat16."""

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        y: Tensor = super().forward(x, **options)
        return y if torch.is_grad_enabled() else y.bfloat16().to(y.dtype)


class KeepsBoundaries(GatedLinearAttention):
    """Counts boundaries once per tensor object, whatever it holds later."""

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        bounds = options.get("cu_seqlens")
        if bounds is not None:
            if getattr(self, "_seen", None) is not bounds:
                self._seen, self._bounds = bounds, bounds.clone()
            if self._bounds[-1] == x.shape[1]:
                options["cu_seqlens"] = self._bounds
        return super().forward(x, **options)


class DetachesTheState(GatedLinearAttention):
    """Passes no gradient to what came before the call."""

    def forward(self, x: Tensor, *, cache: Any = None, **options: Any) -> Tensor:
        if cache is not None and cache.state(self.layer_idx) is not None:
            cache.update(cache.state(self.layer_idx).detach(), self.layer_idx, offset=0)
        return super().forward(x, cache=cache, **options)


PLANTED = (
    KeepsItsWeights,
    LosesGradientsOfFrozenWeights,
    RoundsInInference,
    KeepsBoundaries,
    DetachesTheState,
)


# RMSNorm of a float32 layer under autocast is not fused.
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_a_call_depends_on_its_arguments_and_the_weights_of_now(device: torch.device) -> None:
    run(variant(LayerMachine, device))


@pytest.mark.parametrize("counted", [0, 3])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mode", ["chunk", "fused_recurrent"])
@torch.no_grad()
def test_a_sequence_goes_on_from_a_state_of_the_callers(
    mode: Any, packed: bool, counted: int, device: torch.device
) -> None:
    """Whether tokens are counted that the cache has not seen, or none."""
    torch.manual_seed(0)
    layer = GatedLinearAttention(HIDDEN, 2, mode=mode).to(device)
    cache = RecurrentCache(2)
    before = torch.randn(2, 2, 2, 4).to(device)
    cache.update(before, offset=counted)
    bounds = torch.tensor([0, 0, 3], device=device) if packed else None
    x = torch.randn(1 if packed else 2, 3, HIDDEN).to(device)
    y = layer(x, cache=cache, cu_seqlens=bounds)
    check_formula(layer, x, before, bounds, y, cache.state(0))


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_caught(planted: type[Any], device: torch.device) -> None:
    # A tensor cached in inference_mode cannot be trained with.
    with pytest.raises((AssertionError, RuntimeError)):
        search(LayerMachine, device, planted)


def test_any_width_of_a_head_can_be_said_as_a_multiple() -> None:
    """Some of these floats times the layer's width are just below an integer."""
    widths = range(1, 257)
    with torch.device("meta"):
        layers = [GatedLinearAttention(100, 1, expand_k=w / 100, expand_v=w / 100) for w in widths]
    assert [layer.key_dim for layer in layers] == [*widths]
    assert [layer.value_dim for layer in layers] == [*widths]
