"""Which operations of `fla.ops` run: a row per public operation and mode."""

import inspect
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from properties.simulator import SimulationError
from properties.simulator.writer import Unsupported
from properties.targets.fla.operations import Call, arguments

HEADER = "| operation | mode | forward | backward | packed | why not |\n" + "|---" * 6 + "|"


@dataclass(frozen=True)
class Support:
    """Whether a function "runs", fails ("no"), or is absent from fla ("none")."""

    operation: str
    mode: str
    forward: str
    backward: str
    packed: str
    remarks: tuple[str, ...] = ()

    def heading(self) -> str:
        return f"| `{self.operation}` | {self.mode} | "

    def line(self) -> str:
        cells = (self.forward, self.backward, self.packed, "; ".join(self.remarks))
        return f"{self.heading()}{' | '.join(cells)} |"


def support(call: Call, device: torch.device) -> Support:
    """Run a function: on a batch, backward, and packed."""
    packable = inspect.signature(call.load()).parameters.get("cu_seqlens")
    only_packed = packable is not None and packable.default is inspect.Parameter.empty
    forward, *remarks = _forward(call, device, packed=only_packed)
    backward = packed = forward
    if forward == "runs":
        backward, *more = _backward(call, device, packed=only_packed)
        remarks += more
        if packable is None:
            packed = "none"
        else:
            whole = _backward if backward == "runs" else _forward
            packed, *more = whole(call, device, packed=True)
            remarks += [f"packed: {remark}" for remark in more if remark not in remarks]
    return Support(call.operation, call.mode, forward, backward, packed, tuple(remarks))


def _forward(call: Call, device: torch.device, *, packed: bool) -> tuple[str, ...]:
    """The result of the forward pass, and remarks."""
    try:
        with torch.no_grad():
            outputs = _called(call, arguments(call, device, packed=packed))
    except Exception as error:
        return _absence(error), _reason(error)
    wrong = [str(n) for n, y in enumerate(outputs) if not y.isfinite().all()]
    return ("runs", f"output {' and '.join(wrong)} is not finite") if wrong else ("runs",)


def _backward(call: Call, device: torch.device, *, packed: bool) -> tuple[str, ...]:
    """The result of the backward pass through every differentiable output, and remarks."""
    given = arguments(call, device, packed=packed)
    try:
        outputs = [y for y in _called(call, given) if y.requires_grad]
        if not outputs:
            return "none", "its outputs have no history"
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    except Exception as error:
        return _absence(error), _reason(error)
    gradients = {n: x.grad for n, x in given.items() if isinstance(x, Tensor) and x.requires_grad}
    wrong = [n for n, dx in gradients.items() if dx is not None and not dx.isfinite().all()]
    remarks = [f"gradient of {n} is not finite" for n in wrong]
    constants = [f"`{n}`" for n, dx in gradients.items() if dx is None]
    if constants:
        remarks.append(f"no gradient of {', '.join(constants)}")
    return "runs", *remarks


def _called(call: Call, given: dict[str, Any]) -> list[Tensor]:
    """Every tensor that the function returns, however nested."""
    found: list[Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            for part in value:
                collect(part)

    collect(call.load()(**given))
    return found


def _absence(error: Exception) -> str:
    """ "none" if fla says that it has no such thing, else "no"."""
    theirs = isinstance(error, NotImplementedError) and not isinstance(error, Unsupported)
    return "none" if theirs else "no"


def _reason(error: Exception) -> str:
    """The first sentence of an error, shortened, without this machine's paths."""
    if isinstance(error, SimulationError):
        return f"{error.what} in kernel `{error.kernel}`: `{error.location.text}`"
    text = str(error).splitlines()[0].split(", at /")[0]
    return shorten(text.split(". ")[0].rstrip("."), 80, placeholder=" ...")
