"""The grammar of predicates: what an op's docstring and declaration promise, as atoms and pairs.

An atom restricts some facts of a call; see `properties.mutants.triggers.facts`. Two atoms about
different things make a pair if they meet in the code and a call can satisfy both. An atom lists
everything that it needs (a gradient of g needs a trained g), so contradictory pairs are left out.
So are pairs whose sizes exceed what a case may cost, by the op's `work`.

`_PLACES` says where atoms meet. A tensor's values affect neither host branches nor addresses, so
they make no pair with the context or the number of rows; they do with dtype, mode, options, and
factors. Some atoms stand alone: each power of two is one, but pairs use the coarser steps at which
kernels take another path.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf
from typing import Any

import numpy as np

from properties.cases.contexts import CONTEXTS, WITHOUT_GRADIENTS
from properties.cases.lengths import MOST_TOKENS, MUCH_WORK
from properties.catalogue.op import ANY_NUMBERS, Argument, Op, Option, Role
from properties.mutants.triggers import facts
from properties.targets.ours import Ours


@dataclass(frozen=True)
class Among:
    """Any of some values."""

    values: frozenset[Any]

    def __contains__(self, value: Any) -> bool:
        return value in self.values


@dataclass(frozen=True)
class Between:
    """Any number from `low` to `high`."""

    low: float
    high: float = inf

    def __contains__(self, value: Any) -> bool:
        return value is not None and self.low <= value <= self.high


Allowed = Among | Between
Needs = dict[str, Allowed]


def among(*values: Any) -> Among:
    return Among(frozenset(values))


YES, NO = among(True), among(False)
SOME = Between(1)
WITH_GRADIENTS = among(*(name for name in CONTEXTS if name not in WITHOUT_GRADIENTS))


@dataclass(frozen=True)
class Atom:
    """A predicate about one thing.

    Args:
        kind: the group under which it is reported.
        about: the thing. Two atoms about one thing make no pair.
        text: the predicate in words.
        needs: fact → its allowed values.
        backward: it can make only a gradient wrong.
        result: the affected result, an output or "dx"; None for any.
        alone: it makes no pairs.
    """

    kind: str
    about: str
    text: str
    needs: Mapping[str, Allowed]
    backward: bool = False
    result: str | None = None
    alone: bool = False

    def holds(self, known: Mapping[str, Any]) -> bool:
        return all(known.get(name) in allowed for name, allowed in self.needs.items())


def atoms(op: Op, target: Ours) -> list[Atom]:
    return [
        *_sizes(op),
        *_tokens(op),
        *_counts(op),
        *_empties(op),
        *_tiles(op, target),
        *_given(op),
        *_requests(op),
        *_calls(op),
        *_options(op),
        *_layouts(op),
        *_dtypes(op),
        *_values(op),
        *_results(op),
    ]


# The part of a call that each kind of atom affects: host branches, loops and masks, addresses, or
# numbers.
_PLACES: dict[str, set[str]] = {
    "modes": {"host", "loops", "addresses", "numbers"},
    "dtypes": {"host", "loops", "addresses", "numbers"},
    "results": {"host", "loops", "addresses", "numbers"},
    "given": {"host", "loops", "addresses"},
    # Masks and directions; options that are numbers are in `_FACTORS`.
    "options": {"host", "loops"},
    # Autocast and the compiler copy tensors.
    "context": {"host", "addresses"},
    "trained": {"host"},
    "asked": {"host"},
    "cotangents": {"host"},
    "before": {"host"},
    "same tensor": {"host"},
    "empties": {"host", "loops"},
    # Both determine whether rows are whole vectors.
    "sizes": {"loops", "addresses"},
    "tokens": {"loops"},
    "counts": {"loops"},
    "tiles": {"loops"},
    "layouts": {"addresses"},
    "values": {"numbers"},
    # Their sums are carried from tile to tile.
    "gates": {"loops", "numbers"},
}


# Options that kernels compute with.
_FACTORS = ("scale", "softcap", "eps", "normalize", "use_qk_l2norm_in_kernel", "activation")
_OF_FACTORS = {"host", "numbers"}


def _in_one_place(a: Atom, b: Atom) -> bool:
    """Whether some code depends on both.

    Two layouts make no pair: using another tensor's stride shows where one of the two differs from
    all others. Nor do the values of two tensors: those of their product are atoms.
    """
    kinds = {a.kind, b.kind}
    if kinds == {"layouts"} or kinds <= {"values", "gates"}:
        return False
    one, other = (_OF_FACTORS if x.about in _FACTORS else _PLACES[x.kind] for x in (a, b))
    return bool(one & other)


def pairs(op: Op, every: list[Atom]) -> "np.ndarray[Any, Any]":
    """A triangular matrix of the pairs that are predicates.

    Returns:
        1 for a pair, 0 for none, -1 for one that costs too much.
    """
    wanted = np.zeros((len(every), len(every)), dtype=np.int8)
    dims = [*(a.dims for a in op.arguments), *(o.dims for o in op.outputs)]
    letters = {letter for these in dims for letter in these.split()} | {*op.dims, *"TSNBH"}
    for (i, a), (j, b) in combinations(enumerate(every), 2):
        if a.about == b.about or a.alone or b.alone or not _in_one_place(a, b):
            continue
        if _agree(a, b):
            wanted[i, j] = -1 if _costly(op, letters, a, b) else 1
    return wanted


def _agree(a: Atom, b: Atom) -> bool:
    """Whether both allow some common value of each fact."""
    if (a.backward and b.result in _outputs(b)) or (b.backward and a.result in _outputs(a)):
        return False
    return all(_meet(x, b.needs[name]) for name, x in a.needs.items() if name in b.needs)


def _outputs(atom: Atom) -> tuple[str | None, ...]:
    return () if atom.result is None or atom.backward else (atom.result,)


def _meet(x: Allowed, y: Allowed) -> bool:
    if isinstance(x, Between) and isinstance(y, Between):
        return max(x.low, y.low) <= min(x.high, y.high)
    one, other = (x, y) if isinstance(x, Among) else (y, x)
    assert isinstance(one, Among)
    return any(value in other for value in one.values)


def _costly(op: Op, letters: Iterable[str], *both: Atom) -> bool:
    """Whether the smallest case with both costs more than any drawn case.

    Args:
        letters: of all sizes.
    """
    least: dict[str, float] = dict.fromkeys(letters, 1)
    for atom in both:
        for name, allowed in atom.needs.items():
            if name in least:
                low = allowed.low if isinstance(allowed, Between) else min(allowed.values)
                least[name] = max(least[name], low)
    if "G" in op.dims:
        least["H"] = max(least["H"], least["G"] * least["R"])
    return least["B"] * op.work(least) > MUCH_WORK  # type: ignore[arg-type]


def _steps(limit: int) -> Iterator[tuple[str, Between]]:
    """Each power of two up to the limit, and the ranges between them."""
    powers = [1 << n for n in range(limit.bit_length())]
    for low, high in pairwise([*powers, 2 * powers[-1]]):
        yield f"= {low}", Between(low, low)
        if high - low > 1 and low < limit:
            last = min(high - 1, limit)
            yield f"in {low + 1}..{last}" if last > low + 1 else f"= {last}", Between(low + 1, last)


def _ranges(letter: str, *starts: int, **needs: Allowed) -> Iterator[Atom]:
    """Ranges from each start to the next; the last has no end. "One", "few" and "many" make
    pairs.
    """
    for low, high in pairwise((*starts, 0)):
        text = f"= {low}" if high == low + 1 else f"in {low}..{high - 1}" if high else f">= {low}"
        span = Between(low, high - 1 if high else inf)
        yield Atom("counts", letter, f"{letter} {text}", {letter: span, **needs}, alone=True)
    for text, span in (("one", Between(1, 1)), ("few", Between(2, 8)), ("many", Between(9))):
        yield Atom("counts", letter, f"{text} {letter}", {letter: span, **needs})


# A dot takes 16 rows, and most tiles have at most 128 columns.
_CLASSES = {"small": Between(1, 15), "medium": Between(16, 128), "wide": Between(129)}
WIDEST = {"K": 256, "V": 256, "D": 256, "P": 128, "W": 16}


def _sizes(op: Op) -> Iterator[Atom]:
    for letter in (name for name in WIDEST if name in op.dims):
        # Two rotary dims make a pair.
        for text, span in _steps(WIDEST[letter]):
            head = {"D": Between(2 * span.low)} if letter == "P" else {}
            yield Atom("sizes", letter, f"{letter} {text}", {letter: span, **head}, alone=True)
        for text, span in _CLASSES.items():
            if span.low <= WIDEST[letter]:
                head = {"D": Between(2 * span.low)} if letter == "P" else {}
                yield Atom("sizes", letter, f"{text} {letter}", {letter: span, **head})
    if "P" in op.dims:
        yield Atom("sizes", "P", "P = 0", {"P": Between(0, 0)})
    if {"K", "V"} <= set(op.dims):
        unequal = {"<": ("K", "V"), ">": ("V", "K")}
        for sign, (less, more) in unequal.items():
            bounds = {less: Between(1, 255), more: Between(2, 256)}
            text = f"K {sign} V"
            yield Atom("sizes", "K against V", text, {"K against V": among(sign), **bounds})
            wide = {less: Between(129, 255), more: Between(130, 256)}
            text = f"128 < {less} < {more}"
            yield Atom("sizes", "K against V", text, {"K against V": among(sign), **wide})
        yield Atom("sizes", "K against V", "K = V", {"K against V": among("=")})


def _tokens(op: Op) -> Iterator[Atom]:
    for letter in ("T", "S") if op.own_keys else ("T",):
        for text, span in _steps(MOST_TOKENS):
            yield Atom("tokens", letter, f"{letter} {text}", {letter: span}, alone=True)
        for text, span in (("one", Between(1, 1)), ("more than 256", Between(257))):
            yield Atom("tokens", letter, f"{text} of {letter}", {letter: span})
    if op.own_keys:
        for sign, less in (("<", "T"), (">", "S"), ("=", "T")):
            needs: Needs = {"T against S": among(sign), less: Between(0, 4095)}
            yield Atom("tokens", "T against S", f"T {sign} S", needs)


def _counts(op: Op) -> Iterator[Atom]:
    yield from _ranges("B", 1, 2, 3, 9, 33, packed=NO)
    if op.packed_by:
        yield from _ranges("N", 1, 2, 3, 9, 33, packed=YES, B=Between(1, 1))
    for letter in (name for name in "HG" if name in op.dims):
        yield from _ranges(letter, 1, 2, 3, 9, 33)
    if "G" in op.dims:
        yield from _ranges("R", 1, 2, 3, 4, 5, 8, 9, 17)
    if any("N" in a.dims.split() for a in op.arguments) and ("H" in op.dims or "G" in op.dims):
        yield from _ranges("states", 1, 2, 17, 33, 65)


def _empties(op: Op) -> Iterator[Atom]:
    def empty(text: str, **needs: Allowed) -> Atom:
        return Atom("empties", "empties", text, needs)

    yield empty("no rows", B=Between(0, 0), N=Between(0, 0), packed=NO)
    yield empty("no tokens", T=Between(0, 0), packed=NO, B=SOME)
    if op.packed_by:
        yield empty("no tokens in any sequence", T=Between(0, 0), packed=YES, N=SOME, B=SOME)
        for where, least in (("first", 2), ("middle", 3), ("last", 2)):
            more: Needs = {f"empty {where}": YES, "T": SOME, "packed": YES, "N": Between(least)}
            yield empty(f"an empty {where} sequence", **more)
        single: Needs = {"one token": YES, "T": SOME, "packed": YES}
        yield empty("a sequence of one token", **single)
    if op.own_keys:
        yield empty("no keys", S=Between(0, 0), T=SOME)
        if op.packed_by:
            without: Needs = {"empty keys": YES, "S": SOME, "packed": YES}
            yield empty("a sequence without keys", **without)


def _tiles(op: Op, target: Ours) -> Iterator[Atom]:
    capabilities = [target.capability, *(claimed.capability for claimed in target.claims)]
    for name in (*(mode.name for mode in op.modes), *(["auto"] * facts.chooses_mode(op))):
        yield Atom("modes", "mode", f"mode {name}", {"mode": among(name)})
        for index, entry in enumerate(facts.entries(op.name, name)):
            dtypes = [str(d).removeprefix("torch.") for d in entry.dtypes]
            if any(entry.arch <= n < entry.arch_below for n in capabilities):
                heads = {d: Between(1, entry.max_dim) for d in "KVD" if d in op.dims}
                needs = {"mode": among(name), "tile": among(index), "dtype": among(*dtypes)}
                yield Atom("tiles", "mode", f"tile {index} of {name}", {**needs, **heads})
    if facts.entries(op.name, op.modes[0].name):
        # A call that names no mode leaves the choice to the op.
        named = among(*(mode.name for mode in op.modes))
        lengths = sorted({e.tokens for m in op.modes for e in facts.entries(op.name, m.name)})
        for low, high in ((1, 1), (2, 2), (3, 32), (33, inf)):
            tokens = Between((low - 1) * lengths[0] + 1, high * lengths[-1])
            text = f"= {low}" if low == high else f"in {low}..{high}" if high < inf else f">= {low}"
            span: Needs = {"chunks": Between(low, high), "T": tokens, "mode": named}
            yield Atom("tiles", "chunks", f"chunks {text}", span)
        for rest in (0, 1, -1):
            edges = {rest + n for tile in lengths for n in range(0, MOST_TOKENS + 2, tile)} - {
                0,
                -1,
            }
            edge: Needs = {"tile's rest": among(rest), "T": among(*edges), "chunks": Between(1)}
            edge["mode"] = named
            yield Atom("tiles", "T of a tile", f"T modulo its tile = {rest}", edge)


def _given(op: Op) -> Iterator[Atom]:
    for a in (a for a in op.arguments if a.optional):
        yield Atom("given", a.name, f"{a.name} given", _present(op, a))
        absent = {f"given {a.name}": NO, f"trained {a.name}": among(None)}
        yield Atom("given", a.name, f"no {a.name}", absent)
    if op.packed_by:
        yield Atom("given", "cu_seqlens", "packed", {"packed": YES})
        yield Atom("given", "cu_seqlens", "not packed", {"packed": NO})
    for name in op.packed_by[1:]:
        yield Atom("given", name, f"{name} given", {f"given {name}": YES, "packed": YES})
        yield Atom("given", name, f"packed without {name}", {f"given {name}": NO, "packed": YES})


def _present(op: Op, a: Argument) -> Needs:
    """The needs of a call with an argument."""
    if not a.optional:
        return {}
    modes = [mode.name for mode in op.modes if a.name not in mode.refuses]
    return {f"given {a.name}": YES, "mode": among(*modes, "auto")}


_MAY_BE_EMPTY = ("B", "T", "S", "N", "P")


def _filled(op: Op, a: Argument) -> Needs:
    """The needs of a call with a non-empty argument."""
    return {**_present(op, a), **{d: SOME for d in a.dims.split() if d in _MAY_BE_EMPTY}}


def _requests(op: Op) -> Iterator[Atom]:
    tensors = [a for a in op.arguments if a.differentiable]
    trained = {a.name: among("yes") for a in tensors}
    frozen = {a.name: among("no", None) for a in tensors}
    unless_frozen = {a.name: among("yes", None) for a in tensors}

    def request(text: str, states: Mapping[str, Allowed], **needs: Allowed) -> Atom:
        trained = {f"trained {name}": allowed for name, allowed in states.items()}
        return Atom("trained", "trained", text, {**trained, **needs}, needs.get("backward") == YES)

    backward = {"backward": YES, "context": WITH_GRADIENTS}
    yield request("all trained", unless_frozen, **backward)
    yield request("nothing trained", frozen, context=WITH_GRADIENTS, backward=NO)
    for a in tensors if len(tensors) > 1 else ():
        alone, others = {a.name: trained[a.name]}, {a.name: among("no")}
        here = _present(op, a)
        yield request(f"{a.name} alone trained", {**frozen, **alone}, **backward, **here)
        yield request(f"all but {a.name} trained", {**unless_frozen, **others}, **backward, **here)
    loud = [o for o in op.outputs if o.differentiable]
    for o in op.outputs:
        if o.asked_by is not None:
            for wanted in (True, False):
                text = f"{o.name}{'' if wanted else ' not'} asked for"
                yield Atom("asked", o.name, text, {f"asked {o.name}": among(wanted)})
    if len(loud) > 1:
        all_loud = {f"loud {o.name}": YES for o in loud}
        needs = {**all_loud, **{f"asked {o.name}": YES for o in loud if o.asked_by}, **backward}
        yield Atom("cotangents", "cotangents", "all outputs have one", needs, True)
        for o in loud:
            only = {name: among(name == f"loud {o.name}") for name in all_loud}
            text = f"of those asked for only {o.name} has one"
            yield Atom("cotangents", "cotangents", text, {**needs, **only}, True)


def _calls(op: Op) -> Iterator[Atom]:
    for name in CONTEXTS:
        quiet = {"backward": NO} if name in WITHOUT_GRADIENTS else {}
        yield Atom("context", "context", name, {"context": among(name), **quiet})
    numbers: Needs = {"contents changed": YES, "B": SOME, "T": SOME}
    yield Atom("before", "before", "these objects held other numbers", numbers)
    for option in op.options:
        if not option.auxiliary:
            text = f"these objects were called with another {option.name}"
            needs = {f"{option.name} changed": YES, **_allowed(op, option)}
            yield Atom("before", "before", text, needs)
    arguments = [a for a in op.arguments if a.role in ANY_NUMBERS and a.dtype == "case"]
    for a, b in combinations(arguments, 2):
        needs = {f"{b.name} is {a.name}": YES, f"trained {b.name}": among(None)}
        for x, y in zip(a.dims.split(), b.dims.split(), strict=False):
            if {x, y} == {"H", "G"}:
                needs["R"] = Between(1, 1)
            elif x != y:
                needs["T against S" if {x, y} == {"T", "S"} else "K against V"] = among("=")
        if len(a.dims.split()) == len(b.dims.split()) and set(a.dims) - set(b.dims) <= set("THKV "):
            yield Atom("same tensor", "same tensor", f"{b.name} is {a.name}", needs)


def _allowed(op: Op, option: Option) -> Needs:
    return {"mode": among(*(m.name for m in op.modes if option.name not in m.refuses), "auto")}


# The fewest keys for a window below their number.
_LEAST_KEYS = {"2 to 512, below S": 3, "past 512, below S": 514}


def _options(op: Op) -> Iterator[Atom]:
    for option in op.options:
        if option.auxiliary:
            continue
        for text in facts.choices(option):
            usual = text == facts.choice(option, option.default, {})
            needs = {option.name: among(text), **({} if usual else _allowed(op, option))}
            if "NumPy" in text:
                # Dynamo takes a NumPy scalar for an array.
                needs["context"] = among(*(name for name in CONTEXTS if name != "compiled"))
            if "S" in text:
                needs["S"] = Between(_LEAST_KEYS.get(text, 1))
            if "each" in text:
                needs["N"] = SOME
            alone = text in facts.TYPES.get(option.name, ())
            yield Atom("options", option.name, f"{option.name}: {text}", needs, alone=alone)


_LAYOUTS_OF_ONE = ("contiguous", "misaligned", "every second")
_PAIRED = ("misaligned", "transposed", "stride 0 of tokens")
_LAYOUTS = (*_LAYOUTS_OF_ONE, "with gaps", "transposed", "stride 0 of tokens", "stride 0 of heads")


def _layouts(op: Op) -> Iterator[Atom]:
    tensors = [(a.name, a.dims.split(), _filled(op, a)) for a in op.arguments]
    for o in (o for o in op.outputs if o.differentiable):
        loud = {f"loud {o.name}": YES, "backward": YES, "context": WITH_GRADIENTS}
        asked: Needs = {} if o.asked_by is None else {f"asked {o.name}": YES}
        filled: Needs = {d: SOME for d in o.dims.split() if d in ("B", "T", "N")}
        tensors.append((f"d{o.name}", o.dims.split(), {**loud, **asked, **filled}))
    known = {*op.dims, "T", "S", "H"}
    for name, dims, needs in tensors:
        for layout in _LAYOUTS[: {1: 3, 2: 4}.get(len(dims))]:
            more: Needs = {}
            if layout.startswith("stride 0"):
                along = {"T", "S"} if "tokens" in layout else {"H", "G"}
                which = sorted(along & set(dims))
                if not which:
                    continue
                more = {which[0]: Between(2)}
            elif layout == "transposed":
                more = {letter: Between(2) for letter in dims[1:3] if letter in known}
            elif layout == "every second":
                more = {letter: Between(2) for letter in dims[-1:] if letter in known}
            held = {f"{name} {layout}": YES, **needs, **more}
            alone = layout not in _PAIRED
            text = f"{name} {layout}"
            gradient = "backward" in held
            yield Atom("layouts", f"layout of {name}", text, held, gradient, alone=alone)


def _dtypes(op: Op) -> Iterator[Atom]:
    for dtype in op.dtypes:
        yield Atom("dtypes", "dtype", dtype, {"dtype": among(dtype)})
    for a in op.arguments:
        if a.dtype == "either":
            narrow = {"dtype": among("bfloat16", "float16"), **_present(op, a)}
            for text, value in (("float32 beside 16 bits", YES), ("of 16 bits", NO)):
                needs = {f"{a.name} float32": value, **narrow}
                yield Atom("dtypes", f"dtype of {a.name}", f"{a.name} {text}", needs)
    for width in ("int32", "int64"):
        if op.packed_by:
            needs = {"dtype of cu_seqlens": among(width), "packed": YES}
            yield Atom("dtypes", "boundaries", f"boundaries of {width}", needs)


def _values(op: Op) -> Iterator[Atom]:
    for a in op.arguments:
        for text in facts.VALUES[a.role]:
            needs = {f"{a.name} {text}": YES, **_filled(op, a)}
            if "within 16" in text:
                needs["T"] = Between(2)
            alone = text in facts.USUAL
            kind = "gates" if a.role is Role.LOG_DECAY else "values"
            yield Atom(kind, f"values of {a.name}", f"{a.name} {text}", needs, alone=alone)
    if facts.has_logits(op):
        needs = {d: SOME for d in ("B", "T", "S") if d != "S" or op.own_keys}
        needs["largest logit"] = Between(89)
        yield Atom("values", "logits", "a logit past 88", needs)
        needs = {**needs, "largest logit": Between(0, 2.0**-10)}
        yield Atom("values", "logits", "all logits below 2^-10", needs)


def _results(op: Op) -> Iterator[Atom]:
    for o in op.outputs:
        needs: Needs = {d: SOME for d in o.dims.split() if d in ("B", "T", "N")}
        if o.asked_by is not None:
            needs[f"asked {o.name}"] = YES
        needs[f"result {o.name}"] = YES
        yield Atom("results", "result", f"{o.name} is wrong", needs, result=o.name)
    for a in (a for a in op.arguments if a.differentiable):
        needs = {f"trained {a.name}": among("yes"), "backward": YES, "context": WITH_GRADIENTS}
        needs |= {f"result d{a.name}": YES, **_filled(op, a)}
        yield Atom("results", "result", f"d{a.name} is wrong", needs, True, f"d{a.name}")
