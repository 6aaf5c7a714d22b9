"""Every window of a few queries and keys, with more of either.

A window wider than the keys may still hide some of them from a query without a key of its own.
"""

from dataclasses import replace

import pytest

from properties.catalogue import OPS
from properties.jobs import judge
from properties.laws import Subject

_TOKENS = [(6, 2), (2, 6), (4, 4)]


def _options(name: str) -> set[str]:
    return {option.name for option in OPS[name].options}


@pytest.mark.parametrize(("queries", "keys"), _TOKENS)
@pytest.mark.parametrize(
    ("name", "causal"),
    [
        (op.name, causal)
        for op in OPS.values()
        if op.own_keys and "window" in _options(op.name)
        for causal in ((False, True) if "causal" in _options(op.name) else (None,))
    ],
)
def test_every_window_agrees_with_the_oracle(
    name: str, causal: bool | None, queries: int, keys: int, subject: Subject
) -> None:
    op = OPS[name]
    dims = {letter: 1 if letter in "BGHR" else 4 for letter in op.dims}
    full = op.full(op.modes[0].name, dims, (queries,), packed=False)
    plain = replace(full, dtype="float32", given=())
    options = {**plain.options} | ({} if causal is None else {"causal": causal})
    for window in range(1, queries + keys + 2):
        given = {**options, "window": window}
        case = op.settle(replace(plain, key_lengths=(keys,), options=given))
        judge("differential", case, subject)


@pytest.mark.parametrize("window", [2, 18, 34, 66])
@pytest.mark.parametrize(
    "name",
    [op.name for op in OPS.values() if not op.own_keys and "window" in _options(op.name)],
)
def test_the_first_query_of_a_tile_sees_the_last_key_of_another(
    name: str, window: int, subject: Subject
) -> None:
    """Of tiles of 16, 32 or 64 tokens it sees all but one key in those that lie between."""
    op = OPS[name]
    dims = {letter: 1 if letter in "BGHR" else 4 for letter in op.dims}
    full = op.full(op.modes[0].name, dims, (140,), packed=False)
    plain = replace(full, dtype="float32", given=()).with_options(window=window)
    judge("differential", op.settle(plain), subject)
