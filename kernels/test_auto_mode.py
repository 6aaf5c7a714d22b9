"""Tests of the mode that `auto` chooses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import delta_rule, gla, iplr, linear_attn
from kernels.recurrence import REGISTERED


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes that run, none of which computes anything."""
    modes: list[str] = []

    def register(op: str, mode: str) -> None:
        def run(**_: Any) -> tuple[None, None]:
            modes.append(mode)
            return None, None

        monkeypatch.setitem(REGISTERED, (op, mode), run)

    for op, mode in REGISTERED:
        register(op, mode)
    return modes


@pytest.mark.parametrize("op", [linear_attn, delta_rule])
@pytest.mark.parametrize(
    ("batch", "tokens", "boundaries", "mode"),
    [
        (1, 64, None, "fused_recurrent"),
        (1, 65, None, "chunk"),
        (2, 64, None, "fused_recurrent"),
        (2, 65, None, "chunk"),
        (1, 128, [0, 10, 128], "fused_recurrent"),
        (1, 129, [0, 10, 129], "chunk"),
    ],
)
def test_sequences_of_up_to_64_tokens_on_average_are_walked_over(
    op: Callable[..., Any],
    batch: int,
    tokens: int,
    boundaries: list[int] | None,
    mode: str,
    called: list[str],
) -> None:
    x = torch.zeros(batch, tokens, 1, 4)
    cu_seqlens = None if boundaries is None else torch.tensor(boundaries)
    op(x, x, x, cu_seqlens=cu_seqlens)
    assert called == [mode]


@pytest.mark.parametrize("tokens", [65, 2**17])
@pytest.mark.parametrize("option", ["reverse", "gv"])
def test_what_one_mode_alone_can_do_runs_there(option: str, tokens: int, called: list[str]) -> None:
    x = torch.zeros(1, tokens, 1, 4)
    gla(x, x, x, x, **{option: True if option == "reverse" else x})
    assert called == ["fused_recurrent"]


def test_a_wrapper_takes_a_tile_of_the_mode_that_is_chosen(called: list[str]) -> None:
    x = torch.zeros(1, 65, 1, 4)
    iplr(x, x, x, x, x, tile=5)  # A walk over the tokens has two tiles.
    assert called == ["chunk"]
