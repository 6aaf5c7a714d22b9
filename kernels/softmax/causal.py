"""What attention of a sequence with itself checks of its arguments and says of them."""

import functools
from collections.abc import Mapping

import torch
from torch import Tensor

from kernels import tiles
from kernels.arguments import check_cu_seqlens
from kernels.op import op
from kernels.scale import resolve_scale
from kernels.softmax.arguments import MAX_DIM, check_heads, check_mode

ABOUT = f"Differentiable once. Sums are float32. K and V are 1 to {MAX_DIM}."

# `op` with the words that pages of causal attention share.
causal_op = functools.partial(
    op,
    texts={"cu_seqlens": "int32 or int64. Boundaries of packed sequences."},
    raises=(
        f"K or V outside 1 to {MAX_DIM}",
        "H not a multiple of G",
        "a scale that is NaN or infinite",
        "a window below 1",
        "boundaries that do not delimit all tokens",
    ),
)


def checked(
    name: str,
    sizes: Mapping[str, int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    scale: float | None,
    cu_seqlens: Tensor | None,
    mode: str,
    tile: int | None,
) -> tuple[Tensor | None, float, int]:
    """Return the boundaries, the scale and the tile of a call, once its arguments are right."""
    check_heads({"G": sizes["H"], **sizes})
    check_mode(mode)
    cu_seqlens = check_cu_seqlens("cu_seqlens", cu_seqlens, sizes["B"], device)
    dim = max(sizes["K"], sizes["V"])
    tile = tiles.choose(name, "parallel", dim=dim, dtype=dtype, device=device, tile=tile)
    return cu_seqlens, resolve_scale(scale, sizes["K"]), tile
