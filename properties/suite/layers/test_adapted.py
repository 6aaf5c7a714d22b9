"""The check of a target's rotary embeddings notices bugs."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
from properties.profiles import drawn_only
from properties.suite.layers.adapted import Scaling, check, scalings
from properties.targets.modules import Unsupported


class _Rotary:
    """Tables of the reference; subclasses have bugs."""

    def __init__(
        self, head_dim: int, rotary_dim: int, base: float, scaling: Mapping[str, Any],
        interleaved: bool, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        if head_dim == 3:
            raise Unsupported("head_dim")
        self.options: dict[str, Any] = {"base": base, "scaling": scaling}
        self.rotary_dim, self.interleaved, self.dtype = rotary_dim, interleaved, dtype

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        return reference.rotary_tables(length, self.rotary_dim, **self.options)

    def rotate(self, x: Tensor, position_ids: Tensor) -> Tensor:
        cos, sin = self.tables(int(position_ids.max()) + 1)
        return reference.rotary_embedding(x, cos, sin, position_ids, interleaved=self.interleaved)


class _Remembers(_Rotary):
    """The tables of the longest call stay."""

    kept = 0

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        self.kept = max(self.kept, length)
        return super().tables(self.kept)


class _In16Bits(_Rotary):
    """Positions in the dtype of the model."""

    def rotate(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return super().rotate(x, position_ids.to(self.dtype).long())


class _WithoutFactor(_Rotary):
    """The attention factor is left out."""

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        cos, sin = super().tables(length)
        size = (cos**2 + sin**2).sqrt()
        return cos / size, sin / size


class _WithoutGradient(_Rotary):
    def rotate(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return super().rotate(x.detach(), position_ids) + 0 * x


class _ScalesTheBase(_Rotary):
    """YaRN of a base that is scaled as well."""

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        base = self.options["base"] * self.options["scaling"]["factor"]
        options = {**self.options, "base": base}
        cos, sin = reference.rotary_tables(length, self.rotary_dim, **options)
        return cos, sin


class _OfOneModel(_Rotary):
    """The factor of another model is built in."""

    scalings = (
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )

    def tables(self, length: int) -> tuple[Tensor, Tensor]:
        assert self.options["scaling"] == self.scalings[0]
        options = {**self.options, "scaling": {**self.scalings[0], "factor": 8.0}}
        cos, sin = reference.rotary_tables(length, self.rotary_dim, **options)
        return cos, sin


class _ByOffset:
    """Neighbours, without a scaling, from an offset on."""

    interleaved = True

    def __init__(self, head_dim: int) -> None:
        self.head_dim = head_dim

    def rotate(self, x: Tensor, offset: int) -> Tensor:
        cos, sin = reference.rotary_tables(offset + x.shape[1], self.head_dim)
        return reference.rotary_embedding(x, cos, sin, seqlen_offsets=offset, interleaved=True)


def _look(make: Any, kind: Scaling, device: torch.device, examples: int) -> None:
    @settings(drawn_only(examples), derandomize=True)
    @given(st.data())
    def look(data: st.DataObject) -> None:
        check(data, make, kind, device)

    look()


@pytest.mark.parametrize("make", [_Rotary, _ByOffset])
def test_the_oracle_is_accepted(make: Any, device: torch.device) -> None:
    for kind in scalings(make):
        _look(make, kind, device, 20)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (_Remembers, "dynamic"),
        (_Remembers, "longrope"),
        (_In16Bits, "default"),
        (_WithoutFactor, "yarn"),
        (_WithoutGradient, "default"),
        (_ScalesTheBase, "yarn"),
        (_OfOneModel, *scalings(_OfOneModel)),
    ],
)
def test_a_bug_of_a_rotary_embedding_is_noticed(
    make: Any, kind: Scaling, device: torch.device
) -> None:
    with pytest.raises(AssertionError, match="is rotated otherwise"):
        _look(make, kind, device, 100)
