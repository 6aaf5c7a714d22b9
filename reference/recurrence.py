"""What all recurrences share: where a state starts, and its way through the sequences."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reference.sequences import sequences

Form = Callable[..., tuple[Tensor, Tensor]]


def run(
    form: Form,
    first: Tensor,
    *others: Tensor | None,
    parameters: tuple[Tensor | None, ...] = (),
    state_shape: tuple[int, ...],
    initial_state: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Run one form of a recurrence over every sequence of a batch, in one dtype.

    Args:
        form: `(first, *others, *parameters, S, **options) -> (o, S)` for sequences of one length.
        first, others: `[B, T, ...]`.
        parameters: what has no token axis.
        state_shape: shape of the state of one sequence.
        The rest are the options of the op.

    Returns:
        `o [B, T, ...]` and the states `[N, *state_shape]`, or None, in the promoted dtype of all
        tensors.
    """
    groups = list(sequences(cu_seqlens, first.shape[0], first.shape[1]))
    if initial_state is None:
        initial_state = first.new_zeros(groups[-1][0].stop, *state_shape)
    given = [x for x in (first, *others, *parameters, initial_state) if x is not None]
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in given])
    tokens = [None if x is None else x.to(dtype) for x in (first, *others)]
    constants = [None if x is None else x.to(dtype) for x in parameters]
    states = initial_state.to(dtype)

    outputs, final_states = [], []
    for n, t in groups:
        pieces = (None if x is None else x[:, t] for x in tokens)
        o, S = form(*pieces, *constants, states[n], **options)
        outputs.append(o)
        final_states.append(S)
    return torch.cat(outputs, dim=1), torch.cat(final_states) if output_final_state else None
