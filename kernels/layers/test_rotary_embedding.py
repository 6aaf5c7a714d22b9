"""The rotary module's tables survive what is done to models."""

import copy

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.layers import RotaryEmbedding
from kernels.position import rotary_embedding, rotary_tables

BACKENDS = ("aot_eager", "inductor")


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


def test_a_call_without_a_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^x: no tensor"):
        _module()(seqlen_offsets=3)
    with pytest.raises(ValueError, match=r"^x: NoneType"):
        _module()(None)


@pytest.mark.parametrize("head_dim", [1, 257, 0])
def test_a_head_dim_outside_2_to_256_is_refused(head_dim: int) -> None:
    with pytest.raises(ValueError, match=r"^head_dim: "):
        RotaryEmbedding(head_dim, rotary_dim=2)


def test_a_sequence_longer_than_the_tables_makes_them_grow() -> None:
    x, module = _heads(1, 2500, 1, 8), _module()
    assert torch.equal(module(x), _rotated(x, 0))
