"""The walk of a tree of drafted tokens."""

from itertools import product

import pytest

from kernels.softmax.tree import walk


@pytest.mark.parametrize("nodes", range(7))
def test_a_walk_tells_ancestors(nodes: int) -> None:
    """In every tree of so many nodes."""
    for parents in product(*(range(-1, i) for i in range(nodes))):
        enter, leave = walk([*parents])
        families: list[set[int]] = []
        for i, parent in enumerate(parents):
            families.append({i} if parent < 0 else {i, *families[parent]})
            told = {a for a in range(nodes) if enter[a] <= enter[i] < leave[a]}
            assert told == families[i]
