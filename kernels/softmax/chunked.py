"""Functions of kernels that walk over chunks of keys, the nearest to a query first."""

import triton
import triton.language as tl

from kernels.primitives.chunks import locate_chunk
from kernels.primitives.decay import chunk_span_transposed, sum_columns
from kernels.primitives.product import product
from kernels.primitives.rows import load_rows
from kernels.softmax.logits import LOG2E, finite_maximum, load_cumulative_gates


@triton.jit
def place_in_heads(first, sequence, head, heads, tokens, PACKED: tl.constexpr):
    """The place in `[B, H, T]` of the row that is `first` in the flattened `[B·T]` axis."""
    batch = first * 0 if PACKED else sequence
    return (batch * heads + head - batch) * tokens + first


@triton.jit
def base2_logits(products, query_gate, key_gate, base, GATED: tl.constexpr):
    """Base-2 logits less `base`, of gates as gates.py stores them.

    `lost` is the rounding error of the difference of two leading parts. It is added to the
    difference of the rests, so the error of a logit does not grow with the cumulative gates.
    """
    if GATED:
        bias = query_gate[0] - key_gate[0]
        back = bias - query_gate[0]
        lost = (query_gate[0] - (bias - back)) - (key_gate[0] + back)
        bias += lost + (query_gate[1] - key_gate[1])
        s = tl.fma(products, LOG2E, bias) - base
        s = tl.where(query_gate[2] == key_gate[2], s, float("-inf"))
    else:
        s = tl.fma(products, LOG2E, -base)
    return s


@triton.jit
def gates_of_chunk(gate, rest, shut_count, first, count, C: tl.constexpr, GATED: tl.constexpr):
    """The cumulative gates `gs` of the chunk whose token 0 is at `first`."""
    rows = tl.arange(0, C)
    return load_cumulative_gates(gate, rest, shut_count, first + rows, rows < count, GATED)


@triton.jit
def gradient_of_gates(ds, row_sums, column_sums, place, count, C: tl.constexpr):
    """The gradient of the gates `gs` of a chunk, without pairs of an earlier and a later chunk.

    The gate at t decays each pair of a query i >= t and a key j < t, so its gradient is the sum of
    their dS: `ds` of pairs within the chunk, `row_sums` of its queries with keys of earlier chunks,
    and `column_sums` of its keys with queries of later ones.
    """
    rows = tl.arange(0, C)
    of_rows = tl.load(row_sums + place + rows, mask=rows < count, other=0.0)
    of_columns = tl.load(column_sums + place + rows, mask=rows < count, other=0.0)
    return gradient_from_sums(ds, of_rows, of_columns, C)


@triton.jit
def gradient_from_sums(ds, of_rows, of_columns, C: tl.constexpr):
    """`gradient_of_gates` from sums that are loaded."""
    after_key = chunk_span_transposed(1, C)
    straddling = tl.cumsum(ds, 0, reverse=True)
    dgs = tl.sum(tl.where(after_key, straddling, 0.0), 1)
    dgs += tl.cumsum(of_rows, 0, reverse=True) + sum_columns(after_key, of_columns)
    return dgs


@triton.jit
def as_rows(gates, GATED: tl.constexpr):
    """Gates of queries, `[C, 1]`."""
    leading, rest, shut_count = gates
    if GATED:
        leading = leading[:, None]
        rest = rest[:, None]
        shut_count = shut_count[:, None]
    return leading, rest, shut_count


@triton.jit
def as_columns(gates, GATED: tl.constexpr):
    """Gates of keys, `[1, C]`."""
    leading, rest, shut_count = gates
    if GATED:
        leading = leading[None, :]
        rest = rest[None, :]
        shut_count = shut_count[None, :]
    return leading, rest, shut_count


@triton.jit
def within_window(back, window, C: tl.constexpr):
    """Whether each query sees each key of the chunk `back` tokens before its own, `[C, C]`."""
    distance = back + tl.arange(0, C)[:, None] - tl.arange(0, C)[None, :]
    return (distance >= 0) & (distance < window)


@triton.jit
def chunks_before(before, window, C: tl.constexpr):
    """How many chunks before their own some query of a chunk sees."""
    return before // C - tl.maximum(before - window + 1, 0) // C


@triton.jit
def softmax_step(products, visible, query_gate, key_gate, row_max, weight_sum, GATED: tl.constexpr):
    """One step of the online softmax, over a tile of keys.

    Returns:
        The weights of the tile, relative to the new maximum; the factor that rescales earlier sums;
        the row maximum and the sum of weights so far.
    """
    s = base2_logits(products, query_gate, key_gate, 0.0, GATED)
    new_max = tl.maximum(row_max, tl.max(tl.where(visible, s, float("-inf")), 1))
    base = finite_maximum(new_max)
    s = base2_logits(products, query_gate, key_gate, base[:, None], GATED)
    p = tl.where(visible, tl.exp2(s), 0.0)
    shrink = tl.exp2(row_max - base)
    return p, shrink, new_max, weight_sum * shrink + tl.sum(p, 1)


@triton.jit
def store_row_terms(terms, stride, row_max, weight_sum, row_delta, inside):
    """Write the maximum, the sum of weights and δ of queries, which the backward pass reads."""
    tl.store(terms, row_max, mask=inside)
    tl.store(terms + stride, weight_sum, mask=inside)
    tl.store(terms + 2 * stride, row_delta, mask=inside)


@triton.jit
def load_row_terms(terms, stride, inside):
    """Maximum, 1 / sum of weights, and δ of queries."""
    row_max = tl.load(terms, mask=inside, other=0.0)
    weight_sum = tl.load(terms + stride, mask=inside, other=1.0)
    return row_max, 1.0 / weight_sum, tl.load(terms + 2 * stride, mask=inside, other=0.0)


@triton.jit
def dot_rows(
    x, y, stride_x, stride_y, count_x, count_y, dim,
    DTYPE: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, FINE: tl.constexpr = False,
    WHOLE: tl.constexpr = False,
):  # fmt: skip
    """x yᵀ `[C, C]` of the rows of two chunks, from slices of their columns; if FINE, operands are
    not rounded. If WHOLE, a slice has all columns: a loop around it can then be pipelined."""
    products = tl.zeros((C, C), tl.float32)
    if WHOLE:
        products = _dot_slices(
            x, y, 0, stride_x, stride_y, count_x, count_y, dim, products, DTYPE, C, BLOCK, FINE
        )
    else:
        for start in range(0, dim, BLOCK):
            products = _dot_slices(
                x, y, start, stride_x, stride_y, count_x, count_y, dim, products, DTYPE, C, BLOCK,
                FINE,
            )  # fmt: skip
    return products


@triton.jit
def _dot_slices(
    x, y, start, stride_x, stride_y, count_x, count_y, dim, products,
    DTYPE: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, FINE: tl.constexpr,
):  # fmt: skip
    """Add the products of one slice of columns; see `dot_rows`."""
    rows = tl.arange(0, C)
    columns = start + tl.arange(0, BLOCK)
    x_tile = load_rows(x, rows, columns, stride_x, count_x, dim)
    y_tile = load_rows(y, rows, columns, stride_y, count_y, dim)
    return product(x_tile, tl.trans(y_tile), DTYPE, FINE_A=FINE, FINE_B=FINE, acc=products)


@triton.jit(do_not_specialize=["sequences", "tokens", "heads", "widest"])
def sum_between(
    between, through, cu_seqlens, sequences, tokens, heads, widest, width: tl.int32,
    C: tl.constexpr, BLOCK: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """through [chunks, H, K + GATED]: the sum of `between` over the pairs of a later chunk and an
    earlier one."""
    parts = tl.cdiv(width, BLOCK)
    columns = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(0) // parts % heads
    chunk = tl.program_id(0) // parts // heads
    _, left, _, before = locate_chunk(chunk, cu_seqlens, sequences, tokens, C, PACKED)
    earlier = before // C
    cell = chunk.to(tl.int64) * heads + head
    acc = tl.zeros((BLOCK,), tl.float32)
    for later in range(1, tl.cdiv(left, C)):
        source = between + (cell + tl.cast(later, tl.int64) * heads) * widest * width
        for start in range(0, earlier, 16):
            rows = start + tl.arange(0, 16)
            acc += tl.sum(load_rows(source, rows, columns, width, earlier, width), 0)
    tl.store(through + cell * width + columns, acc, mask=columns < width)
