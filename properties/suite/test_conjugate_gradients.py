"""The two ways in which MesaNet's systems are solved: most by iteration, hard ones directly."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import tiles
from kernels.delta import mesa_net
from properties.laws import Subject
from reference import mesa_net as oracle


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """For each system of the calls to come, whether the iteration solved it."""
    seen: list[Tensor] = []
    iterated = mesa_net._iterated

    def watched(*args: Any) -> None:
        iterated(*args)
        seen.append(args[-1].clone())

    monkeypatch.setattr(mesa_net, "_iterated", watched)
    return seen


@pytest.mark.parametrize(("ridge", "all_solved"), [(1.0, True), (1e-3, False)])
def test_systems_that_iteration_leaves_are_solved_directly(
    ridge: float, all_solved: bool, solved: list[Tensor], subject: Subject
) -> None:
    """With 16 keys or fewer the condition of a system is about 16 over the ridge."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 40, 1, 16, generator=generator) for _ in "qkv")
    inputs = q, k, v, torch.full((1, 16), ridge)
    table = tiles.TABLE["mesa_net", "chunk"]
    [iterates] = [tile for tile, entry in enumerate(table) if "iterate" in entry.kernels]
    [direct, *_] = [tile for tile, entry in enumerate(table) if "iterate" not in entry.kernels]
    expected = oracle(*(x.double() for x in inputs))[0]

    def error(tile: int) -> Tensor:
        o, _ = mesa_net.mesa_net(*(x.to(subject.device) for x in inputs), tile=tile)
        off: Tensor = (o.double().cpu() - expected).norm(dim=-1) / expected.norm(dim=-1)
        return off

    assert (error(iterates) <= 2 * error(direct) + 1e-6).all()
    [of_rows] = solved
    by_token = of_rows[:40].bool()
    assert by_token.any()
    assert by_token.all() == all_solved
