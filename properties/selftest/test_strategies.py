"""Drawn cases reach the conditions in which bugs occur, often enough to rely on."""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from hypothesis.vendor.pretty import pretty

from properties.cases.case import Case
from properties.cases.contexts import WITHOUT_GRADIENTS
from properties.cases.layouts import LAYOUTS, OVERLAPPING, relaid
from properties.cases.lengths import MUCH_WORK
from properties.cases.strategies import bundles, cases
from properties.cases.tensors import build, shape, sizes, trained
from properties.cases.values import RECIPES, Blank
from properties.catalogue import OPS, Mode, Op
from properties.catalogue.kinds import carries_states
from properties.catalogue.op import Argument, Option, Role
from properties.profiles import drawn_only
from properties.targets import load

# Cases are drawn as in CI: in runs of a few, since a run starts with the simplest case and
# continues with variations. Seeds are fixed, so results are too.
EXAMPLES = settings.get_profile("ci").max_examples
BUNDLES = EXAMPLES // 2
# After how many runs each condition is checked; most modes pass the first check. With half the
# required probability a condition passes in 2 % of such tests where that is 1/10, in 16 % where it
# is 1/50 (simulated).
LOOKS = (20, 40, 60, 120)

TARGET = load("ours", torch.device("cpu"))

# A wrapper has no tiles of its own whose edges could be drawn.
MODES = [
    pytest.param(op, mode, id=f"{op.name}-{mode.name}")
    for op in OPS.values()
    for mode in op.modes
    if op.wraps is None
]


def _met_within(examples: int) -> float:
    """The probability at which a condition occurs in this many examples with 95 % confidence."""
    return 1 - math.pow(0.05, 1 / examples)


# A condition is met within so many examples: those that laws with cases of their own draw of a mode
# in some two runs of all jobs, and those that all its laws draw. Constants, so that no op fails
# because another is added. A run of one op draws more.
OFTEN, SELDOM = _met_within(46), _met_within(58)
# A row of the tile table may have eight entries, some for narrow heads alone.
OF_TILES = _met_within(70)


@dataclass(frozen=True)
class Condition:
    name: str
    least: float
    holds: Callable[[Case], bool]
    dtype: str = "bfloat16"

    def share(self, op: str, mode: str, runs: int) -> float:
        """The part of drawn bundles with a case that meets it. Few are drawn in float16."""
        found = drawn(op, mode, runs if self.dtype == "bfloat16" else runs // 4, self.dtype)
        return sum(any(map(self.holds, bundle)) for bundle in found) / len(found)


def drawn(op: str, mode: str, runs: int = LOOKS[0], dtype: str = "bfloat16") -> list[list[Case]]:
    return [*chain(*(_numbered_run(op, mode, run, dtype) for run in range(runs)))]


@functools.cache
def _numbered_run(op: str, mode: str, run: int, dtype: str) -> list[list[Case]]:
    return _one_run(OPS[op], mode, run, BUNDLES, dtype)


def each_drawn(op: Op, mode: Mode) -> list[Case]:
    return [*chain(*drawn(op.name, mode.name))]


# Hypothesis spells each strategy out once.
@functools.cache
def _bundles(op: str, mode: str, dtype: str) -> st.SearchStrategy[list[Case]]:
    return bundles(OPS[op], OPS[op].mode(mode), dtype, TARGET)


def _one_run(
    op: Op, mode: str, run: int, examples: int, dtype: str = "bfloat16"
) -> list[list[Case]]:
    found: list[list[Case]] = []

    @seed(run)
    @drawn_only(examples)
    @given(_bundles(op.name, mode, dtype))
    def collect(bundle: list[Case]) -> None:
        found.append(bundle)

    collect()
    return found


@pytest.mark.parametrize(("op", "mode"), MODES, scope="module")
def test_each_condition_has_its_probability(op: Op, mode: Mode) -> None:
    short = [*conditions(op, mode)]
    for runs in LOOKS:
        short = [one for one in short if one.share(op.name, mode.name, runs) < one.least]
        if not short:
            return
    shares = {one: one.share(op.name, mode.name, LOOKS[-1]) for one in short}
    pytest.fail(
        "\n".join(f"{c.name}: {share:.1%}, expected {c.least:.1%}" for c, share in shares.items())
    )


def _may_be_left(option: Option, mode: Mode) -> bool:
    return option.default is None and not option.number and option.name not in mode.refuses


def conditions(op: Op, mode: Mode) -> Iterator[Condition]:
    """All conditions that cases of this op and mode should meet, from its declaration."""
    yield from _about_lengths(op)
    for letter in sorted({"K", "V", "D"} & set(op.dims)):
        yield from _about_size(letter)
    if {"K", "V"} <= set(op.dims):
        yield Condition("K < V", OFTEN, lambda c: c.dims["K"] < c.dims["V"])
        yield Condition("K > V", OFTEN, lambda c: c.dims["K"] > c.dims["V"])
    if {"G", "R"} <= set(op.dims):
        yield Condition("several queries per key head", OFTEN, lambda c: c.dims["R"] > 1)
        yield Condition("several key heads", OFTEN, lambda c: c.dims["G"] > 1)
    for letter in sorted({"B", "R", "H"} & set(op.dims)):
        yield _has_more_than_usual(letter)
    for option in op.options:
        if option.name not in mode.refuses and not option.auxiliary:
            yield from _about_option(option)
    for pair in combinations((o.name for o in op.options if _may_be_left(o, mode)), 2):
        yield Condition(
            f"neither {' nor '.join(pair)}",
            OFTEN,
            lambda c, pair=pair: all(c.options.get(name) is None for name in pair),  # type: ignore[misc]
        )
    for argument in op.arguments:
        if argument.name not in mode.refuses:
            yield from _about_argument(argument)
    found = each_drawn(op, mode)
    entries = {index for case in found for index in TARGET.tiles(case)}
    architectures = {name for case in found for name in TARGET.architectures(case)}
    for layout in LAYOUTS:
        yield _lies(layout)
    yield from _about_the_call(op)
    # Modes do not differ there.
    if mode == op.modes[0]:
        yield from _under_a_loss_scale(op)
    for name, choices in (
        ("values", op.recipes),
        ("cotangents", TARGET.cotangents),
        ("tile", [None] if entries else []),
        ("architecture", [None, *sorted(architectures)]),
    ):
        for choice in choices:
            # Few cases may have tensors of any size.
            yield _is_chosen(name, choice, SELDOM / 2 if choice == "wide_range" else OFTEN)
    for index in sorted(entries):
        yield _takes(index)


def _lies(layout: str) -> Condition:
    return Condition(f"layout {layout}", OFTEN, lambda c: layout in (c.layout, *c.layouts.values()))


def _about_the_call(op: Op) -> Iterator[Condition]:
    """Conditions on a call besides shapes and values."""
    yield Condition("each tensor in a layout of its own", OFTEN, lambda c: len(c.layouts) > 0)
    yield Condition("no gradient needed", OFTEN, lambda c: not trained(op, c))
    if len([a for a in op.arguments if a.differentiable]) > 1:
        yield Condition("one tensor trained", OFTEN, lambda c: len(trained(op, c)) == 1)
        yield Condition("one tensor frozen", OFTEN, lambda c: len(c.frozen) == 1)
    if any(o.asked_by for o in op.outputs):
        yield Condition("an output not asked for", OFTEN, lambda c: not _asks(op, c))
        yield Condition("an output without a cotangent", OFTEN, lambda c: len(c.silent) > 0)
    yield Condition("without gradients", OFTEN, lambda c: c.context in WITHOUT_GRADIENTS)
    yield Condition("autocast", OFTEN, lambda c: c.context == "autocast")
    yield Condition("autocast backwards", OFTEN, lambda c: c.context == "autocast_backward")
    yield Condition("run again for its gradients", OFTEN, lambda c: c.context == "checkpointed")
    yield Condition("two backward passes", OFTEN, lambda c: c.context == "backward_twice")
    yield Condition("the mode left to the op", SELDOM, lambda c: c.auto)
    yield Condition("another call before it", OFTEN, lambda c: c.earlier is not None)
    yield Condition("many rows, heads or sequences", SELDOM / 2, lambda c: _many(c) > 8)
    if op.name == "decay_gate":
        yield Condition("a softplus of large numbers", 1 / 8, _takes_a_softplus_of_large_numbers)
    # As multi-head latent attention is served.
    if op.name in ("attention", "paged_attention"):
        yield Condition("values that are a part of the keys", SELDOM / 4, _shares_a_part)


def _takes_a_softplus_of_large_numbers(case: Case) -> bool:
    return case.values == "large_logits" and case.options["lower_bound"] is None


def _shares_a_part(case: Case) -> bool:
    return "k" in {name[0] for name in case.same.values()} and case.dims["V"] < case.dims["K"]


def _under_a_loss_scale(op: Op) -> Iterator[Condition]:
    """A third of the cases in float16 have large cotangents, half of those with small numbers: of
    the bundles about a half and a third.
    """

    def scaled(case: Case) -> bool:
        return case.cotangents == "large"

    yield Condition("large cotangents in float16", 1 / 4, scaled, "float16")
    if "uneven" in op.recipes:
        yield Condition(
            "large cotangents of small numbers in float16",
            1 / 8,
            lambda c: scaled(c) and c.values == "uneven",
            "float16",
        )


def _asks(op: Op, case: Case) -> bool:
    return any(case.options.get(o.asked_by) for o in op.outputs if o.asked_by is not None)


def _many(case: Case) -> int:
    """The largest number of rows, sequences, heads, groups or queries of a group."""
    return max(len(case.lengths), *(case.dims.get(letter, 0) for letter in "BHGR"))


def _is_chosen(name: str, choice: object, least: float) -> Condition:
    return Condition(f"{name} {choice}", least, lambda c: getattr(c, name) == choice)


def _takes(index: int) -> Condition:
    """Chosen by number, or because it is the first of another architecture."""

    def holds(case: Case) -> bool:
        return index == (case.tile if case.architecture is None else _taken(case))

    return Condition(f"tile {index}", OF_TILES, holds)


def _about_lengths(op: Op) -> Iterator[Condition]:
    if op.packed_by:
        yield from _about_packing()
    yield Condition("a batch", OFTEN, lambda c: c.dims["B"] > 1)
    yield Condition("no batch", SELDOM, lambda c: c.dims["B"] == 0)
    yield Condition("no tokens", SELDOM / 2, lambda c: not c.packed and c.lengths == (0,))
    yield Condition("T = 1", OFTEN, lambda c: 1 in c.lengths)
    yield Condition("T = C - 1", SELDOM, lambda c: _tile(c) - 1 in c.lengths)
    yield Condition("T = C", SELDOM, lambda c: _tile(c) in c.lengths)
    yield Condition("T = C + 1", SELDOM, lambda c: _tile(c) + 1 in c.lengths)
    yield Condition("T = 2C + 1", SELDOM, lambda c: 2 * _tile(c) + 1 in c.lengths)
    yield Condition("three tiles or more", OFTEN, lambda c: _tiles(c, max(c.lengths)) >= 3)
    yield Condition(
        "a partial last tile in the last sequence, the third or later",
        SELDOM,
        # A tile of one token is never partial.
        lambda c: _tiles(c, c.lengths[-1]) >= 3 and (c.lengths[-1] % _tile(c) > 0 or _tile(c) == 1),
    )
    if op.own_keys:
        yield Condition("no keys", SELDOM, lambda c: not c.packed and c.key_lengths == (0,))
        yield Condition("T_q > T_k", OFTEN, lambda c: any(t > s for t, s in _pairs(c)))
        yield Condition("T_q < T_k", OFTEN, lambda c: any(t < s for t, s in _pairs(c)))
        yield Condition("T_q > T_k = 0", SELDOM, lambda c: any(t > s == 0 for t, s in _pairs(c)))


def _about_packing() -> Iterator[Condition]:
    yield Condition("packed", OFTEN, lambda c: c.packed)
    yield Condition("empty first", SELDOM, lambda c: c.lengths[0] == 0 < sum(c.lengths))
    yield Condition("empty last", SELDOM, lambda c: c.lengths[-1] == 0 < sum(c.lengths))
    yield Condition(
        "empty in the middle",
        SELDOM,
        lambda c: 0 in c.lengths[1:-1] and c.lengths[0] > 0 and c.lengths[-1] > 0,
    )


def _about_size(letter: str) -> Iterator[Condition]:
    yield Condition(f"{letter} < 16", OFTEN, lambda c: c.dims[letter] < 16)
    yield Condition(f"{letter} > 128", OFTEN, lambda c: c.dims[letter] > 128)
    yield Condition(f"{letter} no power of two", OFTEN, lambda c: c.dims[letter].bit_count() > 1)


def _has_more_than_usual(letter: str) -> Condition:
    usual = {"B": 3, "R": 4, "H": 3}[letter]
    return Condition(f"{letter} > {usual}", SELDOM / 2, lambda c: usual < c.dims[letter] <= 8)


def _about_option(option: Option) -> Iterator[Condition]:
    name = option.name
    if name == "scale":
        for kind, is_of_kind in _KINDS_OF_SCALE.items():
            yield _has_scale(kind, is_of_kind)
        return
    yield Condition(f"{name} default", OFTEN, lambda c: c.options[name] == option.default)
    yield Condition(f"{name} not default", OFTEN, lambda c: c.options[name] != option.default)
    if name == "window":
        yield Condition("window < T", OFTEN, lambda c: 0 < _window(c) < _longest(c))
        yield Condition("window >= T", OFTEN, lambda c: _window(c) >= _longest(c))


def _has_scale(kind: str, is_of_kind: Callable[[float | None], bool]) -> Condition:
    return Condition(f"scale {kind}", OFTEN, lambda c: is_of_kind(c.options["scale"]))


def _about_argument(argument: Argument) -> Iterator[Condition]:
    name = argument.name
    if argument.optional:
        yield Condition(f"{name} given", OFTEN, lambda c: name in c.given)
        yield Condition(f"{name} absent", OFTEN, lambda c: name not in c.given)
    if argument.dtype == "either":
        yield Condition(f"{name} in float32", OFTEN, lambda c: name in c.float32)
    if argument.role is Role.LOG_DECAY:
        # Gates of 0 and -inf come from two of several recipes, in cases with this tensor.
        yield Condition(
            f"{name} open and shut",
            SELDOM,
            lambda c: (
                (name in c.given or not argument.optional)
                and c.values in ("extreme_gates", "strong_gates")
            ),
        )


_KINDS_OF_SCALE: dict[str, Callable[[float | None], bool]] = {
    "None": lambda scale: scale is None,
    "-1": lambda scale: scale == -1,
    "0": lambda scale: scale == 0,
    "another negative": lambda scale: scale is not None and scale < 0 and scale != -1,
    "positive": lambda scale: scale is not None and scale > 0,
}


def _tile(case: Case) -> int:
    """Tokens per tile of the entry that the case takes."""
    return TARGET.tiles(case)[_taken(case)]


def _taken(case: Case) -> int:
    return next(iter(TARGET.tiles(case))) if case.tile is None else case.tile


def _tiles(case: Case, length: int) -> int:
    return math.ceil(length / _tile(case))


def _window(case: Case) -> int:
    return case.options["window"] or 0


def _longest(case: Case) -> int:
    return max(case.key_lengths or case.lengths)


def _pairs(case: Case) -> Iterator[tuple[int, int]]:
    return zip(case.lengths, case.key_lengths or case.lengths, strict=True)


def test_hypothesis_names_the_op_of_a_strategy() -> None:
    """Not by its fields: it would read their source, which fails while another thread imports."""
    op = OPS["gla"]
    assert pretty(op) == "Op('gla')"
    assert "lambda" not in repr(bundles(op, op.modes[0], "float32", TARGET))


@pytest.mark.parametrize("name", ["attention", "gla", "rotary_embedding"])
def test_cases_of_a_run_are_new(name: str) -> None:
    """Hypothesis mutates earlier examples, which would leave few new ones; see `bundles`."""
    op = OPS[name]
    found = [*chain(*_one_run(op, op.modes[0].name, 0, 50))]
    assert len({case.seed for case in found}) >= 0.8 * len(found)


def test_long_sequences_end_on_both_sides_of_a_power_of_two() -> None:
    """Kernels that split the keys of a sequence round the number of splits to one."""
    op = OPS["attention"]
    found: set[int] = set()

    @seed(0)
    @settings(max_examples=300, database=None, deadline=None)
    @given(cases(op, op.modes[0], "bfloat16", TARGET, extents=[frozenset({"tokens"})]))
    def draw(case: Case) -> None:
        found.update(case.key_lengths or case.lengths)

    draw()
    assert {255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 2047, 2048, 2049} <= found


@pytest.mark.parametrize(("op", "mode"), MODES, scope="module")
def test_no_case_takes_the_oracle_long(op: Op, mode: Mode) -> None:
    for case in each_drawn(op, mode):
        known = sizes(op, case)
        tokens = [known | {"T": t, "S": s} for t, s in _pairs(case)]
        numbers = sum(map(op.work, tokens)) * case.dims["B"]
        if case.values == "integers" and "repeated" not in (case.layout, *case.layouts.values()):
            # One run of the recurrence with a state for each token, and no perturbed runs.
            numbers = min(numbers, sum(case.lengths) * math.prod(case.dims.values()))
        if max(max(pair) for pair in _pairs(case)) > 1:
            assert numbers <= MUCH_WORK, case.line()


@pytest.mark.parametrize(("op", "mode"), MODES, scope="module")
def test_case_survives_json_and_pasting(op: Op, mode: Mode) -> None:
    for case in each_drawn(op, mode):
        assert Case.from_json(case.to_json()) == case
        assert eval(case.line(), {"Case": Case}) == case


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_tensors_have_the_declared_dims_and_dtypes(op: Op) -> None:
    for case in chain(*_one_run(op, op.modes_or_reference[-1].name, 0, 20)):
        inputs, known = build(op, case), sizes(op, case)
        for argument in op.arguments:
            if argument.optional and argument.name not in case.given:
                assert argument.name not in inputs.tensors
                continue
            if argument.name in case.same:
                x, whole = inputs.given()[argument.name], inputs.tensors[case.same[argument.name]]
                assert x is whole or x.shape[-1] < whole.shape[-1]
                assert x.data_ptr() == whole.data_ptr()
                assert x.shape == shape(case, argument, known)
                continue
            x = inputs.tensors[argument.name]
            assert x.shape == shape(case, argument, known)
            float32 = argument.dtype == "float32" or argument.name in case.float32
            if argument.dtype == "index":
                assert x.dtype in (torch.int32, torch.int64)
                continue
            dtype = torch.float32 if float32 else case.torch_dtype
            assert x.dtype == (torch.bool if argument.dtype == "bool" else dtype)


@pytest.mark.parametrize(
    "op", [op for op in OPS.values() if "normalize" in op.names and carries_states(op)]
)
def test_a_normalizer_keeps_its_sign(op: Op) -> None:
    normalized = filter(op.nonnegative, chain(*_one_run(op, op.modes_or_reference[-1].name, 0, 50)))
    states = 0
    for case in normalized:
        tensors = build(op, case).given()
        assert (tensors["q"] >= 0).all()
        assert (tensors["k"] >= 0).all()
        if "initial_state" in tensors:
            states += 1
            assert (tensors["initial_state"][..., -1] >= 0).all()
    assert states >= 10


@pytest.mark.parametrize("layout", LAYOUTS)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_layout_moves_values_and_changes_none(layout: str, shape: list[int]) -> None:
    x = torch.arange(1.0, 1 + math.prod(shape)).view(shape)
    y = relaid(x, layout)
    if layout == "expanded" and len(shape) > 2:
        assert all(y.stride(axis) == 0 for axis in (0, 2) if shape[axis] > 1)
        x = x[:1, :, :1].expand(shape)
    if layout == "repeated" and len(shape) > 2:
        assert shape[1] == 1 or y.stride(1) == 0
        x = x[:, :1].expand(shape)
    assert torch.equal(x, y)
    aligned = y.is_contiguous() and y.storage_offset() == 0
    if layout not in ("contiguous", *OVERLAPPING) and min(shape) > 1 and len(shape) > 2:
        assert not aligned
    gaps = torch.empty(0).set_(y.untyped_storage())
    assert gaps.isnan().sum() == gaps.numel() - len(set(gaps[~gaps.isnan()].tolist()))


def _filled(recipe: str, role: Role) -> torch.Tensor:
    blank = Blank(role, (2, 40, 3, 4), 1, [(0, 15), (15, 15), (15, 40)])
    return RECIPES[recipe](blank, torch.Generator().manual_seed(0))


# Recipe and role of the tensors that hide by -inf.
_HIDING = {
    ("empty_rows", Role.LOGIT), ("hidden_rows", Role.BIAS), ("hidden_tiles", Role.BIAS),
    ("hidden_rows", Role.LOGIT), ("hidden_tiles", Role.LOGIT),
}  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_values_are_finite_and_in_their_domain(recipe: str) -> None:
    for role in Role:
        x = _filled(recipe, role)
        assert x.dtype == torch.float64
        if role is Role.LOG_DECAY:
            assert (x <= (3 if recipe == "growing_gates" else 0)).all()
            continue
        if (recipe, role) in _HIDING:
            assert (x < math.inf).all()
            x = x[x > -math.inf]
        assert x.isfinite().all()
        assert x.abs().max() <= torch.finfo(torch.float16).max
        match role:
            case Role.SCALE:
                assert (x >= 0).all()
            case Role.COSINE | Role.SINE:
                assert (x.abs() <= 1).all()


def test_each_recipe_has_its_feature() -> None:
    gates = _filled("extreme_gates", Role.LOG_DECAY)
    assert {0.0, -1e-3, -1e4} <= set(gates.flatten().tolist())
    ordinary = _filled("gaussian", Role.LOG_DECAY)
    assert (ordinary > -0.1).any()
    assert (ordinary < -1).any()
    assert set(_filled("integers", Role.KEY).flatten().tolist()) == {-1.0, 0.0, 1.0}
    assert _filled("large_logits", Role.QUERY).std() > 5
    assert _filled("large_logits", Role.LOGIT).max() > 89  # exp overflows float32 from there on
    large = _filled("large_states", Role.KEY) * _filled("large_states", Role.VALUE)
    assert large.sum(1).abs().max() > torch.finfo(torch.float16).max
    late, plain = _filled("late_maximum", Role.KEY), _filled("gaussian", Role.KEY)
    moved = (late != plain).all(-1).all(-1).all(0).nonzero().flatten().tolist()
    assert moved == [12, 13, 14, 37, 38, 39]
    assert _filled("late_maximum", Role.STEP).max() > 89
    one_hot = _filled("one_hot_values", Role.VALUE)
    assert torch.equal(one_hot[0, :4, 0], torch.eye(4, dtype=torch.float64))
    keys, values = _filled("cancelling", Role.KEY), _filled("cancelling", Role.VALUE)
    assert torch.equal(keys[:, 0::2], keys[:, 1::2])
    left = (values[:, 0::2] + values[:, 1::2]).abs() / values[:, 0::2].abs()
    assert left.max() < 0.02
    blank = Blank(Role.STEP, (3,), None, [])
    steps = [RECIPES["uneven"](blank, torch.Generator().manual_seed(n)) for n in range(60)]
    assert 10 <= sum(bool((x < 1e-3).all()) for x in steps) <= 30  # 1 + x keeps few digits of x
    blank = Blank(Role.VALUE, (3,), None, [])
    silent = [
        not RECIPES["zeros"](blank, torch.Generator().manual_seed(n)).any() for n in range(60)
    ]
    assert 10 <= sum(silent) <= 30


@pytest.mark.parametrize(
    ("dtype", "far", "most"),
    [
        (torch.float32, 2.0**36, 2.0**51),
        (torch.bfloat16, 2.0**36, 2.0**51),
        (torch.float16, 2.0**9, torch.finfo(torch.float16).max),
    ],
)
def test_rows_of_any_size_are_large_beside_small_ones(
    dtype: torch.dtype, far: float, most: float
) -> None:
    blank = Blank(Role.VALUE, (50, 9), None, [], dtype, any_size=True)
    kinds = set()
    for n in range(60):
        x = RECIPES["wide_range"](blank, torch.Generator().manual_seed(n))
        assert x.abs().max() <= most
        lengths = x.norm(dim=-1)
        kinds.add((bool((lengths < 9 / far).any()), bool((lengths > far / 9).any())))
    # Tensors of ordinary rows, of small or large ones, and of all three.
    assert len(kinds) == 4


# Ops whose transition adds a product of two vectors.
_OF_TWO_VECTORS = [
    op for op in OPS.values() if [a.role for a in op.arguments].count(Role.LOW_RANK) == 2
]


@pytest.mark.parametrize("op", _OF_TWO_VECTORS, ids=lambda op: op.name)
def test_a_transition_that_repeats_makes_no_state_longer(op: Op) -> None:
    """One that does so by a quarter ends at infinity in 400 tokens."""
    first, second = (a.name for a in op.arguments if a.role is Role.LOW_RANK)
    for number in range(8):
        case = op.full(op.modes[0].name, dict.fromkeys(op.dims, 3), (5,), packed=False)
        case = replace(case, layout="repeated", layouts={}, seed=number)
        tensors = build(op, case, torch.device("cpu")).tensors
        assert ((tensors[first].double() * tensors[second].double()).sum(-1) <= 0).all()
