"""The structured masks of a case: small data, and the tensors that follow from it and the lengths.

Drawn are the lengths of documents, the prefixes of sequences, how far behind its child a parent is,
and the bits of a table; each list starts again at its end. So a case may be cut, packed or put in
another order and its masks remain what they are at each position.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import cycle, islice
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from properties.cases.case import Case
from properties.cases.layouts import OVERLAPPING, relaid

Drawn = Mapping[str, Any]
# Ids may be any numbers from 0 on: the largest of a dtype, and those that are equal in 32 bits.
_IDS = {torch.int32: (0, 2**31 - 1, 1), torch.int64: (2**32, 0, 2**33 - 1)}


def draw_rules(case: Case) -> SearchStrategy[dict[str, Any] | None]:
    """Draw None, one rule or two, fit for the lengths of a case; the simplest rules hide least."""
    keys = case.key_lengths or case.lengths
    grows = all(t <= s for t, s in zip(case.lengths, keys, strict=True))
    return _rules(max(1, *keys), grows=grows, packed=case.packed)


# Cached, because building and validating a strategy takes longer than drawing from it.
@lru_cache(maxsize=2048)
def _rules(longest: int, *, grows: bool, packed: bool) -> SearchStrategy[dict[str, Any] | None]:
    size = st.one_of(st.integers(1, longest), st.sampled_from([16, 32, 64]))
    lengths = st.lists(size, min_size=1, max_size=4)
    rules: list[SearchStrategy[dict[str, Any]]] = [
        st.fixed_dictionaries({name: size}) for name in ("chunk", "block_causal")
    ]
    rules += [
        st.fixed_dictionaries({"dilation": st.integers(1, 5)}),
        st.fixed_dictionaries({"document_ids": lengths}),
        st.fixed_dictionaries(
            {"prefix": st.lists(st.integers(0, longest), min_size=1, max_size=3)}
        ),
    ]
    if grows:
        steps = st.lists(st.integers(0, 9), min_size=1, max_size=6)
        rules.append(st.fixed_dictionaries({"parents": steps}))
    if not packed:
        table = {
            "blocks": st.lists(
                st.booleans().map(lambda hidden: not hidden), min_size=1, max_size=7
            ),
            "block_size": st.one_of(st.integers(1, 20), st.sampled_from([16, 32, 64])),
            "of_heads": st.booleans(),
        }
        rules.append(st.fixed_dictionaries(table))
    one = st.one_of(rules)
    two = st.tuples(one, one).map(lambda both: {**both[0], **both[1]})
    # `one_of` takes equal strategies for one.
    return st.sampled_from([st.none(), one, one, one, two, two]).flatmap(lambda some: some)


def fitting(rules: Drawn | None, case: Case) -> dict[str, Any] | None:
    """Drop the rules that do not fit a case: a tree has a key of each query."""
    if rules is None:
        return None
    without = {"blocks", "block_size", "of_heads"} if case.packed else set()
    pairs = zip(case.lengths, case.key_lengths or case.lengths, strict=True)
    if any(t > s for t, s in pairs):
        without.add("parents")
    return {name: rule for name, rule in rules.items() if name not in without} or None


def resumable(rules: Drawn | None) -> dict[str, Any] | None:
    """Keep the rules that do not depend on which query comes first: a second call can go on."""
    apart = {"parents", "blocks", "block_size", "of_heads"}
    kept = {name: rule for name, rule in (rules or {}).items() if name not in apart}
    return kept or None


def build(
    case: Case, device: torch.device | str, order: Sequence[int] | None = None
) -> dict[str, Any] | None:
    """Build the argument `structure` of a case, its tensors in the layout that the case states.

    Args:
        order: numbers of its sequences, for a call of these alone or in another order.
    """
    rules = case.options.get("structure")
    if rules is None:
        return None
    order = range(case.sequences) if order is None else order
    of_all, keys_of_all = case.lengths, case.key_lengths or case.lengths
    keys = keys_of_all if case.packed else keys_of_all * case.sequences

    def value(name: str, rule: Any) -> Any:
        match name:
            case "document_ids":
                dtype = torch.int64 if case.seed % 2 else torch.int32
                ids = [_IDS[dtype][one] for n in order for one in _documents(rule, n, keys[n])]
                shape = (1, len(ids)) if case.packed else (len(order), keys_of_all[0])
                return torch.tensor(ids, dtype=dtype, device=device).view(shape)
            case "prefix":
                each = [min(rule[n % len(rule)], keys[n]) for n in order]
                return torch.tensor(each, dtype=torch.int32, device=device)
            case "parents":
                counts = [of_all[n] for n in order] if case.packed else of_all
                parents = [parent for count in counts for parent in _parents(rule, count)]
                return torch.tensor(parents, dtype=torch.int64, device=device)
            case "blocks":
                heads = case.dims["G"] * case.dims["R"] if rules["of_heads"] else 1
                rows, columns = (-(-n // rules["block_size"]) for n in (of_all[0], keys_of_all[0]))
                sizes = heads, rows, columns
                h, a, b = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
                bits = torch.tensor(rule)
                return bits[(3 * h + 5 * a + b) % len(bits)].to(device)
            case _:
                return rule

    made = {name: value(name, rule) for name, rule in rules.items() if name != "of_heads"}
    layout = case.layout_of("structure")
    if layout in OVERLAPPING:
        return made
    return {n: relaid(x, layout) if isinstance(x, torch.Tensor) else x for n, x in made.items()}


def changed(name: str, x: Tensor) -> Tensor:
    """Another tensor that the rule `name` takes in the place of `x`."""
    match name:
        case "document_ids":
            return (x + torch.arange(x.shape[-1], device=x.device)) % 3
        case "parents":
            return torch.full_like(x, -1)
        case "prefix":
            return torch.zeros_like(x)
        case _:
            return ~x


def _documents(lengths: Sequence[int], first: int, tokens: int) -> list[int]:
    """Ids, 0 to 2, of a sequence that begins with document `first`."""
    runs: Iterable[int] = islice(cycle(lengths), first % len(lengths), None)
    ids: list[int] = []
    for number, run in enumerate(runs):
        if len(ids) >= tokens:
            break
        ids += [number % 3] * run
    return ids[:tokens]


def _parents(steps: Sequence[int], tokens: int) -> list[int]:
    return [max(i - 1 - steps[i % len(steps)], -1) for i in range(tokens)]
