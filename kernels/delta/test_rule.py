"""What the laws do not say of delta rules: the choice of mode."""

import pytest
import torch

from kernels import delta_rule
from kernels.delta import rule


@pytest.mark.parametrize(
    ("batch", "tokens", "boundaries", "mode"),
    [
        (1, 64, None, "fused_recurrent"),
        (1, 65, None, "chunk"),
        (2, 64, None, "fused_recurrent"),
        (2, 65, None, "chunk"),
        (1, 128, [0, 10, 128], "fused_recurrent"),
        (1, 130, [0, 10, 130], "chunk"),
    ],
)
def test_auto_walks_over_sequences_of_up_to_64_tokens_on_average(
    batch: int,
    tokens: int,
    boundaries: list[int] | None,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    for name in ("chunk", "fused_recurrent"):

        def op(*_, name=name):
            called.append(name)
            return None, None

        monkeypatch.setitem(rule._OPS, ("delta_rule", name), op)
    x = torch.zeros(batch, tokens, 1, 4)
    cu_seqlens = None if boundaries is None else torch.tensor(boundaries)
    delta_rule(x, x, x, cu_seqlens=cu_seqlens)
    assert called == [mode]
