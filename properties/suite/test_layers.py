"""Layers: prefill and then token by token equals one full pass, with the weights of the moment."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import reference
from properties.device import recorded_launches
from properties.laws import Subject
from properties.verdict import BY_DTYPE, Computation, budgets, compare


def _layer(device: torch.device, mode: Literal["auto", "chunk", "fused_recurrent"]) -> nn.Module:
    from kernels.layers import GatedLinearAttention

    torch.manual_seed(0)
    # Heads of 16: with expand_k=0.5 their keys are 8 wide, less than a tensor core takes.
    layer = GatedLinearAttention(48, 3, expand_k=0.5, mode=mode)
    return layer.to(device)


def _oracle(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Callable[[Tensor], Tensor]:
    """The same layer in float64, with the reference's recurrence."""
    from kernels.layers import gated_linear_attention as module

    exact = copy.deepcopy(layer).cpu().double()

    def gla(*tensors: Tensor, mode: str, **options: Any) -> tuple[Tensor, Tensor | None]:
        return reference.gla(*(x.double() for x in tensors), **options)

    def run(x: Tensor) -> Tensor:
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(module, "gla", gla)
            y: Tensor = exact(x)
        return y

    return run


@pytest.mark.parametrize("mode", ["auto", "chunk", "fused_recurrent"])
def test_prefill_then_decode_is_one_full_pass(
    mode: Literal["auto", "chunk", "fused_recurrent"],
    subject: Subject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kernels import RecurrentCache

    layer = _layer(subject.device, mode)
    oracle = _oracle(layer, monkeypatch)

    # Never 3 tokens, the number of heads: a count of one must not pass for the other.
    @given(
        st.integers(1, 2),
        st.integers(1, 20).filter(lambda t: t != 3),
        st.integers(1, 4),
        st.integers(0, 99),
    )
    def decodes(batch: int, prompt: int, decoded: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        tokens = prompt + decoded
        x = torch.randn(batch, tokens, 48, generator=generator)
        cache = RecurrentCache(batch)
        with torch.no_grad():
            parts = [layer(x[:, :prompt].to(subject.device), cache=cache)]
            assert cache.length.tolist() == [prompt] * batch
            for t in range(prompt, tokens):
                parts.append(layer(x[:, t : t + 1].to(subject.device), cache=cache))
                assert cache.length.tolist() == [t + 1] * batch
            whole = layer(x.to(subject.device))
        want = {"y": oracle(x.double())}
        how = Computation(
            precision=BY_DTYPE[torch.float32],
            output_dtypes={"y": torch.float32},
            terms=tokens + 48,
        )
        allowed = budgets(lambda tensors: {"y": oracle(tensors["x"])}, {"x": x.double()}, want, how)
        for got in (torch.cat(parts, 1), whole):
            comparison = compare("y", got, want["y"], allowed["y"])
            assert comparison.passed, (comparison.reason, comparison.ratio)

    decodes()


def test_a_layer_runs_the_kernels_of_its_mode(subject: Subject) -> None:
    """The modes' results agree, so only the launched kernels tell them apart."""
    from kernels import gla

    # `auto` takes another kernel for short sequences.
    for tokens in (2, 70):
        q = torch.zeros(1, tokens, 3, 8, device=subject.device)
        x = torch.zeros(1, tokens, 48, device=subject.device)
        launched: dict[str, list[str]] = {}
        for mode in ("chunk", "fused_recurrent"):
            with recorded_launches() as launched[mode]:
                gla(q, q, q, g=q, mode=mode)
            with recorded_launches() as by_layer:
                _layer(subject.device, mode)(x)
            assert by_layer == launched[mode]
        assert launched["chunk"] != launched["fused_recurrent"]


def _gated_linear_attention() -> nn.Module:
    from kernels.layers import GatedLinearAttention

    return GatedLinearAttention(32, 2)


def _gated_attention() -> nn.Module:
    from kernels.layers import GatedAttention

    return GatedAttention(32, 2, num_kv_heads=1, head_dim=16, partial_rotary_factor=0.5)


def _loads(layer: nn.Module, other: nn.Module) -> None:
    layer.load_state_dict(other.state_dict())


def _copies(layer: nn.Module, other: nn.Module) -> None:
    """Change weights as an optimizer does."""
    with torch.no_grad():
        for mine, new in zip(layer.parameters(), other.parameters(), strict=True):
            mine.copy_(new)


def _assigns(layer: nn.Module, other: nn.Module) -> None:
    layer.load_state_dict(other.state_dict(), assign=True)


@pytest.mark.parametrize("change", [_loads, _copies, _assigns])
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("made", [_gated_linear_attention, _gated_attention])
def test_a_layer_keeps_nothing_of_weights_that_changed(
    made: Callable[[], nn.Module],
    training: bool,
    context: Callable[[], AbstractContextManager[Any]],
    change: Callable[[nn.Module, nn.Module], None],
    subject: Subject,
) -> None:
    """A layer derives anew what depends on weights that have changed."""
    torch.manual_seed(0)
    layer, other = (made().to(subject.device).train(training) for _ in range(2))
    x = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(1)).to(subject.device)
    with context():
        want, before = other(x), layer(x)
    change(layer, other)
    with context():
        got = layer(x)
        assert torch.equal(got, want)
        assert not torch.equal(got, before)


@pytest.mark.parametrize("made", [_gated_linear_attention, _gated_attention])
def test_a_converted_layer_keeps_nothing_of_its_old_dtype(
    made: Callable[[], nn.Module], subject: Subject
) -> None:
    torch.manual_seed(0)
    layer = made().to(subject.device).eval()
    fresh = copy.deepcopy(layer).bfloat16()
    x = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(1)).to(subject.device)
    with torch.no_grad():
        layer(x)
        assert torch.equal(layer.bfloat16()(x.bfloat16()), fresh(x.bfloat16()))


@pytest.mark.parametrize("made", [_gated_linear_attention, _gated_attention])
def test_a_compiled_layer_follows_its_weights(
    made: Callable[[], nn.Module], subject: Subject
) -> None:
    torch.manual_seed(0)
    layer = made().to(subject.device)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 2, 32, generator=torch.Generator().manual_seed(1)).to(subject.device)
    for _ in range(2):
        results = []
        for run in (compiled, layer):
            y = run(x)
            results.append((y, *torch.autograd.grad(y.sum(), tuple(layer.parameters()))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)
        with torch.no_grad():
            for p in layer.parameters():
                p.mul_(-1.5)
