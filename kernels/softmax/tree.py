"""Trees of queries, as of drafted tokens: a query sees its ancestors and itself."""


def check_tree(name: str, parents: list[int], keys: int) -> None:
    """Refuse what is no tree of the last tokens of a sequence with a ValueError.

    Args:
        name: of the argument, for the message.
        parents: of each query an earlier one, or -1.
        keys: of the sequence, those of the queries included.
    """
    if len(parents) > keys:
        raise ValueError(
            f"{name}: {len(parents)} queries of a sequence of {keys} keys, expected no more "
            "queries than keys"
        )
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise ValueError(f"{name}: {parent} of query {i}, expected -1 to {i - 1}")


def walk(parents: list[int]) -> tuple[list[int], list[int]]:
    """When a depth-first walk of a tree enters each node, and when it has met its descendants.

    Node a is an ancestor of i, or i itself, if and only if `enter[a] <= enter[i] < leave[a]`.
    """
    # The last entries are those of the forest: the parent of a root is -1.
    sizes, free = [1] * (len(parents) + 1), [0] * (len(parents) + 1)
    for node in reversed(range(len(parents))):
        sizes[parents[node]] += sizes[node]
    enter = []
    for node, parent in enumerate(parents):
        enter.append(free[parent])
        free[parent] += sizes[node]
        free[node] = enter[node] + 1
    return enter, [start + size for start, size in zip(enter, sizes, strict=False)]
