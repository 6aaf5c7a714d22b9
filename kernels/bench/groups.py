"""Groups of calls that are measured side by side."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.bench.baselines import KINDS, Contender, contenders, name_of
from kernels.bench.problems import PROBLEMS
from kernels.bench.shapes import Shape
from kernels.bench.timing import Ceilings, Timing

Call = Callable[[], tuple[Tensor, ...]]

PASSES = {False: "forward", True: "forward+backward"}
# Errors of a call that refuses its arguments before it computes anything.
_REFUSALS = (ValueError, NotImplementedError)


@dataclass(frozen=True)
class Row:
    """One line of the table; without a timing it says why there is none.

    Args:
        what: the pass.
        kind, mode: whose it is, and its name there.
        ratios: the time over that of the fastest of each kind of baseline, in the same group.
        floor: milliseconds that the bytes and the operations take at least.
        gigabytes_per_second, teraflops: bytes and operations over the time.
        first: seconds that a first call takes, where that was measured.
        error: the exception, and whether it is a refusal.
    """

    op: str
    shape: str
    what: str
    kind: str
    mode: str
    timing: Timing | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None
    gigabytes_per_second: float | None = None
    teraflops: float | None = None
    first: float | None = None
    error: str | None = None
    refused: bool = False

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Row":
        """From what `dataclasses.asdict` made of it."""
        timing = fields["timing"]
        return cls(**{**fields, "timing": None if timing is None else Timing(**timing)})

    @property
    def group(self) -> tuple[str, str, str]:
        """The properties that the rows of a group share."""
        return self.op, self.shape, self.what

    @property
    def name(self) -> str:
        """Mode, and before it whose it is."""
        return name_of(self.kind, self.mode)

    @property
    def of_floor(self) -> float | None:
        """How much of the time the floor is; 1 is as fast as can be."""
        if self.timing is None or self.floor is None:
            return None
        return self.floor / self.timing.median


@dataclass(frozen=True)
class Group:
    """An op on the same tensors, in several modes and as others have it."""

    op: str
    shape: Shape
    dtype: torch.dtype
    backward: bool
    modes: tuple[str, ...]
    against: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.op} {self.shape} {PASSES[self.backward]}"

    def contenders(self) -> list[Contender]:
        """The baselines first, then each mode."""
        problem = PROBLEMS[self.op]
        form = self.shape.form
        ours = [
            Contender("ours", mode, partial(problem.function, **problem.options, mode=mode))
            for mode in self.modes
        ]
        return contenders(self.op, self.against, form=form, backward=self.backward) + ours

    def calls(self, device: torch.device) -> list[tuple[Contender, Call]]:
        """A call returns the output, or in the backward pass the gradients of all inputs."""
        problem = PROBLEMS[self.op]
        inputs = problem.inputs(self.shape, self.dtype, device)
        options = {"output_final_state": True} if self.shape.form == "decode" else {}
        do = torch.randn_like(problem.output(inputs))
        leaves = [x for name, x in inputs.items() if name not in (*problem.constants, "cu_seqlens")]
        for x in leaves:
            x.requires_grad_(self.backward)

        def call(function: Callable[..., Any]) -> tuple[Tensor, ...]:
            returned = function(**inputs, **options)
            output = returned[0] if isinstance(returned, tuple) else returned
            if not self.backward:
                return (output,)
            if not output.requires_grad:
                raise NotImplementedError("no backward pass: the output has no history")
            return torch.autograd.grad(output, leaves, do)

        return [(one, partial(call, one.function)) for one in self.contenders()]

    def rows(
        self,
        device: torch.device,
        timing_of: Callable[[Call], Timing],
        ceilings: Ceilings,
        first_of: Callable[["Group", str, str], float | None] = lambda *_: None,
    ) -> Iterator[Row]:
        """A row for each contender as it is measured; one that fails does not stop the others.

        Args:
            first_of: the seconds of a first call, from the group, the kind and the mode.
        """
        problem = PROBLEMS[self.op]
        moved = problem.bytes(self.shape, self.dtype, self.backward)
        operations = problem.operations and problem.operations(self.shape, self.backward)
        named = (self.op, str(self.shape), PASSES[self.backward])
        try:
            calls = self.calls(device)
        except Exception as error:
            yield _without(Row(*named, "ours", "inputs"), error)
            return
        fastest: dict[str, float] = {}
        for one, call in calls:
            row = Row(*named, one.kind, one.mode)
            try:
                with one.around():
                    timing = timing_of(call)
                first = first_of(self, one.kind, one.mode)
            except Exception as error:
                yield _without(row, error)
                continue
            if one.kind in KINDS:
                fastest[one.kind] = min(timing.median, fastest.get(one.kind, timing.median))
            yield replace(
                row,
                timing=timing,
                ratios={kind: timing.median / least for kind, least in fastest.items()}
                if one.kind == "ours"
                else {},
                floor=ceilings.floor(moved, operations if operations and problem.products else 0),
                gigabytes_per_second=moved / timing.median / 1e6,
                teraflops=None if operations is None else operations / timing.median / 1e9,
                first=first,
            )


def _without(row: Row, error: Exception) -> Row:
    text = f"{type(error).__name__}: {error}".strip()
    return replace(row, error=text, refused=isinstance(error, _REFUSALS))
