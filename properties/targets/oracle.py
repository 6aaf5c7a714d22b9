"""The oracles as a target, which every law must accept.

Each head of each sequence is computed alone in float64, and results are rounded once. So their bits
do not depend on layout, order, neighbours, or what else the call requests.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from properties.cases.contexts import AROUND_BACKWARD, CONTEXTS
from properties.cases.values import COTANGENTS
from properties.catalogue.op import Function, Op
from properties.targets.target import Target


class Oracle(Target):
    name = "oracle"
    new_results = False
    # Autograd's own products are rounded where a backward pass runs under autocast.
    contexts = tuple(name for name in CONTEXTS if name not in ("compiled", *AROUND_BACKWARD))
    cotangents = tuple(COTANGENTS)

    def modes(self, op: Op) -> tuple[str, ...]:
        return tuple(mode.name for mode in op.modes_or_reference)

    def function(self, op: Op) -> Function:
        def implementation(
            *, mode: str, tile: int | None, **given: Any
        ) -> Tensor | tuple[Tensor | None, ...]:
            _check(op, mode, tile, given)
            return compute(op, given)

        return implementation


def compute(op: Op, given: dict[str, Any]) -> Tensor | tuple[Tensor | None, ...]:
    with _without_autocast(given):
        return _compute(op, given)


def _without_autocast(given: Mapping[str, Any]) -> torch.autocast:
    """Disable autocast, which only kernels must handle; some PyTorch operations refuse float16
    under it.
    """
    tensors = [x for x in given.values() if isinstance(x, Tensor)]
    return torch.autocast(tensors[0].device.type if tensors else "cpu", enabled=False)


def _check(op: Op, mode: str, tile: object, given: Mapping[str, Any]) -> None:
    """Raise the errors that kernels raise, then those of the oracle."""
    names = [m.name for m in op.modes_or_reference]
    if mode not in names:
        raise ValueError(f"mode: {mode!r}, expected one of {', '.join(names)}")
    if tile is not None:
        raise ValueError(f"tile: {tile!r}, expected None, as an oracle has no tiles")
    for name in op.mode(mode).refuses:
        if given.get(name) is not None and given[name] is not False:
            raise ValueError(f"{name}: given, expected a mode other than {mode}")
    for name, x in given.items():
        if isinstance(x, Tensor) and x.dtype == torch.float64:
            raise TypeError(f"{name}: float64, expected float32, bfloat16 or float16")
    check(op, given)
    dtype = given[op.arguments[0].name].dtype
    for name, x in given.items():
        if isinstance(x, Tensor) and x.dtype in {torch.bfloat16, torch.float16} - {dtype}:
            raise TypeError(f"{name}: {x.dtype}, expected float32 or {dtype}")


def check(op: Op, given: Mapping[str, Any]) -> None:
    """Raise the errors of the oracle about a call."""
    # A call in place writes to a copy of the same strides here.
    first = op.arguments[0].name
    in_place = given.get("inplace") is True and isinstance(given[first], Tensor)
    copied = {first: deepcopy(given[first].detach())} if in_place else {}
    with torch.no_grad(), _without_autocast(given):
        op.oracle(**{**given, **copied})


def _compute(op: Op, given: dict[str, Any]) -> Tensor | tuple[Tensor | None, ...]:
    tensors = {a.name: given[a.name] for a in op.arguments if given.get(a.name) is not None}
    first = op.arguments[0]
    dims: dict[str, int] = {}
    for a in op.arguments:
        if a.name in tensors:
            dims |= zip(a.dims.split(), tensors[a.name].shape, strict=True)
    bounds = [given.get(name) for name in op.packed_by] or [None]
    sequences = dims["B"] if bounds[0] is None else len(bounds[0]) - 1
    options = {n: v for n, v in given.items() if n not in (*tensors, *op.packed_by, "inplace")}
    rows = []
    if sequences == 0:
        rows.append(_each(op.oracle(**{n: v for n, v in given.items() if n != "inplace"})))
    double = {n: x.double() if x.is_floating_point() else x for n, x in tensors.items()}
    apart = (dims.get("H") or 1) if op.heads_alike else 1
    for n in range(sequences):
        heads = []
        for h in range(apart):
            piece = {
                a.name: _piece(a.dims, double[a.name], n, h, apart, bounds)
                for a in op.arguments
                if a.name in double
            }
            own: dict[str, Any] = {
                k: v[n : n + 1] if isinstance(v, Tensor) else v for k, v in options.items()
            }
            if own.get("structure"):
                own["structure"] = _rules(own["structure"], n, h, apart, bounds)
            heads.append(_each(op.oracle(**piece, **own)))
        rows.append(_joined(op, heads, "H") if apart > 1 else heads[0])
    along = ("B",) if bounds[0] is None else ("T", *op.rows)
    results = tuple(
        None if y is None else y.to(torch.float32 if o.dtype == "float32" else _dtype(op, tensors))
        for o, y in zip(op.outputs, _joined(op, rows, *along, "N"), strict=True)
    )
    if given.get("inplace"):
        return given[first.name].copy_(results[0])  # type: ignore[no-any-return]
    return results if len(results) > 1 else results[0]  # type: ignore[return-value]


def _each(returned: Tensor | tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


def _dtype(op: Op, tensors: Mapping[str, Tensor]) -> torch.dtype:
    return tensors[op.arguments[0].name].dtype


def _piece(dims: str, x: Tensor, n: int, h: int, heads: int, bounds: list[Tensor | None]) -> Tensor:
    """One head of one sequence; a query head reads its kv head."""
    packed = bounds[0] is not None
    for axis, dim in enumerate(dims.split()):
        if dim[0] == "#":
            # A size of 1 stands for all.
            dim = "1" if x.shape[axis] == 1 else dim[1:]
        if dim == "N" or (dim == "B" and not packed):
            x = x.narrow(axis, n, 1)
        elif dim in "HG" and heads > 1:
            x = x.narrow(axis, h * x.shape[axis] // heads, 1)
        elif dim in "TS" and packed:
            cu_seqlens = bounds[-1] if dim == "S" and bounds[-1] is not None else bounds[0]
            assert cu_seqlens is not None
            start, stop = cu_seqlens[n : n + 2].tolist()
            x = x.narrow(axis, start, stop - start)
    return x.contiguous()


def _rules(
    rules: Mapping[str, Any], n: int, h: int, heads: int, bounds: list[Tensor | None]
) -> dict[str, Any]:
    """The structure of one head of one sequence."""
    dims = {"document_ids": "B S", "prefix": "N", "blocks": "#H 1 1"}
    if bounds[0] is not None:
        dims["parents"] = "T"
    return {
        name: _piece(dims[name], rule, n, h, heads, bounds) if name in dims else rule
        for name, rule in rules.items()
    }


def _joined(
    op: Op, parts: list[tuple[Tensor | None, ...]], *along: str
) -> tuple[Tensor | None, ...]:
    """Concatenate each output along its dim among `along`."""
    joined: list[Tensor | None] = []
    for output, each in zip(op.outputs, zip(*parts, strict=True), strict=True):
        axis = next(a for a, dim in enumerate(output.dims.split()) if dim in along)
        present = [y for y in each if y is not None]
        joined.append(torch.cat(present, axis) if present else None)
    return tuple(joined)


def target(device: torch.device) -> Oracle:
    return Oracle()
