"""Kernels emulated in PyTorch, to measure the errors of correct ones and the detection of wrong
ones.

They work tile by tile as kernels do: operands of products are rounded to the storage dtype, partial
sums are float32 in a random order, results are rounded once. Layout `[B, T, H, D]`, one cotangent.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from properties.cases.inputs import Results


@dataclass
class Arithmetic:
    """How products are computed.

    Args:
        storage: dtype of the tensors and of the operands of products.
        tf32: round float32 operands to 11 binary digits.
        accumulator: dtype of partial sums; float32 in a correct kernel.
    """

    storage: torch.dtype
    generator: torch.Generator
    tf32: bool = False
    accumulator: torch.dtype = torch.float32
    block: int = field(init=False)

    def __post_init__(self) -> None:
        sizes = (16, 32, 64)
        self.block = sizes[int(torch.randint(len(sizes), (), generator=self.generator))]

    def operand(self, x: Tensor) -> Tensor:
        if self.tf32:
            return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)
        return x.to(self.storage).float()

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """`a @ b` over blocks of the inner dim in a random order, or over single products."""
        a, b = self.operand(a), self.operand(b)
        size = self.block if self.accumulator == torch.float32 else 1
        total = torch.zeros(*a.shape[:-1], b.shape[-1])
        blocks = list(zip(a.split(size, -1), b.split(size, -2), strict=True))
        for i in torch.randperm(len(blocks), generator=self.generator):
            part = blocks[int(i)][0] @ blocks[int(i)][1]
            total = (total + part).to(self.accumulator).float()
        return total

    def returned(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).to(self.storage)


def _heads_first(tensors: Results) -> list[Tensor]:
    return [tensors[name].float().transpose(1, 2) for name in ("q", "k", "v", "do")]


def linear_attention(run: Arithmetic, tensors: Results, scale: float) -> Results:
    """Linear attention in chunks, forward and backward."""
    q, k, v, do = _heads_first(tensors)
    state = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    chunks = list(zip(*(x.split(run.block, 2) for x in (q, k, v, do)), strict=True))
    states, o = [], []
    for q_c, k_c, v_c, _ in chunks:
        states.append(state)
        o.append(run.dot(run.dot(q_c, k_c.mT).tril(), v_c) + run.dot(q_c, state))
        state = state + run.dot(k_c.mT, v_c)
    d_state = torch.zeros_like(state)
    gradients = []
    for (q_c, k_c, v_c, do_c), before in zip(reversed(chunks), reversed(states), strict=True):
        A, dA = run.dot(q_c, k_c.mT).tril(), run.dot(do_c, v_c.mT).tril()
        dq = run.dot(dA, k_c) + run.dot(do_c, before.mT)
        dk = run.dot(dA.mT, q_c) + run.dot(v_c, d_state.mT)
        dv = run.dot(A.mT, do_c) + run.dot(k_c, d_state)
        d_state = d_state + run.dot(q_c.mT, do_c)
        gradients.append((dq, dk, dv))
    dq, dk, dv = (torch.cat(each[::-1], 2) for each in zip(*gradients, strict=True))
    results = {"o": torch.cat(o, 2), "dq": dq, "dk": dk, "dv": dv}
    return {n: run.returned(scale * x) for n, x in results.items()}


def gated_linear_attention(run: Arithmetic, tensors: Results, scale: float) -> Results:
    """Linear attention in chunks with a log decay of each key channel, relative to an end of the
    chunk.

    Within a chunk each pair of tokens has its decay in float32. The gradient of the decays
    telescopes (`properties.catalogue.telescope`).
    """
    q, k, v, do = _heads_first(tensors)
    g = tensors["g"].float().transpose(1, 2)
    state = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    chunks = list(zip(*(x.split(16, 2) for x in (q, k, v, do, g)), strict=True))
    states, o, decays = [], [], []
    for q_c, k_c, v_c, _, g_c in chunks:
        G = g_c.cumsum(2)
        past = torch.ones(G.shape[2], G.shape[2], dtype=torch.bool).tril()[..., None]
        pair = torch.where(past, G[:, :, :, None] - G[:, :, None], -torch.inf).exp()
        to_end, whole = (G[:, :, -1:] - G).exp(), G[:, :, -1, :, None].exp()
        A = torch.einsum("bhik,bhjk,bhijk->bhij", q_c, k_c, pair)
        states.append(state)
        decays.append((G.exp(), pair, to_end, whole, A))
        o.append(run.dot(A, v_c) + run.dot(q_c * G.exp(), state))
        state = whole * state + run.dot((k_c * to_end).mT, v_c)
    d_state = torch.zeros_like(state)
    gradients = []
    reverse = zip(reversed(chunks), reversed(states), reversed(decays), strict=True)
    for (q_c, k_c, v_c, do_c, _), before, (from_start, pair, to_end, whole, A) in reverse:
        dA = run.dot(do_c, v_c.mT).tril()
        dq = torch.einsum("bhij,bhjk,bhijk->bhik", dA, k_c, pair)
        dq = dq + run.dot(do_c, before.mT) * from_start
        dk = torch.einsum("bhij,bhik,bhijk->bhjk", dA, q_c, pair)
        dk = dk + run.dot(v_c, d_state.mT) * to_end
        dv = run.dot(A.mT, do_c) + run.dot(k_c * to_end, d_state)
        d_state = whole * d_state + run.dot((q_c * from_start).mT, do_c)
        gradients.append((dq, dk, dv))
    dq, dk, dv = (torch.cat(each[::-1], 2) for each in zip(*gradients, strict=True))
    dg = scale * (q * dq - k * dk).flip(2).cumsum(2).flip(2)
    results = {"o": torch.cat(o, 2), "dq": dq, "dk": dk, "dv": dv}
    returned = {n: run.returned(scale * x) for n, x in results.items()}
    return {**returned, "dg": dg.transpose(1, 2)}


def recurrent_linear_attention(run: Arithmetic, tensors: Results, scale: float) -> Results:
    """Linear attention token by token with a float32 state: no product has rounded operands."""
    q, k, v, do = _heads_first(tensors)
    state = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    o, dq, dk, dv = (torch.empty_like(x) for x in (v, q, k, v))
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        o[:, :, t] = (q[:, :, t, :, None] * state).sum(2) * scale
        dq[:, :, t] = (state * do[:, :, t, None, :]).sum(3) * scale
    state = torch.zeros_like(state)
    for t in reversed(range(q.shape[2])):
        state = state + q[:, :, t, :, None] * do[:, :, t, None, :] * scale
        dk[:, :, t] = (state * v[:, :, t, None, :]).sum(3)
        dv[:, :, t] = (state * k[:, :, t, :, None]).sum(2)
    return {n: run.returned(x) for n, x in {"o": o, "dq": dq, "dk": dk, "dv": dv}.items()}


def softmax_attention(run: Arithmetic, tensors: Results, scale: float, visible: Tensor) -> Results:
    """Softmax attention with a running maximum over tiles of keys, forward and backward.

    Args:
        visible: bool `[T_q, T_k]`; each row sees a key.
    """
    q, k, v, do = _heads_first(tensors)
    hidden = torch.where(visible, 0.0, -torch.inf)
    m = torch.full((*q.shape[:3], 1), -torch.inf)
    l, acc = torch.zeros_like(m), torch.zeros(*q.shape[:3], v.shape[-1])
    pieces = (k.split(run.block, 2), v.split(run.block, 2), hidden.split(run.block, 1))
    for k_c, v_c, hidden_c in zip(*pieces, strict=True):
        s = run.dot(q, k_c.mT) * scale + hidden_c
        new_m = torch.maximum(m, s.amax(-1, keepdim=True))
        base = new_m.nan_to_num(neginf=0.0)
        shrink, p = (m - base).exp(), (s - base).exp()
        l = shrink * l + p.sum(-1, keepdim=True)
        acc = (shrink * acc).to(run.accumulator).float() + run.dot(p, v_c)
        acc = acc.to(run.accumulator).float()
        m = new_m
    o, lse = acc / l, m + l.log()
    p = (run.dot(q, k.mT) * scale + hidden - lse).exp()
    delta = (do * o.to(run.storage).float()).sum(-1, keepdim=True)
    ds = p * (run.dot(do, v.mT) - delta) * scale
    results = {"o": o, "dq": run.dot(ds, k), "dk": run.dot(ds.mT, q), "dv": run.dot(p.mT, do)}
    return {**{n: run.returned(x) for n, x in results.items()}, "lse": lse[..., 0]}
