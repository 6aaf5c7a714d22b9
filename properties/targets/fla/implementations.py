"""The catalogue's ops in fla, in its modes and under our names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Any

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.cases.values import GATE_RECIPES
from properties.catalogue import DTYPES, OPS
from properties.catalogue.op import Argument, Function, Op, Role
from properties.catalogue.telescope import Telescope
from properties.targets.adapter import Implementation
from properties.targets.bounds import (
    Bound,
    changed_dims,
    equal_widths,
    fixed_dims,
    fixed_options,
    one_token_each,
    own_keys,
    power_of_two,
)
from properties.targets.fla import library
from properties.targets.fla.library import Kernel, release
from properties.targets.telescopes import SEEN, carried, channels_telescope, values_telescope

Given = dict[str, Any]
Outputs = Tensor | tuple[Tensor | None, ...]

# Tokens of most chunks, and of most blocks of keys.
_CHUNK = 64
_SCALE = "-1 is a number; the sentinel becomes the default"
_PAIRED = (
    _SCALE,
    "the state of a normalized op is a pair: its last column is apart, in the keys' dtype",
    "outputs are float32 beside a pair in float32; they become the dtype of q",
)
_STATE_LIKE_INPUTS = {"final_state": "case"}
_REQUIRED = "gates and strengths are required; none becomes zeros or ones"
_WINDOW = "the state of a convolution is [N, D, W]: its oldest token has a weight of 0"


def implementations() -> tuple[dict[str, dict[str, Implementation]], tuple[str, ...]]:
    """Op → mode → its implementation in the installed release; sentences about what it lacks."""
    made: dict[str, dict[str, Implementation]] = {}
    remarks: list[str] = []
    absent: list[str] = []
    for op, modes in _MODES.items():
        for mode, declared in modes.items():
            try:
                found = library.kernel(declared.function)
            except ImportError as error:
                remarks.append(f"{op} ({mode}) is left out: {error}")
                continue
            if found is None or not declared.released(found):
                absent.append(f"{op} ({mode})")
                continue
            # A function that lacks a tensor of the op is another one, of another release.
            if lacking := declared.lacking(OPS[op], found):
                what = f"{declared.function.split()[0]} has no {', '.join(lacking)}"
                remarks.append(f"{op} ({mode}) is left out: {what}")
                continue
            declared = _as_it_was(op, mode, declared, found)
            made.setdefault(op, {})[mode] = declared.implementation(OPS[op], found)
            if "head_first" in signature(found).parameters and release() < (0, 2):
                turned = replace(
                    declared, without=(*declared.without, "cu_seqlens", "cu_seqlens_k")
                )
                made[op][f"{mode}_heads_first"] = turned.implementation(
                    OPS[op], _with_heads_first(found)
                )
    absent = [each for each in absent if each.partition(" ")[0] in made]
    if absent:
        version = ".".join(map(str, release()))
        remarks.append(f"release {version} of fla has no {', '.join(absent)}")
    return made, tuple(remarks)


def _with_heads_first(kernel: Kernel) -> Kernel:
    """A function of releases before 0.2 as it is called by default: heads before tokens."""

    @wraps(kernel)
    def turned(**given: Any) -> Any:
        sequences = {
            name: x.transpose(1, 2).contiguous()
            for name, x in given.items()
            if isinstance(x, Tensor) and x.ndim > 2 and "state" not in name
        }
        returned = kernel(**{**given, **sequences}, head_first=True)
        if isinstance(returned, Tensor):
            return returned.transpose(1, 2)
        return (returned[0].transpose(1, 2), *returned[1:])

    return turned


def _state(kernel: Kernel, given: Given) -> Outputs:
    """Output and final state."""
    o, state = kernel(**given)
    return o, state


def _alone(kernel: Kernel, given: Given) -> Outputs:
    """The output; other returned values are no states."""
    returned = kernel(**given)
    y: Tensor = returned[0] if isinstance(returned, tuple) else returned
    return y


def _normalized(kernel: Kernel, given: Given) -> Outputs:
    """Our state of a normalized op has another column; fla's is a pair."""
    if not given.setdefault("normalize", False):
        return _state(kernel, given)
    if given.get("initial_state") is not None:
        whole = given["initial_state"]
        given["initial_state"] = (whole[..., :-1].contiguous(), whole[..., -1].unsqueeze(1))
    o, pair = kernel(**given)
    # A float32 sum of keys makes the outputs float32.
    o = o.to(given["q"].dtype)
    if not given["output_final_state"]:
        return o, None
    state, keys = pair
    return o, torch.cat([state, keys.squeeze(1).unsqueeze(-1).to(state.dtype)], -1)


def _causal_only(kernel: Kernel, given: Given) -> Outputs:
    if not given.pop("causal", False):
        raise ValueError("causal: False, expected True, as fla has no other attention")
    return _alone(kernel, given)


def _removal(kernel: Kernel, given: Given) -> Outputs:
    """RWKV-7 with DPLR's removal keys."""
    kk, a = given.pop("kk"), given.pop("a")
    return _state(kernel, {**given, "a": -kk, "b": kk * a})


def _heads_first(kernel: Kernel, given: Given) -> Outputs:
    """Output and final state of a function with heads before tokens and no argument for that."""
    tokens = {name: given[name].transpose(1, 2) for name in ("q", "k", "v", "g")}
    o, state = kernel(**{**given, **tokens})
    return o.transpose(1, 2), state


def _convolution(kernel: Kernel, given: Given) -> Outputs:
    """Transpose a state with channels before tokens."""
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = state.transpose(1, 2)
    y, state = kernel(**given)
    return y, state.transpose(1, 2).float() if given.get("output_final_state") else None


def _steps_on_rows(kernel: Kernel, given: Given) -> Outputs:
    """The steps of a token lie on rows beside each other."""
    given["num_householder"] = given["k"].shape[2]
    rows = {n: given[n].flatten(1, 2) for n in ("k", "v", "beta")}
    return _state(kernel, {**given, **rows})


def _slots(kernel: Kernel, given: Given) -> Outputs:
    """The state of slots is a pair of the keys, transposed, and the values.

    Without gates fla derives some from the weights of the slots.
    """
    if given.get("g") is None:
        given["g"] = torch.zeros_like(given["s"])
    state, K = given.get("initial_state"), given["k"].shape[-1]
    if state is not None:
        keys = state[..., :K].mT.contiguous()
        given["initial_state"] = (keys, state[..., K:].contiguous())
    o, final = kernel(**given)
    return o, torch.cat([final[0].mT, final[1]], -1) if given.get("output_final_state") else None


def _log_sum(kernel: Kernel, given: Given) -> Outputs:
    """The last column of a state is apart, with an axis of one token."""
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = (state[..., :-1].contiguous(), state[..., -1].unsqueeze(1))
    o, (S, z) = kernel(**given)
    if not given.get("output_final_state"):
        return o, None
    return o, torch.cat([S, z.squeeze(1).unsqueeze(-1).to(S.dtype)], -1)


def _energies(kernel: Kernel, given: Given) -> Outputs:
    """The energies are a state of their own."""
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = state[..., :-1].contiguous()
        given["initial_A_state"] = state[..., -1].contiguous()
    o, S, A = kernel(**given)
    return o, torch.cat([S, A.unsqueeze(-1)], -1) if given.get("output_final_state") else None


def _gate(kernel: Kernel, given: Given) -> Outputs:
    """Rates are required, except beside a bound; biases are a row."""
    if given.get("A_log") is None:
        given["A_log"] = given["g"].new_zeros(given["g"].shape[2], dtype=torch.float32)
    if given.get("dt_bias") is not None:
        given["dt_bias"] = given["dt_bias"].flatten()
    taken = signature(kernel).parameters
    if "head_k_dim" in taken:
        # Release 0.4.0.
        given |= {"head_k_dim": given["g"].shape[-1], "g": given["g"].flatten(2)}
        given |= {old: given.pop(now) for now, old in _GATE_OF_0_4.items() if now in given}
    g: Tensor = kernel(**given)
    return g


def _gated_norm(kernel: Kernel, given: Given) -> Outputs:
    """Weights and biases may be None, but are required; a gate that comes first is another op."""
    if given.pop("gate_first", False):
        raise ValueError("gate_first: True, expected False, as fla normalizes first")
    y: Tensor = kernel(**{"bias": None, **given})
    return y


def _norm_of_mamba(kernel: Kernel, given: Given) -> Outputs:
    """The order of the norm and its gate; a norm without biases takes None."""
    given["norm_before_gate"] = not given.pop("gate_first", False)
    y: Tensor = kernel(**{"bias": None, **given})
    return y


def _norm_and_linear(kernel: Kernel, given: Given) -> Outputs:
    """The factors of channels are the diagonal of a linear layer behind the gate."""
    if given.pop("gate_first", False):
        raise ValueError("gate_first: True, expected False, as fla normalizes first")
    weight = given.pop("weight", None)
    x = given["x"]
    given["norm_weight"] = x.new_ones(x.shape[-1])
    given |= {"norm_bias": None, "linear_bias": None}
    weight = given["norm_weight"] if weight is None else weight
    y: Tensor = kernel(**given, linear_weight=torch.diag(weight))
    return y


def _one_step(kernel: Kernel, given: Given) -> Outputs:
    """The queries, one of each sequence, are tokens of one; so are the keys of all sequences."""
    given.pop("causal", None)
    q, bounds, keys = given["q"], given.get("cu_seqlens"), given.pop("cu_seqlens_k", None)
    B, T = given["k"].shape[:2]
    if keys is None:
        keys = T * torch.arange(B + 1, device=q.device) if bounds is None else bounds
    rows = {
        n: given[n].flatten(0, 1)[None] for n in ("q", "k", "v", "g") if given.get(n) is not None
    }
    o: Tensor = kernel(**{**given, **rows, "cu_seqlens": keys})
    return o.view(*q.shape[:-1], o.shape[-1])


def _one_token(kernel: Kernel, given: Given) -> Outputs:
    """A state is written in place, and required."""
    x, asked = given["x"], given.pop("output_final_state", False)
    given.pop("cu_seqlens", None)
    state = given.get("cache")
    if state is None:
        D, W = given["weight"].shape
        state = torch.zeros(x.shape[0] * x.shape[1], W, D, device=x.device)
    given["cache"] = state.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    y, cache = kernel(**given)
    return y, cache.transpose(1, 2) if asked else None


def _reflections(kernel: Kernel, given: Given) -> Outputs:
    """fla scales the gates too."""
    if given.get("g") is not None:
        factor = given["q"].shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
        given["g"] = given["g"] / factor
    return _alone(kernel, given)


def _triangle(kernel: Kernel, given: Given) -> Outputs:
    """The chunk of a token above its diagonal must be zero."""
    A = given["A"]
    bounds = given.get("cu_seqlens")
    token = torch.arange(A.shape[1], device=A.device)
    if bounds is not None:
        token = token - bounds[torch.bucketize(token, bounds, right=True) - 1]
    below = token[:, None] % A.shape[-1] > torch.arange(A.shape[-1], device=A.device)
    return _sums(kernel, {**given, "A": A.where(below[:, None], 0)})


def _sums(kernel: Kernel, given: Given) -> Outputs:
    y: Tensor = kernel(**given, output_dtype=None)
    return y


def _gate_of_heads(kernel: Kernel, given: Given) -> Outputs:
    g = _gate(kernel, {**given, "g": given["g"].squeeze(-1)})
    assert isinstance(g, Tensor)
    return g.unsqueeze(-1)


def _energies_of_unit_keys(kernel: Kernel, given: Given) -> Outputs:
    """Energies of a function that always normalizes queries and keys."""
    if not given.pop("use_qk_l2norm_in_kernel", False):
        raise ValueError("use_qk_l2norm_in_kernel: False, expected True of chunk_precond_kda")
    return _energies(kernel, given)


def _ridge(kernel: Kernel, given: Given) -> Outputs:
    """The two parts of the state are apart."""
    state, K = given.pop("initial_state", None), given["k"].shape[-1]
    if state is not None:
        given["h_kk_init"] = state[..., :K].contiguous()
        given["h_kv_init"] = state[..., K:].contiguous()
    o, kk, kv = kernel(**given)
    return o, torch.cat([kk, kv], -1) if given.get("output_final_state") else None


def _linear_model(kernel: Kernel, given: Given) -> Outputs:
    """The bias of the model is a state of its own; rates have another axis."""
    given["eta"] = given["eta"].unsqueeze(-1)
    state = given.pop("initial_state", None)
    if state is not None:
        given["initial_state"] = state[..., :-1, :].contiguous()
        given["initial_state_bias"] = state[..., -1:, :].contiguous()
    o, *parts = kernel(**given)
    return o, torch.cat(parts, -2) if given.get("output_final_state") else None


def _momentum(kernel: Kernel, given: Given) -> Outputs:
    """The state is S and -M, on its first axis; p is as it is given."""
    state = given.get("initial_state")
    if state is not None:
        given["initial_state"] = torch.stack([state[:, :, 0], -state[:, :, 1]])
    o, final = kernel(**given, use_qk_l2norm_in_kernel=False, use_p_times_alpha=False)
    if not given.get("output_final_state"):
        return o, None
    return o, torch.stack([final[0], -final[1]], 2)


def _shared_exponent(kernel: Kernel, given: Given) -> Outputs:
    """The state is m, 1 and their exponent z, behind an axis of one token, and required."""
    state, asked = given.pop("initial_state", None), given.pop("output_final_state", False)
    if state is None:
        m = given["k"].new_zeros(given["k"].shape[0], given["k"].shape[2], dtype=torch.float32)
        pair, z = (m, m), m - torch.inf
    else:
        m, z = state.unbind(1)
        pair = (m, torch.ones_like(m))
    with torch.autograd.graph.saved_tensors_hooks(_with_the_last, lambda x: x):
        o, final = kernel(**given, state=torch.stack([*pair, z], 1).unsqueeze(2))
    if not asked:
        return o, None
    alpha, beta, epsilon = final[:, :, 0].float().unbind(1)
    seen = beta > 0
    m = torch.where(seen, alpha / torch.where(seen, beta, 1.0), 0.0)
    return o, torch.stack([m, epsilon + beta.log()], 1)


def _with_the_last(saved: Tensor) -> Tensor:
    """All states, of which RWKV-4 saves a view without the last and reads that as well."""
    if saved.ndim != 4:
        return saved
    B, three, T, D = saved.shape
    return saved.as_strided((B, three, T + 1, D), saved.stride(), saved.storage_offset())


def _sources(kernel: Kernel, given: Given) -> Outputs:
    """Sources are a list; weights have their axis first."""
    # Rows that begin anywhere fail an assertion: sources are to be aligned to 16 bytes.
    copied = torch.contiguous_format
    given["residuals"] = [x.clone(memory_format=copied) for x in given["residuals"].unbind(2)]
    if not given.get("return_weights"):
        o: Tensor = kernel(**given)
        return o, None
    o, p = kernel(**given)
    return o, p.movedim(0, -1)


def _selected(kernel: Kernel, given: Given) -> Outputs:
    """A block that is selected twice is passed once."""
    indices = given.pop("block_indices").long().sort(-1).values
    again = torch.nn.functional.pad(indices.diff(dim=-1) == 0, (1, 0))
    given["block_indices"] = indices.masked_fill(again, -1)
    if signature(kernel).parameters["g_slc"].default is Parameter.empty:
        # Release 0.1.
        given |= {"g_cmp": None, "g_slc": torch.ones_like(given["q"][..., 0]), "g_swa": None}
    given["cu_seqlens"] = _both_bounds(given)
    return _alone(kernel, given)


def _both_bounds(given: Given) -> Tensor | tuple[Tensor, Tensor] | None:
    """Boundaries of keys go beside those of queries."""
    keys: Tensor | None = given.pop("cu_seqlens_k", None)
    queries: Tensor | None = given.get("cu_seqlens")
    if queries is None and keys is not None:
        raise ValueError("cu_seqlens_k: given, expected None without cu_seqlens")
    return queries if queries is None or keys is None else (queries, keys)


def _three_branches(kernel: Kernel, given: Given) -> Outputs:
    """The branch of the window is fla's parallel attention, or PyTorch's, in the place of
    flash-attn.
    """
    gate, window = given["g_swa"], given.pop("window_size")
    if signature(kernel).parameters["g_swa"].default is not Parameter.empty:
        del given["g_swa"]
    if given.pop("local_blocks", 2) != 2:
        raise ValueError("local_blocks: expected 2, as fla has no other number")
    o: Tensor = kernel(**given)
    around = library.kernel("fla.ops.attn:parallel_attn")
    if around is None or "window_size" not in signature(around).parameters:
        around = _recent
    recent = around(
        given["q"],
        given["k"],
        given["v"],
        scale=given["scale"],
        cu_seqlens=given.get("cu_seqlens"),
        window_size=window,
    )
    mixed: Tensor = o + gate.unsqueeze(-1) * recent
    return mixed.to(given["q"].dtype)


def _recent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    cu_seqlens: Tensor | None,
    window_size: int,
) -> Tensor:
    """Attention to the keys of a window, for releases without."""
    i = torch.arange(q.shape[1], device=q.device)
    behind = i[:, None] - i
    seen = (behind >= 0) & (behind < window_size)
    if cu_seqlens is not None:
        own = torch.bucketize(i, cu_seqlens[1:], right=True)
        seen &= own[:, None] == own
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True).transpose(1, 2)


def _features(kernel: Kernel, given: Given) -> Outputs:
    """Maps other than elu are modules. Hedgehog's layer is the identity, and doubles x."""
    x, kind, nu = given["x"], given["kind"], given["nu"]
    if type(nu) is not int or nu < 1:
        raise ValueError(f"nu: {nu!r}, expected a count, which other maps than dpfp do not read")
    module = import_module("fla.modules.feature_map")
    made: dict[str, Callable[[], Kernel]] = {
        "elu": lambda: kernel,
        "relu": lambda: module.ReLUFeatureMap(),
        "hedgehog": lambda: module.HedgehogFeatureMap(x.shape[-1]).to(x),
        "dpfp": lambda: module.DPFPFeatureMap(x.shape[-1], nu),
    }
    y: Tensor = made[kind]()(x / 2 if kind == "hedgehog" else x)
    return y


def _numbers(kernel: Kernel, given: Given) -> Outputs:
    """A function of one tensor, by place."""
    if given.pop("allow_neg_eigval", False):
        raise ValueError("allow_neg_eigval: True, expected False, as fla has no such option")
    y: Tensor = kernel(given["x"])
    return y


def _shift(kernel: Kernel, given: Given) -> Outputs:
    """The token before the first has no axis of its own."""
    if given.get("cache") is not None:
        given["cache"] = given["cache"].squeeze(1)
    if not given.get("output_cache"):
        return kernel(**given), None
    y, state = kernel(**given)
    return y, state.view(-1, 1, state.shape[-1])


def _of_all_taps(op: Op) -> Op:
    """A convolution whose state has a token for each tap; the oldest has weight 0."""

    def with_a_tap(form: Function) -> Function:
        @wraps(form)
        def convolution(*, weight: Tensor, **given: Any) -> Outputs:
            return form(weight=torch.nn.functional.pad(weight, (1, 0)), **given)

        return convolution

    return replace(
        op,
        oracle=with_a_tap(op.oracle),
        second_form=with_a_tap(op.second_form),
        quiet_form=with_a_tap(op.quiet_form),
        sizes=lambda case: {"W-1": case.dims["W"]},
    )


def _keys_telescope(case: Case) -> tuple[Telescope, ...]:
    """Gate gradients as the difference of `Σ q ∘ dq` and `Σ k ∘ dk`."""
    reverse = bool(case.options.get("reverse"))
    keys = (("B T H K", "q", "dq"), ("B T H K", "k", "dk"), *carried(case))
    heads = "B T H" if case.op == "simple_gla" else "B T H K"
    return (
        Telescope("dg", heads, keys, reverse),
        Telescope("dgv", "B T H V", SEEN + carried(case), reverse),
    )


def _values_channels_telescope(case: Case) -> tuple[Telescope, ...]:
    """The gradient of a gate of each value channel, a difference of sums over values."""
    return (Telescope("dgv", "B T H V", SEEN + carried(case)),)


def _rows_telescope(case: Case) -> tuple[Telescope, ...]:
    """Row sums of the softmax's gradient, which are zero, less its column sums."""
    return (Telescope("dg", "B T H", (("B T H V", "gradient of o", "o"),)),)


def _wall_telescope(case: Case) -> tuple[Telescope, ...]:
    """A gate of each channel, and one of each head; of grouped keys the sum over heads is known."""
    heads = "B T H K" if case.dims["R"] == 1 else "B T G K"
    channels = (("B T H K", "q", "dq"), (heads, "k", "dk"))
    rows = (replace(rows, gradient="dgs") for rows in _rows_telescope(case))
    return (Telescope("dg", "B T H K", channels), *rows)


def _same(op: Op) -> Op:
    return op


def _none(case: Case) -> tuple[Telescope, ...]:
    return ()


def _at_least(least: int, *names: str) -> Bound:
    """Raise dims to the least that a dot takes."""
    return changed_dims(names, lambda n: n + least if n < least else n)


def _at_most(most: int, letter: str = "K") -> Bound:
    return changed_dims(letter, lambda n: (n - 1) % most + 1)


_powers_of_two = changed_dims("KV", lambda n: max(16, power_of_two(n)))
_without_state = fixed_options(output_final_state=False)


def _a_block_of_keys(case: Case) -> Case:
    return replace(case, dims={**_powers_of_two(case).dims, "K": 64})


def _chunks(case: Case) -> Case:
    size = case.options.get("chunk_size") or 64
    return replace(case, options={**case.options, "chunk_size": power_of_two(size)})


def _even_in_16_bits(case: Case) -> Case:
    if case.dtype == "float32":
        return case
    even = {n: case.dims[n] + case.dims[n] % 2 for n in ("K", "V")}
    return replace(case, dims={**case.dims, **even})


def _gentle_gates(case: Case) -> Case:
    return replace(case, values="gaussian") if case.values in GATE_RECIPES else case


def _tables_like_x(case: Case) -> Case:
    return replace(case, float32=())


def _slots_of_a_dot(case: Case) -> Case:
    slots = max(16, power_of_two(case.dims["M"]))
    return replace(case, dims={**_at_least(9, "K", "V")(case).dims, "M": slots})


def _one_tile(case: Case) -> Case:
    return replace(case, dims={**_powers_of_two(case).dims, "K": 16})


def _float32_reflections(case: Case) -> Case:
    return replace(case, float32=("w", "beta", *(n for n in case.given if n == "g")))


def _float32_state(case: Case) -> Case:
    if case.dtype == "float32":
        return case
    return replace(case, given=tuple(n for n in case.given if n != "initial_state"))


def _silent_state(case: Case) -> Case:
    if case.dtype == "float32" or not case.options.get("output_final_state"):
        return case
    return replace(case, silent=tuple({**dict.fromkeys(case.silent), "final_state": None}))


def _finite_gates(case: Case) -> Case:
    return replace(case, values="strong_gates") if case.values == "closed_gates" else case


def _scale_of_gates(case: Case) -> Case:
    unscaled = "g" in case.given and case.options.get("scale") == 0
    return replace(case, options={**case.options, "scale": 1.0}) if unscaled else case


def _mini_batches(case: Case) -> Case:
    size = case.options.get("mini_batch_size") or 16
    size = min(64, max(16, power_of_two(size)))
    return replace(case, options={**case.options, "mini_batch_size": size})


def _forward_of_packs(case: Case) -> Case:
    grad = case.packed and case.context == "grad"
    return replace(case, context="no_grad") if grad else case


def _forward_of_other_keys(case: Case) -> Case:
    apart = case.packed and case.key_lengths is not None and case.context == "grad"
    return replace(case, context="no_grad") if apart else case


def _selection(case: Case) -> Case:
    """Groups of 16 heads, and blocks and slots of tiles, as it asserts.

    It takes keys wider than 128 where it finds Hopper's shared memory, which needs a GPU.
    """
    options = {**case.options}
    size = options.get("block_size") or 64
    options["block_size"] = min(64, max(16, power_of_two(size)))
    if "top_k" in options:
        slots = power_of_two(options["top_k"])
        options["top_k"] = min(slots, options["block_size"] // 2)
    dims = {**case.dims, "R": 16, "G": min(case.dims["G"], 2)}
    widest = 256 if torch.cuda.is_available() else 128
    return _at_least(9, "K", "V")(_at_most(widest)(replace(case, options=options, dims=dims)))


def _another_map(case: Case) -> Case:
    if case.options.get("kind") != "taylor":
        return case
    return replace(case, options={**case.options, "kind": "elu"})


def _another_map_than_elu(case: Case) -> Case:
    kind = case.options.get("kind")
    return replace(case, options={**case.options, "kind": "relu" if kind == "elu" else kind})


def _positive_scale(case: Case) -> Case:
    scale = case.options.get("scale")
    if scale is None or scale == -1 or scale > 0:
        return case
    return replace(case, options={**case.options, "scale": abs(scale) or 1.0})


@dataclass(frozen=True)
class _Mode:
    """A mode of an op in fla.

    Args:
        function: "package.module:function".
        call: calls it with arguments under its own names; returns the op's outputs.
        theirs: our argument name → fla's, if different.
        earlier: the same in releases that lack that name.
        ours: arguments that it lacks and `call` handles.
        without: arguments of the same name with another meaning.
        needs: arguments that default to None and that its docstring does not call optional.
        fixed: what it passes for arguments of fla that the op lacks.
        since: the first release that has it, if the function is older.
        The rest as in `Implementation`.
    """

    function: str
    call: Callable[[Kernel, Given], Outputs] = _state
    theirs: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, str] = field(default_factory=dict)
    ours: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    since: tuple[int, ...] = ()
    tokens: int = 0
    constants: tuple[str, ...] = ()
    conventions: tuple[str, ...] = (_SCALE,)
    dtypes: tuple[str, ...] = DTYPES
    output_dtypes: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    forward_only: bool = False
    unstated: Mapping[str, str] = field(default_factory=dict)
    telescopes: Callable[[Case], tuple[Telescope, ...]] = _none
    whole: Callable[[Op], Op] = _same

    def implementation(self, op: Op, kernel: Kernel) -> Implementation:
        required = [a for a in op.arguments if a.optional and self._requires(kernel, a.name)]
        return Implementation(
            self._function(op, kernel, required),
            conventions=(*self.conventions, *(_REQUIRED for _ in required[:1])),
            dtypes=self.dtypes,
            output_dtypes=self.output_dtypes,
            tokens=self.tokens,
            bounds=self.bounds,
            constants=self.constants,
            forward_only=self.forward_only,
            unstated=self.unstated,
            telescopes=self.telescopes,
            whole=self.whole,
        )

    def _name(self, kernel: Kernel, name: str) -> str:
        taken = signature(kernel).parameters
        now = self.theirs.get(name, name)
        return now if now in taken else self.earlier.get(name, now)

    def released(self, kernel: Kernel) -> bool:
        """Whether the release has this mode of a function that it has."""
        taken = signature(kernel).parameters
        return release() >= self.since and (bool(self.since) or self.fixed.keys() <= taken.keys())

    def lacking(self, op: Op, kernel: Kernel) -> list[str]:
        """Tensors that the op requires and a function does not have, under fla's names."""
        taken = signature(kernel).parameters
        needed = [*(a.name for a in op.arguments if not a.optional), *self.needs]
        names = [self._name(kernel, name) for name in needed if name not in self.ours]
        return [name for name in names if name not in taken]

    def _requires(self, kernel: Kernel, name: str) -> bool:
        if name in self.needs or name in self.ours:
            return name in self.needs
        parameter = signature(kernel).parameters.get(self._name(kernel, name))
        return parameter is not None and parameter.default is Parameter.empty

    def _function(self, op: Op, kernel: Kernel, required: list[Argument]) -> Function:
        """The kernel under the op's argument names."""
        taken = signature(kernel).parameters
        called = {name: self._name(kernel, name) for name in op.names}
        names = [n for n in op.names if called[n] in taken or n in self.ours]
        names = [n for n in names if n not in self.without]

        def function(**given: Any) -> Outputs:
            for argument in required:
                if given.get(argument.name) is None:
                    given[argument.name] = _neutral(op, argument, given)
            call = {called[name]: value for name, value in given.items()}
            if "scale" in call:
                dim = given[op.arguments[0].name].shape[-1]
                call["scale"] = _scale(call["scale"], taken["scale"].default, dim)
            return self.call(kernel, {**call, **self.fixed})

        parameters = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in names]
        function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return function


# Op, mode → the first release in which value heads share a head of keys.
_SHARED_SINCE = {
    ("gated_delta_rule", "fused_recurrent"): (0, 3),
    ("gated_delta_rule", "chunk"): (0, 5),
    ("kda", "chunk"): (0, 5),
    ("comba", "chunk"): (0, 6),
}
# Op, mode → the first release that takes float32.
_FLOAT32_SINCE = {("gated_delta_rule", "chunk"): (0, 4), ("iplr", "chunk"): (0, 3)}


def _as_it_was(op: str, mode: str, declared: _Mode, kernel: Kernel) -> _Mode:
    """The mode in the installed release: earlier ones were more limited."""
    bounds: dict[str, Bound] = {}
    if op == "feature_map" and getattr(kernel, "__name__", "") != "elu_p1":
        bounds["another map than elu"] = _another_map_than_elu
    if op == "linear_attn" and release() < (0, 5):
        bounds["no state where normalized"] = _no_state_where_normalized
    if release() < _SHARED_SINCE.get((op, mode), ()):
        bounds["a head of keys for each of values"] = fixed_dims(R=1)
    if (0, 3) <= release() < (0, 3, 1) and {"K", "V"} <= OPS[op].dims.keys():
        bounds["K and V at least 16"] = _at_least(16, "K", "V")
    if op == "path_attn" and release() < (0, 4):
        kept = {n: b for n, b in declared.bounds.items() if b is not _float32_reflections}
        declared = replace(declared, bounds=kept)
        bounds["w, beta and g in the dtype of q"] = _tables_like_x
    dtypes = declared.dtypes
    if release() < _FLOAT32_SINCE.get((op, mode), ()):
        dtypes = tuple(dtype for dtype in dtypes if dtype != "float32")
    declared = replace(declared, bounds={**declared.bounds, **bounds}, dtypes=dtypes)
    return _before_0_3(op, mode, declared, kernel) if release() < (0, 3) else declared


def _before_0_3(op: str, mode: str, declared: _Mode, kernel: Kernel) -> _Mode:
    """The mode in releases up to 0.2.

    Head dims are powers of two from 16, gated recurrences pass no gradient through the final state,
    recurrences of delta rules take positive scales only, and a convolution returns no state.
    """
    if (op, mode) == ("short_conv", "fused") and "initial_state" not in signature(
        kernel
    ).parameters:
        bounds = {"W a power of two": changed_dims("W", power_of_two)}
        return replace(declared, call=_alone, bounds=bounds, whole=_same)
    if (op, mode) == ("gla", "fused_chunk") and "head_first" not in signature(kernel).parameters:
        declared = replace(declared, call=_heads_first)
    bounds = {**declared.bounds}
    if {"K", "V"} <= OPS[op].dims.keys():
        bounds["K and V powers of two, at least 16"] = _powers_of_two
    recurrent = mode == "fused_recurrent"
    if recurrent and op in ("gated_delta_rule", "dplr", "rwkv7"):
        bounds.update(_POSITIVE)
    changed = replace(declared, bounds=bounds)
    if recurrent and op in ("gla", "simple_gla"):
        alone = replace(changed, constants=("final_state",))
        return replace(alone, telescopes=lambda case: declared.telescopes(_without_state(case)))
    return changed


def _no_state_where_normalized(case: Case) -> Case:
    if not case.options.get("normalize"):
        return case
    given = tuple(n for n in case.given if n != "initial_state")
    return replace(case, given=given, options={**case.options, "output_final_state": False})


def _neutral(op: Op, argument: Argument, given: Given) -> Tensor:
    """The neutral value of an optional gate or beta, in the dtype that fla's layers pass it in."""
    sizes = {
        letter: size
        for a in op.arguments
        if given.get(a.name) is not None
        for letter, size in zip(a.dims.split(), given[a.name].shape, strict=True)
    }
    shape = [sizes[letter] for letter in argument.dims.split()]
    first = given[op.arguments[0].name]
    if argument.role in (Role.STRENGTH, Role.RATE):
        return torch.ones(shape, device=first.device, dtype=first.dtype)
    return torch.full(shape, float(argument.name == "weight"), device=first.device)


def _scale(scale: float | None, default: float | None, dim: int) -> float | None:
    """fla's default if it means the same as ours, else the number."""
    if scale is None or scale == -1:
        return default if default in (None, -1) else dim**-0.5
    return scale


def _each(folder: str, *modes: str, name: str = "", **settings: Any) -> dict[str, _Mode]:
    """Modes of an operation that differ only in name."""
    function = f"fla.ops.{folder}:{{}}_{name or folder}"
    tokens = {mode: _CHUNK for mode in modes if mode in ("chunk", "fused_chunk", "parallel")}
    return {
        mode: _Mode(function.format(mode), tokens=tokens.get(mode, 16), **settings)
        for mode in modes
    }


def _gated(name: str) -> _Mode:
    return _Mode(
        f"fla.modules.norm.fused_norm_gate:{name} fla.modules.fused_norm_gate:{name}",
        call=_gated_norm,
        theirs={"z": "g"},
        ours=("gate_first",),
        conventions=(),
        bounds={"the gate last": fixed_options(gate_first=False)},
    )


def _of_mamba(name: str) -> _Mode:
    return _Mode(
        f"fla.modules.norm.layernorm_gated:{name} fla.modules.layernorm_gated:{name}",
        call=_norm_of_mamba,
        ours=("gate_first",),
        conventions=("gate_first is the opposite of norm_before_gate",),
    )


def _before_linear(name: str) -> _Mode:
    return _Mode(
        f"fla.modules.norm.fused_norm_gate:{name} fla.modules.fused_norm_gate:{name}",
        call=_norm_and_linear,
        theirs={"z": "g"},
        ours=("gate_first", "weight"),
        without=("bias",),
        conventions=("the weight is the diagonal of a linear layer, the norm's weight is 1",),
        dtypes=("float32",),
        bounds={"the gate last": fixed_options(gate_first=False)},
    )


_GATE_OF_0_4 = {"A_log": "A", "dt_bias": "g_bias"}
_RWKV6: Mapping[str, Any] = {
    "earlier": {"r": "q", "w": "g"},
    "telescopes": channels_telescope,
}
_OPPOSITE = "the momentum has the other sign"
_SELECTION = {
    "groups of 16 heads, K of 9 to 128 (256 on a GPU), V above 8, blocks of 16 to 64, half as "
    "many slots": _selection
}
_EVEN = {"even K and V in 16 bits": _even_in_16_bits}
_WIDE = {"K and V above 8": _at_least(9, "K", "V")}
_WIDE_SLOTS = {"K, V and M above 8": _at_least(9, "K", "V", "M")}
_WIDE_VALUES = {"V above 8": _at_least(9, "V")}
_SAFE = {"gates of -5 or more": _gentle_gates}
_POSITIVE = {"a positive scale": _positive_scale}
_TWO_TILES = {"K of 128 at most": _at_most(128)}
_ONE_TILE = {"powers of two, K of 16 at most": _one_tile}
_USE_NORM = {"normalize": "use_norm"}
_GATES_OF_GDN2 = {"erase": "b", "write": "w"}
_ATTENTION: Mapping[str, Any] = {
    "call": _causal_only,
    "ours": ("causal",),
    "theirs": {"window": "window_size", "sink": "sink_bias"},
    "conventions": (_SCALE, "window is window_size, sink is sink_bias"),
    "bounds": {
        "causal": fixed_options(causal=True),
        "keys that are the queries' tokens": own_keys,
        # It asserts that.
        "K of 256 at most": _at_most(256),
    },
    "unstated": {"splitting": "a second call has more keys than queries"},
    "telescopes": _rows_telescope,
}
_MODES: Mapping[str, Mapping[str, _Mode]] = {
    "linear_attn": {
        **_each("linear_attn", "chunk", call=_normalized, conventions=_PAIRED, bounds=_EVEN),
        **_each(
            "linear_attn", "fused_chunk", "fused_recurrent", call=_normalized, conventions=_PAIRED
        ),
    },
    "simple_gla": {
        **_each("simple_gla", "chunk", bounds=_EVEN, telescopes=_keys_telescope),
        **_each("simple_gla", "fused_chunk", "fused_recurrent", telescopes=_keys_telescope),
        **_each("simple_gla", "parallel", call=_alone, bounds=_WIDE, telescopes=_keys_telescope),
    },
    "retention": {
        **_each("retention", "chunk", bounds=_EVEN),
        **_each("retention", "fused_chunk", "fused_recurrent"),
        **_each("retention", "parallel", call=_alone, bounds=_WIDE),
    },
    "lightning_attn": {
        **_each("lightning_attn", "chunk", bounds=_EVEN),
        **_each("lightning_attn", "fused_recurrent"),
    },
    "gla": {
        **_each("gla", "chunk", bounds=_WIDE_VALUES, telescopes=_keys_telescope),
        **_each("gla", "fused_chunk", telescopes=_keys_telescope),
        **_each("gla", "fused_recurrent", theirs={"g": "gk"}, telescopes=_keys_telescope),
    },
    "delta_rule": {
        **_each("delta_rule", "chunk", dtypes=("bfloat16", "float16")),
        **_each("delta_rule", "fused_recurrent", bounds=_POSITIVE),
    },
    "gated_delta_rule": {
        **_each("gated_delta_rule", "chunk", telescopes=values_telescope),
        **_each("gated_delta_rule", "fused_recurrent", forward_only=True),
    },
    "kda": {
        **_each("kda", "chunk", telescopes=channels_telescope),
        **_each("kda", "fused_recurrent", forward_only=True),
        "fused_recurrent_gated_delta_rule": _Mode(
            "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule",
            theirs={"g": "gk"},
            needs=("g",),
            forward_only=True,
        ),
        "chunk_of_32": _Mode(
            "fla.ops.kda:chunk_kda",
            fixed={"chunk_size": 32},
            tokens=32,
            since=(0, 5, 1),
            telescopes=channels_telescope,
        ),
        "chunk_safe_gate": _Mode(
            "fla.ops.kda:chunk_kda",
            fixed={"safe_gate": True},
            tokens=_CHUNK,
            bounds=_SAFE,
            telescopes=channels_telescope,
        ),
    },
    "dplr": {
        "chunk_safe_gate": _Mode(
            "fla.ops.generalized_delta_rule:chunk_dplr_delta_rule",
            fixed={"safe_gate": True},
            tokens=_CHUNK,
            bounds={**_WIDE_VALUES, **_SAFE},
            telescopes=channels_telescope,
        ),
        **_each(
            "generalized_delta_rule",
            "chunk",
            name="dplr_delta_rule",
            bounds=_WIDE_VALUES,
            telescopes=channels_telescope,
        ),
        **_each(
            "generalized_delta_rule", "fused_recurrent", name="dplr_delta_rule", forward_only=True
        ),
    },
    "rwkv7": {
        **_each(
            "rwkv7",
            "chunk",
            call=_removal,
            ours=("kk",),
            bounds=_WIDE_VALUES,
            telescopes=channels_telescope,
        ),
        **_each("rwkv7", "fused_recurrent", call=_removal, ours=("kk",), forward_only=True),
        **_each("rwkv7", "fused_mul_recurrent", forward_only=True),
    },
    "iplr": {
        **_each("generalized_delta_rule", "chunk", name="iplr_delta_rule", forward_only=True),
        **_each(
            "generalized_delta_rule", "fused_recurrent", name="iplr_delta_rule", bounds=_POSITIVE
        ),
    },
    "gated_delta_product": _each(
        "gated_delta_product",
        "chunk",
        call=_steps_on_rows,
        dtypes=("bfloat16", "float16"),
    ),
    "gdn2": {
        **_each("gdn2", "chunk", theirs=_GATES_OF_GDN2, telescopes=channels_telescope),
        **_each("gdn2", "fused_recurrent", theirs=_GATES_OF_GDN2, forward_only=True),
    },
    "comba": {
        **_each("comba", "chunk", needs=("beta",), telescopes=values_telescope),
        **_each("comba", "fused_recurrent", forward_only=True),
    },
    "gated_oja_rule": {
        **_each("gated_oja_rule", "chunk", bounds=_WIDE, telescopes=_values_channels_telescope),
        **_each(
            "gated_oja_rule",
            "fused_recurrent",
            forward_only=True,
            # It asserts that.
            bounds={"V of 128 at most": _at_most(128, "V")},
        ),
    },
    "momentum_delta_rule": {
        **_each(
            "momentum_delta_rule",
            "chunk",
            call=_momentum,
            without=("cu_seqlens",),
            conventions=(_SCALE, _OPPOSITE),
            dtypes=("bfloat16", "float16"),
        ),
        **_each(
            "momentum_delta_rule",
            "fused_recurrent",
            call=_momentum,
            without=("cu_seqlens",),
            conventions=(_SCALE, _OPPOSITE),
        ),
    },
    "mesa_net": _each(
        "mesa_net",
        "chunk",
        call=_ridge,
        ours=("initial_state",),
        conventions=("queries and keys are float16",),
        dtypes=("bfloat16", "float16"),
        bounds={"K = V of 128 at most": lambda case: equal_widths(_at_most(128)(case))},
        telescopes=values_telescope,
    ),
    "ttt_linear": _each(
        "ttt",
        "chunk",
        "fused_chunk",
        name="ttt_linear",
        call=_linear_model,
        theirs={"weight": "w", "bias": "b", "mini_batch_size": "chunk_size"},
        bounds={
            **_POSITIVE,
            "K of 128 at most": _at_most(128),
            "mini-batches of 16, 32 or 64 tokens": _mini_batches,
            # It asserts that.
            "no gradients of a pack": _forward_of_packs,
        },
    ),
    "precond_gated_delta_rule": {
        **_each("precond_gated_delta_rule", "chunk", call=_energies, telescopes=values_telescope),
        **_each(
            "precond_gated_delta_rule",
            "fused_recurrent",
            call=_energies,
            needs=("g_atk", "beta_atk"),
            forward_only=True,
        ),
    },
    "precond_kda": {
        **_each(
            "precond_kda",
            "chunk",
            call=_energies_of_unit_keys,
            ours=("use_qk_l2norm_in_kernel",),
            bounds={"normalized queries and keys": fixed_options(use_qk_l2norm_in_kernel=True)},
            telescopes=channels_telescope,
        ),
        **_each(
            "precond_kda",
            "fused_recurrent",
            call=_energies,
            needs=("g_atk", "beta_atk"),
            forward_only=True,
        ),
    },
    "rwkv6": {
        **_each("rwkv6", "chunk", bounds=_WIDE_VALUES, **_RWKV6),
        **_each("rwkv6", "fused_recurrent", **_RWKV6),
    },
    "hgrn": {
        **_each("hgrn", "chunk", conventions=()),
        **_each("hgrn", "fused_recurrent", output_dtypes=_STATE_LIKE_INPUTS, conventions=()),
    },
    "rwkv4": _each(
        "rwkv4",
        "fused_recurrent",
        call=_shared_exponent,
        ours=("initial_state", "output_final_state"),
        conventions=("the state is (m, 1) times exp(z), and required",),
    ),
    "gsa": {
        **_each("gsa", "chunk", call=_slots, bounds=_WIDE_SLOTS),
        **_each("gsa", "fused_recurrent", call=_slots),
    },
    "lightnet": _each("lightnet", "chunk", "fused_recurrent", call=_log_sum),
    "abc": _each(
        "abc",
        "chunk",
        call=_alone,
        bounds={"K and V above 8, M a power of two from 16": _slots_of_a_dot},
        without=("initial_state", "output_final_state"),
        unstated={"splitting": "the state lacks the sums of weights"},
    ),
    "log_linear_attn": _each(
        "log_linear_attn",
        "chunk",
        call=_alone,
        bounds={"K = 64, V a power of two": _a_block_of_keys},
        telescopes=values_telescope,
    ),
    "attention": {
        **_each("attn", "parallel", **_ATTENTION),
        "forgetting": _Mode(
            "fla.ops.forgetting_attn:parallel_forgetting_attn", tokens=_CHUNK, **_ATTENTION
        ),
        "decoding": _Mode(
            "fla.ops.attn.decoding:attn_decoding_one_step",
            call=_one_step,
            ours=("causal", "cu_seqlens_k"),
            theirs={"window": "window_size", "sink": "sink_bias"},
            conventions=(_SCALE, "sequences are packed"),
            bounds={"a query of each sequence": one_token_each},
            forward_only=True,
            unstated={"splitting": "it has one query"},
        ),
    },
    "based": {
        **_each("based", "parallel", call=_alone, theirs=_USE_NORM, bounds=_TWO_TILES),
        **_each("based", "fused_chunk", call=_alone, theirs=_USE_NORM, bounds=_ONE_TILE),
    },
    "rebased": _each(
        "rebased",
        "parallel",
        call=_alone,
        theirs={"normalize": "use_normalize"},
        bounds=_TWO_TILES,
    ),
    "stickbreaking_attn": _each("stickbreaking_attn", "parallel"),
    "path_attn": {
        "parallel": _Mode(
            "fla.ops.path_attn:parallel_path_attn fla.ops.path_attn:parallel_path_attention",
            call=_reflections,
            tokens=_CHUNK,
            telescopes=_rows_telescope,
            conventions=(_SCALE, "gates are scaled as logits are"),
            bounds={
                "a scale other than 0 beside gates": _scale_of_gates,
                "K and V 16, 32, 64 or 128": changed_dims(
                    "KV", lambda n: min(128, max(16, power_of_two(n)))
                ),
                "w, beta and g in float32": _float32_reflections,
            },
        )
    },
    "wall_attn": _each(
        "wall_attn",
        "parallel",
        call=_alone,
        theirs={"gs": "g_scalar", "sink": "sink_bias", "window": "window_size"},
        telescopes=_wall_telescope,
        # With WALL_ATTN_DEBUG=1, fla.ops.wall_attn.parallel asserts it of `g` and `g_scalar`.
        bounds={"finite gates": _finite_gates},
    ),
    "selected_attention": {
        "parallel": _Mode(
            "fla.ops.nsa:parallel_nsa",
            call=_selected,
            theirs={"indices": "block_indices"},
            ours=("cu_seqlens_k",),
            conventions=(_SCALE, "a block that is selected twice is passed once"),
            # It raises NotImplementedError.
            bounds={**_SELECTION, "no gradients of keys of other lengths": _forward_of_other_keys},
        )
    },
    "nsa": _each(
        "nsa",
        "parallel",
        call=_three_branches,
        theirs={"window": "window_size", "top_k": "block_counts"},
        ours=("local_blocks",),
        conventions=(
            _SCALE,
            "the window's branch is fla's or PyTorch's attention, in the place of flash-attn",
            "outputs are float32 beside float32 gates; they become the dtype of q",
        ),
        bounds={
            **_SELECTION,
            "two local blocks": fixed_options(local_blocks=2),
            "keys that are the queries' tokens": own_keys,
        },
        unstated={"splitting": "a second call has more keys than queries"},
    ),
    "attnres": _each(
        "attnres",
        "fused",
        call=_sources,
        theirs={
            "x": "residuals",
            "weight": "rms_weight",
            "output_weight": "output_rms_weight",
            "eps": "rms_eps",
        },
        constants=("weights",),
        conventions=(_SCALE, "sources are a list"),
    ),
    "parallax": _each(
        "parallax",
        "parallel",
        call=_alone,
        theirs={"window": "window_size"},
        dtypes=("bfloat16", "float16"),
        bounds={"K = V above 8": lambda case: equal_widths(_at_least(9, "K")(case))},
    ),
    "rotary_embedding": {
        "fused": _Mode(
            "fla.modules.rotary:rotary_embedding",
            call=_alone,
            conventions=(),
            bounds={
                "tables in the dtype of x": _tables_like_x,
                "a head of two": _at_least(2, "D"),
                "some pairs, some rows": _at_least(1, "P", "B"),
            },
        )
    },
    "short_conv": {
        "fused": _Mode(
            "fla.modules.convolution:causal_conv1d",
            call=_convolution,
            whole=_of_all_taps,
            conventions=(_WINDOW,),
            bounds={"no state before tokens in 16 bits, as it is kept in theirs": _float32_state},
        ),
        "update": _Mode(
            "fla.modules.convolution:causal_conv1d_update",
            call=_one_token,
            theirs={"initial_state": "cache"},
            ours=("initial_state", "output_final_state", "cu_seqlens"),
            whole=_of_all_taps,
            conventions=(_WINDOW, "it is required, and written in place"),
            bounds={"a token of each sequence": one_token_each},
            forward_only=True,
            unstated={"splitting": "it has one token"},
        ),
    },
    "rms_norm_gated": {
        "fused": _gated("rms_norm_gated"),
        "linear": _before_linear("rms_norm_swish_gate_linear"),
        "mamba": _of_mamba("rmsnorm_fn"),
    },
    "layer_norm_gated": {
        "fused": _gated("layer_norm_gated"),
        "linear": _before_linear("layer_norm_swish_gate_linear"),
        "mamba": _of_mamba("layernorm_fn"),
    },
    "cumsum": {
        "fused": _Mode(
            "fla.ops.utils.cumsum:chunk_global_cumsum",
            call=_sums,
            theirs={"x": "s"},
            conventions=(),
            forward_only=True,
        ),
        "chunk": _Mode(
            "fla.ops.utils.cumsum:chunk_local_cumsum",
            call=_sums,
            theirs={"x": "g"},
            conventions=(),
            bounds={"a chunk_size that is a power of two": _chunks},
            forward_only=True,
        ),
    },
    "mean_pooling": {
        "fused": _Mode(
            "fla.ops.utils.pooling:mean_pooling",
            call=_alone,
            conventions=(),
            bounds={"a chunk_size that is a power of two": _chunks},
        )
    },
    "solve_tril": {
        "fused": _Mode(
            "fla.ops.utils.solve_tril:solve_tril",
            call=_triangle,
            conventions=("numbers on and above the diagonal are zeroed: fla reads them",),
            bounds={"C of 16, 32 or 64": changed_dims("C", lambda n: max(16, power_of_two(n)))},
            forward_only=True,
        )
    },
    "decay_gate": {
        "fused": _Mode(
            "fla.ops.kda.gate:fused_kda_gate",
            call=_gate,
            theirs={"x": "g"},
            ours=("A_log", "dt_bias"),
            conventions=(),
        ),
        "fused_of_heads": _Mode(
            "fla.ops.gated_delta_rule.gate:fused_gdn_gate",
            call=_gate_of_heads,
            theirs={"x": "g"},
            conventions=(),
            bounds={"one channel": fixed_dims(D=1)},
        ),
    },
    "feature_map": {
        "fused": _Mode(
            "fla.modules.activations:elu_p1 fla.modules.feature_map:DPFPFeatureMap",
            call=_features,
            ours=("x", "kind", "nu"),
            conventions=("other maps than elu are modules", "Hedgehog's layer is the identity"),
            bounds={"another map than taylor": _another_map},
        )
    },
    "strength_gate": {
        "fused": _Mode(
            "fla.modules.activations:sigmoid",
            call=_numbers,
            ours=("x",),
            output_dtypes={"beta": "case"},
            conventions=(),
        )
    },
    "token_shift": {
        "fused": _Mode(
            "fla.modules.token_shift:token_shift",
            call=_shift,
            theirs={"initial_state": "cache", "output_final_state": "output_cache"},
            output_dtypes=_STATE_LIKE_INPUTS,
            conventions=("a state has no axis of tokens",),
            bounds={
                "a state in the dtype of x": _tables_like_x,
                "no gradient of a state in 16 bits, as it is rounded to them": _silent_state,
            },
        )
    },
    "l2norm": {
        "fused": _Mode(
            "fla.modules.l2norm:l2norm fla.modules.l2norm:l2_norm", call=_alone, conventions=()
        )
    },
}
