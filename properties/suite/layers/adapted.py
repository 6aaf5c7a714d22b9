"""Rotary embeddings of a target that make their tables, compared with tables in float64."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor

import reference
from properties.suite.caches.calls import context
from properties.suite.caches.machine import DTYPES
from properties.suite.layers.scalings import KINDS, factors
from properties.targets import Target
from properties.targets.modules import Rotary, Unsupported, has, made

ORIGINALS = (64, 4096)
# Tables are longer in some calls than in those before.
STARTS = st.sampled_from([0, 3, 60, 250, 1000, 4090, 5000])
LENGTH = 5010


Scaling = str | Mapping[str, Any]


def scalings(make: Callable[..., Rotary]) -> tuple[Scaling, ...]:
    """The scalings that it has: types, of which factors are drawn, or one with its factors."""
    known: tuple[Scaling, ...] = getattr(make, "scalings", KINDS)
    return known if has(make, "scaling") else ("default",)


def check(
    draw: st.DataObject, make: Callable[..., Rotary], kind: Scaling, device: torch.device
) -> None:
    """Make a rotary embedding and call it several times: no call may depend on those before."""
    pairs, unrotated = draw.draw(st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 3])), "pairs")
    scaling = factors(kind, pairs, ORIGINALS) if isinstance(kind, str) else st.just(kind)
    told = {
        "head_dim": 2 * pairs + (unrotated if has(make, "rotary_dim") else 0),
        "rotary_dim": 2 * pairs,
        "base": draw.draw(st.sampled_from([10_000.0, 500.0, 5e6]), "base"),
        "scaling": draw.draw(scaling, "scaling"),
        "interleaved": draw.draw(st.booleans(), "interleaved"),
        "length": LENGTH,
        "dtype": draw.draw(st.sampled_from(DTYPES), "dtype"),
        "device": device,
    }
    defaults = {
        "base": 10_000.0,
        "interleaved": getattr(make, "interleaved", False),
        "dtype": torch.float32,
    }
    told |= {name: value for name, value in defaults.items() if not has(make, name)}
    try:
        module = made(make, told)
    except Unsupported:
        reject()
    call = st.tuples(
        STARTS, st.integers(1, 5), st.sampled_from(Target.contexts), st.integers(0, 2**16)
    )
    calls = st.lists(call, min_size=2, max_size=3)
    for start, tokens, name, seed in draw.draw(calls, "calls: start, tokens, context, seed"):
        with context(name, device):
            _check_call(module, told, start, tokens, seed)


def _check_call(module: Any, told: dict[str, Any], start: int, tokens: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    device, dtype = told["device"], told["dtype"]
    x, dy = torch.randn(2, 2, tokens, 2, told["head_dim"], generator=generator).to(device, dtype)
    x.requires_grad_(torch.is_grad_enabled())
    positions = torch.arange(start, start + tokens, device=device).expand(2, -1)
    if has(module.rotate, "offset"):
        y = module.rotate(x.clone(), offset=start)
    else:
        # Rows of a batch differ, as where prompts are padded.
        positions = torch.stack([positions[0], positions[1].flip(0) // (1 + seed % 2)])
        y = module.rotate(x.clone(), position_ids=positions.clone())
    cos, sin = reference.rotary_tables(
        int(positions.max()) + 1, told["rotary_dim"], base=told["base"], scaling=told["scaling"],
        dtype=torch.float64, device=device,
    )  # fmt: skip
    want = reference.rotary_embedding(
        x.double(), cos, sin, positions, interleaved=told["interleaved"]
    )
    found = [("y", x, y, want)]
    if torch.is_grad_enabled():
        dx, wanted = (torch.autograd.grad(o, x, dy.to(o.dtype))[0] for o in (y, want))
        found.append(("dx", dy, dx, wanted))
    for name, given, got, right in found:
        assert got.shape == x.shape, f"{name}: shape {list(got.shape)}, want {list(x.shape)}"
        assert got.dtype == dtype, f"{name} is {got.dtype}, want {dtype}"
        budget = _budget(given.detach(), positions, told, (cos**2 + sin**2).amax().sqrt())
        got, right = got.detach(), right.detach()
        wrong = ((got.double() - right).abs() > budget).nonzero()
        if len(wrong):
            at = tuple(wrong[0].tolist())
            n, t, h, d = at
            raise AssertionError(
                f"position {int(positions[n, t])}, head {h}, dim {d} of {name} is rotated "
                f"otherwise: got {float(got[at]):.6g}, want {float(right[at]):.6g}"
            )


def _budget(x: Tensor, positions: Tensor, told: dict[str, Any], factor: Tensor) -> Tensor:
    """Of x, rotated, at each position [B, T, 1, 1], where frequencies and angles are float32.

    A frequency is a power whose exponent, up to ln(base), is rounded; a ramp of YaRN is a quotient
    of differences of such numbers. Tables, two products and a sum are rounded to the dtype of x.
    """
    unit = torch.finfo(torch.float32).eps / 2
    angle = 16 * unit * (math.log(told["base"]) + 5) * positions.double()[..., None, None]
    rounding = 1.25 * torch.finfo(told["dtype"]).eps
    return 2 * x.double().abs().amax() * factor * (angle + rounding)
