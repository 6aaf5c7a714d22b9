"""Keys of delta rules, which an option makes unit vectors."""

from typing import Any

from torch import Tensor

from reference.norm.l2norm import l2norm
from reference.recurrence import Run


def normalized_keys(
    run: Run,
    *,
    q: Tensor,
    k: Tensor,
    use_qk_l2norm_in_kernel: bool,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Divide q and k by their lengths, if `use_qk_l2norm_in_kernel` says so."""
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    return run(q=q, k=k, **arguments)
