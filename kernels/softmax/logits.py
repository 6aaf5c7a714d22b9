"""Functions of the softmax kernels: what a query sees, and the logits.

Logits are in base 2, `s·log2(e)`, so that `exp2` needs no multiplication per element. The factor
`scale·log2(e)` is rounded once and the product once, as `scale·qk` would be; `exp2` and `exp` then
have the same error. The product is taken before the running maximum, hence any sign of `scale`.

Two orientations use these functions: queries by keys (forward, dq) and keys by queries (dk, dv).
Positions and gates come in already shaped to broadcast, `[rows, 1]` and `[1, columns]`.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_tile(
    x, stride, start, rows, stop, exists,
    FULL: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Load a tile `[rows, columns]` of a matrix from row `start` on; missing columns are 0.

    FULL: all columns exist. BOUNDED: rows at or past `stop` are 0; `rows` has their numbers. The
    address is a scalar, the only part that moves in a loop, and offsets within the tile.
    """
    columns = tl.arange(0, exists.shape[0])
    offsets = tl.arange(0, rows.shape[0])[:, None].to(tl.int64) * stride + columns[None, :]
    pointers = x + tl.cast(start, tl.int64) * stride + offsets
    if FULL and BOUNDED:
        x_tile = tl.load(pointers, mask=(rows < stop)[:, None], other=0.0)
    elif FULL:
        x_tile = tl.load(pointers)
    elif BOUNDED:
        x_tile = tl.load(pointers, mask=(rows < stop)[:, None] & exists[None, :], other=0.0)
    else:
        x_tile = tl.load(pointers, mask=exists[None, :], other=0.0)
    return x_tile


@triton.jit
def store_tile(x, stride, rows, stop, values, exists):
    """Write `values [rows, columns]` to the rows before `stop`, in the columns that exist."""
    columns = tl.arange(0, exists.shape[0])
    pointers = x + rows[:, None].to(tl.int64) * stride + columns[None, :]
    mask = (rows < stop)[:, None] & exists[None, :]
    tl.store(pointers, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def finite_maximum(row_max):
    """The row maximum to subtract from logits: 0 for the -inf of a row that has seen no key, as
    -inf - -inf is NaN.
    """
    return tl.where(row_max == float("-inf"), 0.0, row_max)


@triton.jit
def inverse_or_0(x):
    """1 / x, and 0 where x is 0."""
    return tl.where(x == 0.0, 0.0, 1.0 / tl.where(x == 0.0, 1.0, x))


@triton.jit
def load_cumulative_gates(gate, rest, shut_count, tokens, inside, GATED: tl.constexpr):
    """The cumulative gates of some tokens, as gates.py stores them; zeros where not `inside`."""
    leading, remainder, count = 0.0, 0.0, 0
    if GATED:
        leading = tl.load(gate + tokens, mask=inside, other=0.0)
        remainder = tl.load(rest + tokens, mask=inside, other=0.0)
        count = tl.load(shut_count + tokens, mask=inside, other=0)
    return leading, remainder, count


@triton.jit
def load_terms(terms, start, rows, stop, BOUNDED: tl.constexpr):
    """Base, weight and delta of some queries, as `attention_terms` stores them; see `load_tile`.

    They lie side by side and are read at once. If a tensor has fewer elements than a program has
    threads, Triton lets each thread load all that it will need: for three vectors, dozens of words
    that other threads load as well.
    """
    four = load_tile(terms, 4, start, rows, stop, tl.arange(0, 4) < 4, True, BOUNDED)
    outer, inner = tl.split(tl.reshape(four, (rows.shape[0], 2, 2)))
    base, row_delta = tl.split(outer)
    weight, _ = tl.split(inner)
    return base, weight, row_delta


@triton.jit
def load_slope(slopes, head, ALIBI: tl.constexpr):
    """The ALiBi slope of a head in base 2."""
    slope = 0.0
    if ALIBI:
        slope = tl.load(slopes + head).to(tl.float32) * LOG2E
    return slope


@triton.jit
def start_softmax(sink, head, ROWS: tl.constexpr, SINK: tl.constexpr):
    """Row maxima and sums of weights before any key. The sink is one more logit, there from the
    start: it enters the maximum and the sum alike.
    """
    row_max = tl.full((ROWS,), float("-inf"), tl.float32)
    weight_sum = tl.zeros((ROWS,), tl.float32)
    if SINK:
        sink_logit = tl.load(sink + head).to(tl.float32) * LOG2E
        row_max = tl.zeros((ROWS,), tl.float32) + sink_logit
        weight_sum += tl.where(sink_logit == float("-inf"), 0.0, 1.0)
    return row_max, weight_sum


@triton.jit
def phases_of(start, low, high, common_low, common_high, BLOCK: tl.constexpr):
    """Cut `[start, high)` into tiles that need a mask, whole tiles, and tiles that need one again.

    Whole tiles lie within `[low, high)` and within `[common_low, common_high)`, all of which every
    row of the program sees.

    Returns:
        (start, end of phase 0, end of phase 1, high, low): tiles of phase p run from element p to
        element p + 1.
    """
    lead = tl.maximum(tl.maximum(common_low, low) - start, 0)
    first = tl.minimum(start + tl.cdiv(lead, BLOCK) * BLOCK, high)
    count = tl.maximum(tl.minimum(common_high, high) - first, 0) // BLOCK
    return start, first, first + count * BLOCK, high, low


@triton.jit
def keys_of(
    first, last, shift, num_keys, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """The phases (see `phases_of`) of the keys that some of the queries first..last sees.

    A key outside is not even read. Empty if there are no queries (last < first) or no keys.
    ALIGNED tiles start at multiples of BLOCK.
    """
    low = 0
    high = num_keys
    common_low = 0
    common_high = num_keys
    if CAUSAL:
        high = tl.minimum(high, last + shift + 1)
        common_high = first + shift + 1
    if WINDOW:
        low = tl.maximum(low, first + shift - window + 1)
        common_low = last + shift - window + 1
        if not CAUSAL:
            high = tl.minimum(high, last + shift + window)
            common_high = first + shift + window
    high = tl.where(last < first, low, tl.maximum(low, high))
    start = low
    if ALIGNED:
        start = low // BLOCK * BLOCK
    return phases_of(start, low, high, common_low, common_high, BLOCK)


@triton.jit
def queries_of(
    first, last, shift, num_queries, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """The phases (see `phases_of`) of the queries that see some of the keys first..last.

    ALIGNED tiles start at positions that are multiples of BLOCK, perhaps before the first query.
    """
    low = 0
    high = num_queries
    common_low = 0
    common_high = num_queries
    if CAUSAL:
        low = tl.maximum(low, first - shift)
        common_low = last - shift
    if WINDOW:
        high = tl.minimum(high, last - shift + window)
        common_high = first - shift + window
        if not CAUSAL:
            low = tl.maximum(low, first - shift - window + 1)
            common_low = last - shift - window + 1
    high = tl.where(last < first, low, tl.maximum(low, high))
    start = low
    if ALIGNED:
        start = (low + shift) // BLOCK * BLOCK - shift
    return phases_of(start, low, high, common_low, common_high, BLOCK)


@triton.jit
def sees(inside, query, key, window, shift, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Whether a query sees a key: it is `inside`, and within the causal and window bounds.

    `inside` is whether that exists which the tile is summed over, the keys for a program that holds
    queries. The held rows that do not exist get sums that nobody stores.
    """
    # Not by the distance, which would be a number for each pair that compilers keep in registers.
    position = query + shift
    visible = inside
    if CAUSAL:
        visible = visible & (key <= position)
    if WINDOW:
        visible = visible & (key > position - window)
        if not CAUSAL:
            visible = visible & (key < position + window)
    return visible


@triton.jit
def tanh(x):
    """tanh to about two ulp: the odd series near 0, where 1 - exp(-2|x|) would cancel."""
    size = tl.abs(x)
    e = tl.exp2(size * -2.885390081777927)
    square = x * x
    series = square * 0.021869488536155203 - 0.05396825396825397
    series = series * square + 0.13333333333333333
    series = series * square - 0.3333333333333333
    near = x + x * (series * square)
    far = (1.0 - e) / (1.0 + e)
    return tl.where(size < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def tanh_slope(x):
    """1 - tanh(x)² as 4e / (1 + e)², e = exp(-2|x|), which keeps its digits where tanh is ±1."""
    e = tl.exp2(tl.abs(x) * -2.885390081777927)
    return 4.0 * e / ((1.0 + e) * (1.0 + e))


@triton.jit
def products_by_key(k_tile, q_tile):
    """k·q [keys, queries], bit for bit the transpose of the forward kernel's q·k.

    Where a weight is 1, a logit that differs from the forward's in its last digit is an error of
    that digit's size, not of the weight's. A tensor core sums in one order for both operands.
    """
    if k_tile.dtype == tl.float32:
        products = tl.trans(tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee"))
    else:
        products = tl.dot(k_tile, tl.trans(q_tile))
    return products


@triton.jit
def logits(
    products, query, key, shift, factor, cap, slope, query_gate, key_gate, base,
    CAPPED: tl.constexpr, ALIBI: tl.constexpr, GATED: tl.constexpr,
    added=0.0, BIASED: tl.constexpr = False,
):  # fmt: skip
    """Base-2 logits of `products = q·k`, before the mask, less `base`.

    `factor` is `scale·log2(e)`, or `scale/softcap` with a softcap, and `cap` `softcap·log2(e)`. The
    gates are triples (leading part, rest, number of shut gates), see gates.py; `added` is a bias of
    each pair. Sums of products are written as fma, lest a compiler round them once in one kernel
    and twice in another.
    """
    if CAPPED:
        products = tanh(products * factor)
        factor = cap
    if ALIBI or GATED or BIASED:
        bias = tl.zeros(products.shape, tl.float32)
        if BIASED:
            bias += added
        if GATED:
            bias += (query_gate[0] - key_gate[0]) + (query_gate[1] - key_gate[1])
        if ALIBI:
            bias = tl.fma(tl.abs(query + shift - key).to(tl.float32), -slope, bias)
        s = tl.fma(products, factor, bias) - base
        if GATED:
            s = tl.where(query_gate[2] == key_gate[2], s, float("-inf"))
    else:
        s = tl.fma(products, factor, -base)
    return s


@triton.jit
def online_softmax(
    products, visible, query, key, shift, factor, cap, slope, query_gate, key_gate, added,
    row_max, weight_sum,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, ALIBI: tl.constexpr, GATED: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """Weights of one more tile of keys, relative to the new row maximum, and what becomes of the
    softmax so far.

    MASKED: some key is not `visible`. The other arguments are those of `logits`.

    Returns:
        the weights p `[rows, columns]`, the factor by which sums over earlier keys shrink, the new
        row maximum and the new sum of weights.
    """
    s = logits(
        products, query, key, shift, factor, cap, slope, query_gate, key_gate,
        0.0, CAPPED, ALIBI, GATED, added, BIASED,
    )  # fmt: skip
    if MASKED:
        s = tl.where(visible, s, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(s, 1))
    base = finite_maximum(new_max)
    s = logits(
        products, query, key, shift, factor, cap, slope, query_gate, key_gate,
        base[:, None], CAPPED, ALIBI, GATED, added, BIASED,
    )  # fmt: skip
    p = tl.exp2(s)
    if MASKED:
        p = tl.where(visible, p, 0.0)
    shrink = tl.exp2(row_max - base)
    return p, shrink, new_max, weight_sum * shrink + tl.sum(p, 1)
