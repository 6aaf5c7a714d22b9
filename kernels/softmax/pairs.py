"""The public functions of ops whose kernels take all pairs of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from kernels import arguments, tiles
from kernels.differentiable import Given
from kernels.modes import check_mode
from kernels.op import op, spelled_out
from kernels.scale import BAD_SCALE, resolve_scale
from kernels.signature import Signature
from kernels.softmax.arguments import (
    BAD_BOUNDARIES,
    MAX_DIM,
    check_heads,
    check_packing,
    check_window,
)

P = ParamSpec("P")
R = TypeVar("R")


def shapes(given: Given) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """The shape and dtype of the only output, o `[B, T, H, V]`; see `differentiable`."""
    q, v = given["q"], given["v"]
    return [((*q.shape[:3], v.shape[3]), q.dtype)]


def pairs(
    run: Callable[..., Any],
    *,
    about: str = "",
    outputs: Sequence[str] = ("o",),
    same_dtype: Sequence[str] = ("q", "k", "v"),
    raises: Sequence[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a public function of the signature below, whose annotations say what to check.

    It takes the queries first, `v`, `cu_seqlens`, `mode` and `tile`. Tensors outside `same_dtype`
    may be float32 as well.

    Args:
        run: takes every argument but `mode` by its name, checked: `scale` is a number, `tile` an
            index into `kernels.tiles.TABLE`, and `cu_seqlens_k` is given wherever `cu_seqlens` is.
            It reads and checks the values of both before it launches (`check_boundaries`).
        about, outputs, same_dtype: see `kernels.op.op`.
        raises: reasons for a ValueError that the signature does not give.

    Returns:
        A decorator of a signature without a body.
    """

    def decorate(page: Callable[P, R]) -> Callable[P, R]:
        parameters = spelled_out(page).parameters
        signature = _Signature.of(page, same_dtype, op=page.__name__)
        reasons = [f"K or V outside 1 to {MAX_DIM}"]
        reasons += [BAD_SCALE] if "scale" in parameters else []
        reasons += ["H not G, 2 G, 3 G, ..."] if signature.grouped else []
        reasons += ["a window below 1"] if "window" in parameters else []
        boundaries = BAD_BOUNDARIES if "cu_seqlens_k" in parameters else [arguments.BAD_BOUNDARIES]
        return op(
            lambda **given: run(**signature.check(given)),
            outputs=outputs,
            about=f"Differentiable once. Sums are float32. K and V are 1 to {MAX_DIM}. {about}",
            same_dtype=same_dtype,
            raises=[*reasons, *raises, *boundaries],
        )(page)

    return decorate


@dataclass(frozen=True)
class _Signature(Signature):
    """The signature of an op over pairs, whose first tensor has the queries."""

    op: str

    @property
    def grouped(self) -> list[str]:
        """The tensors that have the heads of the keys."""
        return [name for name, spec in self.dims.items() if "G" in spec.split()]

    def check(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that a call of the kernels takes, or raise for a wrong one."""
        sizes, dtype = self.check_tensors(given)
        queries, *_ = self.dims
        *others, last = self.grouped or ["k", "v"]
        keys = f"{', '.join(others)} and {last}"
        check_heads(sizes, queries=queries, keys=keys)
        (mode,) = self.modes
        check_mode(given["mode"], mode)
        checked = {name: x for name, x in given.items() if name != "mode"}
        if "scale" in given:
            checked["scale"] = resolve_scale(given["scale"], sizes["K"])
        if "window" in given:
            checked["window"] = check_window(given["window"])
        device, boundaries = given[queries].device, given["cu_seqlens"]
        if "cu_seqlens_k" in given:
            checked["cu_seqlens"], checked["cu_seqlens_k"] = check_packing(
                boundaries, given["cu_seqlens_k"], sizes, device
            )
        else:
            checked["cu_seqlens"] = arguments.check_cu_seqlens(
                "cu_seqlens", boundaries, sizes["B"], device
            )
        dim, tile = max(sizes["K"], sizes["V"]), given["tile"]
        checked["tile"] = tiles.choose(
            self.op, mode, dim=dim, dtype=dtype, device=device, tile=tile
        )
        return checked
