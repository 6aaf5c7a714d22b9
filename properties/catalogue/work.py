"""How many numbers the forms of an op hold at once for one sequence."""

from collections.abc import Mapping


def pairs(n: Mapping[str, int]) -> int:
    """The weight of each query and key."""
    return n["H"] * n["T"] * n["S"]


def pairs_and_states(n: Mapping[str, int]) -> float:
    """The weights of all pairs, and the state at each token, divided by 12: a budget takes about
    twelve runs, and only one is of the form that keeps all states."""
    return n["H"] * n["T"] * (n["T"] + n["K"] * n["V"] / 12)


def pairs_by_channel(n: Mapping[str, int]) -> float:
    """A decay for each pair of tokens and channel of the keys, divided by 3: a third as many
    operations take those as take the weights of pairs."""
    return n["H"] * n["T"] * (n["T"] * n["K"] + n["K"] * n["V"]) / 3
