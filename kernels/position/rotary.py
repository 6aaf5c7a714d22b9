"""Rotary position embedding: one kernel for both pairings and both directions, for one position of
a token or several, copied or in place.
"""

from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from kernels import arguments, tiles
from kernels.arguments import describe
from kernels.differentiable import schema_of
from kernels.modes import check_mode
from kernels.tiles import cdiv, next_power_of_2

_INDICES = (torch.int32, torch.int64)


@triton.jit(do_not_specialize=["tokens_per_sequence", "heads", "num_vectors", "offset"])
def _rotate(
    x_ptr, y_ptr, cos_ptr, sin_ptr, rows_ptr, axes_ptr,
    tokens_per_sequence, heads, head_dim: tl.int32, pairs: tl.int32, num_vectors, offset,
    x_stride_b: tl.int64, x_stride_t: tl.int64, x_stride_h: tl.int64, x_stride_d,
    y_stride_b: tl.int64, y_stride_t: tl.int64, y_stride_h: tl.int64, y_stride_d,
    cos_stride_r: tl.int64, cos_stride_p, sin_stride_r: tl.int64, sin_stride_p,
    rows_stride_a: tl.int64, rows_stride_b: tl.int64, rows_stride_t: tl.int64, axes_stride,
    INTERLEAVED: tl.constexpr, CONJUGATE: tl.constexpr,
    HAS_ROWS: tl.constexpr, HAS_AXES: tl.constexpr, IN_PLACE: tl.constexpr,
    VECTORS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A program turns VECTORS consecutive (batch, token, head) vectors of x."""
    # The first vector of the program may lie past 2^31; what is added to it does not, which keeps
    # the divisions of vectors in 32 bits.
    first = tl.program_id(0).to(tl.int64) * VECTORS
    first_token = first // heads
    head = (first % heads).to(tl.int32) + tl.arange(0, VECTORS)
    token = first_token + head // heads
    head %= heads
    time = (first_token % tokens_per_sequence).to(tl.int32) + (token - first_token).to(tl.int32)
    batch = first_token // tokens_per_sequence + time // tokens_per_sequence
    time = (time % tokens_per_sequence).to(tl.int64)
    inside = first + tl.arange(0, VECTORS) < num_vectors

    x_ptr += (batch * x_stride_b + time * x_stride_t + head * x_stride_h)[:, None]
    y_ptr += (batch * y_stride_b + time * y_stride_t + head * y_stride_h)[:, None]
    # Dims may lie as far apart as anything else.
    pair = tl.arange(0, PAIRS)[None, :].to(tl.int64)
    turned = inside[:, None] & (pair < pairs)
    if HAS_ROWS:
        rows_ptr += (batch * rows_stride_b + time * rows_stride_t)[:, None]
        if HAS_AXES:
            axis = tl.load(axes_ptr + pair * axes_stride, mask=pair < pairs).to(tl.int64)
            row = tl.load(rows_ptr + axis * rows_stride_a, mask=turned).to(tl.int64)
        else:
            row = tl.load(rows_ptr, mask=inside[:, None]).to(tl.int64)
    else:
        row = (time + offset)[:, None]
    # Products with float32 tables are float32. Masked lanes are not stored anywhere.
    cos = tl.load(cos_ptr + row * cos_stride_r + pair * cos_stride_p, mask=turned)
    sin = tl.load(sin_ptr + row * sin_stride_r + pair * sin_stride_p, mask=turned)
    cos, sin = cos.to(tl.float32), sin.to(tl.float32)
    if CONJUGATE:
        sin = -sin
    if INTERLEAVED:
        dim = tl.arange(0, 2 * PAIRS)[None, :].to(tl.int64)
        both = inside[:, None] & (dim < 2 * pairs)
        x = tl.load(x_ptr + dim * x_stride_d, mask=both)
        x1, x2 = tl.split(tl.reshape(x, (VECTORS, PAIRS, 2)))
        y = tl.reshape(tl.join(x1 * cos - x2 * sin, x1 * sin + x2 * cos), (VECTORS, 2 * PAIRS))
        if IN_PLACE:
            # A small tile is held by several threads at once; all read before one writes.
            tl.debug_barrier()
        tl.store(y_ptr + dim * y_stride_d, y, mask=both)
    else:
        x1 = tl.load(x_ptr + pair * x_stride_d, mask=turned)
        x2 = tl.load(x_ptr + (pairs + pair) * x_stride_d, mask=turned)
        y1 = x1 * cos - x2 * sin
        y2 = x1 * sin + x2 * cos
        if IN_PLACE:
            tl.debug_barrier()
        tl.store(y_ptr + pair * y_stride_d, y1, mask=turned)
        tl.store(y_ptr + (pairs + pair) * y_stride_d, y2, mask=turned)

    if not IN_PLACE:
        for start in range(2 * pairs, head_dim, PAIRS):
            still = start + pair
            rest = inside[:, None] & (still < head_dim)
            kept = tl.load(x_ptr + still * x_stride_d, mask=rest)
            tl.store(y_ptr + still * y_stride_d, kept, mask=rest)


class Rotation(NamedTuple):
    """The arguments of the custom ops, checked but for numbers in tensors.

    Args:
        offset, offsets: the position of the first token, of all sequences or `[N]` of each.
        positions: those of the tokens, `[B, T]`, or `[A, B, T]` with `axes [P]`.
        tile: index into the tile table.
    """

    x: Tensor
    cos: Tensor
    sin: Tensor
    offset: int
    offsets: Tensor | None
    cu_seqlens: Tensor | None
    positions: Tensor | None
    axes: Tensor | None
    interleaved: bool
    conjugate: bool
    tile: int

    def table_rows(self) -> Tensor | None:
        """The table rows of every token, `[B, T]` or `[A, B, T]`; None where they are `offset + t`.

        Raises:
            ValueError: a row outside `[0, R)`, an axis outside `[0, A)`.
        """
        batch, tokens = self.x.shape[:2]
        cu_seqlens, offsets, device = self.cu_seqlens, self.offsets, self.x.device
        if cu_seqlens is not None:
            arguments.check_boundaries("cu_seqlens", cu_seqlens, tokens)
        if self.positions is not None:
            rows = self.positions
            if self.axes is not None:
                _check_within("axes", self.axes, len(rows), "axes of position_ids")
        elif cu_seqlens is not None:
            row_of_token_0 = (self.offset if offsets is None else offsets) - cu_seqlens[:-1]
            rows = torch.arange(tokens, device=device) + row_of_token_0.repeat_interleave(
                cu_seqlens.diff(), output_size=tokens
            )
        elif offsets is not None:
            rows = offsets[:, None] + torch.arange(tokens, device=offsets.device)
        else:
            return None
        name = "seqlen_offsets" if self.positions is None else "position_ids"
        _check_within(name, rows, len(self.cos), "rows of cos")
        return rows.view(batch, tokens) if self.positions is None else rows


def _check_within(name: str, numbers: Tensor, count: int, of: str) -> None:
    """Refuse numbers that are none of `count` rows or axes; waits for the device."""
    if numbers.numel():
        low, high = torch.stack(numbers.aminmax()).tolist()
        if low < 0 or high >= count:
            raise ValueError(f"{name}: from {low} to {high}, expected 0 to {count - 1}, the {of}")


def _launch(rotation: Rotation, y: Tensor) -> None:
    """Write the turned x to y, which may be x itself."""
    x, cos, sin, axes = rotation.x, rotation.cos, rotation.sin, rotation.axes
    batch, tokens, heads, head_dim = x.shape
    pairs = cos.shape[1]
    rows = rotation.table_rows()
    steps = (0, 0, 0) if rows is None else rows.stride()
    shape = tiles.TABLE["rotary_embedding", "fused"][rotation.tile]
    vectors = batch * tokens * heads
    with torch.cuda.device_of(x):
        _rotate[(cdiv(vectors, shape.tokens),)](
            x, y, cos, sin, rows, axes,
            tokens, heads, head_dim, pairs, vectors, rotation.offset,
            *x.stride(), *y.stride(), *cos.stride(), *sin.stride(),
            *(0,) * (3 - len(steps)), *steps, 0 if axes is None else axes.stride(0),
            INTERLEAVED=rotation.interleaved, CONJUGATE=rotation.conjugate,
            HAS_ROWS=rows is not None, HAS_AXES=axes is not None, IN_PLACE=y is x,
            VECTORS=shape.tokens, PAIRS=max(16, next_power_of_2(pairs)),
            num_warps=shape.num_warps, num_stages=shape.num_stages,
        )  # fmt: skip


def _rotated(*inputs: Any) -> Tensor:
    y = inputs[0].new_empty(inputs[0].shape)
    _launch(Rotation(*inputs), y)
    return y


def _rotated_in_place(*inputs: Any) -> None:
    _launch(Rotation(*inputs), inputs[0])


_ARGUMENTS = ", ".join(f"{kind} {name}" for name, kind in schema_of(Rotation).items())
_rotary = torch.library.custom_op(
    "attention_oracles::rotary_embedding",
    _rotated,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> Tensor",
)
_rotary_ = torch.library.custom_op(
    "attention_oracles::rotary_embedding_",
    _rotated_in_place,
    mutates_args={"x"},
    schema=f"({_ARGUMENTS.replace('Tensor', 'Tensor(a0!)', 1)}) -> ()",
)
_rotary.register_fake(lambda x, *others: x.new_empty(x.shape))
_rotary_.register_fake(lambda *inputs: None)


_SAVED = ("cos", "sin", "offsets", "cu_seqlens", "positions", "axes")


def _save(ctx, inputs) -> None:
    rotation = Rotation(*inputs)
    ctx.save_for_backward(*(getattr(rotation, name) for name in _SAVED))
    ctx.rotation = rotation._replace(x=None, **dict.fromkeys(_SAVED))


def _turn_back(ctx, dy: Tensor):
    """A rotation's transpose is its inverse: the same kernel with the sine negated."""
    saved = dict(zip(_SAVED, ctx.saved_tensors, strict=True))
    back = ctx.rotation._replace(x=dy, **saved, conjugate=not ctx.rotation.conjugate)
    return _rotary(*back), *(None for _ in back[1:])


_rotary.register_autograd(_turn_back, setup_context=lambda ctx, inputs, output: _save(ctx, inputs))


class _InPlace(torch.autograd.Function):
    """The gradient of `rotary_embedding_`, as torch.library gives one to functional ops alone.

    It writes nothing: autograd refuses some tensors, and does so after the forward pass.
    """

    @staticmethod
    def forward(ctx, *inputs):
        x = inputs[0]
        # Refuse bad arguments now: the launch comes after x has its new gradient.
        Rotation(*inputs).table_rows()
        _save(ctx, inputs)
        ctx.mark_dirty(x)
        return x

    backward = staticmethod(_turn_back)


def rotary_embedding(
    x: Float[Tensor, "B T H D"],
    cos: Float[Tensor, "R P"],
    sin: Float[Tensor, "R P"],
    position_ids: Int[Tensor, "B T"] | None = None,
    *,
    interleaved: bool = False,
    seqlen_offsets: int | Int[Tensor, " N"] = 0,
    cu_seqlens: Int[Tensor, " N+1"] | None = None,
    conjugate: bool = False,
    inplace: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H D"]:
    """Turn pairs of a head's dims by angles that depend on the token's position.

        y1 = x1 cos[r] - x2 sin[r]          r = position_ids[b, t], or without them
        y2 = x1 sin[r] + x2 cos[r]          r = seqlen_offsets[n] + t  for token t of sequence n

    The pairs `(x1, x2)` are `(x_i, x_{i+P})`, or `(x_{2i}, x_{2i+1})` when interleaved, for i < P.
    Dims from 2P on are copied bit for bit. Products are float32. D is 1 to 256. Tensors may have
    any strides.

    Args:
        x: queries or keys `[B, T, H, D]`. float32, bfloat16 or float16.
        cos, sin: the tables of `rotary_tables` `[R, P]`, both float32 or both of the dtype of x;
            constants without gradient.
        position_ids: position of each token `[B, T]`, int32 or int64. Beside it `cu_seqlens` is
            checked and changes nothing.
        interleaved: pair neighbours instead of halves.
        seqlen_offsets: position of the first token, an int for all sequences, or int32 or int64
            `[N]`.
        cu_seqlens: boundaries of N packed sequences `[N+1]`, int32 or int64; B is then 1. None
            means N = B.
        conjugate: turn the other way; the inverse.
        inplace: write to x and return x. Autograd knows, as it knows `x.mul_`.
        mode: `fused` is the only one.
        tile: entry of `kernels.tiles.TABLE["rotary_embedding", "fused"]`; None chooses.

    Returns:
        y: the turned x; x itself when in place, a new contiguous tensor otherwise.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: shapes or devices that do not fit; D outside 1 to 256; tables wider than the
            head (2P > D); a token whose row lies outside `[0, R)`; `position_ids` beside
            `seqlen_offsets` other than the int 0; `cu_seqlens` with B != 1, or that does not start
            at 0, decreases, or does not end at T; `inplace` on a tensor whose elements share
            memory, or on a leaf that requires grad; an unknown mode or tile.

    Source: RoFormer, arXiv 2104.09864; halves as in GPT-NeoX, arXiv 2204.06745.
    """
    rotation = check_rotary(
        x,
        cos,
        sin,
        position_ids,
        interleaved=interleaved,
        seqlen_offsets=seqlen_offsets,
        cu_seqlens=cu_seqlens,
        conjugate=conjugate,
        inplace=inplace,
        mode=mode,
        tile=tile,
    )
    return turn(rotation, inplace)


def check_places(
    x: Tensor,
    position_ids: Tensor | None,
    seqlen_offsets: int | Tensor,
    cu_seqlens: Tensor | None,
) -> tuple[int, Tensor | None, Tensor | None]:
    """Check what says where the tokens are, all but numbers in tensors.

    Returns:
        offset, offsets, cu_seqlens: the offset that all sequences share, or that of each.
    """
    batch = arguments.bind_dims(x=(x, "B T H D"), position_ids=(position_ids, "B T"))["B"]
    arguments.check_dtype("position_ids", position_ids, *_INDICES)
    cu_seqlens = arguments.check_cu_seqlens("cu_seqlens", cu_seqlens, batch, x.device)
    offset, offsets = 0, None
    if isinstance(seqlen_offsets, Tensor):
        offsets = seqlen_offsets
        arguments.check_dtype("seqlen_offsets", offsets, *_INDICES)
        sequences = arguments.count_sequences(batch, cu_seqlens)
        if offsets.shape != (sequences,):
            raise ValueError(
                f"seqlen_offsets: {describe(offsets)}, expected [N] with N={sequences} sequences"
            )
        if offsets.device != x.device:
            raise ValueError(f"seqlen_offsets: on {offsets.device}, expected {x.device} like x")
    elif isinstance(seqlen_offsets, bool) or not isinstance(seqlen_offsets, (int, torch.SymInt)):
        raise TypeError(
            f"seqlen_offsets: {describe(seqlen_offsets)}, expected an int or an integer tensor [N]"
        )
    else:
        offset = seqlen_offsets
        if not -(2**63) <= offset < 2**63:
            raise ValueError(f"seqlen_offsets: {offset}, expected a number of 64 bits")
    if position_ids is not None and (offsets is not None or offset != 0):
        raise ValueError("position_ids: given beside seqlen_offsets, expected one of the two")
    return offset, offsets, cu_seqlens


def check_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None, *, interleaved: bool,
    seqlen_offsets: int | Tensor, cu_seqlens: Tensor | None, inplace: bool,
    conjugate: bool = False, mode: str = "auto", tile: int | None = None,
) -> Rotation:  # fmt: skip
    """Check the arguments of `rotary_embedding`, all but numbers in tensors."""
    arguments.check_tensors(x=x, cos=cos, sin=sin)
    sizes = arguments.bind_dims(
        x=(x, "B T H D"), cos=(cos, "R P"), sin=(sin, "R P"), position_ids=(position_ids, "B T")
    )
    batch, tokens, length = sizes["B"], sizes["T"], sizes["R"]
    offset, offsets, cu_seqlens = check_places(x, position_ids, seqlen_offsets, cu_seqlens)
    in_order = position_ids is None and offsets is None and cu_seqlens is None
    if in_order and batch * tokens > 0 and (offset < 0 or offset + tokens > length):
        raise ValueError(
            f"seqlen_offsets: {offset} with {tokens} tokens reads the rows {offset} to "
            f"{offset + tokens - 1} of cos, expected rows within the {length} there are"
        )
    where = offset, offsets, cu_seqlens, position_ids, None
    return _checked(x, cos, sin, where, interleaved, conjugate, inplace, mode, tile)


def multiaxis_rotary(
    x: Float[Tensor, "B T H D"],
    cos: Float[Tensor, "R P"],
    sin: Float[Tensor, "R P"],
    position_ids: Int[Tensor, "A B T"],
    axes: Int[Tensor, " P"],
    *,
    interleaved: bool = False,
    conjugate: bool = False,
    inplace: bool = False,
    mode: Literal["auto", "fused"] = "auto",
    tile: int | None = None,
) -> Float[Tensor, "B T H D"]:
    """Turn each pair of a head's dims by the token's position on one of several axes (M-RoPE).

        y1 = x1 cos[r, i] - x2 sin[r, i]          r = position_ids[axes[i], b, t]
        y2 = x1 sin[r, i] + x2 cos[r, i]

    D is 1 to 256. Tensors may have any strides.

    Args:
        x, cos, sin: as of `rotary_embedding`.
        position_ids: position of each token on each axis `[A, B, T]`, int32 or int64.
        axes: the axis that turns each pair `[P]`, as of `rotary_axes`; int32 or int64.
        interleaved, conjugate, inplace, mode: as of `rotary_embedding`.
        tile: entry of `kernels.tiles.TABLE["multiaxis_rotary", "fused"]`; None chooses.

    Returns:
        y: the turned x; x itself when in place, a new contiguous tensor otherwise.

    Raises:
        TypeError: an argument of a wrong type or dtype.
        ValueError: shapes or devices that do not fit; D outside 1 to 256; tables wider than the
            head (2P > D); a position outside `[0, R)`; an axis outside `[0, A)`; `inplace` on a
            tensor whose elements share memory, or on a leaf that requires grad; an unknown mode or
            tile.

    Source: Qwen2-VL, arXiv 2409.12191, section 2.1.
    """
    arguments.check_tensors(x=x, cos=cos, sin=sin, position_ids=position_ids, axes=axes)
    arguments.bind_dims(
        x=(x, "B T H D"),
        cos=(cos, "R P"),
        sin=(sin, "R P"),
        position_ids=(position_ids, "A B T"),
        axes=(axes, "P"),
    )
    for name, indices in (("position_ids", position_ids), ("axes", axes)):
        arguments.check_dtype(name, indices, *_INDICES)
    where = 0, None, None, position_ids, axes
    rotation = _checked(x, cos, sin, where, interleaved, conjugate, inplace, mode, tile)
    return turn(rotation, inplace)


def _checked(
    x: Tensor, cos: Tensor, sin: Tensor,
    where: tuple[int, Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    interleaved: bool, conjugate: bool, inplace: bool, mode: str, tile: int | None,
) -> Rotation:  # fmt: skip
    """Check what both ops share."""
    arguments.check_flags(interleaved=interleaved, conjugate=conjugate, inplace=inplace)
    dtype = arguments.check_one_dtype(x=x)
    arguments.check_dtype("cos", cos, torch.float32, dtype)
    arguments.check_dtype("sin", sin, cos.dtype)
    batch, tokens, _, head_dim = x.shape
    pairs = cos.shape[1]
    arguments.check_range("head_dim (the last dim of x)", head_dim, 1, 256)
    if 2 * pairs > head_dim:
        raise ValueError(
            f"cos: {describe(cos)} turns {2 * pairs} dims of each head, "
            f"expected at most head_dim = {head_dim}, the last dim of x"
        )
    check_mode(mode, "fused")
    tile = tiles.choose(
        "rotary_embedding", "fused", dim=head_dim, dtype=dtype, device=x.device, tile=tile
    )
    rotation = Rotation(x, cos, sin, *where, bool(interleaved), bool(conjugate), tile)
    # PyTorch gives an empty tensor strides of 0 now and then.
    if inplace and batch * tokens > 0 and arguments.may_overlap(x):
        raise ValueError(f"inplace: x has strides {x.stride()}, expected elements of their own")
    if inplace and _trains(x) and not torch.compiler.is_compiling():
        root = x if x._base is None else x._base
        if x.is_leaf or (root.is_leaf and root.requires_grad):
            raise ValueError(
                "inplace: x is a leaf that requires grad, or a view of one, expected the result "
                "of an operation"
            )
    return rotation


def _trains(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def turn(rotation: Rotation, inplace: bool) -> Tensor:
    """Launch what `check_rotary` has checked."""
    x = rotation.x
    if not inplace:
        return _rotary(*rotation)
    if not _trains(x):
        _rotary_(*rotation)
        return x
    if torch.compiler.is_compiling():
        # Dynamo traced mark_dirty only lately; a compiler removes the copy where it can.
        return x.copy_(_rotary(*rotation))
    _InPlace.apply(*rotation)
    with torch.no_grad():
        _rotary_(*rotation)
    return x
