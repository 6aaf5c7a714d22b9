"""How many numbers the forms of an op hold at once for one sequence."""

from collections.abc import Mapping


def pairs(n: Mapping[str, int]) -> int:
    """The weight of each query and key."""
    return n["H"] * n["T"] * n["S"]


def pairs_and_states(n: Mapping[str, int]) -> float:
    """The weights of all pairs, and the state at each token; only one form keeps those, and only
    one of some twelve runs of an oracle for its budget is of that form."""
    return n["H"] * n["T"] * (n["T"] + n["K"] * n["V"] / 12)


def pairs_by_channel(n: Mapping[str, int]) -> float:
    """Each pair of tokens has a decay of its own per channel of the keys. Few operations see those,
    a third of those that see the weights of pairs."""
    return n["H"] * n["T"] * (n["T"] * n["K"] + n["K"] * n["V"]) / 3
