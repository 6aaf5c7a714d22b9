"""Unit round-offs and the limits of each floating-point format."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Precision:
    """How a kernel stores the operands of its products; sums are float32.

    Args:
        unit: largest relative error of one rounding to nearest, 2^-(digits).
        underflow: largest absolute error of one rounding of a subnormal number.
        operand_roundings: how often an operand is rounded on its way into a product.
        dtype: of the storage; None if no dtype has these numbers.
    """

    name: str
    unit: float
    underflow: float
    operand_roundings: int = 2
    dtype: torch.dtype | None = None

    def holds(self, x: torch.Tensor) -> bool:
        """Whether every number of `x` is stored exactly."""
        return self.dtype is not None and bool((x.to(self.dtype).to(x.dtype) == x).all())

    @property
    def coarse(self) -> bool:
        """Whether the storage loses more digits than the float32 accumulation."""
        return self.dtype in (torch.bfloat16, torch.float16)


# A product's operand is an intermediate result, rounded once when it is formed from rounded factors
# (a decayed key, an attention weight) and once when it is stored. TF32 rounds both factors again,
# and on some chips truncates, which doubles the error.
FLOAT32 = Precision("float32", 2.0**-24, 2.0**-126, dtype=torch.float32)
TF32 = Precision("tf32", 2.0**-11, 2.0**-126, operand_roundings=4)
BFLOAT16 = Precision("bfloat16", 2.0**-8, 2.0**-126, dtype=torch.bfloat16)
FLOAT16 = Precision("float16", 2.0**-11, 2.0**-25, dtype=torch.float16)

ACCUMULATOR = FLOAT32.unit
# A kernel may split an operand into two of 16 bits, which keep 16 of its bits at least.
_SPLIT = 2.0**-16

BY_DTYPE = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of rounding a real number to the nearest `dtype`."""
    return torch.finfo(dtype).eps / 2


def underflow(dtype: torch.dtype) -> float:
    """Largest absolute error of rounding a subnormal number.

    Half the smallest subnormal in float16, whose subnormals every GPU keeps. Other dtypes may be
    flushed to zero (by the approximate exponential, for one): all of the smallest normal number.
    """
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps / 2 if dtype == torch.float16 else info.smallest_normal


def finer_than(precision: Precision) -> tuple[Precision, ...]:
    """How else a kernel may store 16-bit operands: in two parts, or in float32."""
    if not precision.coarse:
        return ()
    return tuple(replace(precision, unit=unit) for unit in (_SPLIT, FLOAT32.unit))
