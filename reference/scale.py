"""The one place in the reference that decides what `scale` means."""

import sys

SENTINEL = -1
# For the docstrings of ops.
BAD_SCALE = "a scale that is NaN or infinite"


def resolve_scale(scale: float | None, key_dim: int) -> float:
    """The factor in front of `q · k`, as a plain number.

        scale = K ** -0.5   if scale is None or scale == -1
                scale       otherwise, literally: 0 and other negative numbers too

    Args:
        scale: a finite real number, the sentinel -1, or None.
        key_dim: K, the width of a query and of a key.

    Returns:
        The factor, a float.

    Raises:
        TypeError: `scale` is neither an int nor a float, or is a bool.
        ValueError: `scale` is NaN or infinite; `key_dim` is below 1.
    """
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, (int, float))):
        raise TypeError(f"scale: {scale!r}, expected a finite number, -1 or None")
    if scale is not None and not abs(scale) <= sys.float_info.max:
        raise ValueError(f"scale: {scale!r}, expected a finite number, -1 or None")
    if key_dim < 1:
        raise ValueError(f"key_dim: {key_dim}, expected at least 1")
    if scale is None or scale == SENTINEL:
        return float(key_dim**-0.5)
    return float(scale)
