"""Known failures of the rotary embeddings of Hugging Face's models, transformers 5.24."""

import math

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


LEDGER = (
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
