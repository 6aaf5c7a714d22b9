"""Groups of heads: several heads read the same keys."""

from collections.abc import Sequence


def heads_per_group(
    name: str, heads: int, groups: int, shared: Sequence[str], called: str = "heads"
) -> int:
    """Return H / G: head h reads group h // (H / G).

    Args:
        name: the argument with H heads, for the message.
        heads: H.
        groups: G.
        shared: the arguments with G groups, for the message.
        called: the name of these groups in the message.

    Raises:
        ValueError: H is no multiple of G that is 1 or more.
    """
    if heads == 0 or groups == 0 or heads % groups:
        wanted = f"a positive multiple of the {groups} {called} of {' and '.join(shared)}"
        raise ValueError(f"{name}: {heads} heads, expected {wanted}")
    return heads // groups
