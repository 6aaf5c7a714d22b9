"""Choose the mode of an op."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kernels.arguments import check_choice

# Up to this many tokens a sequence, on average if packed, one recurrent kernel is faster than the
# several launches of a chunk form.
_SHORT = 64


def check_mode(mode: str, *modes: str) -> None:
    """Refuse a mode that is neither "auto" nor one of `modes`."""
    check_choice("mode", mode, "auto", *modes)


def choose_mode(
    mode: str,
    modes: Sequence[str],
    *,
    tokens: int,
    sequences: int,
    recurrent_only: Mapping[str, bool] = MappingProxyType({}),
) -> str:
    """Return the mode to run: `mode` itself, or the choice of "auto".

    Args:
        mode: one of `modes`, or "auto": the only one, or chunk for long sequences if there is one,
            fused_recurrent otherwise.
        tokens, sequences: how many there are in all.
        recurrent_only: arguments that fused_recurrent alone takes, and whether they are given.

    Raises:
        TypeError: a mode that is no str.
        ValueError: no such mode, or one that does not take an argument that is given.
    """
    if mode == "auto" and len(modes) == 1:
        return modes[0]
    if mode == "auto":
        long = tokens > _SHORT * sequences
        chunked = "chunk" in modes and not any(recurrent_only.values())
        return "chunk" if long and chunked else "fused_recurrent"
    check_mode(mode, *modes)
    if mode != "fused_recurrent":
        for argument, given in recurrent_only.items():
            if given:
                raise ValueError(
                    f"{argument}: given with mode {mode!r}, which has no {argument}; "
                    "expected mode 'fused_recurrent' or 'auto'"
                )
    return mode
