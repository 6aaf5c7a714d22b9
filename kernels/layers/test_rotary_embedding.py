"""The rotary module's tables survive what is done to models."""

import copy

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.layers import RotaryEmbedding
from kernels.position.rotary import rotary_embedding
from kernels.position.tables import rotary_tables

BACKENDS = ("aot_eager", "inductor")
# A scaling by the number of tokens so far.
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 4}


def _heads(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _rotated(x: Tensor, offset: int) -> Tensor:
    """At positions from `offset` on, with tables made for it."""
    return rotary_embedding(x, *rotary_tables(offset + x.shape[1], 6), seqlen_offsets=offset)


def _module() -> RotaryEmbedding:
    return RotaryEmbedding(8, rotary_dim=6)


class _Tables(TorchDispatchMode):
    """Notes the tables that are built: how long each is."""

    def __init__(self) -> None:
        super().__init__()
        self.built: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.cos.default:
            self.built.append(len(args[0]))
        return func(*args, **(kwargs or {}))


def test_queries_and_keys_turn_together() -> None:
    q, k = _heads(2, 5, 4, 8), _heads(2, 3, 2, 8)
    for x, y in zip((q, k), _module()(q, k, seqlen_offsets=7), strict=True):
        assert torch.equal(y, _rotated(x, 7))


@pytest.mark.parametrize("lengths", [(2, 9), (9, 2), (2, 2100), (2100, 2)])
@pytest.mark.parametrize("scaling", [None, DYNAMIC])
def test_the_longest_of_several_counts(lengths: tuple[int, int], scaling: dict | None) -> None:
    q, k = (_heads(1, tokens, 2, 8) for tokens in lengths)
    longest = max(q, k, key=lambda x: x.shape[1])
    together = RotaryEmbedding(8, scaling=scaling)(q, k)
    alone = RotaryEmbedding(8, scaling=scaling)(longest)
    for x, y in zip((q, k), together, strict=True):
        if x is longest:
            assert torch.equal(y, alone)
        else:
            _, want = RotaryEmbedding(8, scaling=scaling)(longest, x)
            assert torch.equal(y, want)


def test_an_empty_sequence_has_no_last_position() -> None:
    x = _heads(1, 6, 1, 8)
    cu_seqlens, offsets = torch.tensor([0, 6, 6]), torch.tensor([0, 40])
    module, alone = RotaryEmbedding(8, scaling=DYNAMIC), RotaryEmbedding(8, scaling=DYNAMIC)
    assert torch.equal(module(x, cu_seqlens=cu_seqlens, seqlen_offsets=offsets), alone(x))


@pytest.mark.parametrize("offset", [3000, torch.tensor([3000])])
def test_tables_grow_with_the_sequence(offset: int | Tensor) -> None:
    x = _heads(1, 5, 3, 8)
    assert torch.equal(_module()(x, seqlen_offsets=offset), _rotated(x, 3000))


@pytest.mark.parametrize("kind", [int, lambda offset: torch.tensor([offset])])
def test_tables_are_built_again_only_for_more_positions_than_they_have(kind) -> None:
    x, module = _heads(1, 5, 3, 8), _module()
    for last, built in ((2048, 0), (2049, 1), (2049, 0), (3000, 0), (4097, 1)):
        with _Tables() as tables:
            turned = module(x, seqlen_offsets=kind(last - 5))
        assert len(tables.built) == built, f"to position {last}: built {tables.built}"
        assert torch.equal(turned, _rotated(x, last - 5))


@pytest.mark.parametrize("length", [2049, 4096, 4097])
def test_tables_are_less_than_twice_as_long_as_they_need_be(length: int) -> None:
    module = _module()
    with _Tables() as tables:
        module.reserve(length)
    (built,) = tables.built
    assert length <= built < 2 * length


def test_tables_go_where_the_module_goes() -> None:
    x, module = _heads(1, 5, 3, 8), _module()
    module.reserve(4096)
    # As good as a GPU for this: a device that is not the one it was built on.
    module.to("meta")
    with _Tables() as tables:
        assert module(x.to("meta"), seqlen_offsets=4000).device.type == "meta"
    assert not tables.built


@pytest.mark.parametrize("cast", ["half", "bfloat16", "double"])
def test_tables_stay_float32(cast: str) -> None:
    x = _heads(1, 5, 3, 8).half()
    module = getattr(_module(), cast)()
    assert torch.equal(module(x, seqlen_offsets=1999), _rotated(x, 1999))


def test_tables_are_no_state() -> None:
    assert not _module().state_dict()


def test_tables_made_in_inference_mode_can_be_trained_with() -> None:
    x = _heads(1, 5, 3, 8)
    with torch.inference_mode():
        module = _module()
        module(x, seqlen_offsets=3000)
    module(x.requires_grad_(), seqlen_offsets=3000).sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_in_inference_mode_then_trained(backend: str) -> None:
    x = _heads(1, 5, 3, 8)
    module = torch.compile(_module(), fullgraph=True, backend=backend)
    with torch.inference_mode():
        module(x, seqlen_offsets=3000)
    module(x.requires_grad_(), seqlen_offsets=3000).sum().backward()
    assert torch.equal(module(x, seqlen_offsets=9000), _rotated(x, 9000))


def test_compiled_with_offsets_past_what_is_reserved_raises() -> None:
    x, offsets = _heads(1, 5, 3, 8), torch.tensor([3000])
    module = _module()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="seqlen_offsets"):
        compiled(x, seqlen_offsets=offsets)
    module.reserve(3005)
    assert torch.equal(compiled(x, seqlen_offsets=offsets), _rotated(x, 3000))


def test_a_copy_and_a_module_from_the_meta_device_rotate_alike() -> None:
    x = _heads(1, 5, 3, 8)
    module = _module()
    with torch.device("meta"):
        empty = _module()
    empty.to_empty(device="cpu")
    for other in (copy.deepcopy(module), empty):
        assert torch.equal(other(x, seqlen_offsets=3), module(x, seqlen_offsets=3))


@pytest.mark.parametrize("rotary_dim", [10, 5, 0, -2])
def test_a_rotary_dim_that_does_not_fit_the_head_is_refused(rotary_dim: int) -> None:
    with pytest.raises(ValueError, match=r"rotary_dim.*head_dim"):
        RotaryEmbedding(8, rotary_dim=rotary_dim)


def test_an_input_of_another_head_dim_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim = 8"):
        _module()(_heads(1, 2, 3, 24))


@pytest.mark.parametrize(
    ("error", "offsets"),
    [
        *((TypeError, wrong) for wrong in (None, 1.5, "3", True, [3, 4], torch.tensor([1.0, 2.0]))),
        *((ValueError, wrong) for wrong in (-1, torch.tensor([0, -1]), torch.tensor([1, 2, 3]))),
        (ValueError, torch.tensor(3)),
    ],
)
def test_wrong_offsets_are_refused(error: type[Exception], offsets: object) -> None:
    x = _heads(2, 3, 1, 8)
    before = x.clone()
    with pytest.raises(error, match=r"^seqlen_offsets: "):
        _module()(x, seqlen_offsets=offsets, inplace=True)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (TypeError, {"position_ids": torch.full((2, 3), torch.inf)}),
        (TypeError, {"position_ids": torch.zeros(2, 3, dtype=torch.complex64)}),
        (TypeError, {"seqlen_offsets": torch.full((2,), torch.nan)}),
        (TypeError, {"seqlen_offsets": "1", "cu_seqlens": torch.tensor([0, 2, 3])}),
        (ValueError, {"seqlen_offsets": torch.ones(3).long(), "cu_seqlens": torch.tensor([0, 3])}),
        (TypeError, {"cu_seqlens": torch.tensor([0.0, torch.nan])}),
    ],
)
def test_places_are_checked_before_tables_are_built(
    error: type[Exception], wrong: dict[str, object]
) -> None:
    x = _heads(1 if "cu_seqlens" in wrong else 2, 3, 1, 8)
    name = next(iter(wrong))
    for module in (_module(), RotaryEmbedding(8, rotary_dim=6, scaling=DYNAMIC)):
        with pytest.raises(error, match=f"^{name}: "):
            module(x, **wrong)


def test_a_refused_call_keeps_no_tables() -> None:
    module = _module()
    before = module._tables
    with pytest.raises(TypeError, match=r"^x: "):
        module(_heads(1, 2, 1, 8).long(), seqlen_offsets=5000)
    assert module._tables is before


def test_queries_stay_where_their_keys_are_refused() -> None:
    q, shared = _heads(1, 2, 3, 8), _heads(1, 1, 1, 8).expand(1, 2, 1, 8)
    before = q.clone()
    with pytest.raises(ValueError, match=r"^inplace: x has strides"):
        _module()(q, shared, seqlen_offsets=3, inplace=True)
    with pytest.raises(ValueError, match=r"^cu_seqlens: given with \[2, 1\] tokens"):
        _module()(q, q[:, :1], cu_seqlens=torch.tensor([0, 2]), seqlen_offsets=3, inplace=True)
    assert torch.equal(q, before)


def test_a_call_without_a_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^x: no tensor"):
        _module()(seqlen_offsets=3)
    with pytest.raises(ValueError, match=r"^x: None"):
        _module()(None)


@pytest.mark.parametrize("head_dim", [1, 257, 0])
def test_a_head_dim_outside_2_to_256_is_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match=r"^head_dim: "):
        RotaryEmbedding(head_dim, rotary_dim=2)


def test_a_sequence_longer_than_the_tables_makes_them_grow() -> None:
    x, module = _heads(1, 2500, 1, 8), _module()
    assert torch.equal(module(x), _rotated(x, 0))


DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.0, 1.0],
    "long_factor": [2.0, 4.0, 8.0],
    "original_max_position_embeddings": 8,
    "factor": 4.0,
}


def _scaled(x: Tensor, scaling: dict, tokens: int) -> Tensor:
    """The last tokens of so many."""
    tables = rotary_tables(tokens, 6, scaling=scaling)
    return rotary_embedding(x, *tables, seqlen_offsets=tokens - x.shape[1])


@pytest.mark.parametrize("scaling", [DYNAMIC, LONGROPE])
def test_a_scaling_follows_the_tokens_so_far_and_nothing_else(scaling: dict) -> None:
    module, x = RotaryEmbedding(8, rotary_dim=6, scaling=scaling), _heads(1, 3, 2, 8)
    for tokens in (3, 8, 9, 3000, 3001, 9, 8, 3):
        turned = module(x, seqlen_offsets=tokens - 3)
        assert torch.equal(turned, _scaled(x, scaling, tokens)), tokens
        positions = torch.arange(tokens - 3, tokens)[None]
        assert torch.equal(module(x, position_ids=positions), turned), tokens


def test_a_pack_is_scaled_by_its_longest_sequence() -> None:
    module, x = RotaryEmbedding(8, rotary_dim=6, scaling=DYNAMIC), _heads(1, 12, 2, 8)
    turned = module(x, cu_seqlens=torch.tensor([0, 6, 6, 12]))
    assert torch.equal(turned, module(x.view(2, 6, 2, 8)).view_as(x))
    turned = module(x, cu_seqlens=torch.tensor([0, 9, 12]), seqlen_offsets=torch.tensor([1, 2]))
    assert torch.equal(turned[:, :9], _scaled(x[:, :9], DYNAMIC, 10))


def test_positions_of_left_padded_prompts_turn_each_row_by_its_own() -> None:
    x = _heads(2, 5, 3, 8)
    turned = _module()(x, position_ids=torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]))
    assert torch.equal(turned[:1], _module()(x[:1]))
    assert torch.equal(turned[1:, 2:], _module()(x[1:, 2:]))


def test_positions_that_a_compiled_graph_cannot_see_are_refused_where_they_scale() -> None:
    torch._dynamo.reset()
    module = RotaryEmbedding(8, rotary_dim=6, scaling=DYNAMIC)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = _heads(1, 3, 2, 8)
    assert torch.equal(compiled(x, seqlen_offsets=9), _scaled(x, DYNAMIC, 12))
    with pytest.raises(Exception, match="position_ids"):
        compiled(x, position_ids=torch.arange(3)[None])


def test_a_bad_scaling_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="scaling: dynamic has no original_max_position"):
        RotaryEmbedding(8, scaling={"rope_type": "dynamic", "factor": 4.0})
