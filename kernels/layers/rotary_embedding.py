"""Rotary embedding as a module that keeps its tables."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kernels.arguments import check_range, check_size, describe
from kernels.position.rotary import check_places, check_rotary, turn
from kernels.position.tables import rotary_tables, tokens_that_scale


class RotaryEmbedding(nn.Module):
    """`rotary_embedding` with tables that the module builds, keeps and lengthens.

    The tables are float32 whatever `.half()` or `.bfloat16()` does to the model, they are no part
    of the state dict, and `.to(device)` takes them along. They grow when a longer sequence arrives.
    A `dynamic` or `longrope` scaling is that of the tokens so far, the last position of a call and
    those before it: nothing remains of longer calls.

    Under `torch.compile` they stay as they are, because a graph's outputs are no memory to keep:
    a graph that needs longer tables computes them on every call, and one that is given a tensor of
    offsets or positions, whose values it cannot see, raises the op's ValueError. `reserve` avoids
    both.

    Args:
        head_dim: D, the size of one head; never the width of the model.
        rotary_dim: 2P, how many of a head's first dims turn; even, `head_dim` by default.
        base, scaling: see `rotary_tables`.
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
        scaling: Mapping[str, object] | None = None,
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
        self.scaling = scaling
        self.interleaved = interleaved
        # Plain attributes: a buffer would be cast with the model.
        self._tables = self._build(2048, 0, None)
        self._tokens = tokens_that_scale(scaling, 0)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        device = fn(self._tables.new_empty(0)).device
        if device != self._tables.device:
            self._tables = self._build(self._tables.shape[1], self._tokens, device)
        return self

    def _build(
        self, length: int, tokens: int, device: torch.device | None
    ) -> Float[Tensor, "2 R P"]:
        # An inference tensor could not be saved for a backward pass later.
        with torch.inference_mode(False):
            tables = rotary_tables(
                length,
                self.rotary_dim,
                base=self.base,
                scaling=self.scaling,
                tokens=tokens,
                device=device,
            )
            return torch.stack(tables)

    def _reach(self, length: int, tokens: int, device: torch.device) -> Float[Tensor, "2 R P"]:
        rows = self._tables.shape[1]
        if length <= rows and tokens == self._tokens and device == self._tables.device:
            return self._tables
        # Doubling, so that decoding token by token rarely builds.
        while rows < length:
            rows *= 2
        return self._build(rows, tokens, device)

    def reserve(self, length: int) -> None:
        """Make the tables at least `length` positions long.

        Raises:
            TypeError: length is no int.
            ValueError: it is negative.
        """
        check_size("length", length, least=0)
        self._tables = self._reach(length, self._tokens, self._tables.device)

    def forward(
        self,
        *x: Float[Tensor, "B T H D"],
        position_ids: Int[Tensor, "B T"] | None = None,
        seqlen_offsets: int | Int[Tensor, " N"] = 0,
        cu_seqlens: Int[Tensor, " N+1"] | None = None,
        inplace: bool = False,
    ) -> Float[Tensor, "B T H D"] | tuple[Float[Tensor, "B T H D"], ...]:
        """Turn one tensor, or several (`q, k = rotary(q, k)`) at the same positions.

        Args:
            x: queries, keys.
            position_ids, seqlen_offsets, cu_seqlens, inplace: see `rotary_embedding`. All tensors
                are checked before one is turned.

        Returns:
            The turned tensor; a tuple of them where several were given.

        Raises:
            TypeError, ValueError: see `rotary_embedding`; a last dim that is not head_dim; in a
                compiled graph, a tensor of positions or offsets for a scaling by the tokens so far.
        """
        if not x:
            raise TypeError("x: no tensor, expected at least one")
        for each in x:
            if not isinstance(each, Tensor) or each.dim() != 4 or each.shape[-1] != self.head_dim:
                raise ValueError(
                    f"x: {describe(each)}, expected [B, T, H, head_dim] "
                    f"with head_dim = {self.head_dim}"
                )
        if cu_seqlens is not None and len({each.shape[1] for each in x}) > 1:
            raise ValueError(
                f"cu_seqlens: given with {[each.shape[1] for each in x]} tokens, expected as many "
                "in each tensor"
            )
        # What is read below must be checked; `check_rotary` compares the other tensors with it.
        check_places(x[0], position_ids, seqlen_offsets, cu_seqlens)
        needed = self._tokens_so_far(x, position_ids, seqlen_offsets, cu_seqlens)
        tokens = tokens_that_scale(self.scaling, needed)
        tables = self._reach(needed, tokens, x[0].device)
        # All are checked before one is turned, perhaps in place.
        inputs = [
            check_rotary(
                each,
                *tables,
                position_ids,
                interleaved=self.interleaved,
                seqlen_offsets=seqlen_offsets,
                cu_seqlens=cu_seqlens,
                inplace=inplace,
            )
            for each in x
        ]
        if not torch.compiler.is_compiling():
            self._tables, self._tokens = tables, tokens
        turned = tuple(turn(given, inplace) for given in inputs)
        return turned[0] if len(turned) == 1 else turned

    def _tokens_so_far(
        self,
        x: tuple[Tensor, ...],
        position_ids: Tensor | None,
        seqlen_offsets: int | Tensor,
        cu_seqlens: Tensor | None,
    ) -> int:
        """One more than the last position, or a bound of it where no scaling depends on it."""
        tokens = max(each.shape[1] for each in x)
        scales = tokens_that_scale(self.scaling, tokens) > 0
        where = seqlen_offsets if position_ids is None else position_ids
        packed = scales and position_ids is None and cu_seqlens is not None
        if torch.compiler.is_compiling() and (packed or isinstance(where, Tensor)):
            if scales:
                name = "position_ids" if position_ids is not None else "seqlen_offsets, cu_seqlens"
                raise ValueError(
                    f"{name}: a tensor, whose values a compiled graph cannot see, "
                    f"expected none with the scaling {self.scaling}"
                )
            return tokens
        if position_ids is not None:
            return int(position_ids.max()) + 1 if position_ids.numel() else tokens
        if packed:
            lengths = cu_seqlens.diff()
            return int(((lengths + where) * (lengths > 0)).max()) if lengths.numel() else 0
        if isinstance(where, Tensor):
            return tokens + int(where.max()) if where.numel() else tokens
        return tokens + where

    def extra_repr(self) -> str:
        return (
            f"head_dim={self.head_dim}, rotary_dim={self.rotary_dim}, base={self.base}, "
            f"scaling={self.scaling}, interleaved={self.interleaved}"
        )
