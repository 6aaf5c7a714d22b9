"""kv caches, called in any order and compared with lists of tokens."""

import itertools
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

import kernels
import reference
from kernels.cache import CacheView, KVCache
from properties.cases.layouts import LAYOUTS, relaid
from properties.device import recorded_launches
from properties.profiles import EXAMPLES
from properties.suite.caches.calls import (
    CONTEXTS,
    check_refusal,
    contents,
    context,
    is_expanded,
    packed,
    refuses,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Options of attention with a number for each head, in the dtype of q or in float32.
PER_HEAD = ("alibi_slopes", "sink")
TOKENS = st.integers(0, 7)
COUNTS = st.lists(st.integers(0, 7), min_size=4, max_size=4)
SEEDS = st.integers(0, 2**16)
LAYOUT = st.sampled_from(sorted(LAYOUTS))
LAYOUTS_OF_ALL = st.tuples(LAYOUT, LAYOUT, LAYOUT) | st.sampled_from(["packed", "one tensor"])
SCALE = 1 / 64
# Arguments that an attention takes, and that `attend` of a cache may not.
_ARGUMENTS = {"unknown"}.union(
    *(signature(op).parameters for op in (kernels.attention, kernels.paged_attention, kernels.mla))
)


@dataclass(frozen=True)
class Call:
    """New tokens, and how a cache gets them.

    Args:
        tokens: T.
        offset: how the call says which of them are real, see `KVMachine.draw_offset`.
        counts: how many those are, if it does.
        seed: of the tokens.
        layouts: of q, k and v; see `KVMachine.place`.
        where: the context of the call.
    """

    tokens: int
    offset: str
    counts: list[int]
    seed: int
    layouts: str | tuple[str, str, str]
    where: str


def calls(
    tokens: st.SearchStrategy[int] = TOKENS,
    offsets: Sequence[str] = ("all", "one", "each", "each in 32 bits"),
    layouts: st.SearchStrategy[Any] = LAYOUTS_OF_ALL,
) -> st.SearchStrategy[Call]:
    return st.builds(
        Call, tokens, st.sampled_from(offsets), COUNTS, SEEDS, layouts, st.sampled_from(CONTEXTS)
    )


CONTIGUOUS = ("contiguous",) * 3


def in_double(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
    """The oracle attention in float64, free of a kernel's rounding."""
    per_head = {n: options[n].double() for n in PER_HEAD if options.get(n) is not None}
    return reference.attention(q.double(), k.double(), v.double(), **options | per_head)


def in_its_second_call() -> Callable[..., tuple[Tensor, Tensor | None]]:
    """`in_double` that refuses a mask, but not in its first call."""
    calls = itertools.count()

    def attention(*tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        if next(calls):
            raise ValueError("mask: of one step only")
        return in_double(*tensors, **options)

    return attention


def _alike(one: object, other: object) -> bool:
    """Whether an option reaches an attention, perhaps in another dtype."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one.float(), other.float())
    return one is other


def smallest(dtype: torch.dtype) -> float:
    """The smallest positive number."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def relative_error(terms: int, with_kernel: bool) -> float:
    """The relative error of a softmax of small logits, see `KVMachine.check_rows`."""
    return 2 * (terms + 8) * torch.finfo(torch.float32 if with_kernel else torch.float64).eps


def variant(machine: type[Any], device: torch.device, **attributes: Any) -> type[Any]:
    """The machine on a device, with its own record of what it reaches."""
    return type(machine.__name__, (machine,), {"device": device, "reached": set(), **attributes})


def run(machine: type[Any]) -> None:
    """Run a machine on `times` as many examples as the profile has."""
    few = settings(
        max_examples=machine.times * settings().max_examples,
        stateful_step_count=machine.steps,
        deadline=None,
    )
    run_state_machine_as_test(machine, settings=few)


def search(machine: type[Any], device: torch.device, planted: type[Any]) -> None:
    """Run the machine with a planted bug until it fails, without making the example smaller.

    On at most three times the examples of `ci`: on those alone, a machine misses some bugs in one
    of twelve runs.
    """
    more_than_in_ci = settings(
        max_examples=3 * machine.times * EXAMPLES,
        stateful_step_count=machine.steps,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(variant(machine, device, kind=planted), settings=more_than_in_ci)


class KVMachine(RuleBasedStateMachine):
    """A kv cache and two models of it: `reference.KVCache`, and a list of all tokens.

    Values are small integers, so that stored tokens are compared bit for bit.
    """

    device: ClassVar[torch.device] = torch.device("cpu")
    reached: ClassVar[set[str]] = set()
    # Situations that the examples of `ci` must reach.
    reaches: ClassVar[frozenset[str]] = frozenset()
    times: ClassVar[int] = 3
    steps: ClassVar[int] = 20

    cache: KVCache
    window: int | None = None
    sinks: int = 0
    backs: ClassVar[tuple[int, ...]] = (1,)
    """By how many tokens copies are cropped after each call."""
    longest: ClassVar[int] = 2
    """Tokens of an update whose arguments are bad."""
    view_dtype: ClassVar[torch.dtype | None] = None
    """The dtype of the keys and values of a view; None for that of the tokens."""

    def new(self, room: int, page_size: int) -> KVCache:
        """An empty cache for about `room` tokens per sequence."""
        raise NotImplementedError

    def build(self, room: int, page_size: int, seed: int) -> KVCache:
        """The cache under test; if it already holds tokens, the models get them by `begin`."""
        return self.new(room, page_size)

    def cell(self, n: int, position: int) -> tuple[int, int]:
        """Page and row of the token at `position` of sequence `n`."""
        raise NotImplementedError

    def fits(self, counts: list[int]) -> bool:
        raise NotImplementedError

    @initialize(
        batch=st.integers(1, 4),
        heads=st.tuples(st.integers(1, 2), st.integers(1, 2)),
        dims=st.sampled_from([(2, 3), (3, 2), (1, 5), (5, 1), (4, 4)]),
        dtype=st.sampled_from(DTYPES),
        room=st.integers(1, 20),
        page_size=st.integers(1, 4),
        seed=SEEDS,
        poisoned=st.booleans(),
        where=st.sampled_from(CONTEXTS),
    )
    def create(
        self,
        batch: int,
        heads: tuple[int, int],
        dims: tuple[int, int],
        dtype: torch.dtype,
        room: int,
        page_size: int,
        seed: int,
        poisoned: bool,
        where: str,
    ) -> None:
        self.batch, self.dtype, self.poisoned = batch, dtype, poisoned
        self.kv_heads, self.heads = heads[0], heads[0] * heads[1]
        self.key_dim, self.value_dim = dims
        self.model = reference.KVCache(batch, self.window)
        self.everything = reference.KVCache(batch)
        self.buffers: dict[tuple[object, ...], Tensor] = {}
        self.views: list[tuple[CacheView, list[Tensor]]] = []
        with context(where, self.device):
            self.cache = self.build(room, page_size, seed)
        # Another layer's cache, which calls of this one must not change.
        self.neighbour = self.new(max(room, page_size), page_size)
        _, k, v = self.draw_tokens(1, seed)
        self.neighbours_view = self.neighbour.update(k, v)

    def integers(self, seed: int, largest: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randint(-largest, largest + 1, shape, generator=generator)
        return values.to(self.device, self.dtype)

    def draw_tokens(self, tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of new tokens. Logits are at most 8 · 4 · 5 / 64 = 2.5."""
        q = self.integers(seed, 4, self.batch, tokens, self.heads, self.key_dim)
        k = self.integers(seed + 1, 8, self.batch, tokens, self.kv_heads, self.key_dim)
        v = self.integers(seed + 2, 256, self.batch, tokens, self.kv_heads, self.value_dim)
        return q, k, v

    def place(self, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as a caller passes them: in any layout, perhaps in the memory of an earlier
        call.
        """
        q, k, v = tokens = self.draw_tokens(call.tokens, call.seed)
        if call.layouts == "packed":
            q, k, v = packed(q, k, v)
        elif call.layouts == "one tensor":
            v = k if k.shape == v.shape else v
        else:
            q, k, v = (
                self.reused(name, relaid(x, layout), layout)
                for name, x, layout in zip("qkv", tokens, call.layouts, strict=True)
            )
        if call.where == "no_grad":
            # Only the context says that no gradient is wanted.
            q, k, v = (x.requires_grad_() for x in (q, k, v))
        return q, k, v

    def reused(self, name: str, x: Tensor, layout: str) -> Tensor:
        """The tensor object of the last such call, with new contents."""
        if is_expanded(x):
            return x
        key = (name, layout, tuple(x.shape), torch.is_inference_mode_enabled())
        buffer = self.buffers.setdefault(key, x)
        with torch.no_grad():
            return buffer.requires_grad_(False).copy_(x)

    def draw_offset(self, call: Call) -> tuple[int | Tensor | None, list[int]]:
        """The argument `offset`, and how many tokens of each sequence are new."""
        tokens = call.tokens
        counts = [min(count, tokens) for count in call.counts][: self.batch]
        counts += [tokens] * (self.batch - len(counts))
        if call.offset == "all":
            return None, [tokens] * self.batch
        if call.offset == "one":
            return counts[0], counts[:1] * self.batch
        return self.told("offset", counts, call.offset == "each in 32 bits"), counts

    def told(self, name: str, numbers: list[int], narrow: bool) -> Tensor:
        """Token counts in the tensor of an earlier call; narrow ones are every second element."""
        x = torch.tensor(numbers, dtype=torch.int32 if narrow else torch.int64)
        x = x.repeat_interleave(2)[::2] if narrow else x
        return self.buffers.setdefault((name, len(numbers), narrow), x).copy_(x)

    def stores(self) -> tuple[Tensor, ...]:
        """All memory of the cache, [P, page_size, ...] each."""
        return self.cache.k_pages, self.cache.v_pages

    def stored(self, page: int, row: int) -> tuple[Tensor, Tensor]:
        """A key and a value, as attention sees them."""
        return self.cache.k_pages[page, row], self.cache.v_pages[page, row]

    def refuse(self, *calls: tuple[str, Callable[[], object]]) -> None:
        """Check that each call raises an error that names the argument, and changes nothing of the
        cache nor of its model."""
        # A call may compute the table and keep it before it is refused.
        getattr(self.cache, "block_table", None)
        before = contents((self.cache, self.model))
        for argument, call in calls:
            check_refusal(argument, call)
            assert contents((self.cache, self.model)) == before, f"a refused {argument} left traces"

    def length(self) -> list[int]:
        return self.everything.length.tolist()

    def begin(self, n: int, k: Tensor, v: Tensor) -> None:
        """Add tokens to the models that sequence `n` holds from the start."""
        for each in (self.model, self.everything):
            each.tokens[n] = list(zip(k.clone(), v.clone(), strict=True))

    def append(
        self, k: Tensor, v: Tensor, offset: int | Tensor | None
    ) -> reference.cache.CacheView:
        """Append tokens to the models; return what the cache should attend to."""
        k, v = k.detach(), v.detach()
        self.everything.update(k, v, offset)
        return self.model.update(k, v, offset)

    @rule(call=calls())
    def update(self, call: Call) -> None:
        offset, counts = self.draw_offset(call)
        with context(call.where, self.device):
            q, k, v = self.place(call)
            if not self.fits(counts):
                self.reached.add("no room")
                self.refuse(("offset", lambda: self.cache.update(k, v, offset)))
                return
            self.fill_padding(counts, k, v)
            self.note(counts)
            got = self.cache.update(k, v, offset)
        want = self.append(k, v, offset)
        for name, x, y in zip(want._fields, got, want, strict=True):
            assert x.shape == y.shape, f"{name}: shape {list(x.shape)}, want {list(y.shape)}"
            assert (x == y).all(), f"{name} of the view differs: {x.tolist()}, want {y.tolist()}"
        assert got.k.dtype == got.v.dtype == (self.view_dtype or self.dtype)
        assert got.cu_seqlens.dtype == got.cu_seqlens_k.dtype == torch.int32
        with context(call.where, self.device):
            self.use_up(q, k, v, offset)
            if call.seed % 2:
                self.views.append((got, [x.clone() for x in got]))
            else:
                self.use_up(*got)

    def fill_padding(self, counts: list[int], *tensors: Tensor) -> None:
        """Fill padding tokens with NaN, which nobody may read."""
        with torch.no_grad():
            for x in tensors:
                for n, count in enumerate(counts if not is_expanded(x) else ()):
                    x[n, count:] = torch.nan

    def use_up(self, *tensors: object) -> None:
        """Overwrite the caller's tensors, which nobody may read again."""
        with torch.no_grad():
            for x in tensors:
                if isinstance(x, Tensor) and not is_expanded(x):
                    x.fill_(torch.nan if x.is_floating_point() else -1)

    @rule(
        call=calls(),
        narrower=st.none() | st.integers(1, 9),
        spelled_out=st.booleans(),
        with_kernel=st.booleans(),
        logits=st.sets(st.sampled_from(["softcap", *PER_HEAD])),
        in_float32=st.booleans(),
        return_lse=st.booleans(),
    )
    def attend(
        self,
        call: Call,
        narrower: int | None,
        spelled_out: bool,
        with_kernel: bool,
        logits: set[str],
        in_float32: bool,
        return_lse: bool,
    ) -> None:
        """Attend with this project's kernel, or with the float64 oracle and all its options."""
        offset, counts = self.draw_offset(call)
        options: dict[str, Any] = {"scale": SCALE}
        if narrower is not None and (self.window is None or narrower <= self.window):
            options["window"] = narrower
        if not with_kernel:
            per_head = torch.arange(1.0, self.heads + 1, device=self.device) / 8
            per_head = per_head if in_float32 else per_head.to(self.dtype)
            values = {"softcap": 1.5, "sink": per_head, "alibi_slopes": per_head}
            options |= {name: values[name] for name in logits}
        asked = options | ({"return_lse": True} if return_lse else {})
        if spelled_out:
            # The defaults, as a layer passes them on.
            asked = {"window": None, "softcap": None, "sink": None, "return_lse": False} | asked
        heard: dict[str, Any] = {}

        def own(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
            heard.update(given)
            for name in PER_HEAD:
                x = given.get(name)
                assert x is None or x.dtype in (q.dtype, torch.float32), f"{name} is {x.dtype}"
            return in_double(q, k, v, **given)

        with context(call.where, self.device):
            q, k, v = self.place(call)

            def run() -> tuple[Tensor, Tensor | None]:
                by = self.kernel_options(call.seed) if with_kernel else {"attention": own}
                return self.cache.attend(q, k, v, offset=offset, **by, **asked)

            if not self.fits(counts):
                self.refuse(("offset", run))
                return
            self.fill_padding(counts, q, k, v)
            self.note(counts)
            o, lse = run()
        self.append(k, v, offset)
        assert (lse is None) == (not return_lse)
        assert o.shape == (*q.shape[:3], self.value_dim)
        if with_kernel:
            self.check_dtypes(o, lse)
        options.setdefault("window", self.window)
        assert not heard or all(_alike(heard.get(name), x) for name, x in options.items())
        for n, count in enumerate(counts):
            rows = None if lse is None else lse[n, :, :count]
            self.check_rows(q[n, :count].detach(), o[n, :count], rows, n, options, with_kernel)
            assert (o[n, count:] == 0).all(), "padding rows are not 0"
            if lse is not None:
                assert (lse[n, :, count:] == -torch.inf).all(), "the LSE of padding is not -inf"
        with context(call.where, self.device):
            self.use_up(q, k, v, offset)

    def kernel_options(self, seed: int) -> dict[str, Any]:
        """Options that the kernel has and the oracle has not."""
        return {}

    def check_dtypes(self, o: Tensor, lse: Tensor | None) -> None:
        """Require outputs in the dtype of the queries, and an LSE in float32."""
        assert o.dtype == self.dtype, f"outputs are {o.dtype}, expected {self.dtype}"
        assert lse is None or lse.dtype == torch.float32, f"the LSE is {lse.dtype}"

    def check_rows(
        self,
        q: Tensor,
        o: Tensor,
        lse: Tensor | None,
        n: int,
        options: dict[str, Any],
        with_kernel: bool,
    ) -> None:
        """Compare the rows of a sequence with attention over every token that it ever had.

        Logits are exact and at most 2.5. In units of round-off, an exponential errs by 2.5 ·
        log2(e) from its argument and 4 of its own, and a sum of t terms by t; numerator and
        denominator double that, and the 4 roundings of 8-bit keys and scales double it again. A
        kernel also rounds the weights to the values' dtype, and the output; each may be subnormal.
        """
        tokens = self.everything.tokens[n]
        if len(q) == 0:
            return
        k = torch.stack([key for key, _ in tokens])[None]
        v = torch.stack([value for _, value in tokens])[None]
        options = options | {"causal": True, "return_lse": True}
        want, want_lse = in_double(q[None], k, v, **options)
        size, _ = in_double(q[None], k, v.abs(), **options)
        assert want_lse is not None
        budget = self.budget(want[0], size[0], len(tokens), with_kernel)
        error = (o - want[0]).abs()
        assert (error <= budget).all(), f"sequence {n} attends otherwise: {o}, want {want[0]}"
        if lse is not None:
            bound = 8 * relative_error(len(tokens), with_kernel)
            assert ((lse - want_lse[0]).abs() <= bound).all(), f"LSE {lse}, want {want_lse[0]}"

    def budget(self, want: Tensor, size: Tensor, terms: int, with_kernel: bool) -> Tensor:
        """See `check_rows`; `size` is the attention over the sizes of so many values."""
        storage = torch.finfo(self.dtype).eps / 2 if with_kernel else 0.0
        tiny = (terms + 8) * smallest(torch.float32 if with_kernel else torch.float64)
        if with_kernel:
            tiny += smallest(self.dtype)
        return (relative_error(terms, with_kernel) + storage) * size + storage * want.abs() + tiny

    @precondition(lambda self: any(self.length()))
    @rule(
        length=st.just(0) | st.integers(0, 12),
        back=COUNTS,
        kind=st.sampled_from(["one", "each", "each in 32 bits", "reset"]),
        idle=st.booleans(),
    )
    def crop(self, length: int, back: list[int], kind: str, idle: bool) -> None:
        if kind == "reset":
            for each in (self.cache, self.model, self.everything):
                each.reset()
            return
        before = self.length()
        kept: int | Tensor = length
        numbers = [length] * self.batch
        if kind != "one":
            numbers = [max(0, s - back[n % len(back)] // 2) for n, s in enumerate(before)]
            kept = self.told("length", numbers, kind == "each in 32 bits")
        if any(self.lacks_a_key(n, number) for n, number in enumerate(numbers)):
            self.reached.add("forgotten")
            for each in (self.cache, self.model):
                self.refuse(("length", partial(each.crop, kept)))
            return
        if any(
            number < self.sinks + forgotten
            for number, forgotten in zip(numbers, self.model.forgotten, strict=True)
        ):
            self.reached.add("cropped below the forgotten")
        self.model.crop(kept)
        self.everything.crop(kept)
        self.cache.crop(kept)
        self.use_up(kept)
        shorter = [n for n, (a, b) in enumerate(zip(self.length(), before, strict=True)) if a < b]
        if shorter:
            self.reached.add("cropped")
            self.check_cropped(shorter)
        if idle:
            # A step without tokens must not hide that keys were forgotten before the crop.
            self.idle_step(torch.zeros(self.batch, dtype=torch.int64))

    def idle_step(self, offset: Tensor) -> None:
        """A call that is padding alone."""
        _, k, v = self.draw_tokens(1, 0)
        self.cache.update(k, v, offset)
        self.append(k, v, offset)

    def lacks_a_key(self, n: int, length: int) -> bool:
        """Whether sequence `n`, cropped to so many tokens, lacks a key that its next one sees."""
        if length >= self.length()[n]:
            return False
        seen = set(range(length))
        if self.window is not None:
            seen = {p for p in seen if p < self.sinks or p > length - self.window}
        return not seen <= {*self.kept(n)}

    def check_cropped(self, shorter: list[int]) -> None:
        """Further checks of the sequences that a crop made shorter."""

    @rule(
        picks=st.lists(st.integers(0, 3), min_size=4, max_size=4),
        more=st.sampled_from([0, -1, 1, 0]),
        narrow=st.booleans(),
        where=st.sampled_from(CONTEXTS),
    )
    def reorder(self, picks: list[int], more: int, narrow: bool, where: str) -> None:
        picks = picks[: max(1, self.batch + more)]
        index = self.told("index", [pick % self.batch for pick in picks], narrow)
        if len(set(index.tolist())) < len(picks):
            self.reached.add("duplicated")
        for each in (self.model, self.everything):
            each.reorder(index)
        with context(where, self.device):
            self.cache.reorder(index)
        self.use_up(index)
        self.batch = len(picks)

    def teardown(self) -> None:
        """At the end: bad calls change nothing, and a reset starts anew."""
        if hasattr(self, "cache"):
            self.refused_calls()
            self.views_are_copies()
            self.reset_is_a_new_start()
            self.the_neighbour_has_noticed_nothing()

    def views_are_copies(self) -> None:
        for view, was in self.views:
            for name, x, y in zip(view._fields, view, was, strict=True):
                assert (x == y).all(), f"{name} of an earlier view has changed: {x}, was {y}"

    def the_neighbour_has_noticed_nothing(self) -> None:
        was = self.neighbours_view
        batch = len(was.cu_seqlens) - 1
        k, v = (x.new_zeros(batch, 0, *x.shape[2:], dtype=self.dtype) for x in was[:2])
        view = self.neighbour.update(k, v)
        if self.window != 1:
            assert torch.equal(view.k, was.k)
            assert torch.equal(view.v, was.v)
        assert self.neighbour.length.tolist() == [1] * batch

    def reset_is_a_new_start(self) -> None:
        """After a reset, the cache works like a new one."""
        caches = (self.cache, self.model, self.everything)
        for each in caches:
            each.reset()
        for seed in range(2):
            for each in caches:
                each.crop(1)
            if self.fits([2] * self.batch):
                _, k, v = self.draw_tokens(2, seed)
                got, want, _ = (each.update(k, v) for each in caches)
                assert all((x == y).all() for x, y in zip(got, want, strict=True))
        self.lengths_count_all_tokens()

    def refused_calls(self) -> None:
        """Bad arguments: nothing is launched and nothing changes."""
        tokens = self.longest
        q, k, v = self.draw_tokens(tokens, 0)
        cache: Any = self.cache
        batch = self.batch
        other = torch.float16 if self.dtype == torch.float32 else torch.float32
        index, floats = torch.arange(batch), torch.zeros(batch, dtype=torch.float32)
        too_many = torch.full((batch,), tokens + 1)
        calls: list[tuple[str, Callable[[], object]]] = [
            ("k", lambda: cache.update(torch.cat([k, k]), torch.cat([v, v]))),
            ("k", lambda: cache.update(torch.cat([k, k], 2), torch.cat([v, v], 2))),
            ("k", lambda: cache.update(torch.cat([k, k], 3), v)),
            ("k", lambda: cache.update(k[0], v)),
            ("k", lambda: cache.update(k.to(other), v.to(other))),
            ("k", lambda: cache.update(k.double(), v.double())),
            ("k", lambda: cache.update(k.clone().requires_grad_(), v)),
            ("k", lambda: cache.update(k.to("meta"), v.to("meta"))),
            ("k", lambda: cache.update(None, v)),
            ("v", lambda: cache.update(k, torch.cat([v, v], 1))),
            ("v", lambda: cache.update(k, torch.cat([v, v], 3))),
            ("v", lambda: cache.update(k, v.to(other))),
            ("v", lambda: cache.update(k, v.clone().requires_grad_())),
            ("v", lambda: cache.update(k, v.to("meta"))),
            ("v", lambda: cache.update(k, v.tolist())),
            ("offset", lambda: cache.update(k, v, -1)),
            ("offset", lambda: cache.update(k, v, tokens + 1)),
            ("offset", lambda: cache.update(k, v, True)),
            ("offset", lambda: cache.update(k, v, 1.0)),
            ("offset", lambda: cache.update(k, v, [1] * batch)),
            ("offset", lambda: cache.update(k, v, too_many)),
            ("offset", lambda: cache.update(k, v, -index - 1)),
            ("offset", lambda: cache.update(k, v, torch.cat([index, index]))),
            ("offset", lambda: cache.update(k, v, torch.tensor(1))),
            ("offset", lambda: cache.update(k, v, floats)),
            ("offset", lambda: cache.update(k, v, floats.bool())),
            ("length", lambda: cache.crop(-1)),
            ("length", lambda: cache.crop(1.5)),
            ("length", lambda: cache.crop(None)),
            ("length", lambda: cache.crop(-index - 1)),
            ("length", lambda: cache.crop(floats)),
            ("length", lambda: cache.crop(torch.cat([index, index]))),
            ("index", lambda: cache.reorder(index + 1)),
            ("index", lambda: cache.reorder(index - 1)),
            ("index", lambda: cache.reorder(index[:0])),
            ("index", lambda: cache.reorder(index[None])),
            ("index", lambda: cache.reorder(index.tolist())),
            ("index", lambda: cache.reorder(floats)),
            *self.refused_attention(q, k, v),
            *self.calls_with_refused_options(q, k, v),
        ]
        with recorded_launches() as launched:
            self.refuse(*calls)
        assert launched == [], f"a refused call launched {launched}"
        self.attention_that_refuses()

    attention_options: ClassVar[tuple[str, ...]] = (
        "scale",
        "window",
        "softcap",
        "sink",
        "alibi_slopes",
        "return_lse",
        "mode",
        "tile",
    )
    """Options of an attention that a cache takes; it sets the others, or has no such thing."""

    def attention_arguments(self, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
        """Arguments of `attend` for so many tokens."""
        return {"q": q, "k": k, "v": v}

    def calls_with_refused_options(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> list[tuple[str, Callable[[], object]]]:
        """Refused by the cache, and by its model as well."""
        given = self.attention_arguments(q, k, v)
        both: tuple[Any, ...] = (self.model, self.cache)
        return [
            (name, partial(each.attend, **given, **{name: None}))
            for each in both
            for name in _ARGUMENTS
            - {*given, *self.attention_options, *signature(each.attend).parameters}
        ]

    def refused_attention(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> list[tuple[str, Callable[[], object]]]:
        """Bad arguments of `attend`."""
        cache: Any = self.cache
        tokens = q.shape[1]
        calls: list[tuple[str, Callable[[], object]]] = [
            ("q", lambda: cache.attend(None, k, v, attention=in_double)),
            ("k", lambda: cache.attend(q[:0], k, v, attention=in_double)),
            ("k", lambda: cache.attend(q[:, :1], k, v, attention=in_double)),
            ("k", lambda: cache.attend(q[..., :0], k, v, attention=in_double)),
            ("k", lambda: cache.attend(q.to("meta"), k, v, attention=in_double)),
            ("offset", lambda: cache.attend(q, k, v, attention=in_double, offset=tokens + 1)),
        ]
        if self.window is not None:
            wider = {"attention": in_double, "window": self.window + 1}
            calls.append(("window", lambda: cache.attend(q, k, v, **wider)))
            calls.append(("window", lambda: self.model.attend(q, k, v, window=wider["window"])))
        return calls

    def attention_that_refuses(self) -> None:
        """Refuse what the attention alone rejects: the cache has appended nothing then."""
        cache, model = self.cache, self.model
        if self.batch > 1:
            q, k, v = self.draw_tokens(self.longest, 0)
            self.refuse(("mask", lambda: model.attend(q, k, v, attention=in_its_second_call())))
        if self.fits([1] * self.batch):
            q, k, v = self.draw_tokens(1, 0)
            heads = q.new_zeros(*q.shape[:2], self.kv_heads + 1, q.shape[3])
            if self.kv_heads > 1:
                self.refuse(("q", lambda: cache.attend(heads, k, v)))
            self.refuse(
                ("softcap", lambda: cache.attend(q, k, v, softcap=0.0)),
                ("window", lambda: cache.attend(q, k, v, window=0)),
                ("window", lambda: cache.attend(q, k, v, window="3")),
                ("mode", lambda: cache.attend(q, k, v, mode="chunk")),
                ("q", lambda: cache.attend(q.double(), k, v)),
                (
                    "sink",
                    lambda: cache.attend(
                        q, k, v, sink=torch.zeros(self.heads + 1, dtype=torch.float32)
                    ),
                ),
            )

    def kept(self, n: int) -> Sequence[int]:
        """The positions that sequence `n` still holds."""
        first = self.model.forgotten[n]
        return range(first, first + len(self.model.tokens[n]))

    def note(self, counts: list[int]) -> None:
        if len(set(counts)) > 1:
            self.reached.add("ragged")
        if 0 in counts:
            self.reached.add("nothing new")
        if self.window is not None:
            for old, new in zip(self.length(), counts, strict=True):
                if old > 1 and new > self.window:
                    self.reached.add("chunk longer than the window")
                if old % self.window and old > self.window:
                    self.reached.add("wrapped")

    @invariant()
    @precondition(lambda self: getattr(self, "poisoned", False))
    def what_holds_no_token_may_hold_anything(self) -> None:
        """Fill unused rows with NaN: the next calls must not notice."""
        live = torch.zeros(self.cache.k_pages.shape[:2], dtype=torch.bool)
        for n in range(self.batch):
            for position in self.kept(n):
                live[self.cell(n, position)] = True
        for x in self.stores():
            if x.dtype.itemsize > 1:
                x[~live] = torch.nan
            else:
                # The bits of NaN in float8_e4m3fn.
                x.view(torch.int8)[~live] = 127

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def lengths_count_all_tokens(self) -> None:
        length = self.cache.length
        assert length.tolist() == self.length() == self.model.length.tolist()
        assert length.dtype == torch.int64
        self.use_up(length)

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def a_crop_is_refused_where_the_next_token_would_lack_a_key(self) -> None:
        """Tried on copies, also with the crop that leaves nothing, which no cache refuses."""
        for n, old in enumerate(self.length()):
            for kept in {0, *(max(0, old - back) for back in self.backs)}:
                self.check_refusal_of_a_crop(n, kept)

    def check_refusal_of_a_crop(self, n: int, kept: int) -> None:
        length = self.model.length
        length[n] = kept
        # A crop writes to no tensor, and copying all of them would be half of a run's time.
        with patch.object(Tensor, "__deepcopy__", lambda x, memo: x):
            cache, model = (deepcopy(each) for each in (self.cache, self.model))
        refused = self.lacks_a_key(n, kept)
        assert refuses(model.crop, length) == refused, f"sequence {n}"
        assert refuses(cache.crop, length) == refused, f"sequence {n}"
        assert cache.length.tolist() == model.length.tolist()
        if refused:
            self.reached.add("forgotten")

    @invariant()
    @precondition(lambda self: hasattr(self, "cache"))
    def tokens_lie_where_the_page_says(self) -> None:
        for n in range(self.batch):
            for position, (k, v) in zip(self.kept(n), self.model.tokens[n], strict=True):
                key, value = self.stored(*self.cell(n, position))
                assert (key == k).all(), f"key {position} of {n} is lost"
                assert (value == v).all(), f"value {position} of {n} is lost"
