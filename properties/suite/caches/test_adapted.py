"""The machine of a target's caches notices bugs, and tells a cache what its signature has."""

from typing import Any

import pytest
import torch
from torch import Tensor

import reference
from properties.jobs import Selection
from properties.suite.caches.adapted import AdaptedMachine
from properties.suite.caches.machine import run, search, variant
from properties.targets import Adapter
from properties.targets.modules import Unsupported


class _Decoding:
    """A cache that takes one token a call after its first; subclasses have bugs."""

    longest_step = 1

    def __init__(self, batch: int, head_dim: int, window: int) -> None:
        if head_dim == 1:
            raise Unsupported("head_dim")
        self.cache = reference.KVCache(batch, window)
        self.crop, self.reorder, self.reset = (
            getattr(self.cache, name) for name in ("crop", "reorder", "reset")
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.shape[1] == 1 or not any(self.cache.length)
        assert q.shape[-1] == v.shape[-1] > 1
        return self.cache.attend(q, k, v)[0]


class _ForgetsEarly(_Decoding):
    def __init__(self, batch: int, head_dim: int, window: int) -> None:
        super().__init__(batch, head_dim, max(1, window - 1))


class _OrdersNothing(_Decoding):
    def __init__(self, batch: int, head_dim: int, window: int) -> None:
        super().__init__(batch, head_dim, window)
        self.reorder = lambda index: None


class _Writes(_Decoding):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(q, k.neg_(), v)


def test_a_cache_of_a_target_is_told_what_its_signature_has(device: torch.device) -> None:
    run(variant(AdaptedMachine, device, kind=_Decoding))


@pytest.mark.parametrize(
    ("cache", "told"),
    [
        (_ForgetsEarly, "attends otherwise"),
        (_OrdersNothing, "attends otherwise"),
        (_Writes, "k was written to"),
    ],
)
def test_a_bug_of_a_cache_is_noticed(
    cache: type[_Decoding], told: str, device: torch.device
) -> None:
    with pytest.raises(AssertionError, match=told):
        search(AdaptedMachine, device, cache)


@pytest.mark.parametrize(
    ("caches", "told"),
    [
        ([_Decoding], "caches: .*, expected a mapping of classes or functions"),
        ({"mine": 3}, "caches: 'mine': 3, expected a class or a function"),
        ({"mine": lambda size: None}, "caches: 'mine': parameter 'size', expected one of batch, "),
    ],
)
def test_a_wrong_declaration_of_a_cache_is_named(caches: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Adapter({}, caches=caches)


def test_a_target_of_caches_alone_has_no_jobs() -> None:
    assert Selection().jobs(Adapter({}, caches={"mine": _Decoding})) == []
    with pytest.raises(ValueError, match="it has no op"):
        Selection().jobs(Adapter({}))
