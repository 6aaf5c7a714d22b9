"""Rotary embedding as a module that keeps its tables."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kernels.arguments import check_range, describe
from kernels.position import rotary_embedding, rotary_tables


class RotaryEmbedding(nn.Module):
    """`rotary_embedding` with tables that the module builds, keeps and lengthens.

    The tables are float32 whatever `.half()` or `.bfloat16()` does to the model, they are no part
    of the state dict, and `.to(device)` takes them along. They grow when a longer sequence arrives.

    Under `torch.compile` they stay as they are, because a graph's outputs are no memory to keep:
    a graph that needs longer tables computes them on every call, and one that is given a tensor of
    offsets, whose values it cannot see, raises the op's ValueError. `reserve` avoids both.

    Args:
        head_dim: D, the size of one head; never the width of the model.
        rotary_dim: 2P, how many of a head's first dims turn; even, `head_dim` by default.
        base: see `rotary_tables`.
        interleaved: pair neighbours instead of halves.

    Raises:
        ValueError: head_dim outside 2 to 256; rotary_dim odd, below 2 or above head_dim.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        check_range("head_dim", head_dim, 2, 256)
        if rotary_dim is None:
            rotary_dim = head_dim
        if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
            raise ValueError(
                f"rotary_dim: {rotary_dim}, expected an even number from 2 to head_dim = {head_dim}"
            )
        self.head_dim = head_dim
        self.rotary_dim = rotary_dim
        self.base = base
        self.interleaved = interleaved
        # A plain attribute: a buffer would be cast with the model.
        self._tables = self._build(2048, None)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        device = fn(self._tables.new_empty(0)).device
        if device != self._tables.device:
            self._tables = self._build(self._tables.shape[1], device)
        return self

    def _build(self, length: int, device: torch.device | None) -> Float[Tensor, "2 R P"]:
        # An inference tensor could not be saved for a backward pass later.
        with torch.inference_mode(False):
            return torch.stack(
                rotary_tables(length, self.rotary_dim, base=self.base, device=device)
            )

    def _reach(self, length: int, device: torch.device) -> Float[Tensor, "2 R P"]:
        rows = self._tables.shape[1]
        if length <= rows and device == self._tables.device:
            return self._tables
        # Doubling, so that decoding token by token rarely builds.
        while rows < length:
            rows *= 2
        return self._build(rows, device)

    def reserve(self, length: int) -> None:
        """Make the tables at least `length` positions long."""
        self._tables = self._reach(length, self._tables.device)

    def forward(
        self,
        *x: Float[Tensor, "B T H D"],
        seqlen_offsets: int | Int[Tensor, " N"] = 0,
        cu_seqlens: Int[Tensor, " N+1"] | None = None,
        inplace: bool = False,
    ) -> Float[Tensor, "B T H D"] | tuple[Float[Tensor, "B T H D"], ...]:
        """Turn one tensor, or several (`q, k = rotary(q, k)`) at the same positions.

        Args:
            x: queries, keys.
            seqlen_offsets, cu_seqlens, inplace: see `rotary_embedding`.

        Returns:
            The turned tensor; a tuple of them where several were given.

        Raises:
            TypeError, ValueError: see `rotary_embedding`; a last dim that is not head_dim.
        """
        if not x:
            raise TypeError("x: no tensor, expected at least one")
        for each in x:
            if not isinstance(each, Tensor) or each.dim() != 4 or each.shape[-1] != self.head_dim:
                raise ValueError(
                    f"x: {describe(each)}, expected [B, T, H, head_dim] "
                    f"with head_dim = {self.head_dim}"
                )
        needed = max(each.shape[1] for each in x)
        # Offsets of another type are for the op to refuse.
        if isinstance(seqlen_offsets, (int, torch.SymInt)):
            needed += seqlen_offsets
        elif isinstance(seqlen_offsets, Tensor) and not torch.compiler.is_compiling():
            needed += int(seqlen_offsets.max()) if seqlen_offsets.numel() else 0
        tables = self._reach(needed, x[0].device)
        if not torch.compiler.is_compiling():
            self._tables = tables
        turned = tuple(
            rotary_embedding(
                each,
                *tables,
                interleaved=self.interleaved,
                seqlen_offsets=seqlen_offsets,
                cu_seqlens=cu_seqlens,
                inplace=inplace,
            )
            for each in x
        )
        return turned[0] if len(turned) == 1 else turned

    def extra_repr(self) -> str:
        return (
            f"head_dim={self.head_dim}, rotary_dim={self.rotary_dim}, base={self.base}, "
            f"interleaved={self.interleaved}"
        )
