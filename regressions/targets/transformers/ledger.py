"""Known failures of Hugging Face's models, transformers 5.24."""

import math

import torch
from torch import Tensor

from properties.cases.case import Case
from properties.targets.ledger import Given, KnownFailure, Raised, Wrong

RELEASES = ("transformers 5.24.0",)
COMPLEX = ("deepseek_v2",)


def _whole_numbers_of(given: Given) -> bool:
    """Whether x is float32, which a model that computes in float32 does not copy."""
    return given["mode"] in COMPLEX and str(given["x"].dtype) == "torch.float32"


def _without_elements(given: Given) -> bool:
    return given["mode"] in COMPLEX and given["x"].numel() == 0


def _cut(given: Given) -> bool:
    """Whether height or width has a pair past the turns that the slices end with."""
    sections = given["axes"].bincount(minlength=3).tolist()
    last = (3 * (sections[axis] - 1) + axis for axis in (1, 2) if sections[axis])
    return given["mode"] == "qwen3_vl" and any(pair >= sum(sections) for pair in last)


def _lacks_elements(given: Given) -> bool:
    return any(isinstance(x, Tensor) and not x.numel() for x in given.values())


def _closes(given: Given) -> bool:
    g = given.get("g")
    return g is not None and bool(g.isneginf().any())


def _sum_in_a_chunk(given: Given) -> float:
    """An upper bound of the sums of gates in a chunk of 64 tokens."""
    g = given.get("g")
    if g is None or not g.numel():
        return 0.0
    total = g.detach().float().abs().cumsum(1)
    before = total.roll(64, 1)
    before[:, :64] = 0
    return float((total - before).max())


def _digits_of_gates(given: Given) -> float:
    """The error, beside its budget, of the exponential of a difference of such sums."""
    return max(1.0, 2.0**-23 * _sum_in_a_chunk(given) / torch.finfo(given["v"].dtype).eps)


def _of_16_bits(given: Given) -> bool:
    return bool(given["x"].element_size() == 2)


def _root_is_extreme(given: Given) -> bool:
    """Whether the cube of a reciprocal root leaves float32, or lies among its subnormal numbers."""
    u = given["x"].detach().double()
    if given["mode"] == "mamba2":
        u = u * torch.nn.functional.silu(given["z"].detach().double())
    square = u.square().mean(-1) + given["eps"]
    return bool(((square < 2.0**-84) | (square > 2.0**84)).any())


def _overflows_before_silu(given: Given) -> bool:
    """Whether a convolution may leave float16."""
    x, weight = given["x"].detach().double(), given["weight"].detach().double()
    if given["activation"] is None or given["x"].dtype != torch.float16 or not x.numel():
        return False
    state = given.get("initial_state")
    states = () if state is None or not state.numel() else (float(state.detach().abs().max()),)
    most = max([float(x.abs().max()), *states]) * float(weight.abs().sum(-1).max())
    bias = given.get("bias")
    return most + (0.0 if bias is None else float(bias.detach().abs().max())) > 65504


LEDGER = (
    KnownFailure(
        name="gates_of_a_chunk",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"gated_delta_rule","mode":"qwen3_next_chunk","dtype":"float32","dims":{"B":1,'
                '"G":2,"R":3,"K":64,"V":33},"lengths":[82],"given":["g","beta"],"options":'
                '{"use_qk_l2norm_in_kernel":true,"output_final_state":false},'
                '"values":"extreme_gates","layout":"expanded","seed":347}'
            ),
            Case.from_json(
                '{"op":"kda","mode":"kimi_linear_chunk","dtype":"float32","dims":{"B":2,"G":1,"R":1,'
                '"K":6,"V":31},"lengths":[46],"given":["g","beta","initial_state"],"float32":["g"],'
                '"options":{"use_qk_l2norm_in_kernel":true,"output_final_state":true},'
                '"values":"extreme_gates"}'
            ),
        ),
        modes=("qwen3_next_chunk", "kimi_linear_chunk"),
        shows=lambda given: _sum_in_a_chunk(given) > 100,
        symptoms=(Wrong(most=_digits_of_gates),),
        expected="0.9802",
        got="0.9807",
        cause="Decays are differences of two sums of gates from the first token of the chunk on.",
    ),
    KnownFailure(
        name="gates_of_minus_infinity",
        law="differential",
        releases=RELEASES,
        cases=tuple(
            Case.from_json(
                f'{{"op":"{op}","mode":"{mode}","dtype":"float32","dims":{{"B":1,"G":1,"R":1,"K":2,'
                '"V":2},"lengths":[9],"given":["g"],"options":{"use_qk_l2norm_in_kernel":false,'
                '"output_final_state":false},"values":"closed_gates"}'
            )
            for op, mode in (
                ("gated_delta_rule", "qwen3_next_chunk"),
                ("kda", "kimi_linear_chunk"),
            )
        ),
        modes=("qwen3_next_chunk", "kimi_linear_chunk"),
        shows=_closes,
        symptoms=(Wrong(most=math.inf, finite=False),),
        expected="[1.0, 1.0]",
        got="[nan, nan]",
        cause="Decays are differences of two sums of gates: of -inf and -inf, NaN.",
    ),
    KnownFailure(
        name="states_in_16_bits",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"selective_scan","mode":"mamba","dtype":"float16","dims":{"B":1,"K":5,'
                '"D":192},"lengths":[15],"float32":["dt"],"options":{"output_final_state":true},'
                '"values":"large_states","seed":18}'
            ),
        ),
        modes=("mamba",),
        shows=_of_16_bits,
        symptoms=(Wrong(("y", "dx", "ddt", "dA", "dB", "dC", "dD"), most=math.inf, finite=False),),
        expected="80.03",
        got="inf",
        cause="The state, which is float32, is rounded to the dtype of x before it is read.",
    ),
    KnownFailure(
        name="cube_of_a_reciprocal_root",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"rms_norm_gated","mode":"qwen3_next","dtype":"float32","dims":{"B":1,"H":1,'
                '"D":3},"lengths":[4],"options":{"eps":1e-30,"gate_first":false},"values":"zeros",'
                '"seed":1}'
            ),
        ),
        modes=("qwen3_next", "mamba2"),
        shows=_root_is_extreme,
        symptoms=(Wrong(("dx", "dz"), most=math.inf, finite=False),),
        expected="7.311e+14",
        got="nan",
        cause="The gradient of rsqrt is its cube, which overflows or is 0 where the root is not.",
    ),
    KnownFailure(
        name="convolution_overflows",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"short_conv","mode":"qwen3_next","dtype":"float16","dims":{"B":12,"D":1,'
                '"W":1},"lengths":[129],"given":["bias"],"options":{"activation":"silu"},'
                '"values":"large_states","seed":3702}'
            ),
        ),
        modes=("qwen3_next", "qwen3_next_update"),
        shows=_overflows_before_silu,
        symptoms=(Wrong(("y", "dx", "dweight", "dbias"), most=math.inf, finite=False),),
        expected="-0.0",
        got="nan",
        cause="The convolution is rounded to float16 before SiLU, and -inf times 0 is NaN.",
    ),
    KnownFailure(
        name="without_elements",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"gated_delta_rule","mode":"qwen3_next_chunk","dtype":"float32","dims":{"B":0,'
                '"G":1,"R":1,"K":2,"V":2},"lengths":[1],"options":'
                '{"use_qk_l2norm_in_kernel":false,"output_final_state":false}}'
            ),
            Case.from_json(
                '{"op":"kda","mode":"kimi_linear_chunk","dtype":"float32","dims":{"B":0,"G":1,"R":1,'
                '"K":2,"V":2},"lengths":[1],"options":{"use_qk_l2norm_in_kernel":false,'
                '"output_final_state":false}}'
            ),
            Case.from_json(
                '{"op":"attention","mode":"sdpa","dtype":"float32","dims":{"B":1,"G":1,"R":1,"K":2,'
                '"V":2},"lengths":[0],"key_lengths":[1],"options":{"causal":false,"window":null,'
                '"scale":1.0}}'
            ),
            Case.from_json(
                '{"op":"mamba2","mode":"mamba2_scan","dtype":"float32","dims":{"B":0,"G":1,"R":1,'
                '"K":2,"V":2},"lengths":[1],"options":{"output_final_state":false}}'
            ),
            Case.from_json(
                '{"op":"selective_scan","mode":"mamba","dtype":"float32","dims":{"B":1,"K":1,"D":1},'
                '"lengths":[0],"options":{"output_final_state":false}}'
            ),
            Case.from_json(
                '{"op":"rwkv4","mode":"rwkv","dtype":"float32","dims":{"B":1,"D":1},"lengths":[0],'
                '"options":{"output_final_state":false}}'
            ),
            Case.from_json(
                '{"op":"short_conv","mode":"qwen3_next","dtype":"float32","dims":{"B":1,"D":1,'
                '"W":1},"lengths":[0],"options":{"activation":null}}'
            ),
        ),
        modes=(
            "qwen3_next_chunk",
            "kimi_linear_chunk",
            "sdpa",
            "rwkv",
            "qwen3_next",
            "mamba2_scan",
            "mamba",
        ),
        shows=_lacks_elements,
        symptoms=(
            Raised("RuntimeError", "cannot reshape tensor of 0 elements"),
            Raised("RuntimeError", "Only zero batch or zero channel inputs are supported"),
            Raised("RuntimeError", "stack expects a non-empty TensorList"),
            Raised("RuntimeError", "Kernel size can't be greater than actual input size"),
            Raised("IndexError", "index 0 is out of bounds for dimension 1 with size 0"),
        ),
        expected="(0, 1, 1, 2)",
        got="RuntimeError cannot reshape tensor of 0 elements",
        cause="A dim of -1 is ambiguous in a reshape of no elements, and the first token sizes a "
        "state; torch has no convolution of no tokens.",
    ),
    KnownFailure(
        name="complex_at_an_odd_offset",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"rotary_embedding","mode":"deepseek_v2","dtype":"float32","dims":{"B":1,'
                '"H":2,"D":2,"P":1},"lengths":[1],"options":{"interleaved":true,'
                '"seqlen_offsets":0},"layout":"misaligned"}'
            ),
        ),
        modes=COMPLEX,
        shows=_whole_numbers_of,
        symptoms=(Raised("RuntimeError", "Tensor must have a "),),
        expected="[0.0, 2.0]",
        got="Tensor must have a storage_offset divisible by 2",
        cause="float() does not copy float32, and view_as_complex wants even offsets and strides.",
    ),
    KnownFailure(
        name="complex_of_no_tokens",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"rotary_embedding","mode":"deepseek_v2","dtype":"float32","dims":{"B":0,'
                '"H":2,"D":2,"P":1},"lengths":[1],"options":{"interleaved":true,'
                '"seqlen_offsets":0}}'
            ),
        ),
        modes=COMPLEX,
        shows=_without_elements,
        symptoms=(Raised("RuntimeError", "cannot reshape tensor of 0 elements"),),
        expected="(1, 1, 0, 2)",
        got="RuntimeError cannot reshape tensor of 0 elements i",
        cause="A dim of -1 is ambiguous in a reshape of no elements.",
    ),
    KnownFailure(
        name="sections_cut",
        law="differential",
        releases=RELEASES,
        cases=(
            Case.from_json(
                '{"op":"multiaxis_rotary","mode":"qwen3_vl","dtype":"float32","dims":{"B":1,"H":2,'
                '"D":6,"A":3,"P":3},"lengths":[2],"options":{},"seed":1}'
            ),
        ),
        modes=("qwen3_vl",),
        shows=_cut,
        symptoms=(Wrong(("y", "dx"), most=math.inf),),
        expected="[1, 3, 2]",
        got="[2, 2, 2]",
        cause="Every third pair up to 3 times the section: a section longer than the others "
        "ends with the pairs, and time gets the rest.",
    ),
    KnownFailure(
        name="yarn_truncate_of_a_layer_type",
        law="differential",
        releases=RELEASES,
        expected="0.00957",
        got="0.00949",
        cause="truncate is read from rope_parameters, and not from those of the layer type.",
    ),
    KnownFailure(
        name="yarn_without_slow_pairs",
        law="differential",
        releases=RELEASES,
        expected="1.0",
        got="0.25",
        cause="If the ramp begins past the last dim, its clamped end lies before it, and "
        "it falls instead of rising.",
    ),
    KnownFailure(
        name="yarn_mscale_of_zero",
        law="differential",
        releases=RELEASES,
        expected="1.098",
        got="1.1386",
        cause="`if mscale and mscale_all_dim` takes 0 for one that is not given, and drops the "
        "other one too.",
    ),
    KnownFailure(
        name="head_dim_of_none",
        law="differential",
        releases=RELEASES,
        expected="4 pairs",
        got="TypeError",
        cause="The default of getattr is not used for an attribute that is None; dynamic, yarn and "
        "longrope, not linear and llama3.",
    ),
    KnownFailure(
        name="dynamic_remembers",
        law="determinism",
        releases=RELEASES,
        expected="True",
        got="False",
        cause="Frequencies are computed anew for more tokens than ever before, and not for fewer.",
    ),
    KnownFailure(
        name="dynamic_at_the_original_length",
        law="determinism",
        releases=RELEASES,
        expected="True",
        got="False",
        cause="They are reset below the original length, and not at it.",
    ),
    KnownFailure(
        name="dynamic_of_one_pair",
        law="differential",
        releases=RELEASES,
        expected="[1.0]",
        got="ZeroDivisionError",
        cause="The exponent dim / (dim - 2) of the base, which one pair does not need.",
    ),
    KnownFailure(
        name="angles_in_float32",
        law="differential",
        releases=RELEASES,
        expected="-0.034",
        got="-0.016",
        cause="Frequencies and their products with positions are float32: one of 2^20 is wrong "
        "by up to 0.06.",
    ),
)
