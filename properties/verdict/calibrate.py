"""Measure what part of their budgets correct kernels use, and how often wrong ones are caught.

python -m properties.verdict.calibrate --runs 160
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import reference
from properties.arguments import count
from properties.catalogue.telescope import Telescope
from properties.verdict.budgets import budgets
from properties.verdict.compare import Comparison, compare
from properties.verdict.computation import Computation
from properties.verdict.emulation import (
    Arithmetic,
    gated_linear_attention,
    linear_attention,
    recurrent_linear_attention,
    softmax_attention,
)
from properties.verdict.precision import BFLOAT16, FLOAT16, FLOAT32, TF32
from properties.verdict.sigma import DRAWS, OracleFunction, Tensors

PRECISIONS = {"float32": FLOAT32, "tf32": TF32, "bfloat16": BFLOAT16, "float16": FLOAT16}
KERNELS = ("linear", "recurrent", "gla", "softmax", "large_logits")
PLANTS = ("missing_key", "scale_sign", "window", "last_tile", "float16_accumulator")

_DG = Telescope("dg", "B T H K", (("B T H K", "q", "dq"), ("B T H K", "k", "dk")))


@dataclass(frozen=True)
class Trial:
    """One problem, whose sizes come from its seed."""

    kernel: str
    precision: str
    seed: int
    plant: str | None = None

    def comparisons(self, *, draws: int = DRAWS) -> list[Comparison]:
        """Compare every result of the emulated kernel."""
        generator = torch.Generator().manual_seed(self.seed)
        tensors, window = _problem(self, generator)
        T, K = tensors["q"].shape[1], tensors["q"].shape[3]
        storage = tensors["q"].dtype
        exact = {name: x.double() for name, x in tensors.items()}
        multilinear = self.kernel in ("linear", "recurrent", "gla")
        oracle = _oracle(self.kernel, window)
        want = oracle(exact)
        got = _kernel(self, tensors, window, generator)
        how = Computation(
            precision=PRECISIONS[self.precision],
            output_dtypes={name: x.dtype for name, x in got.items()},
            terms=T + K,
            gates=("g",),
            telescopes=(_DG,) if self.kernel == "gla" else (),
            float32_logits=not multilinear,
        )
        absolute = oracle if multilinear else None
        allowed = budgets(oracle, exact, want, how, absolute=absolute, draws=draws, seed=self.seed)
        assert all(x.dtype == storage or n in ("lse", "dg") for n, x in got.items())
        return [compare(name, x, want[name], allowed[name]) for name, x in got.items()]


def _drawn(generator: torch.Generator, *choices: int) -> int:
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def _problem(trial: Trial, generator: torch.Generator) -> tuple[dict[str, Tensor], int | None]:
    """Inputs, a cotangent and the window of a problem with at most 129 tokens."""
    T = _drawn(generator, 16, 17, 33, 63, 64, 65, 100, 129)
    H, K, V = (_drawn(generator, *sizes) for sizes in ((1, 2), (5, 16, 40, 64), (7, 16, 33, 64)))
    widths = {"q": K, "k": K, "v": V, "do": V}
    tensors = {n: torch.randn(1, T, H, width, generator=generator) for n, width in widths.items()}
    if trial.kernel == "large_logits":
        tensors["q"], tensors["k"] = 4 * tensors["q"], 4 * tensors["k"]
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(trial.precision)
    tensors = {n: x.to(dtype or torch.float32) for n, x in tensors.items()}
    if trial.kernel == "gla":
        gate = 2 * torch.randn(1, T, H, K, generator=generator) + 1
        tensors["g"] = torch.nn.functional.logsigmoid(gate)
    window = None
    if trial.plant == "window" or (trial.kernel == "softmax" and trial.seed % 2):
        window = _drawn(generator, 2, 5, 11, 15)
    return tensors, window


def _oracle(kernel: str, window: int | None) -> OracleFunction:
    def oracle(tensors: Tensors) -> dict[str, Tensor]:
        def forward(inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
            if kernel in ("softmax", "large_logits"):
                o, lse = reference.attention(**inputs, causal=True, window=window, return_lse=True)
                assert lse is not None
                return o, {"lse": lse}
            op: Any = reference.gla if kernel == "gla" else reference.linear_attn
            return op.second_form(**inputs)[0], {}

        inputs = {n: x for n, x in tensors.items() if n != "do"}
        o, pull, *rest = torch.func.vjp(forward, inputs, has_aux=True)
        (gradients,), (extra,) = pull(tensors["do"]), rest
        return {"o": o, **{f"d{n}": x for n, x in gradients.items()}, **extra}

    return oracle


def _kernel(
    trial: Trial, tensors: dict[str, Tensor], window: int | None, generator: torch.Generator
) -> dict[str, Tensor]:
    """Run the emulated kernel, with the planted error."""
    T, K = tensors["q"].shape[1], tensors["q"].shape[3]
    run = Arithmetic(tensors["q"].dtype, generator, tf32=trial.precision == "tf32")
    scale = -(K**-0.5) if trial.plant == "scale_sign" else K**-0.5
    if trial.plant == "float16_accumulator":
        run.accumulator = torch.float16
    gone = slice(0, 0)
    if trial.plant == "missing_key":
        key = int(torch.randint(T, (), generator=generator))
        gone = slice(key, key + 1)
    elif trial.plant == "last_tile":
        gone = slice((T - 1) // run.block * run.block, T)
    if trial.kernel in ("softmax", "large_logits"):
        i, j = torch.arange(T)[:, None], torch.arange(T)
        wrong = 1 if trial.plant == "window" else 0
        visible = (j <= i) & (i - j < (T + 1 if window is None else window + wrong))
        visible[:, gone] = False
        # Each row keeps a visible key; a row without one is not the planted error.
        visible[:, 0] |= ~visible.any(1)
        return softmax_attention(run, tensors, scale, visible)
    if gone.stop:
        tensors = {**tensors, "v": tensors["v"].clone()}
        tensors["v"][:, gone] = 0
    if trial.kernel == "recurrent":
        return recurrent_linear_attention(run, tensors, scale)
    kernel = gated_linear_attention if trial.kernel == "gla" else linear_attention
    return kernel(run, tensors, scale)


def trials(kernel: str, precision: str, runs: int, plant: str | None = None) -> Iterator[Trial]:
    return (Trial(kernel, precision, seed, plant) for seed in range(runs))


def plants_of(kernel: str) -> tuple[str, ...]:
    """The errors that can be planted in a kernel."""
    if kernel == "recurrent":
        return ("missing_key", "scale_sign")
    if kernel in ("softmax", "large_logits"):
        return PLANTS
    return tuple(plant for plant in PLANTS if plant != "window")


class Caught(NamedTuple):
    """Whether an element exceeds its budget, and whether anything at all is reported."""

    by_element: bool
    at_all: bool


def caught(comparisons: list[Comparison]) -> Caught:
    by_element = any(bool(c.wrong.any()) for c in comparisons)
    return Caught(by_element, any(not c.passed for c in comparisons))


def main(show: Callable[[str], None] = print) -> None:
    parse = argparse.ArgumentParser(
        prog="python -m properties.verdict.calibrate",
        description=(__doc__ or "").partition("\n")[0],
    )
    parse.add_argument("--runs", type=count, default=40, help="problems in each row (default: 40)")
    for name, known in (("kernel", KERNELS), ("precision", tuple(PRECISIONS))):
        parse.add_argument(
            f"--{name}", action="append", choices=known, help=f"only this {name} (repeatable)"
        )
    chosen = parse.parse_args()
    for kernel in chosen.kernel or KERNELS:
        for precision in chosen.precision or PRECISIONS:
            worst: dict[str, float] = {}
            losses: list[float] = []
            alarms = 0
            for trial in trials(kernel, precision, chosen.runs):
                found = trial.comparisons()
                alarms += caught(found).at_all
                losses += [c.loss for c in found]
                for c in found:
                    worst[c.name] = max(worst.get(c.name, 0.0), c.ratio)
            ratios = " ".join(f"{n} {r:.2f}" for n, r in worst.items())
            show(
                f"{kernel:12} {precision:8} correct: {alarms} alarms of {chosen.runs}, "
                f"loss <= {max(losses):.2f}, worst error/budget {ratios}"
            )
            for plant in plants_of(kernel):
                outcomes = [
                    caught(replace(t, plant=plant).comparisons())
                    for t in trials(kernel, precision, chosen.runs)
                ]
                by_element, at_all = (sum(o) / len(outcomes) for o in zip(*outcomes, strict=True))
                show(
                    f"{'':21} {plant:20} caught {at_all:.0%}, by a single element {by_element:.0%}"
                )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
