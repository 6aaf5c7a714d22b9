"""Recipes: how the tensors of a case are filled.

A recipe is a function of an argument's role and shape. It fills in float64 and knows no ops. Each
recipe is here because it reveals bugs that gaussians hide.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from properties.catalogue.op import Role


@dataclass(frozen=True)
class Blank:
    """A tensor to fill.

    Args:
        token_axis: the axis of the tokens, or None.
        spans: first and one-past-last token of each sequence on that axis.
        dtype: that it is rounded to.
        any_size: nothing overflows, however large or small its numbers are.
    """

    role: Role
    shape: tuple[int, ...]
    token_axis: int | None
    spans: Sequence[tuple[int, int]]
    dtype: torch.dtype = torch.float32
    any_size: bool = False


Recipe = Callable[[Blank, torch.Generator], Tensor]


def _normal(blank: Blank, generator: torch.Generator) -> Tensor:
    return torch.randn(blank.shape, generator=generator, dtype=torch.float64)


def _uniform(blank: Blank, generator: torch.Generator) -> Tensor:
    return torch.rand(blank.shape, generator=generator, dtype=torch.float64)


def _choice(blank: Blank, generator: torch.Generator, values: Sequence[float]) -> Tensor:
    index = torch.randint(len(values), blank.shape, generator=generator)
    return torch.tensor(values, dtype=torch.float64)[index]


def gaussian(blank: Blank, generator: torch.Generator) -> Tensor:
    """Unit gaussians; log decays from a log-sigmoid, half of them above -0.7; masks that hide one
    pair in eight.

    Betas and rates are uniform in their range, a quarter of them at its ends or middle.
    """
    match blank.role:
        case Role.UNIT_KEY | Role.LOW_RANK:
            x = torch.nn.functional.normalize(_normal(blank, generator), dim=-1)
            return x if blank.role is Role.UNIT_KEY else x / 2
        case Role.STRENGTH | Role.RATE:
            x = torch.sigmoid(2 * _normal(blank, generator))
            marked = _uniform(blank, generator) < 1 / 4
            x = torch.where(marked, _choice(blank, generator, (0.0, 0.5, 1.0)), x)
            return 2 * x if blank.role is Role.STRENGTH else x
        case Role.LOG_DECAY:
            return torch.nn.functional.logsigmoid(2 * _normal(blank, generator) + 1)
        case Role.STEP:
            return torch.nn.functional.softplus(_normal(blank, generator))
        case Role.SCALE:
            return torch.exp2(-4 * _uniform(blank, generator))
        case Role.PROJECTION:
            return _normal(blank, generator) / math.sqrt(max(blank.shape[-1], 1))
        case Role.TURN:
            # In 16 bits a turn by hundreds is known to a place or so.
            most = 10 if blank.dtype == torch.float32 else 0
            size = 2.0 ** int(torch.randint(most + 1, (), generator=generator))
            return size * _normal(blank, generator)
        case Role.SCORE:
            # Many scores are equal, or so near that 16 bits would not tell them apart.
            near = torch.rand((), generator=generator).item() < 1 / 2
            numbers = (15.0, 15.0, 15.0, 14.0) if near else (-1.0, 0.0, 1.0, 2.0)
            return _choice(blank, generator, numbers)
        case Role.MASK:
            return (_uniform(blank, generator) < 7 / 8).double()
        case Role.COSINE:
            return torch.cos(2 * math.pi * _uniform(blank, generator))
        case Role.SINE:
            return torch.sin(2 * math.pi * _uniform(blank, generator))
        case _:
            return _normal(blank, generator)


def integers(blank: Blank, generator: torch.Generator) -> Tensor:
    """-1, 0 and 1, and decays of 1 or 0: partial sums are exact, so results must be bit-equal.

    In half of the tensors one log decay in sixteen is -2^13, whose sums are exact as well. Unit
    keys are basis vectors and beta is 0 or 1, so that a write replaces one row of the state by a
    value. Low-rank additions to a decay are 0 except at one token in 64, so that the state does not
    double at every token.
    """
    match blank.role:
        case Role.UNIT_KEY | Role.LOW_RANK:
            axis = torch.randint(blank.shape[-1], blank.shape[:-1], generator=generator)
            x = torch.nn.functional.one_hot(axis, blank.shape[-1]).double()
            if blank.role is Role.LOW_RANK and blank.token_axis is not None:
                often = torch.arange(blank.shape[blank.token_axis]) % 64 != 1
                x.movedim(blank.token_axis, 0)[often] = 0
            return x * _choice(blank, generator, (-1.0, 1.0))[..., :1]
        case Role.STEP | Role.STRENGTH | Role.RATE:
            return _choice(blank, generator, (0.0, 1.0))
        case Role.LOG_DECAY:
            shut = _uniform(blank, generator) < 1 / 16
            some = torch.rand((), generator=generator).item() < 1 / 2
            return torch.where(shut & some, -(2.0**13), 0.0).double()
        case Role.SCALE:
            return _choice(blank, generator, (0.5, 1.0, 2.0))
        case _:
            return _choice(blank, generator, (-1.0, 0.0, 1.0))


def large_logits(blank: Blank, generator: torch.Generator) -> Tensor:
    """Queries and keys times 6, sinks and biases times 100: the softmax saturates and exp
    overflows.
    """
    x = gaussian(blank, generator)
    match blank.role:
        case Role.QUERY | Role.KEY:
            return 6 * x
        case Role.LOGIT | Role.BIAS:
            return 100 * x
        case _:
            return x


def empty_rows(blank: Blank, generator: torch.Generator) -> Tensor:
    """A third of the logits are -inf: rows without keys, here, there or on both sides."""
    x = gaussian(blank, generator)
    if blank.role is Role.LOGIT:
        return torch.where(_uniform(blank, generator) < 1 / 3, -math.inf, x)
    return x


def large_states(blank: Blank, generator: torch.Generator) -> Tensor:
    """Keys and values times 256, queries divided by 256: a state overflows float16.

    Outputs fit into float16, and so do all gradients but those of the queries.
    """
    x = gaussian(blank, generator)
    match blank.role:
        case Role.QUERY:
            return x / 256
        case Role.KEY | Role.VALUE:
            return 256 * x
        case _:
            return x


def late_maximum(blank: Blank, generator: torch.Generator) -> Tensor:
    """Scale the last three keys of each sequence by 4, so that the row maximum must move late, and
    the last three steps by 64: a softplus of more than 20 may have a path of its own, and exp of
    more than 88 overflows.
    """
    x = gaussian(blank, generator)
    factor = {Role.KEY: 4, Role.STEP: 64}.get(blank.role)
    if factor is not None and blank.token_axis is not None:
        for start, stop in blank.spans:
            last = slice(max(start, stop - 3), stop)
            x.movedim(blank.token_axis, 0)[last] *= factor
    return x


def early_maximum(blank: Blank, generator: torch.Generator) -> Tensor:
    """Shift all queries towards the first three keys of each sequence: logits of 64 and more
    outweigh distance biases and log decays, which may reach 5 a token.
    """
    if blank.role is Role.LOG_DECAY:
        return _choice(blank, generator, (0.0, 0.0, 0.0, -5.0))
    x = gaussian(blank, generator)
    dim = max(blank.shape[-1], 1)
    side = 8 * dim**-0.25 * (1 - 2 * (torch.arange(blank.shape[-1]) % 2)).double()
    if blank.role is Role.QUERY:
        x += side
    if blank.role is Role.KEY and blank.token_axis is not None:
        for start, stop in blank.spans:
            x.movedim(blank.token_axis, 0)[start : min(start + 3, stop)] += side
    return x


def extreme_gates(blank: Blank, generator: torch.Generator) -> Tensor:
    """Log decays from 0 to very negative, mixed token by token and channel by channel."""
    if blank.role is Role.LOG_DECAY:
        return _choice(blank, generator, (0.0, -1e-3, -0.3, -5.0, -40.0, -1e4))
    return gaussian(blank, generator)


def strong_gates(blank: Blank, generator: torch.Generator) -> Tensor:
    """Log decays of 0 and -30, whose sums are exact: 1 / decay overflows within four of them."""
    if blank.role is Role.LOG_DECAY:
        return _choice(blank, generator, (0.0, 0.0, 0.0, -30.0))
    return gaussian(blank, generator)


def shut_gates(blank: Blank, generator: torch.Generator) -> Tensor:
    """Log decays of -30 to -200 at nearly all tokens of a sequence, in three heads or channels of
    four: sums over a whole chunk are thousands.
    """
    x = gaussian(blank, generator)
    if blank.role is not Role.LOG_DECAY:
        return x
    strong = _choice(blank, generator, (-30.0, -100.0, -120.0, -120.0, -200.0))
    return torch.where(_for_long(blank, generator), strong, x)


def closed_gates(blank: Blank, generator: torch.Generator) -> Tensor:
    """Some log decays of -inf: earlier tokens are forgotten and leave no NaN. In a third of the
    tensors nearly all tokens have it, in some heads or channels.
    """
    if blank.role is not Role.LOG_DECAY:
        return gaussian(blank, generator)
    x = _choice(blank, generator, (0.0, -0.3, -0.3, -math.inf))
    some = torch.rand((), generator=generator).item() < 1 / 3
    return torch.where(_for_long(blank, generator) & some, -math.inf, x)


def growing_gates(blank: Blank, generator: torch.Generator) -> Tensor:
    """Log decays of -0.3, and of 0.3 to 3 at one token in each sequence, where the state grows.

    It is not the first of all, which a layout may repeat.
    """
    if blank.role is not Role.LOG_DECAY:
        return gaussian(blank, generator)
    x, axis = torch.full(blank.shape, -0.3, dtype=torch.float64), blank.token_axis
    growth = _choice(blank, generator, (0.3, 0.7, 1.5, 3.0))
    if axis is None:
        return x
    for start, stop in blank.spans:
        if max(start, 1) < stop:
            token = int(torch.randint(max(start, 1), stop, (), generator=generator))
            x.movedim(axis, 0)[token] = growth.movedim(axis, 0)[token]
    return x


def _for_long(blank: Blank, generator: torch.Generator) -> Tensor:
    """True from about the first to about the last token of each sequence, at three of four places
    on the other axes: a row of a head, or one of its channels.
    """
    axis = blank.token_axis
    size = tuple(1 if n == axis else size for n, size in enumerate(blank.shape))
    place = torch.rand(size, generator=generator) < 3 / 4
    if axis is None:
        return place
    token = torch.zeros(blank.shape[axis], dtype=torch.bool)
    for start, stop in blank.spans:
        ends = torch.randint((stop - start) // 8 + 1, (2,), generator=generator).tolist()
        token[start + ends[0] : stop - ends[1]] = True
    view = [-1 if n == axis else 1 for n in range(len(blank.shape))]
    return place & token.view(view)


def lowest_gates(blank: Blank, generator: torch.Generator) -> Tensor:
    """Some log decays as low as -2^20 and the lowest float32, which kernels may use for -inf."""
    if blank.role is Role.LOG_DECAY:
        lowest = torch.finfo(torch.float32).min
        return _choice(blank, generator, (0.0, -0.3, -0.3, -(2.0**20), lowest))
    return gaussian(blank, generator)


def hidden_rows(blank: Blank, generator: torch.Generator) -> Tensor:
    """Masks and biases by which a quarter of the queries see nothing, and others few keys; half of
    the sinks are -inf.
    """
    hidden = _uniform(blank, generator)
    hidden = (hidden < 1 / 2) | (hidden[..., :1] < 1 / 4)
    return _hide(hidden, blank, generator)


def hidden_tiles(blank: Blank, generator: torch.Generator) -> Tensor:
    """Masks and biases that hide the middle half of the keys: whole tiles between tiles; half of
    the sinks are -inf.
    """
    if blank.role not in (Role.BIAS, Role.MASK, Role.LOGIT):
        return gaussian(blank, generator)
    key = torch.arange(blank.shape[-1])
    quarter = blank.shape[-1] // 4
    hidden = (key >= quarter) & (key < blank.shape[-1] - quarter) & (blank.shape[-1] > 1)
    return _hide(hidden.expand(blank.shape), blank, generator)


def _hide(hidden: Tensor, blank: Blank, generator: torch.Generator) -> Tensor:
    """Gaussians; masks and biases hide these pairs, and half of the sinks are -inf."""
    x = gaussian(blank, generator)
    match blank.role:
        case Role.MASK:
            return torch.where(hidden, 0.0, x)
        case Role.BIAS:
            return torch.where(hidden, -math.inf, x)
        case Role.LOGIT:
            return torch.where(_uniform(blank, generator) < 1 / 2, -math.inf, x)
        case _:
            return x


def large_values(blank: Blank, generator: torch.Generator) -> Tensor:
    """Values of one sign around 2000: their sum overflows float16 before it is divided."""
    x = gaussian(blank, generator)
    return 1024 * (1 + x.abs()) if blank.role is Role.VALUE else x


def offset(blank: Blank, generator: torch.Generator) -> Tensor:
    """Half of the keys, values and logits lie around 2^8: a variance as a difference of two means
    keeps no digit, and exp of a logit overflows unless what all have in common is taken off.
    """
    x = gaussian(blank, generator)
    if blank.role not in (Role.KEY, Role.VALUE, Role.LOGIT):
        return x
    return x + (256 if torch.rand((), generator=generator).item() < 1 / 2 else 0)


def uneven(blank: Blank, generator: torch.Generator) -> Tensor:
    """Draw a magnitude for each tensor: usual, around 2^-12, or 2^8 for states, values and factors.

    Squares of the small ones are close to an epsilon of 1e-6, and 1 + exp of the logits of small
    steps keeps few digits.
    """
    x = gaussian(blank, generator)
    size = [1.0, 2.0**-12, 2.0**8][int(torch.randint(3, (), generator=generator))]
    match blank.role:
        case Role.VALUE | Role.STATE | Role.FACTOR:
            return size * x
        case Role.QUERY | Role.KEY | Role.STEP:
            return min(size, 1.0) * x
        case _:
            return x


def wide_range(blank: Blank, generator: torch.Generator) -> Tensor:
    """Multiply a tensor of any size, or each of its rows, by 2^n, 2^-n or 1, where n is 36 to 48,
    or 9 to 12 in float16.

    Cubes of such lengths overflow or underflow float32. Squares, and products with cotangents of
    such sizes, do not, even summed over thousands.
    """
    x = gaussian(blank, generator)
    if not blank.any_size:
        return x
    rows = torch.rand((), generator=generator).item() < 1 / 2
    size = (*blank.shape[:-1], 1) if rows else (1,) * len(blank.shape)
    most = 12 if blank.dtype == torch.float16 else 48
    power = most - torch.randint(most // 4 + 1, size, generator=generator)
    sign = torch.randint(-1, 2, size, generator=generator)
    return x * torch.exp2((sign * power).double())


def faint(blank: Blank, generator: torch.Generator) -> Tensor:
    """Queries, keys and states around 2^-12: the normalizer's divisor is close to 0."""
    x = gaussian(blank, generator)
    return 2.0**-12 * x if blank.role in (Role.QUERY, Role.KEY, Role.STATE) else x


def one_hot_values(blank: Blank, generator: torch.Generator) -> Tensor:
    """Token t's value is the unit vector t mod V: the output is the attention row itself."""
    if blank.role is not Role.VALUE or blank.token_axis is None:
        return gaussian(blank, generator)
    tokens, dim = blank.shape[blank.token_axis], blank.shape[-1]
    rows = torch.eye(dim, dtype=torch.float64)[torch.arange(tokens) % dim]
    view = [1] * len(blank.shape)
    view[blank.token_axis], view[-1] = tokens, dim
    return rows.view(view).expand(blank.shape).clone()


def zeros(blank: Blank, generator: torch.Generator) -> Tensor:
    """A third of the tensors are all zeros, a third have some zeros."""
    x = gaussian(blank, generator)
    share = (1.0, 0.5, 0.0)[int(torch.randint(3, (), generator=generator))]
    return torch.where(torch.rand(x.shape, generator=generator) < share, 0.0, x)


def cancelling(blank: Blank, generator: torch.Generator) -> Tensor:
    """Pairs of tokens with one key and almost opposite values, so that the result is small."""
    x = gaussian(blank, generator)
    if blank.token_axis is None or blank.role not in (Role.KEY, Role.UNIT_KEY, Role.VALUE):
        return x
    tokens = x.movedim(blank.token_axis, 0)
    pairs = tokens.shape[0] // 2
    sign = -(1 + 2.0**-6) if blank.role is Role.VALUE else 1.0
    tokens[1 : 2 * pairs : 2] = sign * tokens[0 : 2 * pairs : 2]
    return x


def parallel_keys(blank: Blank, generator: torch.Generator) -> Tensor:
    """Unit keys near one direction, every second one on it: each write corrects the one before."""
    x = gaussian(blank, generator)
    if blank.role is not Role.UNIT_KEY or blank.token_axis is None:
        return x
    tokens = x.movedim(blank.token_axis, 0)
    tokens[1:] = tokens[:1] + 2.0**-8 * tokens[1:]
    tokens[1::2] = tokens[:1]
    return torch.nn.functional.normalize(x, dim=-1)


def long_keys(blank: Blank, generator: torch.Generator) -> Tensor:
    """The last five unit keys of each sequence have length 3: a delta rule grows by up to 17 at
    each.

    The first key has length 1, since a layout may repeat it at every token.
    """
    x = gaussian(blank, generator)
    if blank.role is Role.UNIT_KEY and blank.token_axis is not None:
        for start, stop in blank.spans:
            last = slice(max(start, stop - 5, 1), stop)
            x.movedim(blank.token_axis, 0)[last] *= 3
    return x


def ordinary(x: Tensor, dtype: torch.dtype, own: torch.dtype, generator: torch.Generator) -> Tensor:
    """Leave the cotangents unchanged."""
    return x


def large(x: Tensor, dtype: torch.dtype, own: torch.dtype, generator: torch.Generator) -> Tensor:
    """Up to the range of the activations' dtype, where it is float16, and a little past it if their
    own is float32: parts of a gradient overflow it where their sum does not. In half of the tensors
    all have one sign, and few sums cancel.
    """
    powers = (6, 10, 14, 14) if dtype == torch.float16 else (20, 40, 60, 60)
    power = powers[int(torch.randint(len(powers), (), generator=generator))]
    power += 4 * (dtype == torch.float16 and own == torch.float32)
    most = torch.finfo(own).max
    x = (x * 2.0**power).clamp(-most, most)
    return x.abs() if torch.rand((), generator=generator).item() < 1 / 2 else x


def tiny(x: Tensor, dtype: torch.dtype, own: torch.dtype, generator: torch.Generator) -> Tensor:
    """Small enough for an epsilon to outweigh them, but not their roundings."""
    return x * (2.0**-8 if dtype == torch.float16 else 2.0**-60)


def of_a_sum(x: Tensor, dtype: torch.dtype, own: torch.dtype, generator: torch.Generator) -> Tensor:
    """Ones at one address, the gradient of a sum of all numbers."""
    return x.new_ones(()).expand(x.shape)


# Size of the cotangents → a function of gaussian ones, the activations' dtype, their own dtype, and
# a generator.
COTANGENTS: dict[str, Callable[[Tensor, torch.dtype, torch.dtype, torch.Generator], Tensor]] = {
    size.__name__: size for size in (ordinary, large, tiny, of_a_sum)
}


RECIPES: dict[str, Recipe] = {
    recipe.__name__: recipe
    for recipe in (
        gaussian,
        integers,
        large_logits,
        empty_rows,
        large_states,
        late_maximum,
        early_maximum,
        extreme_gates,
        strong_gates,
        shut_gates,
        closed_gates,
        lowest_gates,
        growing_gates,
        hidden_rows,
        hidden_tiles,
        large_values,
        offset,
        uneven,
        wide_range,
        faint,
        one_hot_values,
        zeros,
        cancelling,
        parallel_keys,
        long_keys,
    )
}

# Recipes that differ from `gaussian` in gates only.
GATE_RECIPES = frozenset(
    {"extreme_gates", "strong_gates", "shut_gates", "closed_gates", "lowest_gates", "growing_gates"}
)
# Those of them whose strong gates may fill a whole chunk.
LONG_GATE_RECIPES = frozenset({"shut_gates", "closed_gates"})
