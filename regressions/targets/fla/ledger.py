"""Known failures of fla-core 0.6.0."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.laws.mistakes import BOUNDARIES, DTYPE, RANK, SIZES
from properties.targets.ledger import Given, KnownFailure, Raised, Told, Wrong

RELEASES = ("fla-core 0.6.0",)
MODES = (
    "chunk",
    "fused_chunk",
    "fused_recurrent",
    "fused_mul_recurrent",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_of_channels",
    "parallel",
    "fused",
    "fused_of_heads",
    "chunk_of_32",
    "chunk_safe_gate",
    "forgetting",
    "decoding",
    "update",
    "linear",
    "mamba",
)
CHUNK = 64
FLOAT16 = torch.finfo(torch.float16).max
# Of an error that may not be: NaN counts as no error.
NONE = -1.0


# Numbers of layers that the catalogue calls bad; where those of a case and these do not go
# together, as layer 5 of 4, those that read as a number are bad as well.
_COUNTS = (-1, 2.5, 30, 4.0, True, "np.int64(4)", "tensor(4)")


def _unrefused(*mistakes: str) -> tuple[Told, ...]:
    return tuple(Told(f"{mistake} was not refused") for mistake in mistakes)


def _always(given: Given) -> bool:
    return True


def _lengths(given: Given) -> list[int]:
    """Tokens of each sequence."""
    bounds = given.get("cu_seqlens")
    return [given["q"].shape[1]] if bounds is None else bounds.diff().tolist()


def _overflows_past_the_end(given: Given) -> bool:
    """Whether the rest of a last chunk is so long that a head's decay over it overflows."""
    heads = given["q"].shape[2]
    fastest = 8 * (heads - 1) / heads * (1 - given["layer_idx"] / given["num_layers"])
    rest = max((-n % CHUNK for n in _lengths(given) if n), default=0)
    return bool(given["output_final_state"]) and fastest * rest / math.log(2) > 127


def _of_a_lost_state(given: Given) -> float:
    """Any error if the initial state is NaN or inf, that of the call before; else none."""
    state = given.get("initial_state")
    return NONE if state is None or bool(state.isfinite().all()) else math.inf


def _elements(given: Given) -> int:
    """The number of elements of the largest tensor."""
    return max(x.numel() for x in given.values() if isinstance(x, Tensor))


def _gates(given: Given) -> Tensor | None:
    """Gates without their sign, under the name that the op has for them."""
    g = next((given[name] for name in ("g", "gk", "gv", "w") if given.get(name) is not None), None)
    return None if g is None or not g.numel() else g.detach().float().abs()


def _sum_of_gates(given: Given) -> float:
    g = _gates(given)
    return 0.0 if g is None else float(g.sum(1).max())


def _sum_in_a_chunk(given: Given) -> float:
    g = _gates(given)
    if g is None:
        return 0.0
    total = g.cumsum(1)
    before = total.roll(CHUNK, 1)
    before[:, :CHUNK] = 0
    return float((total - before).max())


def _largest_logit(given: Given) -> float:
    """An upper bound of the logits' absolute values."""
    q, k, scale = given["q"].detach(), given["k"].detach(), given.get("scale")
    if not (q.numel() and k.numel()):
        return 0.0
    factor = q.shape[-1] ** -0.5 if scale in (None, -1) else abs(scale)
    return float(factor * q.norm(dim=-1).max() * k.norm(dim=-1).max())


def _digits(size: Callable[[Given], float]) -> Callable[[Given], float]:
    """The error, beside its budget, of the exponential of a float32 number of this size.

    Its relative error is 2^-24 of the size, and no budget is below one round-off of the dtype.
    """

    def most(given: Given) -> float:
        dtype = given["v" if "v" in given else "x"].dtype
        return max(1.0, 2.0**-24 * size(given) / (torch.finfo(dtype).eps / 2))

    return most


def _little_weight(given: Given) -> bool:
    """Whether 1e-10 may be felt by a row: its own key has less than 1e-4 of a weight for it."""
    if not given["normalize"]:
        return False
    q, k = given["q"].detach().float(), given["k"].detach().float()
    scale = q.shape[-1] ** -0.5 if given["scale"] in (None, -1) else abs(given["scale"])
    return bool((scale * (q * k).sum(-1) < 1e-4).any())


def _overflowing_normalizer(given: Given) -> bool:
    """Whether a product of normalizers, or of one and a row of values, may be above 65504."""
    if not given["normalize"] or given["q"].dtype != torch.float16 or not given["q"].numel():
        return False
    q, k, v = (given[name].detach().float() for name in "qkv")
    state = given.get("initial_state")
    keys = k.abs().sum(1).amax(0) + (0.0 if state is None else state[..., -1].abs().amax(0))
    scale = q.shape[-1] ** -0.5 if given["scale"] in (None, -1) else abs(given["scale"])
    normalizer = float((scale * q.abs() * keys).sum(-1).max())
    # Gradients of outputs are rarely above 4.
    return normalizer * max(1.0, normalizer, 4 * float(v.abs().sum(-1).max())) > FLOAT16


def _of_overflowing_weights(given: Given) -> float:
    """Any error if a sum of squared logits, or of them times values, may be above 65504."""
    q, v = given["q"], given["v"].detach()
    weights = q.shape[1] * (1 + _largest_logit(given)) ** 2
    largest = max(1.0, float(v.abs().max())) if v.numel() else 0.0
    return math.inf if weights * largest > FLOAT16 else NONE


def _overflowing_states(given: Given) -> bool:
    """Whether a state that is handed from chunk to chunk may be above 65504."""
    k, v, state = given["k"].detach(), given["v"].detach().float(), given.get("initial_state")
    if k.dtype != torch.float16 or not k.numel():
        return False
    before = 0.0 if state is None else float(state.detach().abs().max())
    keys = k.float().abs().amax(-1).repeat_interleave(v.shape[2] // k.shape[2], 2)
    return before + float((keys * v.abs().amax(-1)).sum(1).max()) > FLOAT16


def _no_tokens(given: Given) -> bool:
    return bool(given["normalize"]) and given["q"].shape[1] == 0 and "cu_seqlens" not in given


def _tables_of_a_sequence(given: Given) -> bool:
    """Whether the tables are shorter than a pack whose sequences have one offset."""
    offset, rows = given.get("seqlen_offsets", 0), given["cos"].shape[0]
    packed = given.get("cu_seqlens") is not None
    return packed and isinstance(offset, int) and offset + given["x"].shape[1] > rows


def _constant_state(given: Given) -> bool:
    """Whether a gradient is taken, but none arrives at the state: a copy of it has no history."""
    state = given.get("initial_state")
    tensors = [x for x in given.values() if isinstance(x, Tensor)]
    if state is None or not any(x.requires_grad for x in tensors):
        return False
    return not (state.requires_grad and state.is_contiguous())


def _copied_state(given: Given) -> bool:
    """Whether a gradient arrives at a state that is not contiguous."""
    state = given.get("initial_state")
    return state is not None and state.requires_grad and not state.is_contiguous()


def _edited(given: Given) -> bool:
    """Whether boundaries have been written to since they were made."""
    bounds = given.get("cu_seqlens")
    return bounds is not None and not bounds.is_inference() and bounds._version > 0


def _shared_keys(given: Given) -> bool:
    return given.get("beta") is None and given["q"].shape[2] != given["v"].shape[2]


def _longest(given: Given) -> int:
    bounds = given.get("cu_seqlens")
    lengths = [given["q"].shape[1]] if bounds is None else bounds.diff().tolist()
    return max(lengths, default=0)


def _closed(given: Given) -> bool:
    g = _gates(given)
    return g is not None and math.isinf(float(g.max()))


def _in_float16(given: Given) -> float:
    """Float32 numbers that are rounded to float16, beside the budget of float32."""
    q = given["q"].detach()
    if q.numel() and float(q.abs().max()) > FLOAT16:
        return math.inf
    return 2.0**13 if given["q"].dtype == torch.float32 else 1.0


def _total_gates(given: Given) -> float:
    """The sum of all gates of a channel, in octaves."""
    g = given["g"].detach().float().abs()
    return float(g.sum(1).max()) / math.log(2) if g.numel() else 0.0


def _in_float32_beside(given: Given, name: str) -> bool:
    """Whether an optional tensor is float32 and the values are not."""
    y = given.get(name)
    return y is not None and y.dtype == torch.float32 != given["v"].dtype


def _overflowing_slots(given: Given) -> bool:
    """Whether a product of a query and the keys of a slot may be above 65504."""
    q, (wq, wk) = given["q"], (given[f"{x}_norm_weight"].detach().float().abs() for x in "qk")
    if q.dtype != torch.float16 or not q.numel():
        return False
    beta, state, scale = given.get("beta"), given.get("initial_state"), given.get("scale")
    written = q.shape[1] if beta is None else float(beta.detach().float().abs().sum(1).max())
    keys = math.sqrt(q.shape[-1]) * float(wk.max()) * written
    if state is not None:
        keys += float(state.detach().float().norm(dim=(-2, -1)).max())
    factor = 1.0 if scale in (None, -1) else max(1.0, abs(scale))
    return factor * math.sqrt(q.shape[-1]) * float(wq.max()) * keys > FLOAT16


def _reads_a_state(given: Given) -> bool:
    return given.get("initial_state") is not None or _longest(given) > CHUNK


def _empty_sequence(given: Given) -> bool:
    bounds = given.get("cu_seqlens")
    return bounds is not None and bool((bounds.diff() == 0).any())


def _small_step(given: Given) -> bool:
    if given.get("lower_bound") is not None:
        return False
    x, bias = given["x"].detach().float().flatten(2), given.get("dt_bias")
    z = x if bias is None else x + bias.detach().float().flatten()
    return bool((z < -4).any())


def _sums_of_slots_underflow(given: Given) -> bool:
    """Whether the first logit of a slot is so far below a later one, or 0, that its exponential
    beside that one's is no normal float32 number.
    """
    s = given["s"].detach().float()
    return bool(s.numel()) and bool((s[:, 0] < s.amax(1).clamp(min=0) - 87).any())


def _rest_of_a_mini_batch(given: Given) -> bool:
    bounds, size = given.get("cu_seqlens"), given["mini_batch_size"]
    lengths = [given["q"].shape[1]] if bounds is None else bounds.diff().tolist()
    return bool(given["output_final_state"]) and any(n % size for n in lengths)


def _overflowing_model(given: Given) -> bool:
    """Whether a linear model, or the sum of a mini-batch's gradients, may be above 65504.

    A gradient is an error by a deviation of outputs, which is sqrt(eps) at least and at first.
    """
    if given["k"].dtype != torch.float16 or not given["k"].numel():
        return False
    k, v, weight, bias, eta, state = (
        0.0 if (x := given.get(name)) is None else float(x.detach().abs().max())
        for name in ("k", "v", "weight", "bias", "eta", "initial_state")
    )
    root = math.sqrt(given["k"].shape[-1])
    gradient = root * weight * (weight * root + bias + v + k) / math.sqrt(given["eps"])
    rows = given["k"].shape[1] + given["mini_batch_size"]
    return state + rows * eta * max(1.0, k) * gradient > FLOAT16


def _selects_nothing(given: Given) -> bool:
    """Whether some query selects no block that begins before it."""
    indices, T_k = given["indices"], given["k"].shape[1]
    queries = given.get("cu_seqlens")
    queries = [0, indices.shape[1]] if queries is None else queries.tolist()
    keys = given.get("cu_seqlens_k")
    keys = (queries if len(queries) > 2 else [0, T_k]) if keys is None else keys.tolist()
    for first, stop, start, end in zip(queries, queries[1:], keys, keys[1:], strict=False):
        position = torch.arange(stop - first) + (end - start) - (stop - first)
        begins = indices[:, first:stop].cpu() * given["block_size"]
        seen = (begins >= 0) & (begins <= position[:, None, None])
        if not bool(seen.any(-1).all()):
            return True
    return False


def _trains_packs(given: Given) -> bool:
    tensors = [x for x in given.values() if isinstance(x, Tensor)]
    return given.get("cu_seqlens") is not None and any(x.requires_grad for x in tensors)


def _fading_momentum(given: Given) -> bool:
    """Whether a momentum fades by so much in a chunk that float32 has no digits left for it, or a
    gate is -inf.
    """
    gates = [given[name] for name in ("log_mu", "log_alpha") if given.get(name) is not None]
    closed = any(bool(g.detach().isinf().any()) for g in gates)
    mu = given.get("log_mu")
    return closed or (mu is not None and _sum_in_a_chunk({"g": mu}) > 4)


def _small_queries(given: Given) -> bool:
    """Whether 1e-5 is more than a hundredth of some query's squared norm."""
    squares = given["q"].detach().float().square().sum(-1)
    return bool(((squares > 0) & (squares < 1e-3)).any())


def _fewer_queries(given: Given) -> bool:
    return given.get("cu_seqlens") is None and given["q"].shape[1] != given["k"].shape[1]


def _float32_beside_16_bits(given: Given) -> bool:
    others = [given[name].dtype for name in ("weight", "bias", "eta")]
    return given["k"].dtype != torch.float32 and torch.float32 in others


def _lse_of_sources(given: Given) -> float:
    """The largest absolute LSE of a token's logits."""
    x = given["x"].detach().float()
    if not x.numel():
        return 0.0
    scale = x.shape[-1] ** -0.5 if given["scale"] in (None, -1) else given["scale"]
    root = (x.square().mean(-1, keepdim=True) + given["eps"]).sqrt()
    direction = given["query"].detach().float() * given["weight"].detach().float()
    return float((scale * (x / root) @ direction).logsumexp(-1).abs().max())


# A call of each other op in a mode.
_OTHERS = {
    (case.op, case.mode): case
    for case in (
        Case.from_json(
            '{"op":"gsa","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16,"M":16},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"cyfa","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16,"M":15},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"cyfa","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16,"M":15},"options":{"scale":null,"output_final_state":true},"lengths":[3],"context":"no_grad"}'
        ),
        Case.from_json(
            '{"op":"lightnet","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"lightnet","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"abc","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16,"M":16},"options":{},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"log_linear_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":64,"V":16},"options":{"scale":null},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"gated_delta_product","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":16,"V":16,"J":2},"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"gdn2","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"gdn2","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"comba","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"gated_oja_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"precond_gated_delta_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"precond_kda","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"use_qk_l2norm_in_kernel":true,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"precond_kda","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"use_qk_l2norm_in_kernel":true,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"rwkv6","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"hgrn","mode":"chunk","dtype":"float32","dims":{"B":1,"D":4},"options":{"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"hgrn","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"D":4},"options":{"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"iplr","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"stickbreaking_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"options":{"scale":null,"attend_current":false},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"path_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"float32":["w","beta"],"options":{"scale":null},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"wall_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"options":{"scale":null,"window":null},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"parallax","mode":"parallel","dtype":"bfloat16","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"options":{"scale":null,"window":null},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"based","mode":"parallel","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"normalize":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"rebased","mode":"parallel","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"normalize":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"token_shift","mode":"fused","dtype":"float32","dims":{"B":1,"D":4},"options":{"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"cumsum","mode":"chunk","dtype":"float32","dims":{"B":1,"D":4},"options":{"chunk_size":64,"reverse":false},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"cumsum","mode":"fused","dtype":"float32","dims":{"B":1,"D":4},"options":{"chunk_size":64,"reverse":false},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"mean_pooling","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4},"options":{"chunk_size":4},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"solve_tril","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"C":16},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"decay_gate","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4},"options":{},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"rms_norm_gated","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4},"options":{"eps":1e-06,"activation":"silu","gate_first":false},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"layer_norm_gated","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4},"options":{"eps":1e-06,"activation":"silu","gate_first":false},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"rwkv4","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"D":4},"options":{"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"momentum_delta_rule","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"momentum_delta_rule","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"scale":null,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"mesa_net","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":16,"V":16},"options":{"use_qk_l2norm_in_kernel":true,"output_final_state":true},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"ttt_linear","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16},"options":{"eps":1e-06,"mini_batch_size":16,"scale":null,"output_final_state":false},"lengths":[16],"context":"no_grad"}'
        ),
        Case.from_json(
            '{"op":"ttt_linear","mode":"fused_chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16},"options":{"eps":1e-06,"mini_batch_size":16,"scale":null,"output_final_state":false},"lengths":[16],"context":"no_grad"}'
        ),
        Case.from_json(
            '{"op":"selected_attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":16,"K":16,"V":16,"M":1},"options":{"block_size":16,"scale":null},"lengths":[3],"seed":8}'
        ),
        Case.from_json(
            '{"op":"nsa","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":16,"K":16,"V":16},"options":{"block_size":16,"top_k":4,"local_blocks":2,"window":2,"scale":null},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"attnres","mode":"fused","dtype":"float32","dims":{"B":1,"L":2,"D":4},"options":{"scale":null,"eps":1e-06,"return_weights":false},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"feature_map","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4},"options":{"kind":"elu","nu":1},"lengths":[3]}'
        ),
        Case.from_json(
            '{"op":"strength_gate","mode":"fused","dtype":"float32","dims":{"B":1,"H":2},"lengths":[3]}'
        ),
    )
}
_EDITED = (
    ("gsa", "chunk"),
    ("cyfa", "chunk"),
    ("lightnet", "chunk"),
    ("log_linear_attn", "chunk"),
    ("gated_delta_product", "chunk"),
    ("gdn2", "chunk"),
    ("comba", "chunk"),
    ("gated_oja_rule", "chunk"),
    ("precond_gated_delta_rule", "chunk"),
    ("precond_kda", "chunk"),
    ("rwkv6", "chunk"),
    ("iplr", "chunk"),
    ("stickbreaking_attn", "parallel"),
    ("path_attn", "parallel"),
    ("wall_attn", "parallel"),
    ("parallax", "parallel"),
    ("token_shift", "fused"),
    ("cumsum", "chunk"),
    ("mean_pooling", "fused"),
    ("solve_tril", "fused"),
    ("mesa_net", "chunk"),
    ("ttt_linear", "chunk"),
    ("selected_attention", "parallel"),
    ("nsa", "parallel"),
)
_UNCHECKED = (
    ("gsa", "chunk"),
    ("cyfa", "fused_recurrent"),
    ("lightnet", "fused_recurrent"),
    ("abc", "chunk"),
    ("log_linear_attn", "chunk"),
    ("gdn2", "fused_recurrent"),
    ("comba", "chunk"),
    ("gated_oja_rule", "chunk"),
    ("precond_gated_delta_rule", "chunk"),
    ("precond_kda", "fused_recurrent"),
    ("rwkv6", "chunk"),
    ("hgrn", "chunk"),
    ("iplr", "chunk"),
    ("path_attn", "parallel"),
    ("wall_attn", "parallel"),
    ("parallax", "parallel"),
    ("based", "parallel"),
    ("rebased", "parallel"),
    ("token_shift", "fused"),
    ("cumsum", "fused"),
    ("mean_pooling", "fused"),
    ("decay_gate", "fused"),
    ("rms_norm_gated", "fused"),
    ("layer_norm_gated", "fused"),
    ("rwkv4", "fused_recurrent"),
    ("momentum_delta_rule", "fused_recurrent"),
    ("mesa_net", "chunk"),
    ("ttt_linear", "chunk"),
    ("selected_attention", "parallel"),
    ("nsa", "parallel"),
    ("attnres", "fused"),
    ("feature_map", "fused"),
    ("strength_gate", "fused"),
)
_UNBOUND = (
    ("gsa", "chunk"),
    ("cyfa", "chunk"),
    ("lightnet", "chunk"),
    ("log_linear_attn", "chunk"),
    ("gated_delta_product", "chunk"),
    ("gdn2", "chunk"),
    ("comba", "chunk"),
    ("gated_oja_rule", "chunk"),
    ("precond_gated_delta_rule", "chunk"),
    ("precond_kda", "chunk"),
    ("rwkv6", "chunk"),
    ("hgrn", "fused_recurrent"),
    ("iplr", "chunk"),
    ("stickbreaking_attn", "parallel"),
    ("path_attn", "parallel"),
    ("wall_attn", "parallel"),
    ("parallax", "parallel"),
    ("token_shift", "fused"),
    ("cumsum", "fused"),
    ("mean_pooling", "fused"),
    ("solve_tril", "fused"),
    ("mesa_net", "chunk"),
    ("ttt_linear", "chunk"),
    ("selected_attention", "parallel"),
    ("nsa", "parallel"),
)


_UNCHECKED_OPTIONS = (
    ("cyfa", "chunk"),
    ("stickbreaking_attn", "parallel"),
    ("wall_attn", "parallel"),
    ("parallax", "parallel"),
    ("rms_norm_gated", "fused"),
    ("layer_norm_gated", "fused"),
    ("decay_gate", "fused"),
    ("ttt_linear", "chunk"),
    ("selected_attention", "parallel"),
    ("nsa", "parallel"),
    ("attnres", "fused"),
)

# Of ops whose cause is one, the first has the script.
_GATES_OF_A_CHUNK = (
    (
        Case.from_json(
            '{"op":"gated_delta_rule","mode":"chunk","dtype":"float32","dims":{"B":2,"G":1,"R":1,"K":7,"V":8},"lengths":[47],"given":["g","initial_state"],"options":{"scale":-2.25,"use_qk_l2norm_in_kernel":true,"output_final_state":true},"values":"extreme_gates"}'
        ),
        Case.from_json(
            '{"op":"comba","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":3},"lengths":[128],"given":["g","beta"],"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":false},"values":"strong_gates"}'
        ),
        Case.from_json(
            '{"op":"gated_oja_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":15,"V":31},"lengths":[2],"packed":true,"given":["gv"],"options":{"scale":null,"output_final_state":false},"values":"extreme_gates","context":"no_grad"}'
        ),
        Case.from_json(
            '{"op":"precond_gated_delta_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":129,"V":2},"lengths":[65],"given":["g"],"options":{"scale":null,"use_qk_l2norm_in_kernel":true,"output_final_state":true},"values":"shut_gates","seed":2048}'
        ),
    ),
    (
        Case.from_json(
            '{"op":"gsa","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16,"M":16},"lengths":[20],"given":["g","initial_state"],"options":{"scale":null,"output_final_state":false},"values":"shut_gates"}'
        ),
    ),
    (
        Case.from_json(
            '{"op":"kda","mode":"chunk","dtype":"float32","dims":{"B":2,"G":1,"R":1,"K":7,"V":8},"lengths":[47],"given":["g","initial_state"],"float32":["g"],"options":{"scale":-2.25,"use_qk_l2norm_in_kernel":true,"output_final_state":true},"values":"extreme_gates"}'
        ),
        Case.from_json(
            '{"op":"kda","mode":"chunk_of_32","dtype":"float32","dims":{"B":2,"G":1,"R":1,"K":7,"V":8},"lengths":[47],"given":["g","initial_state"],"float32":["g"],"options":{"scale":-2.25,"use_qk_l2norm_in_kernel":true,"output_final_state":true},"values":"extreme_gates"}'
        ),
        Case.from_json(
            '{"op":"gdn2","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":12,"V":1},"lengths":[63],"given":["g"],"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":false},"values":"shut_gates"}'
        ),
    ),
    (
        Case.from_json(
            '{"op":"dplr","mode":"chunk","dtype":"float32","dims":{"B":1,"H":2,"K":16,"V":16},"lengths":[10],"given":["gk"],"float32":["gk"],"options":{"scale":2.25,"output_final_state":true},"values":"extreme_gates","seed":18}'
        ),
    ),
    (
        Case.from_json(
            '{"op":"rwkv7","mode":"chunk","dtype":"float32","dims":{"B":2,"H":3,"K":16,"V":9},"lengths":[2],"given":["initial_state"],"options":{"scale":null,"output_final_state":true},"values":"extreme_gates","seed":65535}'
        ),
    ),
)

LEDGER = (
    KnownFailure(
        name="deltaformer_rest_of_a_chunk",
        law="differential",
        releases=RELEASES,
        expected="[1.0, 1.0]",
        got="[nan, 1.0]",
        cause="In a batch the backward pass counts chunks from the last token, the forward pass "
        "from the first (deltaformer/parallel.py): where they do not fill their chunks, gradients "
        "of the first tokens are never written, and the others get weights of other tokens.",
    ),
    KnownFailure(
        name="deltaformer_values_past_the_end",
        law="differential",
        releases=RELEASES,
        expected="1.0",
        got="load out of bounds in kernel parallel_deltaformer_bwd_kernel_qk",
        cause="The backward pass loads a block of values without a mask (deltaformer/parallel.py).",
    ),
    KnownFailure(
        name="weights_of_large_logits",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"attnres","mode":"fused","dtype":"float32","dims":{"B":1,"L":2,"D":16},'
                '"lengths":[15],"options":{"scale":-1,"eps":1e-06,"return_weights":true},'
                '"values":"large_logits"}'
            ),
            Case.from_json(
                '{"op":"attnres","mode":"fused","dtype":"float32","dims":{"B":2,"D":64,"L":2},'
                '"lengths":[1],"given":["output_weight"],"options":{"scale":1.361328125,"eps":1.0,'
                '"return_weights":true},"values":"wide_range","layouts":{"x":"expanded",'
                '"output_weight":"expanded","do":"expanded"},"seed":4769}'
            ),
        ),
        modes=("fused",),
        shows=lambda given: _lse_of_sources(given) > 1,
        symptoms=(
            Wrong(
                ("weights", "dx", "dquery", "dweight", "doutput_weight"),
                most=_digits(_lse_of_sources),
            ),
        ),
        expected="[0.5, 0.5]",
        got="[0.5028, 0.5028]",
        cause="Weights, also those of the backward pass, are exp(logit - lse) of an LSE that is "
        "rounded to float32: large logits take their digits, and they do not sum to 1 "
        "(attnres/fused.py).",
    ),
    KnownFailure(
        name="dplr_inverse_in_float16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"dplr","mode":"chunk_safe_gate","dtype":"float32","dims":{"B":1,"H":1,"K":2,'
                '"V":9},"lengths":[16],"options":{"scale":null,"output_final_state":true},'
                '"values":"one_hot_values"}'
            ),
        ),
        modes=("chunk_safe_gate",),
        shows=lambda given: given["q"].dtype == torch.float32 and _longest(given) > 1,
        # A round-off of float16 is that of float32 times 2^13.
        symptoms=(Wrong(most=2.0**13),),
        expected="0.1",
        got="0.099976",
        cause="With safe_gate the inverse of a chunk is computed in float16, whatever the inputs "
        "are; without it in float32 (prepare_wy_repr_fwd_kernel_safe in dplr/wy_fast_fwd.py).",
    ),
    KnownFailure(
        name="decoding_products_in_16_bits",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"decoding","dtype":"bfloat16","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[1],"packed":true,"key_lengths":[5],"options":{'
                '"causal":false,"window":null,"scale":null},"values":"large_logits"}'
            ),
        ),
        modes=("decoding",),
        shows=lambda given: given["q"].dtype != torch.float32 and _largest_logit(given) > 2,
        symptoms=(Wrong(("o",), most=_largest_logit),),
        expected="16.75",
        got="16.5",
        cause="Scaled queries and products of queries and keys are rounded to 16 bits, and logits "
        "lose digits (attn/decoding.py).",
    ),
    KnownFailure(
        name="gradients_of_small_losses",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"mesa_net","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":1,"V":1},'
                '"lengths":[1],"options":{"use_qk_l2norm_in_kernel":false,'
                '"output_final_state":false},"values":"uneven"}'
            ),
        ),
        modes=("chunk",),
        shows=_always,
        symptoms=(
            # Of a call nobody knows here how small its loss is.
            Wrong(("dq", "dk", "dv", "dlamb", "dg", "dbeta", "dinitial_state"), most=math.inf),
            Wrong(("o",), most=lambda given: math.inf if _small_queries(given) else 0.0),
        ),
        expected="0.0001",
        got="3e-06",
        cause="Conjugate gradients divide by sums to which 1e-5 is added (chunk_cg_solver_fwd.py, "
        "chunk_cg_solver_bwd.py): they stall where a squared residual is about that, so small "
        "queries and small gradients keep a fraction of their result.",
    ),
    KnownFailure(
        name="mesa_states_in_bfloat16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"mesa_net","mode":"chunk","dtype":"float16","dims":{"B":1,"H":1,"K":16,'
                '"V":16},"lengths":[1],"given":["initial_state"],"options":{'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":false}}'
            ),
        ),
        modes=("chunk",),
        shows=lambda given: given["v"].dtype == torch.float16 and _reads_a_state(given),
        # A round-off of bfloat16 is that of float16 times 8.
        symptoms=(Wrong(("o", "dq"), most=8.0),),
        expected="1.001953125",
        got="1.0",
        cause="States that chunks read, the initial one too, are stored in bfloat16 whatever the "
        "inputs are, and what reads them is rounded to it (chunk_h_fwd.py).",
    ),
    KnownFailure(
        name="write_gates_in_float32",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"gdn2","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":16,"V":16},'
                '"lengths":[1],"given":["write"],"float32":["write"],"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":false}}'
            ),
        ),
        modes=("chunk",),
        shows=lambda given: _in_float32_beside(given, "write"),
        symptoms=(Raised("CompilationError", "Both operands must be same dtype"),),
        expected="1.0",
        got="CompilationError",
        cause="The backward pass multiplies gradients and values times gates without rounding the "
        "product to the dtype of the values, as the forward pass does (chunk_bwd.py).",
    ),
    KnownFailure(
        name="chunks_of_inference_mode",
        law="context_invariance",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"simple_gla","mode":"parallel","dtype":"float32","dims":{"B":1,"H":1,"K":16,'
                '"V":16},"lengths":[3,2],"packed":true,"options":{"scale":null},"seed":1}'
            ),
            *(
                Case.from_json(
                    f'{{"op":"{op}","mode":"{mode}","dtype":"float32","dims":{{"B":1,"H":1,"K":16,'
                    '"V":16},"lengths":[3,2],"packed":true,"options":{"scale":null},"seed":1}'
                )
                for op, mode in (
                    ("linear_attn", "chunk"),
                    ("retention", "parallel"),
                    ("retention", "chunk"),
                    ("gla", "chunk"),
                )
            ),
            Case.from_json(
                '{"op":"lightning_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,'
                '"V":16},"lengths":[3,2],"packed":true,"options":{"num_layers":24,"layer_idx":0,'
                '"scale":null},"seed":1}'
            ),
            Case.from_json(
                '{"op":"delta_rule","mode":"chunk","dtype":"float16","dims":{"B":1,"H":1,"K":1,'
                '"V":1},"lengths":[1],"packed":true,"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":false},"seed":1}'
            ),
            *(
                replace(_OTHERS[op, "chunk"], lengths=(3, 2), packed=True, seed=1)
                for op in (
                    "mesa_net",
                    "rwkv6",
                    "cyfa",
                    "lightnet",
                    "gdn2",
                    "gated_oja_rule",
                    "precond_gated_delta_rule",
                )
            ),
        ),
        modes=("chunk", "parallel"),
        shows=_trains_packs,
        symptoms=(Raised("RuntimeError", "Inference tensors cannot be saved for backward."),),
        expected="[16.0, 16.0]",
        got="Inference tensors cannot be saved for backward",
        cause="The chunks of a pack are remembered by the tensor object (tensor_cache in "
        "utils/decorators.py): those of a call in inference mode are tensors that no call with "
        "gradients can save.",
    ),
    KnownFailure(
        name="momentum_gates_of_a_chunk",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"momentum_delta_rule","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,'
                '"K":16,"V":16},"lengths":[64],"given":["log_mu"],"options":{"scale":null,'
                '"output_final_state":true},"values":"strong_gates"}'
            ),
        ),
        modes=("chunk",),
        shows=_fading_momentum,
        symptoms=(Wrong(most=math.inf, finite=False),),
        expected="1.0",
        got="0.0",
        cause="A weight is 1 - exp(x) times what a momentum has faded by since the chunk began, "
        "inverted (naive.py): the difference has no digits left, and the factor may be inf.",
    ),
    KnownFailure(
        name="gradient_of_fewer_queries",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"selected_attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,'
                '"R":16,"K":16,"V":16,"M":1},"lengths":[3],"key_lengths":[5],'
                '"options":{"block_size":16,"scale":null},"seed":8}'
            ),
        ),
        modes=("parallel",),
        shows=_fewer_queries,
        symptoms=(
            Raised("LoadOutOfBounds", "in kernel parallel_nsa_bwd_kernel_dq"),
            Wrong(("dq", "dk", "dv"), most=math.inf, finite=False),
        ),
        expected="[8.0, 8.0]",
        got="load out of bounds in kernel parallel_nsa_bwd_kernel_dq",
        cause="The backward pass takes the number of keys for that of queries (nsa/parallel.py); a "
        "pack with boundaries of keys raises NotImplementedError, a batch does not.",
    ),
    KnownFailure(
        name="tokens_after_an_empty_sequence",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"nsa","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":16,"K":16,'
                '"V":16},"lengths":[0,3],"packed":true,"options":{"block_size":16,"top_k":4,'
                '"local_blocks":2,"window":2,"scale":null}}'
            ),
            replace(_OTHERS["selected_attention", "parallel"], lengths=(0, 3), packed=True),
        ),
        modes=("parallel",),
        shows=_empty_sequence,
        symptoms=(
            Wrong(most=math.inf, finite=False),
            Raised("LoadOutOfBounds", "in kernel parallel_nsa"),
            Raised("StoreOutOfBounds", "in kernel parallel_nsa"),
            Raised("Race", "in kernel parallel_nsa"),
        ),
        expected="1.0",
        got="0.0",
        cause="Sequences are counted by their first tokens (prepare_sequence_ids in "
        "utils/index.py): an empty one has none, and those after it are taken for those before.",
    ),
    KnownFailure(
        name="linear_model_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"ttt_linear","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":1},'
                '"lengths":[0],"options":{"eps":1e-06,"mini_batch_size":16,"scale":null,'
                '"output_final_state":false}}'
            ),
        ),
        modes=("chunk", "fused_chunk"),
        shows=lambda given: given["q"].numel() == 0,
        symptoms=(Raised("RuntimeError", "cannot reshape tensor of 0 elements into shape"),),
        expected="(1, 0, 1, 16)",
        got="RuntimeError",
        cause="The layer norm reshapes to rows of -1 elements (norm_residual in ttt/chunk.py).",
    ),
    KnownFailure(
        name="linear_model_in_float32",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"ttt_linear","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":1},'
                '"lengths":[1],"float32":["eta"],"options":{"eps":1e-06,"mini_batch_size":16,'
                '"scale":null,"output_final_state":false}}'
            ),
            Case.from_json(
                '{"op":"ttt_linear","mode":"fused_chunk","dtype":"bfloat16","dims":{"B":1,"H":1,'
                '"K":1},"lengths":[1],"float32":["bias"],"options":{"eps":1e-06,'
                '"mini_batch_size":16,"scale":null,"output_final_state":false}}'
            ),
        ),
        modes=("chunk", "fused_chunk"),
        shows=_float32_beside_16_bits,
        symptoms=(
            Raised("CompilationError", "Both operands must be same dtype. Got fp32 and "),
            Raised("CompilationError", "Loop-carried variable b_"),
        ),
        expected="1.0",
        got="CompilationError",
        cause="Keys times a float32 rate are multiplied with errors of 16 bits, and the loop of "
        "the backward pass changes the dtype of the weight and the bias (ttt/chunk.py, "
        "ttt/fused_chunk.py).",
    ),
    KnownFailure(
        name="linear_model_in_float16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"ttt_linear","mode":"fused_chunk","dtype":"float16","dims":{"B":1,"H":11,'
                '"K":20},"lengths":[1,28,7,7],"packed":true,"options":{"eps":1e-06,'
                '"mini_batch_size":16,"scale":null,"output_final_state":false},"values":"zeros",'
                '"layouts":{"q":"repeated","k":"sliced","v":"expanded","weight":"heads_first",'
                '"eta":"expanded","cu_seqlens":"expanded"},"context":"no_grad","seed":100}'
            ),
        ),
        modes=("chunk", "fused_chunk"),
        shows=_overflowing_model,
        symptoms=(
            Wrong(finite=False),
            # Of rows past the end too: see `errors_of_rows_past_the_end`.
            Wrong(("final_state",), most=math.inf, finite=False),
        ),
        expected="1025.0",
        got="nan",
        cause="Keys and queries are multiplied by the model, and gradients added to it, in their "
        "dtype: above 65504, in float16, they are inf, and what reads them NaN.",
    ),
    KnownFailure(
        name="errors_of_rows_past_the_end",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"ttt_linear","mode":"fused_chunk","dtype":"float32","dims":{"B":1,"H":2,"K":5},'
                '"lengths":[20],"given":["initial_state"],"options":{"eps":1e-06,'
                '"mini_batch_size":16,"scale":null,"output_final_state":true}}'
            ),
        ),
        modes=("chunk", "fused_chunk"),
        shows=_rest_of_a_mini_batch,
        symptoms=(Wrong(("final_state",), most=math.inf),),
        expected="0.5",
        got="8.0",
        cause="Rows past the end of a mini-batch, whose keys and values are 0, have an error too, "
        "which the final bias gets; so in the PyTorch reference beside the kernels.",
    ),
    KnownFailure(
        name="compression_gradient_of_wide_values",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"nsa","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":16,"K":16,'
                '"V":136},"lengths":[20],"options":{"block_size":16,"top_k":4,"local_blocks":2,'
                '"window":8,"scale":null}}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: given["v"].shape[-1] > 128,
        symptoms=(Wrong(("dq", "dk"), most=math.inf),),
        expected="0.0",
        got="-34.0",
        cause="Each tile of 128 values subtracts the row sum of all values from its part of the "
        "weights' gradient; the branch of selected blocks has one tile for that reason.",
    ),
    KnownFailure(
        name="key_dims_below_a_dot",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"kda","mode":"chunk_safe_gate","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":8,"V":8},"lengths":[1],"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":false}}'
            ),
            Case.from_json(
                '{"op":"precond_kda","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":8,'
                '"V":8},"lengths":[1],"options":{"scale":null,"use_qk_l2norm_in_kernel":true,'
                '"output_final_state":false}}'
            ),
            # Of a GPU with less shared memory.
            *(
                Case.from_json(
                    f'{{"op":"dplr","mode":"{mode}","dtype":"float32","dims":{{"B":1,"H":1,"K":8,'
                    '"V":9},"lengths":[1],"options":{"scale":null,"output_final_state":false},'
                    '"architecture":"sm_120"}'
                )
                for mode in ("chunk", "chunk_safe_gate")
            ),
            Case.from_json(
                '{"op":"rwkv7","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":8,"V":9},'
                '"lengths":[1],"options":{"scale":null,"output_final_state":false},'
                '"architecture":"sm_120"}'
            ),
        ),
        modes=("chunk_safe_gate", "chunk"),
        shows=lambda given: given["k"].shape[-1] <= 8,
        symptoms=(Raised("CompilationError", "K >= 16"),),
        expected="8.0",
        got="CompilationError",
        cause="Dots are over the next power of two of K, and a dot is over 16 at least: in the "
        "diagonal blocks of bounded gates, between blocks of precond_kda, and on a GPU of less "
        "shared memory in the backward pass of DPLR (chunk_o_bwd.py).",
    ),
    KnownFailure(
        name="dims_below_a_dot",
        law="differential",
        releases=RELEASES,
        expected="1.0",
        got="CompilationError",
        cause="Kernels have a dot over the next power of two of V, in GSA of K and of slots too; a "
        "dot is over 16 at least.",
    ),
    KnownFailure(
        name="gradient_of_three_blocks",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"selected_attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,'
                '"R":16,"K":16,"V":16,"M":3},"lengths":[1],"options":{"block_size":16,"scale":null}}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: given["indices"].shape[-1].bit_count() != 1,
        symptoms=(Raised("CompilationError", "arange's range must be a power of 2"),),
        expected="1.0",
        got="CompilationError",
        cause="The backward pass reads the selected blocks of a query as one tile "
        "(prepare_block_csr_kernel in utils/csr.py), whose size is to be a power of two; the "
        "forward pass takes any number.",
    ),
    KnownFailure(
        name="rows_without_a_block",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"selected_attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,'
                '"R":16,"K":16,"V":16,"M":2},"lengths":[20],"options":{"block_size":16,"scale":null}}'
            ),
        ),
        modes=("parallel",),
        shows=_selects_nothing,
        symptoms=(Wrong(most=math.inf, finite=False),),
        expected="0.0",
        got="nan",
        cause="A row is divided by its sum of weights: of no keys, 0.",
    ),
    KnownFailure(
        name="states_read_past_a_view",
        law="differential",
        releases=RELEASES,
        expected="1.0",
        got="load out of bounds in kernel fused_recurrent_rwkv4_backward_kernel",
        cause="A view of all states but the last is saved, and the last one read behind it: right "
        "as long as nothing copies what is saved, as save_on_cpu does.",
    ),
    KnownFailure(
        name="sums_of_rows_past_the_end",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"abc","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":10,"V":10,'
                '"M":16},"lengths":[1],"values":"large_states"}'
            ),
        ),
        modes=("chunk",),
        shows=_sums_of_slots_underflow,
        symptoms=(Wrong(("o", "dq", "dk", "dv", "ds"), most=math.inf, finite=False),),
        expected="1.0",
        got="0.0",
        cause="logcumsumexp takes the maximum of a block with rows past the end, which are 0: sums "
        "of logits far below are exp(-inf), for which it takes 1e-20.",
    ),
    KnownFailure(
        name="softplus_of_large_logits",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"stickbreaking_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,'
                '"R":1,"K":4,"V":1},"lengths":[15],"packed":true,"options":{"scale":null,'
                '"attend_current":false},"values":"large_logits"}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: given["q"].dtype == torch.float32 and _largest_logit(given) > 10,
        # 2^-15 of a weight, in round-offs of float32.
        symptoms=(Wrong(most=512),),
        expected="0.999972",
        got="1.0",
        cause="log2(1 + 2^z) is taken to be z from z = 15 on: weights lose 2^-15 of themselves.",
    ),
    KnownFailure(
        name="wall_gradient_past_the_end",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"wall_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[150],"options":{"scale":null,"window":null}}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: _total_gates(given) > 126,
        symptoms=(Wrong(("dk", "dg"), finite=False),),
        expected="0.0",
        got="nan",
        cause="The gates of queries past the end are summed to 0, and the reference to a decay at "
        "the start of their block: the quotient overflows, and times a query of 0 it is NaN.",
    ),
    KnownFailure(
        name="wall_gates_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"wall_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":2,'
                '"K":9,"V":2},"lengths":[0],"packed":true,"options":{"window":null,"scale":null},'
                '"layout":"strided"}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: given["g"].numel() == 0 and given["g"].stride(-1) != 1,
        symptoms=(Raised("ValueError", "`g_cumsum` must be contiguous in the last (K) dimension"),),
        expected="(1, 0, 1, 16)",
        got="ValueError",
        cause="A tensor without elements is contiguous whatever its strides are, so nothing copies "
        "it, and its strides are refused (wall_attn/parallel.py).",
    ),
    KnownFailure(
        name="wall_keys_behind_strong_gates",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"wall_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":1,"V":1},"lengths":[15],"packed":true,"options":{"scale":null,"window":null},'
                '"values":"strong_gates"}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: _total_gates(given) > 110,
        symptoms=(Wrong(most=math.inf, finite=False),),
        expected="0.4223",
        got="0.3359",
        cause="Keys are divided by their decay since the start of a block, at most by 2^-110: "
        "behind stronger gates they count for less, and products of what is above are infinite.",
    ),
    KnownFailure(
        name="wall_logits_in_16_bits",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"wall_attn","mode":"parallel","dtype":"bfloat16","dims":{"B":1,"G":27,"R":1,'
                '"K":18,"V":3},"lengths":[8],"options":{"window":null,"scale":null},'
                '"values":"large_logits","seed":1036}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: given["q"].dtype != torch.float32 and _largest_logit(given) > 2,
        symptoms=(Wrong(most=_largest_logit),),
        expected="0.55",
        got="0.45",
        cause="Queries and keys times their decays are rounded to 16 bits where the gradients of "
        "keys and values recompute weights, unless WALL_ATTN_DKV_DIAG_BF16 is 0, and everywhere "
        "beyond a block: logits lose digits (wall_attn/parallel.py).",
    ),
    KnownFailure(
        name="wall_keys_in_float16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"wall_attn","mode":"parallel","dtype":"float16","dims":{"B":1,"G":3,"R":1,'
                '"K":24,"V":2},"lengths":[16],"options":{"scale":0.1632080078125,"window":null},'
                '"values":"large_logits","frozen":["k"],"seed":3003}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: given["k"].dtype == torch.float16 and _total_gates(given) > 10,
        symptoms=(Wrong(("dk", "dv", "dg", "dgs"), most=math.inf, finite=False),),
        expected="1.0",
        got="nan",
        cause="Keys that are divided by their decay since the start of a block are rounded to "
        "float16: above 65504 they are inf, and times queries that have decayed to 0 NaN.",
    ),
    KnownFailure(
        name="gates_of_minus_infinity",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[5],"given":["g"],"options":{"scale":1.0,"causal":true,'
                '"window":null},"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"forgetting","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[5],"given":["g"],"options":{"scale":1.0,"causal":true,'
                '"window":null},"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"decoding","dtype":"float32","dims":{"B":1,"G":1,"R":2,'
                '"K":1,"V":1},"lengths":[1],"given":["g"],"options":{"scale":null,"causal":true,'
                '"window":null},"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"path_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[5],"given":["g"],"float32":["w","beta","g"],'
                '"options":{"scale":1.0},"values":"closed_gates"}'
            ),
            *(
                Case.from_json(
                    f'{{"op":"simple_gla","mode":"{mode}","dtype":"float32","dims":{{"B":1,"H":1,'
                    '"K":16,"V":16},"lengths":[5],"given":["g"],"options":{"scale":null},'
                    '"values":"closed_gates"}'
                )
                for mode in ("chunk", "fused_chunk", "parallel")
            ),
            Case.from_json(
                '{"op":"gla","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},'
                '"lengths":[5],"given":["g"],"options":{"scale":null,"output_final_state":false},'
                '"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"cyfa","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16,'
                '"M":15},"lengths":[5],"given":["g"],"options":{"scale":null,'
                '"output_final_state":false},"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"mesa_net","mode":"chunk","dtype":"bfloat16","dims":{"B":3,"H":2,"K":15,'
                '"V":15},"lengths":[1],"given":["g","beta","initial_state"],"options":{'
                '"use_qk_l2norm_in_kernel":true,"output_final_state":false},'
                '"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"kda","mode":"chunk_of_32","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[5],"given":["g"],"float32":["g"],"options":{'
                '"scale":1.0,"use_qk_l2norm_in_kernel":false,"output_final_state":false},'
                '"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"log_linear_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":64,"V":16},"lengths":[40],"given":["g"],"options":{"scale":null},'
                '"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"comba","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,'
                '"V":16},"lengths":[5],"given":["g","beta"],"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":false},'
                '"values":"closed_gates","seed":1}'
            ),
            Case.from_json(
                '{"op":"rwkv6","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},'
                '"lengths":[5],"options":{"scale":null,"output_final_state":true},'
                '"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"gated_delta_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,'
                '"R":3,"K":1,"V":1},"lengths":[1],"given":["g"],"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":false},'
                '"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"gated_delta_product","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":3,'
                '"K":16,"V":16,"J":2},"lengths":[9],"given":["g"],"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":false},'
                '"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"dplr","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":15},'
                '"lengths":[2],"given":["gk"],"options":{"scale":null,"output_final_state":false},'
                '"values":"closed_gates","seed":4612}'
            ),
            Case.from_json(
                '{"op":"rwkv7","mode":"chunk","dtype":"float32","dims":{"B":1,"H":6,"K":8,"V":10},'
                '"lengths":[1],"options":{"scale":1.0,"output_final_state":false},'
                '"values":"closed_gates"}'
            ),
            Case.from_json(
                '{"op":"gated_oja_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,'
                '"K":11,"V":11},"lengths":[5],"given":["gv"],"options":{"scale":null,'
                '"output_final_state":false},"values":"closed_gates","seed":1}'
            ),
            *(
                replace(
                    _OTHERS[op, "chunk"],
                    lengths=(5,),
                    given=("g",),
                    values="closed_gates",
                    seed=1,
                )
                for op in ("gdn2", "precond_gated_delta_rule", "precond_kda")
            ),
        ),
        modes=("parallel", "chunk", "fused_chunk", "chunk_of_32", "forgetting", "decoding"),
        shows=_closed,
        symptoms=(Wrong(most=math.inf, finite=False),),
        expected="[1.0, 1.0]",
        got="[1.0, nan]",
        cause="A logit or decay gets the difference of two sums of gates: of -inf and -inf, NaN.",
    ),
    KnownFailure(
        name="path_reflections_in_float16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"path_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[200],"float32":["w","beta"],"options":{"scale":1.0}}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: _longest(given) > CHUNK and _in_float16(given) > 1,
        symptoms=(Wrong(most=_in_float16),),
        expected="1.0",
        got="nan",
        cause="Between chunks, queries, directions and strengths are rounded to float16.",
    ),
    KnownFailure(
        name="path_scale_below_zero",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"path_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[5],"given":["g"],"float32":["w","beta","g"],'
                '"options":{"scale":-2.25}}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: (given["scale"] or 1) < 0 and given.get("g") is not None,
        symptoms=(Wrong(most=math.inf, finite=False),),
        expected="1.0",
        got="nan",
        cause="With gates, logits of queries past the end are -inf before they are scaled: a "
        "negative scale makes them inf, and infinite weights times gradients of 0 are NaN.",
    ),
    KnownFailure(
        name="norm_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=tuple(
            Case.from_json(
                f'{{"op":"{op}","mode":"{mode}","dtype":"float32","dims":{{"B":1,"H":1,"D":1}},'
                '"lengths":[0],"options":{"eps":1e-06,"gate_first":false}}'
            )
            for op in ("rms_norm_gated", "layer_norm_gated")
            for mode in ("fused", "linear")
        ),
        modes=("fused", "linear"),
        shows=lambda given: given["x"].numel() == 0,
        symptoms=(Raised("ZeroDivisionError", "division by zero"),),
        expected="(1, 0, 1, 16)",
        got="ZeroDivisionError",
        cause="The backward pass has as many programs as rows or fewer, and divides by them.",
    ),
    KnownFailure(
        name="shift_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"token_shift","mode":"fused","dtype":"float32","dims":{"B":1,"D":2},'
                '"lengths":[0,1],"packed":true,"given":["initial_state"],'
                '"options":{"output_final_state":true}}'
            ),
        ),
        modes=("fused",),
        shows=lambda given: (
            given["x"].shape[1] == 0 or _empty_sequence(given) or _of_a_lost_state(given) > 0
        ),
        symptoms=(
            Wrong(("final_state", "dinitial_state"), most=math.inf, finite=False),
            Wrong(most=_of_a_lost_state, finite=False),
        ),
        expected="[2.0, 1.0]",
        got="[nan, 1.0]",
        cause="The state of a sequence and its gradient are written at its last and first token, "
        "and without any not at all.",
    ),
    KnownFailure(
        name="log_linear_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"log_linear_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":64,"V":16},"lengths":[0],"packed":true,"options":{"scale":null}}'
            ),
        ),
        modes=("chunk",),
        shows=lambda given: given["q"].shape[1] == 0,
        symptoms=(Raised("ValueError", "math domain error"),),
        expected="(1, 0, 1, 16)",
        got="ValueError",
        cause="The number of levels is the logarithm of the number of chunks, which is 0.",
    ),
    KnownFailure(
        name="log_linear_empty_sequence",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"log_linear_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":64,"V":16},"lengths":[0,1],"packed":true,"options":{"scale":null}}'
            ),
        ),
        modes=("chunk",),
        shows=_empty_sequence,
        symptoms=(
            Raised("LoadOutOfBounds", "in kernel chunkwise_bwd_kernel_dkg"),
            Wrong(("dq", "dk", "dv", "dg", "dlevel_scales"), most=math.inf, finite=False),
        ),
        expected="64.0",
        got="load out of bounds in kernel chunkwise_bwd_kernel_dkg",
        cause="The last gate of a sequence without tokens is read: the one before the sequence.",
    ),
    KnownFailure(
        name="log_linear_gradients_in_float16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"log_linear_attn","mode":"chunk","dtype":"float16","dims":{"B":1,"G":1,"R":2,'
                '"K":64,"V":16},"lengths":[130],"given":["g"],"options":{"scale":1},'
                '"values":"large_values","seed":2}'
            ),
        ),
        modes=("chunk",),
        # How large the gradients of a call are nobody knows here.
        shows=lambda given: given["q"].dtype == torch.float16 and _longest(given) > CHUNK,
        symptoms=(Wrong(("dq", "dk", "dv", "dg"), finite=False),),
        expected="0.0",
        got="nan",
        cause="Gradients of states, and of queries and keys of each head, are stored in the dtype "
        "of the values: above 65504, in float16, they are inf, and NaN where a value is 0.",
    ),
    KnownFailure(
        name="log_linear_scales_in_float32",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"log_linear_attn","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"G":1,'
                '"R":1,"K":64,"V":16},"lengths":[1],"float32":["level_scales"],'
                '"options":{"scale":null}}'
            ),
        ),
        modes=("chunk",),
        shows=lambda given: given["level_scales"].dtype != given["v"].dtype,
        symptoms=(Raised("CompilationError", "Both operands must be same dtype"),),
        expected="16.0",
        got="CompilationError",
        cause="Weights times level scales have their dtype, and the values, which they multiply, "
        "another.",
    ),
    KnownFailure(
        name="gate_of_a_small_step",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"decay_gate","mode":"fused_of_heads","dtype":"bfloat16","dims":{"B":1,"H":1,'
                '"D":1},"lengths":[15],"given":["A_log"],"values":"large_logits","seed":1}'
            ),
            Case.from_json(
                '{"op":"decay_gate","mode":"fused","dtype":"float32","dims":{"B":1,"H":2,"D":1},'
                '"lengths":[1],"options":{"lower_bound":null},"values":"large_logits"}'
            ),
        ),
        modes=("fused_of_heads", "fused"),
        shows=_small_step,
        symptoms=(Wrong(("g", "dA_log"), most=math.inf),),
        expected="-4.1e-08",
        got="-0.0e+00",
        cause="A softplus is log(1 + exp(x)): below x = -4 it loses digits, and below -17 all.",
    ),
    KnownFailure(
        name="state_after_a_part_of_a_chunk",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"lightning_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":2,"K":1,'
                '"V":1},"lengths":[1],"options":{"layer_idx":0,"num_layers":1,"scale":null,'
                '"output_final_state":true}}'
            ),
        ),
        modes=("chunk",),
        shows=lambda given: _overflows_past_the_end(given) or _of_a_lost_state(given) > 0,
        symptoms=(
            Wrong(("final_state",), finite=False),
            Wrong(most=_of_a_lost_state, finite=False),
        ),
        expected="[1.0, 1.0]",
        got="[1.0, nan]",
        cause="The decay from a row to the end of the chunk is taken of the rows past the last "
        "token too, where it is above 1: it overflows, and times a value of 0 it is NaN.",
    ),
    KnownFailure(
        name="gates_summed_over_the_sequence",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":2,'
                '"K":12,"V":9},"lengths":[33],"given":["g"],"options":{"scale":0.0,"causal":true,'
                '"window":null},"values":"extreme_gates","seed":2574}'
            ),
            Case.from_json(
                '{"op":"path_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
                '"K":16,"V":16},"lengths":[64],"given":["g"],"float32":["w","beta","g"],'
                '"options":{"scale":1.0},"values":"extreme_gates"}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: _sum_of_gates(given) > 100,
        symptoms=(Wrong(most=_digits(_sum_of_gates)),),
        expected="0.5025",
        got="0.5",
        cause="A logit gets the difference of two sums of gates from the first token on, in "
        "float32: what came before a key takes the digits of what came after it.",
    ),
    KnownFailure(
        name="rows_without_weight",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"linear_attn","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"H":1,'
                '"K":1,"V":1},"lengths":[1],"options":{"scale":null,"normalize":true,'
                '"reverse":false,"output_final_state":false},"values":"zeros","seed":4}'
            ),
        ),
        modes=("chunk", "fused_chunk", "fused_recurrent"),
        shows=_little_weight,
        symptoms=(Wrong(("o", "dq", "dk", "dv", "dinitial_state"), most=math.inf, finite=False),),
        expected="0.0",
        got="nan",
        cause="1e-10 is added to the scaled sum of weights in the dtype of the queries: in float16 "
        "it is 0, elsewhere rows of little weight depend on the scale, and those of none have "
        "gradients of 1e10.",
    ),
    KnownFailure(
        name="normalizer_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"linear_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":9,"V":9},'
                '"lengths":[0],"given":["initial_state"],"options":{"scale":1.0,"normalize":true,'
                '"output_final_state":true}}'
            ),
        ),
        modes=("chunk", "fused_chunk", "fused_recurrent"),
        shows=_no_tokens,
        symptoms=(
            Raised("RuntimeError", "Tensors must have same number of dimensions: got 4 and 5"),
        ),
        expected="(1, 1, 1, 16)",
        got="(1, 0, 1, 16)",
        cause="The sum of keys is handed on as that at the last token, which is not there.",
    ),
    KnownFailure(
        name="rotary_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"rotary_embedding","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":2,'
                '"P":1},"lengths":[0],"options":{"interleaved":false,"seqlen_offsets":0,'
                '"inplace":false}}'
            ),
        ),
        modes=("fused",),
        shows=lambda given: given["x"].shape[1] == 0,
        symptoms=(
            Raised("ZeroDivisionError", "integer division or modulo by zero"),
            Raised("RuntimeError", "ZeroDivisionError"),
            # Or the position of the first token, which is not there, has no row.
            Raised("AssertionError", ""),
            Raised("RuntimeError", "Rotary cache is too short for tensor offsets"),
        ),
        expected="(1, 0, 1, 16)",
        got="ZeroDivisionError",
        cause="Tiles are as long as the tokens for each multiprocessor, which here are none.",
    ),
    KnownFailure(
        name="rotary_turned_while_timed",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"rotary_embedding","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":2,'
                '"P":1},"lengths":[1],"options":{"interleaved":false,"seqlen_offsets":0,'
                '"inplace":true},"frozen":["x"]}'
            ),
        ),
        modes=("fused",),
        shows=lambda given: given["inplace"],
        symptoms=(Wrong(("y", "dx"), most=math.inf),),
        expected="[0.0, 1.0]",
        got="[-1.0, 0.0]",
        cause="Triton times 15 configs on the tensor that the kernel turns in place, and nothing "
        "restores it: the first call of a batch, number of heads and head dim turns it each time.",
    ),
    KnownFailure(
        name="rotary_gradient_overwritten",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"rotary_embedding","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":2,'
                '"P":1},"lengths":[1],"options":{"interleaved":false,"seqlen_offsets":0,'
                '"inplace":true},"earlier":{}}'
            ),
        ),
        modes=("fused",),
        shows=lambda given: given["inplace"] and given["x"].requires_grad,
        symptoms=(
            Wrong(("dx",), most=math.inf),
            Told("gradient of y: its memory was written to"),
        ),
        expected="[1.0, -1.0]",
        got="[0.0, -2.0]",
        cause="The backward of a rotation in place rotates the gradient that it is given in place, "
        "which autograd hands to others too.",
    ),
    KnownFailure(
        name="rotary_tables_of_the_pack",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"rotary_embedding","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":2,'
                '"P":1},"lengths":[3,3],"packed":true,"options":{"interleaved":false,'
                '"seqlen_offsets":0,"inplace":false}}'
            ),
        ),
        modes=("fused",),
        shows=_tables_of_a_sequence,
        symptoms=(Raised("AssertionError", ""),),
        expected="(1, 6, 1, 16)",
        got="AssertionError",
        cause="With one offset for all, tables have to be as long as the pack, not as its longest "
        "sequence.",
    ),
    KnownFailure(
        name="state_without_a_gradient",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"delta_rule","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"H":2,'
                '"K":9,"V":8},"lengths":[15],"given":["initial_state"],"options":{"scale":0.5,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":true},"layout":"expanded"}'
            ),
        ),
        modes=("fused_recurrent",),
        shows=_constant_state,
        symptoms=(Raised("CompilationError", "'NoneType' object has no attribute 'type'"),),
        expected="4.0",
        got="CompilationError",
        cause="The gradient of the state is allocated if the state requires one, which its "
        "contiguous copy does not, and written if there is a state.",
    ),
    KnownFailure(
        name="gradient_of_a_copied_state",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"iplr","mode":"fused_recurrent","dtype":"float32","dims":{"B":2,"H":1,"K":2,'
                '"V":5},"lengths":[3],"given":["initial_state"],"options":{"scale":null,'
                '"output_final_state":false},"layouts":{"initial_state":"expanded"}}'
            ),
        ),
        modes=("fused_recurrent",),
        shows=_copied_state,
        symptoms=(Wrong(("dinitial_state",), most=math.inf),),
        expected="1.0",
        got="0.0",
        cause="The gradient of the state is computed if the state requires one, which its "
        "contiguous copy does not (iplr/fused_recurrent.py).",
    ),
    KnownFailure(
        name="momentum_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=tuple(
            Case.from_json(
                f'{{"op":"momentum_delta_rule","mode":"{mode}","dtype":"bfloat16","dims":{{"B":1,'
                '"H":1,"K":1,"V":1},"lengths":[0],"options":{"scale":null,'
                '"output_final_state":false}}'
            )
            for mode in ("chunk", "fused_recurrent")
        ),
        modes=("chunk", "fused_recurrent"),
        shows=lambda given: given["q"].shape[1] == 0,
        symptoms=(Raised("RuntimeError", "element 0 of tensors does not require grad"),),
        expected="(1, 0, 1, 16)",
        got="RuntimeError",
        cause="The backward pass differentiates an output that no token has written to.",
    ),
    KnownFailure(
        name="preconditioner_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=tuple(
            Case.from_json(
                f'{{"op":"{op}","mode":"chunk","dtype":"float32","dims":{{"B":1,"H":1,"K":1,"V":1}},'
                '"lengths":[0],"options":{"scale":null,"use_qk_l2norm_in_kernel":true,'
                '"output_final_state":true}}'
            )
            for op in ("precond_gated_delta_rule", "precond_kda")
        ),
        modes=("chunk",),
        shows=lambda given: (
            bool(given["output_final_state"])
            and given["q"].shape[1] == 0
            and given.get("cu_seqlens") is None
        ),
        symptoms=(Raised("IndexError", "index -1 is out of bounds for dimension 1 with size 0"),),
        expected="(1, 1, 16)",
        got="IndexError",
        cause="The final energies are those of the last chunk, which is not there; those of an "
        "empty sequence of a pack are the initial ones (atk/chunk_atk_fwd.py).",
    ),
    KnownFailure(
        name="cyfa_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=tuple(
            Case.from_json(
                '{"op":"cyfa","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":1,"V":1,'
                f'"M":15}},"lengths":[0],"options":{{"scale":null,"output_final_state":{asked}}}}}'
            )
            for asked in ("false", "true")
        ),
        modes=("chunk",),
        shows=lambda given: given["q"].numel() == 0,
        symptoms=(
            Raised("ZeroDivisionError", "integer division or modulo by zero"),
            Raised("IndexError", "index -1 is out of bounds for dimension 1 with size 0"),
        ),
        expected="(1, 0, 1, 16)",
        got="ZeroDivisionError",
        cause="The gradients of the norms' weights are summed in as many parts as there are rows "
        "or fewer, and rows are divided by them; that of the turns so far is added at the last "
        "token, which is not there (cyfa/chunk.py).",
    ),
    KnownFailure(
        name="cyfa_of_few_slots",
        law="differential",
        releases=RELEASES,
        expected="1.0",
        got="CompilationError",
        cause="The readout is a dot over the next power of two of the slots, and a dot is over 16 "
        "at least (_fused_recurrent_cyfa_readout_kernel), but in a step of decoding. In chunks "
        "kernels compile for 15, 31, 63, ... slots alone.",
    ),
    KnownFailure(
        name="cyfa_logits_in_float16",
        law="differential",
        releases=RELEASES,
        cases=tuple(
            Case.from_json(
                f'{{"op":"cyfa","mode":"{mode}","dtype":"float16","dims":{{"B":1,"H":1,"K":16,'
                '"V":1,"M":15},"lengths":[3],"options":{"scale":4096.0,'
                '"output_final_state":false},"values":"large_logits","context":"no_grad"}'
            )
            for mode in ("chunk", "fused_recurrent")
        ),
        modes=("chunk", "fused_recurrent"),
        shows=_overflowing_slots,
        symptoms=(Wrong(most=math.inf, finite=False),),
        expected="1.0",
        got="nan",
        cause="Products of queries and keys, and logits of waves, are rounded to the dtype of the "
        "queries: above 65504, in float16, they are inf, and times a wave of 0 NaN "
        "(cyfa/chunk.py, cyfa/fused_recurrent.py).",
    ),
    KnownFailure(
        name="readout_edited_in_place",
        law="determinism",
        releases=RELEASES,
        expected="2.0",
        got="1.0",
        cause="The readout of the waves is remembered by the tensor object and its version "
        "(_READOUT_TABLE_CACHE in cyfa/fused_recurrent.py), which does not count what is written "
        "through `.data`, as loaders of weights do, or to a tensor of inference mode.",
    ),
    KnownFailure(
        name="gradient_of_the_initial_state",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"hgrn","mode":"chunk","dtype":"float32","dims":{"B":1,"D":16},'
                '"lengths":[3],"given":["initial_state"],"options":{"output_final_state":false}}'
            ),
        ),
        modes=("chunk",),
        shows=lambda given: given.get("initial_state") is not None,
        symptoms=(Wrong(("dinitial_state",), most=math.inf),),
        expected="1.0",
        got="None",
        cause="The backward pass returns None for the initial state (hgrn/chunk.py).",
    ),
    KnownFailure(
        name="hgrn_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"hgrn","mode":"chunk","dtype":"float32","dims":{"B":1,"D":16},'
                '"lengths":[0],"options":{"output_final_state":true}}'
            ),
        ),
        modes=("chunk",),
        shows=lambda given: given["x"].shape[1] == 0,
        symptoms=(
            Raised("IndexError", "index -1 is out of bounds for dimension 1 with size 0"),
            Raised("IndexError", "index 0 is out of bounds for dimension 1 with size 0"),
        ),
        expected="(1, 16)",
        got="IndexError",
        cause="The final state is the output of the last token, which is not there, and the "
        "gradient of the first gate is corrected for the initial state (hgrn/chunk.py).",
    ),
    KnownFailure(
        name="gradient_of_the_final_state",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"hgrn","mode":"chunk","dtype":"float32","dims":{"B":1,"D":16},'
                '"lengths":[3],"options":{"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"rwkv6","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,"H":1,'
                '"K":16,"V":16},"lengths":[3],"options":{"scale":null,"output_final_state":true}}'
            ),
        ),
        modes=("chunk", "fused_recurrent"),
        shows=lambda given: bool(given["output_final_state"]),
        symptoms=(Wrong(("dx", "dg", "dk", "dv", "dw", "dinitial_state"), most=math.inf),),
        expected="1.0",
        got="0.0",
        cause="The backward pass takes the gradient of the final state and does not read it.",
    ),
    KnownFailure(
        name="strengths_of_the_query_heads",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"gated_delta_rule","mode":"fused_recurrent","dtype":"float32","dims":{"B":1,'
                '"G":1,"R":2,"K":8,"V":8},"lengths":[1],"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"comba","mode":"fused_recurrent","dtype":"bfloat16","dims":{"B":1,"G":1,'
                '"R":2,"K":1,"V":1},"lengths":[1],"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"kda","mode":"fused_recurrent_gated_delta_rule","dtype":"float32","dims":{'
                '"B":1,"G":1,"R":2,"K":1,"V":1},"lengths":[1],"options":{"scale":null,'
                '"use_qk_l2norm_in_kernel":false,"output_final_state":false}}'
            ),
        ),
        modes=("fused_recurrent", "fused_recurrent_gated_delta_rule"),
        shows=_shared_keys,
        symptoms=(
            Raised(
                "LoadOutOfBounds", "    b_beta = tl.load(p_beta).to(tl.float32)\nargument `beta`"
            ),
        ),
        expected="[0.25, 0.25]",
        got="load out of bounds in kernel fused_recurrent_gated_delta_rule_fwd_kernel",
        cause="Strengths that are not given are ones of the query heads, and read as those of the "
        "value heads, of which there may be more.",
    ),
    KnownFailure(
        name="normalizer_in_float16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"linear_attn","mode":"fused_recurrent","dtype":"float16","dims":{"B":1,'
                '"H":1,"K":24,"V":1},"lengths":[64],"options":{"scale":2.0,"normalize":true,'
                '"output_final_state":true}}'
            ),
        ),
        modes=("chunk", "fused_chunk", "fused_recurrent"),
        shows=_overflowing_normalizer,
        symptoms=(Wrong(("o", "dq", "dk", "dv", "dinitial_state"), most=math.inf, finite=False),),
        expected="[-0.25, 0.25]",
        got="[0.0, 0.5]",
        cause="The normalizer, its square and its products with a row are in the dtype of the "
        "queries: above 65504, in float16, its gradient is lost.",
    ),
    KnownFailure(
        name="hgrn_state_in_16_bits",
        law="splitting",
        releases=RELEASES,
        expected="[1.5]",
        got="[1.0]",
        cause="The recurrent kernel returns the final state in the dtype of x: a loop over tokens "
        "loses what the chunks keep in float32.",
    ),
    KnownFailure(
        name="squared_logits_in_float16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"based","mode":"parallel","dtype":"float16","dims":{"B":1,"H":1,"K":1,"V":1},'
                '"lengths":[63],"options":{"normalize":true,"scale":-2.0},"values":"large_logits"}'
            ),
            Case.from_json(
                '{"op":"rebased","mode":"parallel","dtype":"float16","dims":{"B":1,"H":1,"K":1,'
                '"V":1},"lengths":[63],"options":{"normalize":true},"values":"large_logits"}'
            ),
            Case.from_json(
                '{"op":"rebased","mode":"parallel","dtype":"float16","dims":{"B":1,"H":1,"K":16,'
                '"V":16},"lengths":[130],"options":{"normalize":true},"values":"zeros"}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: bool(given["normalize"]) and given["q"].dtype == torch.float16,
        symptoms=(
            Wrong(most=_of_overflowing_weights, finite=False),
            # Rows of little weight have large gradients; how large nobody knows here.
            Wrong(("dq", "dk", "dv"), finite=False),
        ),
        expected="1.0",
        got="nan",
        cause="Weights, their sum and that of weighted values are rounded to the dtype of the "
        "queries before they are divided, and so are the gradients of the sums: above 65504, in "
        "float16, rows are 0 or NaN (based/parallel.py, rebased/parallel.py).",
    ),
    KnownFailure(
        name="states_in_float16",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"linear_attn","mode":"chunk","dtype":"float16","dims":{"B":1,"H":1,"K":2,'
                '"V":2},"lengths":[65],"options":{"scale":1.0,"normalize":false,'
                '"output_final_state":true},"values":"large_states"}'
            ),
            Case.from_json(
                '{"op":"simple_gla","mode":"chunk","dtype":"float16","dims":{"B":1,"H":1,"K":2,'
                '"V":2},"lengths":[65],"options":{"scale":1.0,"output_final_state":true},'
                '"values":"large_states"}'
            ),
            Case.from_json(
                '{"op":"retention","mode":"chunk","dtype":"float16","dims":{"B":1,"H":1,"K":2,'
                '"V":2},"lengths":[65],"options":{"scale":1.0,"output_final_state":true},'
                '"values":"large_states"}'
            ),
            Case.from_json(
                '{"op":"lightning_attn","mode":"chunk","dtype":"float16","dims":{"B":1,"H":1,'
                '"K":2,"V":2},"lengths":[65],"options":{"layer_idx":1,"num_layers":1,"scale":1.0,'
                '"output_final_state":true},"values":"large_states"}'
            ),
            Case.from_json(
                '{"op":"gla","mode":"chunk","dtype":"float16","dims":{"B":1,"H":1,"K":1,"V":10},'
                '"lengths":[65],"options":{"scale":1.0,"output_final_state":true},'
                '"values":"large_states"}'
            ),
            Case.from_json(
                '{"op":"log_linear_attn","mode":"chunk","dtype":"float16","dims":{"B":1,"G":1,"R":2,'
                '"K":64,"V":16},"lengths":[65],"options":{"scale":0.001},"values":"large_states"}'
            ),
        ),
        modes=("chunk", "fused_chunk"),
        shows=_overflowing_states,
        symptoms=(Wrong(("o", "dq", "dg", "dlevel_scales"), finite=False),),
        expected="16640.0",
        got="inf",
        cause="Between chunks, states are stored in the dtype of the keys, in log-linear attention "
        "read in that of the queries: above 65504, in float16, they are inf, and NaN where a query "
        "is 0.",
    ),
    KnownFailure(
        name="gradient_of_the_oldest_token",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"short_conv","mode":"fused","dtype":"float32","dims":{"B":1,"D":1,"W":2},'
                '"lengths":[2],"options":{"activation":null,"output_final_state":true}}'
            ),
        ),
        modes=("fused",),
        shows=lambda given: bool(given["output_final_state"]),
        symptoms=(Wrong(("dx", "dinitial_state"), most=math.inf),),
        expected="[1.0, 1.0]",
        got="[0.0, 1.0]",
        cause="The final state has as many tokens as there are taps, and the gradient of the first "
        "of them is left out: the mask of the tokens that get one is for all but it.",
    ),
    KnownFailure(
        name="path_gradient_of_narrow_values",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"path_attn","mode":"parallel","dtype":"float32","dims":{"B":1,"G":2,"R":1,'
                '"K":32,"V":16},"lengths":[257],"float32":["w","beta"],"options":{"scale":null}}'
            ),
        ),
        modes=("parallel",),
        shows=lambda given: given["k"].shape[-1] != given["v"].shape[-1],
        symptoms=(
            Wrong(("dv",), most=math.inf),
            Raised("AtomicOutOfBounds", "in kernel parallel_path_bwd_dkv_kernel"),
        ),
        expected="[16.0, 16.0]",
        got="atomic out of bounds in kernel parallel_path_bwd_dkv_kernel",
        cause="The gradient of the values begins at a multiple of the keys' dims for each head and "
        "sequence, not of the values'.",
    ),
    KnownFailure(
        name="boundaries_edited_in_place",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"linear_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"normalize":false,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"simple_gla","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"retention","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"lightning_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"num_layers":24,"layer_idx":0,"scale":null,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"gla","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"delta_rule","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"gated_delta_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"kda","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"dplr","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"output_final_state":true},"earlier":{}}'
            ),
            *(
                Case.from_json(
                    f'{{"op":"kda","mode":"{mode}","dtype":"float32","dims":{{"B":1,"G":1,"R":1,"K":16,"V":16}},"lengths":[1,65,0],"packed":true,"options":{{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true}},"earlier":{{}}}}'
                )
                for mode in ("chunk_of_32", "chunk_safe_gate")
            ),
            Case.from_json(
                '{"op":"rwkv7","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":1.0,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"causal":true,"window":null},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"forgetting","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[1,65,0],"packed":true,"options":{"scale":null,"causal":true,"window":null},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"short_conv","mode":"fused","dtype":"float32","dims":{"B":1,"D":4,"W":3},"lengths":[1,65,0],"packed":true,"options":{"activation":null,"output_final_state":true},"earlier":{}}'
            ),
            Case.from_json(
                '{"op":"rotary_embedding","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4,"P":2},"lengths":[1,65,0],"packed":true,"options":{"interleaved":false,"seqlen_offsets":[0,0,0],"inplace":false},"earlier":{}}'
            ),
            *(
                replace(_OTHERS[one], lengths=(1, 65, 0), packed=True, earlier={})
                for one in _EDITED
            ),
        ),
        modes=("chunk", "chunk_of_32", "chunk_safe_gate", "parallel", "forgetting", "fused"),
        shows=_edited,
        symptoms=(
            Wrong(most=math.inf, finite=False),
            Raised("Race", "race in kernel"),
            Raised("LoadOutOfBounds", "load out of bounds in kernel"),
            Raised("StoreOutOfBounds", "store out of bounds in kernel"),
        ),
        expected="[16.0, 16.0]",
        got="[nan, 16.0]",
        cause="What follows from boundaries, as the chunks of each sequence, is remembered by the "
        "tensor object: after an edit in place, a call has the chunks of the call before.",
    ),
    KnownFailure(
        name="arguments_are_not_checked",
        law="rejection",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"linear_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["initial_state"],"options":{"scale":null,"normalize":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"simple_gla","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["g","initial_state"],"options":{"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"retention","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["initial_state"],"options":{"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"lightning_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["initial_state"],"options":{"num_layers":24,"layer_idx":0,"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"gla","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["g","initial_state"],"options":{"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"delta_rule","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["beta","initial_state"],"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"gated_delta_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3],"given":["g","beta","initial_state"],"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"kda","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3],"given":["g","beta","initial_state"],"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"dplr","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["gk","initial_state"],"options":{"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"rwkv7","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["initial_state"],"options":{"scale":1.0,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3],"given":["sink","g"],"options":{"scale":null,"causal":true,"window":null}}'
            ),
            Case.from_json(
                '{"op":"rotary_embedding","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4,"P":1},"lengths":[3],"options":{"interleaved":false,"seqlen_offsets":0,"inplace":false}}'
            ),
            Case.from_json(
                '{"op":"short_conv","mode":"fused","dtype":"float32","dims":{"B":1,"D":4,"W":3},"lengths":[3],"given":["bias"],"options":{"activation":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"l2norm","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4},"lengths":[3],"options":{"eps":1e-06}}'
            ),
            *(_OTHERS[one] for one in _UNCHECKED),
        ),
        modes=MODES,
        shows=_always,
        symptoms=_unrefused(
            SIZES,
            RANK,
            DTYPE,
            "a state that is too wide",
            "a state too many",
            "cu_seqlens of another rank",
        ),
        expected="an exception",
        got="(1, 2, 1, 16)",
        cause="Sizes and dtypes are taken from one tensor or another and not compared: rows of the "
        "others are left out, or read past their end, and results are rounded to integers.",
    ),
    KnownFailure(
        name="boundaries_are_not_checked",
        law="rejection",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"linear_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["initial_state"],"options":{"scale":null,"normalize":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"simple_gla","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["g","initial_state"],"options":{"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"retention","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["initial_state"],"options":{"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"lightning_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["initial_state"],"options":{"num_layers":24,"layer_idx":0,"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"gla","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["g","initial_state"],"options":{"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"delta_rule","mode":"chunk","dtype":"bfloat16","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["beta","initial_state"],"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"gated_delta_rule","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["g","beta","initial_state"],"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"kda","mode":"chunk","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["g","beta","initial_state"],"options":{"scale":null,"use_qk_l2norm_in_kernel":false,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"dplr","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["gk","initial_state"],"options":{"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"rwkv7","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["initial_state"],"options":{"scale":1.0,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3,2],"packed":true,"given":["sink","g"],"options":{"scale":null,"causal":true,"window":null}}'
            ),
            Case.from_json(
                '{"op":"short_conv","mode":"fused","dtype":"float32","dims":{"B":1,"D":4,"W":3},"lengths":[3,2],"packed":true,"given":["bias"],"options":{"activation":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"rotary_embedding","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4,"P":1},"lengths":[3,2],"packed":true,"options":{"interleaved":false,"seqlen_offsets":[0,0],"inplace":false}}'
            ),
            *(replace(_OTHERS[one], lengths=(3, 2), packed=True) for one in _UNBOUND),
        ),
        modes=MODES,
        shows=lambda given: given.get("cu_seqlens") is not None,
        symptoms=_unrefused(
            BOUNDARIES,
            "packed sequences in a batch of two",
            "another number of sequences of keys",
        ),
        expected="an exception",
        got="(1, 3, 1, 16)",
        cause="Nobody looks whether sequences begin at 0 and end with the tokens: rows of none are "
        "never written, and those past the end are read and written all the same.",
    ),
    KnownFailure(
        name="options_are_not_checked",
        law="rejection",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"attention","mode":"parallel","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":16,"V":16},"lengths":[3],"given":["sink","g"],"options":{"scale":null,"causal":true,"window":null}}'
            ),
            Case.from_json(
                '{"op":"short_conv","mode":"fused","dtype":"float32","dims":{"B":1,"D":4,"W":3},"lengths":[3],"given":["bias"],"options":{"activation":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"lightning_attn","mode":"chunk","dtype":"float32","dims":{"B":1,"H":1,"K":16,"V":16},"lengths":[3],"given":["initial_state"],"options":{"num_layers":24,"layer_idx":0,"scale":null,"output_final_state":true}}'
            ),
            Case.from_json(
                '{"op":"l2norm","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4},"lengths":[3],"options":{"eps":1e-06}}'
            ),
            Case.from_json(
                '{"op":"rotary_embedding","mode":"fused","dtype":"float32","dims":{"B":1,"H":1,"D":4,"P":1},"lengths":[3],"options":{"interleaved":false,"seqlen_offsets":0,"inplace":false}}'
            ),
            *(_OTHERS[one] for one in _UNCHECKED_OPTIONS),
        ),
        modes=("parallel", "fused", "chunk", "fused_recurrent", "update", "linear", "mamba"),
        shows=_always,
        symptoms=_unrefused(
            *(f"window={n}" for n in (0, -1)),
            *(f"scale={x}" for x in ("inf", "-inf")),
            *(f"activation={x!r}" for x in ("relu", True, 1)),
            *(f"{n}={x}" for n in ("num_layers", "layer_idx") for x in _COUNTS),
            *(f"eps={x}" for x in (0.0, -1e-6, 1e-50, 1e39, "inf", "nan")),
            "scale=nan",
            "scale='0.5'",
            "activation=None",
            *(f"lower_bound={x}" for x in (0.0, 5.0, True)),
            "an offset before the tables",
            "top_k=True",
            "top_k=tensor(4)",
            "window=None",
            "fewer slots than forced blocks",
            "an index past the last block of a sequence",
            "an index below -1 of a sequence",
            "an offset each, before the tables",
        ),
        expected="an exception",
        got="[-1.0, 2.0]",
        cause="A number outside of its range is computed with, and an activation that is unknown "
        "is none.",
    ),
    KnownFailure(
        name="offsets_of_32_bits",
        law="large_calls",
        releases=RELEASES,
        cases=tuple(
            Case.of(op, mode, {"B": 1, "H": 1, "K": 2, "V": 2, "D": 2, "M": 2, **dims}, (3,))
            for op, mode, dims in (
                ("hgrn", "chunk", {}),
                ("abc", "chunk", {}),
                ("rwkv4", "fused_recurrent", {}),
                ("iplr", "fused_recurrent", {}),
                ("ttt_linear", "fused_chunk", {}),
                ("short_conv", "fused", {"B": 2, "W": 2}),
            )
        ),
        modes=("chunk", "fused_recurrent", "fused_chunk", "fused"),
        shows=lambda given: _elements(given) > 2**12,
        symptoms=tuple(
            Raised("IndexOverflow", f"index overflow in kernel {kernel} at ")
            for kernel in (
                "chunk_hgrn_fwd_kernel_o",
                "logcumsumexp_fwd_kernel",
                "fused_recurrent_rwkv4_forward_kernel",
                "fused_recurrent_bwd_kernel",
                "fused_chunk_ttt_linear_fwd_kernel",
                "causal_conv1d_bwd_kernel",
            )
        ),
        expected="no error",
        got="index overflow in kernel chunk_hgrn_fwd_kernel_o",
        cause="Offsets of a token are products in 32 bits, which wrap around past 2^31 elements: "
        "#1082 widened those of the other kernels.",
        index_bits=16,
    ),
    *(
        KnownFailure(
            name=f"{case.op}_gates_of_a_chunk",
            law="differential",
            releases=RELEASES,
            cases=(case, *others),
            modes=tuple(dict.fromkeys(one.mode for one in (case, *others))),
            shows=lambda given: _sum_in_a_chunk(given) > 100,
            symptoms=(Wrong(most=_digits(_sum_in_a_chunk)),),
            expected="0.99",
            got="1.0",
            cause="Decays are differences of two sums of gates from the first token of the chunk "
            "on, in float32: what came before a key takes the digits of what came after it.",
        )
        for case, *others in _GATES_OF_A_CHUNK
    ),
)
