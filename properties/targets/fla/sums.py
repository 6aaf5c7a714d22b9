"""Sums over tokens in fla, and inverses of triangles."""

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.targets.bounds import changed_dims, power_of_two
from properties.targets.fla.library import Kernel
from properties.targets.fla.mode import Given, Mode, Modes, Outputs, output_alone


def _sums(kernel: Kernel, given: Given) -> Outputs:
    y: Tensor = kernel(**given, output_dtype=None)
    return y


def _triangle(kernel: Kernel, given: Given) -> Outputs:
    """The chunk of a token above its diagonal must be zero."""
    A = given["A"]
    bounds = given.get("cu_seqlens")
    token = torch.arange(A.shape[1], device=A.device)
    if bounds is not None:
        token = token - bounds[torch.bucketize(token, bounds, right=True) - 1]
    below = token[:, None] % A.shape[-1] > torch.arange(A.shape[-1], device=A.device)
    return _sums(kernel, {**given, "A": A.where(below[:, None], 0)})


def _chunks(case: Case) -> Case:
    """A chunk is one block of Triton, which has 2^20 numbers at most."""
    size = min(case.options.get("chunk_size") or 64, 256)
    return case.with_options(chunk_size=power_of_two(size))


_CHUNKS = {"a chunk_size that is a power of two, 256 at most": _chunks}
MODES: Modes = {
    "cumsum": {
        "fused": Mode(
            "fla.ops.utils.cumsum:chunk_global_cumsum",
            call=_sums,
            theirs={"x": "s"},
            conventions=(),
            forward_only=True,
        ),
        "chunk": Mode(
            "fla.ops.utils.cumsum:chunk_local_cumsum",
            call=_sums,
            theirs={"x": "g"},
            conventions=(),
            bounds=_CHUNKS,
            forward_only=True,
        ),
    },
    "mean_pooling": {
        "fused": Mode(
            "fla.ops.utils.pooling:mean_pooling",
            call=output_alone,
            conventions=(),
            bounds=_CHUNKS,
        )
    },
    "solve_tril": {
        "fused": Mode(
            "fla.ops.utils.solve_tril:solve_tril",
            call=_triangle,
            conventions=("numbers on and above the diagonal are zeroed: fla reads them",),
            bounds={"C of 16, 32 or 64": changed_dims("C", lambda n: max(16, power_of_two(n)))},
            forward_only=True,
        )
    },
}
