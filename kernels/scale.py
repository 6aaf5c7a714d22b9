"""The one place of this package that decides what `scale` means."""

from kernels.arguments import check_number, is_finite

# For the docstrings of ops.
BAD_SCALE = "a scale that is NaN, or not finite in float32"


def resolve_scale(scale: float | None, key_dim: int) -> float:
    """Return the factor of `q · k`.

    None and the sentinel -1 mean `key_dim ** -0.5`. Every other number is taken literally, zero
    and other negatives included.

    Raises:
        TypeError: `scale` is not a real number or None.
        ValueError: `scale` is NaN, or not finite in float32; `key_dim` is below 1.
    """
    if key_dim < 1:
        raise ValueError(f"key_dim: {key_dim}, expected at least 1")
    if scale is None:
        return key_dim**-0.5
    check_number("scale", scale, optional=True)
    if not is_finite(scale):
        wanted = "a number that is finite in float32, or None for K ** -0.5"
        raise ValueError(f"scale: {scale}, expected {wanted}")
    if scale == -1:
        return key_dim**-0.5
    return float(scale)
