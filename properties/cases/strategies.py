"""Strategies for cases: small and ragged, with lengths around the edges of the tiles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypedDict, Unpack

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from properties.cases.case import Case
from properties.cases.extents import EXTENTS, ORDINARY, Extent, large_count, large_dims
from properties.cases.layouts import LAYOUTS
from properties.cases.lengths import any_of, past_a_long_tile, with_lengths, with_many_tokens
from properties.cases.tensors import (
    differentiable_outputs,
    on_integers,
    present,
    shape,
    sizes,
    trained,
)
from properties.cases.values import GATE_RECIPES, LONG_GATE_RECIPES
from properties.catalogue.kinds import is_delta
from properties.catalogue.op import ANY_NUMBERS, CHUNK, Argument, Mode, Op, Option, Role
from properties.targets import Target

# Whether an option is left at its default.
_LEFT = any_of(True, False, False)
# Tokens per tile of a kernel that does not say.
_USUAL_TILES = (16, 32, 64, 128)
_LONGEST = 200
_WIDEST = (40, 257, 320, 511, 512, 576)


class Limits(TypedDict, total=False):
    """How large cases may be.

    Args:
        longest: the most tokens of a sequence, unless a tile has more, 200 by default; fewer if the
            other dims are large, see `lengths.WORK`.
        widest: the largest of any other dim, 256 by default.
        extents: the dims along which some cases are large, see `extents.EXTENTS`.
    """

    longest: int
    widest: int
    extents: Sequence[Extent]


def cases(
    op: Op, mode: Mode, dtype: str, target: Target, **limits: Unpack[Limits]
) -> SearchStrategy[Case]:
    """Cases of one op, mode and dtype that the op accepts, with tiles of the target's table."""
    return bundles(op, mode, dtype, target, most=1, **limits).map(itemgetter(0))


def bundles(
    op: Op,
    mode: Mode,
    dtype: str,
    target: Target,
    *,
    most: int = 4,
    tiny: int = 0,
    **limits: Unpack[Limits],
) -> SearchStrategy[list[Case]]:
    """Up to `most` cases and `tiny` more of a token or two, nearly all of which run the same
    compiled programs.

    Compiling is two thirds of the cost of a case. So the cases of a bundle share what a program is
    specialised on (head dims, tile, given arguments, flags) and differ in the rest: rows, lengths,
    numbers, layouts, gradients, context. A case of many tokens is alone. A tiny case takes a small
    part of the time of another, and most of what meets in a call does not depend on lengths.
    """
    # From the eleventh example on, Hypothesis mutates each example five times by copying one part
    # over another of the same kind: K = V, equal lengths, T = 1. Cases should not be like that, and
    # few of these are new. Since 6.170.1 it does not copy within a unique collection.
    bundle = _bundles(op, mode, dtype, target, most, tiny, **limits)
    one = st.lists(bundle, min_size=1, max_size=1, unique_by=tuple)
    return one.map(itemgetter(0))


@st.composite
def _bundles(
    draw: DrawFn,
    op: Op,
    mode: Mode,
    dtype: str,
    target: Target,
    most: int,
    tiny: int,
    *,
    longest: int = _LONGEST,
    widest: int = 256,
    extents: Sequence[Extent] = EXTENTS,
) -> list[Case]:
    # Discard Hypothesis' first example, whose first number is 0: it is the same in all jobs.
    assume(draw(st.integers(0, 2**16)))
    extent = draw(any_of(*extents))
    # Small heads leave room for sequences of several tiles, and most tiles are for small heads.
    widest = min(widest, draw(any_of(256, 256, 64, 64, 40)))
    dims = {letter: _folded(draw(size), widest) for letter, size in op.dims.items()}
    # If one tensor is passed as two arguments, they have one shape.
    twin = draw(any_of(*[False] * 9, True))
    dims = _enlarged(draw, op, dims, extent, twin=twin)
    case = Case(op=op.name, mode=mode.name, dtype=dtype, dims=dims, lengths=(1,))
    case = replace(case, packed=_packed(draw, op, extent))
    if others := target.architectures(case):
        # Mostly the device's own.
        case = replace(case, architecture=draw(any_of(*[None] * 5, *others)))
    tiles = target.tiles(case)
    case = replace(case, tile=_tile(draw, op, target, case, tiles))
    own = target.tokens(op.name, mode.name)
    if tiles:
        own = tiles[case.tile if case.tile is not None else next(iter(tiles))]
    edges = (own,) if own else _USUAL_TILES
    if (not (tiles and own) and edges != (16,)) or edges[-1] > _LONGEST:
        # Sequences extend past the target's own tile.
        longest = max(longest, edges[-1] + 16)
    case, varying = _with_arguments(draw, op, mode, case)
    bundle = _Bundle(op, mode, target, case, varying, extent, twin, own or 0)
    # Thousands of tokens take longer to run than a program to compile.
    most = 1 if "tokens" in extent else most
    found = draw(st.lists(_members(bundle, edges, longest, widest), min_size=1, max_size=most))
    small = replace(bundle, extent=ORDINARY[0])
    return found + draw(st.lists(_members(small, (), 2, 2), max_size=tiny))


def _enlarged(
    draw: DrawFn, op: Op, dims: Mapping[str, int], extent: Extent, *, twin: bool
) -> dict[str, int]:
    """Draw the dims along which a case is large; if it has a `twin`, as `_alike` says."""
    large = large_dims(draw, extent, dims)
    dims = {letter: large.get(letter, size) for letter, size in dims.items()}
    if "wide" in extent and op.widest and draw(st.booleans()):
        for letter, limit in op.widest.items():
            limit = min(op.widest.values()) if twin else limit
            dims[letter] = draw(any_of(*(n for n in _WIDEST if n <= limit)))
    return _alike(dims) if twin else dims


def _tile(
    draw: DrawFn, op: Op, target: Target, case: Case, tiles: Mapping[int, int | None]
) -> int | None:
    """Draw an entry of the tile table; those for small heads more often, where they apply."""
    widths = sorted({64, 128, 256, *op.widest.values()})
    wider = [target.tiles(replace(case, dims=dict.fromkeys(case.dims, n))) for n in widths]
    small = [index for known in wider for index in tiles if index not in known]
    return draw(any_of(None, *tiles, *small)) if tiles else None


@dataclass(frozen=True)
class _Bundle:
    """The parts that the cases of a bundle share.

    Args:
        case: with everything that a program is specialised on.
        varying: the options whose values are drawn for each case.
        extent: the dims along which the cases are large.
        twin: each passes one tensor as two arguments.
        tokens: of the implementation's own tiles, 0 if unknown.
    """

    op: Op
    mode: Mode
    target: Target
    case: Case
    varying: Sequence[Option]
    extent: Extent
    twin: bool
    tokens: int


@st.composite
def _members(
    draw: DrawFn, bundle: _Bundle, edges: Sequence[int], longest: int, widest: int
) -> Case:
    """Draw what no program is specialised on: rows, lengths, numbers, layouts, the call."""
    op, extent, case = bundle.op, bundle.extent, bundle.case
    case = case.with_dims(B=_rows(draw, op, case, widest, extent))
    exact = False
    if "tokens" in extent:
        # Exact integers need no budget: thousands of tokens are cheap for them, hundreds for
        # others. Reads of a delta rule's state outgrow the 8 bits of bfloat16.
        exact = "exactness" in op.laws and (case.dtype == "float32" or not is_delta(op))
        exact = exact and on_integers(op, case).values == "integers"
        exact = exact and draw(any_of(True, True, True, False))
        # Carries between tiles may be right for integers, whose gates are 1.
        past = past_a_long_tile(draw, op, case, bundle.tokens) if bundle.tokens > _LONGEST else None
        exact = exact and past is None
        case = past or with_many_tokens(draw, op, case, extent, exact=exact)
    else:
        case = with_lengths(draw, op, case, edges, longest, extent)
    case = _with_varying(draw, bundle.varying, case)
    values = any_of(*_recipes(op, case, extent))
    case = replace(case, values=draw(values), seed=draw(st.integers(0, 2**16)))
    case = op.settle(_with_layouts(draw, op, case))
    if exact:
        case = on_integers(op, case)
    if bundle.twin:
        case = _with_a_tensor_twice(draw, op, case)
    return op.settle(_with_a_call(draw, op, bundle.mode, case, bundle.target))


def _rows(draw: DrawFn, op: Op, case: Case, widest: int, extent: Extent) -> int:
    if case.packed:
        return 1
    if "rows" in extent:
        return draw(large_count(extent))
    return _folded(draw(op.dims["B"]), 2 if "tokens" in extent else widest)


def _recipes(op: Op, case: Case, extent: Extent) -> list[str]:
    """Add gate recipes if there are gates, with more weight on long sequences.

    Sequences that fill a chunk get long runs of strong gates more often.
    """
    # Products in float16 have a narrow range.
    wide = op.of_any_size(case) and (op.in_float32 or case.dtype != "float16")
    recipes = [name for name in op.recipes if name != "wide_range" or wide]
    if not any(a.role is Role.LOG_DECAY for a in present(op, case)):
        return [name for name in recipes if name not in GATE_RECIPES]
    gates = [name for name in recipes if name in GATE_RECIPES]
    runs = [name for name in gates if name in LONG_GATE_RECIPES and max(case.lengths) >= CHUNK - 16]
    return [*recipes, *gates, *runs, *runs, *(gates * 2 if "tokens" in extent else ())]


def _alike(dims: Mapping[str, int]) -> dict[str, int]:
    """Sizes with which query and key have one shape, and a value this one or fewer channels."""
    alike = {"R": 1} | ({"V": min(dims["V"], dims["K"])} if "K" in dims and "V" in dims else {})
    return {letter: alike.get(letter, size) for letter, size in dims.items()}


def _folded(size: int, largest: int) -> int:
    """Fold a size into 1 to `largest` (0 stays 0), which keeps sizes different where clamping would
    not.
    """
    return (size - 1) % largest + 1 if size > largest else size


def _packed(draw: DrawFn, op: Op, extent: Extent) -> bool:
    if not op.packed_by or "rows" in extent:
        return False
    return "sequences" in extent or draw(st.booleans())


def _with_arguments(draw: DrawFn, op: Op, mode: Mode, case: Case) -> tuple[Case, list[Option]]:
    """Draw which arguments and options are given; return the options that each case draws."""
    allowed = [a for a in op.arguments if a.name not in mode.refuses]
    given = tuple(a.name for a in allowed if a.optional and draw(st.booleans()))
    present = [a for a in allowed if not a.optional or a.name in given]
    float32 = tuple(a.name for a in present if a.dtype == "either" and draw(st.booleans()))
    case = replace(case, given=given, float32=float32, broadcast=_broadcast(draw, present))
    varying = []
    for option in op.options:
        if option.name not in mode.refuses:
            # Most of what may be drawn is not the default, and most calls ask for little.
            left = option.default is None and not option.number and draw(_LEFT)
            value = None if left else draw(option.draw(case))
            if option.number or not (value is None or isinstance(value, bool | str)):
                varying.append(option)
                value = option.default
            case = case.with_options(**{option.name: value})
    return case, varying


def _broadcast(draw: DrawFn, arguments: Sequence[Argument]) -> dict[str, str]:
    """Draw the dims of size 1 of each tensor that may be broadcast."""
    ones = {
        a.name: "".join(d[1:] for d in a.dims.split() if d[0] == "#" and draw(st.booleans()))
        for a in arguments
        if "#" in a.dims
    }
    return {name: letters for name, letters in ones.items() if letters}


def _with_varying(draw: DrawFn, varying: Sequence[Option], case: Case) -> Case:
    for option in varying:
        values = option.draw(case)
        if not option.number:
            values = _not_none(values)
        case = case.with_options(**{option.name: draw(values)})
    return case


@lru_cache(maxsize=2048)
def _not_none(values: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return values.filter(lambda value: value is not None)


def _with_layouts(draw: DrawFn, op: Op, case: Case) -> Case:
    """Draw one layout for all tensors, or one for each input, each cotangent, the boundaries and
    the tensors of an option.

    Few cases repeat one token: its rounding errors repeat too, so budgets are wide there.
    """
    layouts = any_of(*sorted(LAYOUTS))
    if draw(st.booleans()):
        return replace(case, layout=draw(layouts))
    if draw(any_of(True, True, True, False)):
        layouts = any_of(*sorted(LAYOUTS.keys() - {"repeated"}))
    names = [a.name for a in present(op, case)] + [
        f"d{o.name}" for o in differentiable_outputs(op, case)
    ]
    names += [n for n, value in case.options.items() if isinstance(value, (dict, list, tuple))]
    names += op.packed_by if case.packed else ()
    each = {name: draw(layouts) for name in names}
    return replace(case, layouts={n: x for n, x in each.items() if x != case.layout})


def _with_a_tensor_twice(draw: DrawFn, op: Op, case: Case) -> Case:
    """Pass one tensor as two arguments: queries as keys, or keys, or a part of them, as values."""
    known = sizes(op, case)
    shapes = {a.name: shape(case, a, known) for a in present(op, case)}
    pairs = [
        (a.name, b.name)
        for a in present(op, case)
        for b in present(op, case)
        if a is not b and a.role in ANY_NUMBERS and a.dtype == b.dtype == "case"
        if not a.optional and _fits(a, shapes[a.name], b, shapes[b.name])
    ]
    if not pairs or op.telescopes(case):
        return case
    name, other = draw(any_of(*pairs))
    layouts = {n: x for n, x in case.layouts.items() if n != name}
    # "large_states" pairs large keys with small queries; twice the large ones overflow float16. Of
    # two arguments only one may be of any size.
    values = "gaussian" if case.values in ("large_states", "wide_range") else case.values
    return replace(case, same={name: other}, layouts=layouts, values=values)


def _fits(
    argument: Argument, size: tuple[int, ...], other: Argument, whole: tuple[int, ...]
) -> bool:
    """Whether another's tensor can be an argument: values may be the first channels of keys."""
    if (argument.role, other.role) == (Role.VALUE, Role.KEY):
        return size[:-1] == whole[:-1] and size[-1] <= whole[-1]
    return size == whole


def _with_a_call(draw: DrawFn, op: Op, mode: Mode, case: Case, target: Target) -> Case:
    """Draw which inputs need a gradient, which outputs get a cotangent, the context, the earlier
    call.
    """
    names = trained(op, case)
    frozen = draw(_frozen(names))
    if draw(any_of(*[False] * 15, True)):
        frozen = tuple(name for name in names if draw(st.booleans()))
    outputs = [o.name for o in differentiable_outputs(op, case)]
    silent: tuple[str, ...] = ()
    if len(outputs) > 1 and draw(st.booleans()):
        loud = draw(any_of(*outputs))
        silent = tuple(name for name in outputs if name != loud)
    cotangents = draw(_cotangents(target.cotangents, case.dtype))
    scaled = cotangents == "large" and case.dtype == "float16"
    # A loss scale is for small numbers, whose gradients would vanish.
    if scaled and "uneven" in op.recipes and case.values != "integers" and draw(st.booleans()):
        case = replace(case, values="uneven")
    # Autograd sums one tensor's two gradients in its dtype, in each call of a law that splits one.
    if scaled and case.same:
        cotangents = "ordinary"
    # The recipe is one of cotangents too.
    if case.values == "wide_range":
        cotangents = "ordinary"
    if target.takes_auto and draw(any_of(*[False] * 11, True)):
        case = replace(case, auto=True, tile=None)
    numbers = draw(any_of(*["python"] * 7, "numpy"))
    context = draw(_contexts(target.contexts))
    if context == "compiled":
        # Dynamo takes a NumPy scalar for an array.
        numbers = "python"
    case = replace(case, frozen=frozen, silent=silent, cotangents=cotangents)
    case = replace(case, numbers=numbers, context=context)
    return replace(case, earlier=_earlier(draw, op, mode, case))


@lru_cache
def _frozen(names: tuple[str, ...]) -> SearchStrategy[tuple[str, ...]]:
    """Tensors that need no gradient: none, one, all but one, all."""
    each: list[tuple[str, ...]] = []
    if len(names) > 1:
        each = [(one,) for one in names]
        each += [tuple(name for name in names if name != one) for one in names]
    return st.sampled_from([()] * max(3, len(each) // 2) + each + [names])


@lru_cache
def _cotangents(known: tuple[str, ...], dtype: str) -> SearchStrategy[str]:
    """Mostly ordinary ones; in float16, which is trained under a loss scale, more large ones."""
    scaled = [name for name in known if name == "large" and dtype == "float16"]
    return st.sampled_from(["ordinary"] * 3 * (len(known) - 1) + [*known] + scaled * 3)


@lru_cache
def _contexts(known: tuple[str, ...]) -> SearchStrategy[str]:
    """Half of the time "grad"; only the law about contexts keeps "compiled"."""
    weights = {
        "grad": 18,
        "no_grad": 3,
        "inference_mode": 3,
        "autocast": 3,
        "autocast_backward": 3,
        "checkpointed": 3,
        "backward_twice": 3,
        "compiled": 4,
        "bfloat16_by_default": 4,
    }
    return st.sampled_from([name for name in known for _ in range(weights[name])])


def _earlier(draw: DrawFn, op: Op, mode: Mode, case: Case) -> dict[str, Any] | None:
    """No earlier call, one with other numbers only, or one with another option too."""
    kind = draw(any_of(None, None, "numbers", "option"))
    if kind is None:
        return None
    options = {o.name: o for o in op.options if o.name not in mode.refuses and not o.auxiliary}
    if kind == "numbers" or not options:
        return {}
    option = options[draw(any_of(*options))]
    other = op.settle(case.with_options(**{option.name: draw(option.draw(case))}))
    return {option.name: other.options[option.name]}
