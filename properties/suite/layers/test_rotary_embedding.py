"""The rotary layer, called in any order and compared with the oracle on float64 tables."""

import copy
import json
from functools import lru_cache, partial
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor

import reference
from kernels.layers import RotaryEmbedding
from kernels.position.tables import tokens_that_scale
from properties.cases.contexts import WITHOUT_GRADIENTS
from properties.suite.caches.calls import CONTEXTS, check_refusal, context
from properties.suite.caches.machine import run, search, variant

OPTIONS: tuple[dict[str, Any], ...] = (
    {"head_dim": 4},
    {"head_dim": 6, "rotary_dim": 4, "base": 300.0},
    {"head_dim": 7, "rotary_dim": 2, "interleaved": True},
    # Other tables before and after 7 and 2048 tokens.
    {
        "head_dim": 6,
        "scaling": {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 7},
    },
    {
        "head_dim": 4,
        "scaling": {
            "rope_type": "longrope",
            "original_max_position_embeddings": 2048,
            "factor": 32.0,
            "short_factor": [1.0, 1.5],
            "long_factor": [1.0, 30.0],
        },
    },
)
FARTHEST = 2**17
"""Positions past 2^16, which 16 bits cannot tell apart."""
OFFSETS = st.integers(0, 9) | st.sampled_from([2047, 2048, 4095, 70_001, FARTHEST])
DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}
SEEDS = st.integers(0, 2**16)


@lru_cache(maxsize=len(OPTIONS))
def exact_tables(
    head_dim: int,
    *,
    rotary_dim: int | None = None,
    base: float = 10000.0,
    scaling: str = "null",
    tokens: int = 0,
) -> tuple[Tensor, Tensor]:
    """Float64 tables of every position that a call may have.

    Args:
        scaling: as JSON.
        tokens: the tokens so far, if the scaling depends on them.
    """
    cos, sin = reference.rotary_tables(
        FARTHEST + 16,
        rotary_dim or head_dim,
        base=base,
        scaling=json.loads(scaling),
        tokens=tokens,
        dtype=torch.float64,
    )
    return cos, sin


class RotaryMachine(RuleBasedStateMachine):
    """A module whose tables grow, and are reserved, cast, copied and moved between calls."""

    device: ClassVar[torch.device] = torch.device("cpu")
    reached: ClassVar[set[str]] = set()
    times: ClassVar[int] = 16
    steps: ClassVar[int] = 12
    kind: ClassVar[type[RotaryEmbedding]] = RotaryEmbedding

    @initialize(
        options=st.sampled_from(OPTIONS),
        where=st.sampled_from(CONTEXTS),
        reserved=st.sampled_from([None, 2049, FARTHEST + 1]),
    )
    def create(self, options: dict[str, Any], where: str, reserved: int | None) -> None:
        self.options = options
        with context(where, self.device):
            self.module = self.kind(**options).to(self.device)
            if reserved is not None:
                self.module.reserve(reserved)
        self.told: dict[tuple[str, int, torch.dtype], Tensor] = {}
        self.latest: dict[str, Any] = {}

    def normal(self, seed: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, self.options["head_dim"], generator=generator).to(self.device)

    def tell(self, name: str, numbers: list[int], dtype: torch.dtype) -> Tensor:
        """Numbers in the tensor of an earlier call."""
        x = torch.tensor(numbers, dtype=dtype, device=self.device)
        return self.told.setdefault((name, len(numbers), dtype), x).copy_(x)

    @rule(
        lengths=st.lists(st.integers(0, 4), min_size=1, max_size=3),
        offsets=st.lists(OFFSETS, min_size=3, max_size=3),
        kind=st.sampled_from(["default", "int", "int32", "int64", "position_ids"]),
        packed=st.booleans(),
        inplace=st.booleans(),
        several=st.booleans(),
        dtype=st.sampled_from(sorted(DTYPES)),
        where=st.sampled_from(CONTEXTS),
        trains=st.booleans(),
        seed=SEEDS,
    )
    def call(
        self,
        lengths: list[int],
        offsets: list[int],
        kind: str,
        packed: bool,
        inplace: bool,
        several: bool,
        dtype: str,
        where: str,
        trains: bool,
        seed: int,
    ) -> None:
        self.latest = {
            "lengths": lengths, "offsets": offsets, "kind": kind, "packed": packed,
            "inplace": inplace, "several": several, "dtype": dtype, "where": where,
            "trains": trains, "seed": seed,
        }  # fmt: skip
        options: dict[str, Any] = {"inplace": inplace} if inplace else {}
        offsets = offsets[: len(lengths)]
        shape = (len(lengths), lengths[0])
        if packed:
            shape = (1, sum(lengths))
            bounds = torch.tensor([0, *lengths]).cumsum(0).tolist()
            options["cu_seqlens"] = self.tell("cu_seqlens", bounds, torch.int32)
        parts = lengths if packed else [lengths[0]] * len(lengths)
        if kind == "default":
            offsets = [0] * len(lengths)
        elif kind == "int":
            options["seqlen_offsets"] = offsets[0]
            offsets = offsets[:1] * len(lengths)
        elif kind == "position_ids":
            # Each row begins at an offset, or each sequence of the pack does.
            places = [o + t for o, n in zip(offsets, parts, strict=True) for t in range(n)]
            options.pop("cu_seqlens", None)
            options["position_ids"] = self.tell("ids", places, torch.int64).view(shape)
        else:
            options["seqlen_offsets"] = self.tell("offsets", offsets, getattr(torch, kind))
        given = [
            self.normal(seed + heads, *shape, heads).to(DTYPES[dtype])
            for heads in (2, 1)[: 1 + several]
        ]
        leaves = [x.clone().requires_grad_(trains) for x in given]
        with context(where, self.device):
            # A leaf that requires a gradient cannot be written to.
            x = [leaf * 1 for leaf in leaves] if inplace else leaves
            turned = self.module(*x, **options)
        results = turned if several else (turned,)
        assert isinstance(results, tuple)
        assert len(results) == len(given)
        ends = [o + n for o, n in zip(offsets, parts, strict=True) if n]
        tables = self.tables(max(ends, default=0))
        at: dict[str, Any] = {n: options[n] for n in ("position_ids", "cu_seqlens") if n in options}
        if kind != "position_ids":
            at["seqlen_offsets"] = torch.tensor(offsets, device=self.device)
        for before, into, leaf, y in zip(given, x, leaves, results, strict=True):
            assert (y is into) == inplace
            assert y.dtype == before.dtype
            assert inplace or torch.equal(into, before), "an input has changed"
            self.check(y, before.detach(), tables, {**at, "conjugate": False})
            trained = trains and where not in WITHOUT_GRADIENTS
            assert y.requires_grad == trained
            if trained:
                (dx,) = torch.autograd.grad(y, leaf, before)
                self.check(dx, before, tables, {**at, "conjugate": True})

    @rule(
        wrong=st.sampled_from(["shared memory", "float64", "tokens", "leaf", "view of a leaf"]),
        trains=st.booleans(),
        seed=SEEDS,
    )
    def refuse(self, wrong: str, trains: bool, seed: int) -> None:
        """A wrong tensor behind a right one: nothing is turned. A length is a count."""
        wrong_lengths: tuple[Any, ...] = (-1, 2.0, True)
        for length in wrong_lengths:
            check_refusal("length", partial(self.module.reserve, length))
        q = self.normal(seed, 1, 2, 2).requires_grad_(trains) * 1
        k = self.normal(seed, 1, 2, 1)
        argument = "inplace"
        options: dict[str, Any] = {"seqlen_offsets": 1}
        if wrong == "shared memory":
            k = k[:, :1].expand(1, 2, 1, -1)
        elif wrong == "float64":
            argument, k = "x", k.double()
        elif wrong == "tokens":
            argument, k = "cu_seqlens", k[:, :1]
            options["cu_seqlens"] = self.tell("cu_seqlens", [0, 2], torch.int32)
        else:
            k.requires_grad_()
            k = k[:, :1] if wrong == "view of a leaf" else k
        given = q, k
        before = [x.detach().clone() for x in given]
        check_refusal(argument, lambda: self.module(*given, inplace=True, **options))
        for x, was in zip(given, before, strict=True):
            assert torch.equal(x.detach(), was), f"refused for {wrong}, and turned"

    def tables(self, tokens: int) -> list[Tensor]:
        """Exact tables for a call whose last position is `tokens - 1`."""
        options = {n: x for n, x in self.options.items() if n != "interleaved"}
        if "scaling" in options:
            options |= {"scaling": json.dumps(options["scaling"]), "tokens": tokens}
        return [t.to(self.device) for t in exact_tables(**options)]

    def check(self, y: Tensor, x: Tensor, tables: list[Tensor], options: dict[str, Any]) -> None:
        """Allow two products with rounded cosines, their difference, and rounding to the dtype."""
        options["interleaved"] = self.options.get("interleaved", False)
        want = reference.rotary_embedding(x.double(), *tables, **options)
        size = x.double().abs().amax(-1, keepdim=True) if x.numel() else x.double()
        size = size * max(1.0, float(tables[0].abs().max()))
        info = torch.finfo(x.dtype)
        budget = 8 * 2**-24 * size + info.eps / 2 * want.abs() + info.smallest_normal * info.eps
        assert ((y - want).abs() <= budget).all(), f"turned to {y}, want {want}"
        still = self.options.get("rotary_dim", self.options["head_dim"])
        assert torch.equal(y[..., still:], x[..., still:]), "dims past rotary_dim have changed"

    @rule(
        how=st.sampled_from(
            ["reserve", "moved", "cast", "deepcopy", "state_dict", "train", "elsewhere"]
        ),
        length=st.sampled_from([1, 2049, 5000, FARTHEST + 1]),
        dtype=st.sampled_from(["half", "bfloat16", "double", "float"]),
        where=st.sampled_from(CONTEXTS),
        again=st.booleans(),
    )
    def change(self, how: str, length: int, dtype: str, where: str, again: bool) -> None:
        """Do to a module what users do between two calls, perhaps of the same arguments."""
        # A copy in inference_mode, of any module's tensors, could not be trained.
        with context("grad" if how == "deepcopy" else where, self.device):
            if how == "deepcopy":
                self.module = copy.deepcopy(self.module)
            elif how == "reserve":
                self.module.reserve(length)
            elif how == "cast":
                getattr(self.module, dtype)()
            elif how == "state_dict":
                assert not self.module.state_dict()
                self.module.load_state_dict({})
            elif how == "train":
                self.module.train(not self.module.training)
            elif how == "moved":
                self.module.to("meta").to_empty(device=self.device)
            else:
                x = torch.zeros(1, 2, 1, self.options["head_dim"], device="meta")
                assert self.module(x, seqlen_offsets=length).device.type == "meta"
        if again and self.latest:
            self.call(**self.latest)


class CastsItsTables(RotaryEmbedding):
    """Registers its tables as buffers, which are cast."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self._tables = fn(self._tables)
        return self


class CountsIn16Bits(RotaryEmbedding):
    """Positions wrap at 2^16."""

    def _build(self, length: int, tokens: int, device: Any) -> Tensor:
        return super()._build(min(length, 2**16), tokens, device)[
            :, torch.arange(length, device=device) % 2**16
        ]


class KeepsOffsets(RotaryEmbedding):
    """Reads the largest offset of a tensor object once."""

    def forward(self, *x: Tensor, **options: Any) -> Any:
        offsets = options.get("seqlen_offsets")
        if isinstance(offsets, Tensor):
            if getattr(self, "_seen", None) is not offsets:
                self._seen, self._offsets = offsets, offsets.clone()
            options["seqlen_offsets"] = self._offsets
        return super().forward(*x, **options)


class BuildsInInference(RotaryEmbedding):
    """Tables that grow in inference mode are inference tensors."""

    def _build(self, length: int, tokens: int, device: Any) -> Tensor:
        tables: Tensor = super()._build(length, tokens, device)
        return tables * 1


class ScalesByWhatIsReserved(RotaryEmbedding):
    """Tables that are reserved are those of so many tokens."""

    def reserve(self, length: int) -> None:
        self._tables = self._reach(
            length, tokens_that_scale(self.scaling, length), self._tables.device
        )


class ReservesForNoTokens(RotaryEmbedding):
    """Tables that are reserved are those of no tokens, and pass for those of the last call."""

    def reserve(self, length: int) -> None:
        self._tables = self._reach(length, 0, self._tables.device)


class MovesForNoTokens(RotaryEmbedding):
    """Tables of another device are those of no tokens, and pass for those of the last call."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        tokens, self._tokens = self._tokens, 0
        super()._apply(fn, recurse)
        self._tokens = tokens
        return self


class TurnsOneByOne(RotaryEmbedding):
    """Checks a tensor when those before it are turned."""

    def forward(self, *x: Tensor, **options: Any) -> Any:
        turned = tuple(super(TurnsOneByOne, self).forward(each, **options) for each in x)
        return turned if len(turned) > 1 else turned[0]


PLANTED = (
    ScalesByWhatIsReserved,
    ReservesForNoTokens,
    MovesForNoTokens,
    CastsItsTables,
    CountsIn16Bits,
    KeepsOffsets,
    BuildsInInference,
    TurnsOneByOne,
)


def test_a_call_depends_on_its_arguments_alone(device: torch.device) -> None:
    run(variant(RotaryMachine, device))


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_caught(planted: type[Any], device: torch.device) -> None:
    # The op rejects tables of another dtype; inference tensors cannot be trained with.
    with pytest.raises((AssertionError, RuntimeError, TypeError)):
        search(RotaryMachine, device, planted)


def test_an_empty_sequence_of_a_pack_sets_no_scaling(device: torch.device) -> None:
    """It may be a free slot that has seen more tokens than the others."""
    dynamic = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
    x = torch.ones(1, 3, 1, 8, device=device)

    def turned(ends: list[int], offsets: list[int]) -> Tensor:
        y = RotaryEmbedding(8, scaling=dynamic)(
            x,
            cu_seqlens=torch.tensor([0, *ends], device=device),
            seqlen_offsets=torch.tensor(offsets, device=device),
        )
        assert isinstance(y, Tensor)
        return y

    assert torch.equal(turned([3, 3], [2, 100]), turned([3], [2]))
