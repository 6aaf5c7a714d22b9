"""Tests of the options of the command line."""

import pytest
import torch

from kernels.bench.groups import Group
from kernels.bench.options import groups, parser
from kernels.bench.problems import PROBLEMS
from kernels.bench.shapes import DECODE, PRESETS, Shape
from kernels.tiles import TABLE


def _groups(*arguments: str) -> list[Group]:
    return groups(parser().parse_args(["--against", "torch", *arguments]))


def test_every_op_and_mode_is_measured_forward_and_backward_in_bfloat16() -> None:
    found = _groups()
    measured = {(group.op, mode) for group in found for mode in group.modes}
    assert measured >= set(TABLE)
    assert {op for op, _ in measured} == set(PROBLEMS)
    assert {group.dtype for group in found} == {torch.bfloat16}
    assert [group.backward for group in found[:2]] == [False, True]
    assert {group.shape for group in found} == set(PRESETS["usual"].shapes)
    assert not any(group.backward for group in found if group.op == "cache_append")


def test_options_choose_what_is_measured() -> None:
    only = ("--op", "gla", "attention", "--mode", "chunk", "--dtype", "float16", "--forward")
    assert _groups(*only, "--shape", "2,3,5,4,6", "1,2,3,4,5") == [
        Group("gla", Shape(2, 3, 5, 4, 6), torch.float16, False, ("chunk",), ("torch",)),
        Group("gla", Shape(1, 2, 3, 4, 5), torch.float16, False, ("chunk",), ("torch",)),
    ]
    assert {group.backward for group in _groups("--backward")} == {True}


def test_the_mode_that_is_chosen_by_default_is_measured_where_it_is_asked_for() -> None:
    found = _groups("--mode", "auto", "chunk", "--forward", "--op", "gla", "l2norm", "cache_append")
    assert {(group.op, group.modes) for group in found} == {
        ("gla", ("auto", "chunk")),
        ("l2norm", ("auto",)),
    }


def test_presets_have_the_head_dims_and_lengths_that_they_name() -> None:
    shapes = {name: preset.shapes for name, preset in PRESETS.items()}
    assert {shape.K for shape in shapes["dims"]} == {32, 64, 128, 256, 512, 1024}
    assert {shape.H * shape.K for shape in shapes["dims"]} == {2048}
    assert [shape.T for shape in shapes["lengths"]] == [1024, 4096, 16384, 65536]
    assert {shape.B * shape.T for shape in shapes["lengths"]} == {65536}
    assert {shape.K for shape in shapes["report"]} == {32, 128, 1024}
    assert all(shape.K == shape.V for of_name in shapes.values() for shape in of_name)


def test_a_preset_for_some_ops_leaves_out_the_others() -> None:
    assert {group.op for group in _groups("--preset", "report")} == {
        "attention", "gla", "simple_gla",
    }  # fmt: skip
    assert {group.op for group in _groups("--preset", "report", "--op", "gla", "kda")} == {"gla"}


def test_a_shape_that_is_asked_for_twice_is_measured_once() -> None:
    of_head_dim_64 = ("--shape", "8,4096,32,64,64", "--preset", "dims", "usual", "--op", "gla")
    shapes = [str(group.shape) for group in _groups(*of_head_dim_64, "--forward")]
    assert shapes[0] == "8,4096,32,64,64"
    assert len(shapes) == len(set(shapes)) == 8


def test_packed_shapes_have_the_same_tokens_in_ragged_sequences() -> None:
    found = _groups("--packed", "--shape", "4,10,5,4,6")
    assert {group.shape for group in found} == {Shape(4, 10, 5, 4, 6, "packed")}
    assert {group.op for group in found} == {
        op for op, problem in PROBLEMS.items() if "packed" in problem.forms
    }
    shape = found[0].shape
    assert shape.rows == (1, 40)
    assert len(shape.lengths) == len(set(shape.lengths)) == 4
    assert sum(shape.lengths) == 40
    assert min(shape.lengths) > 0
    assert Shape(4, 10, 5, 4, 6).boundaries == [0, 10, 20, 30, 40]
    assert Shape(1, 10, 5, 4, 6, "packed").boundaries == [0, 10]


def test_decoding_is_one_token_of_the_ops_that_have_a_state() -> None:
    found = _groups("--decode")
    assert {group.modes for group in found} == {("fused_recurrent",)}
    assert {group.op for group in found} == {
        op for op, problem in PROBLEMS.items() if "decode" in problem.forms
    }
    assert "attention" not in {group.op for group in found}
    assert {group.shape for group in found} == set(DECODE)
    assert {shape.T for shape in DECODE} == {1}
    assert [shape.B for shape in DECODE][::4] == [1, 256]
    assert not any(group.backward for group in found)


@pytest.mark.parametrize("form", ["dense", "packed", "decode"])
def test_a_shape_is_read_from_what_is_written_of_it(form: str) -> None:
    shape = Shape(2, 3, 5, 4, 6, form)
    assert Shape.read(str(shape)) == shape


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--op", "gla", "--mode", "parallel"], "--mode: parallel, expected a mode of gla"),
        (["--decode", "--shape", "2,3,5,4,6"], "--decode: T is 3 in 2,3,5,4,6, expected 1"),
        (["--decode", "--op", "attention"], "--op: attention, expected an op with problems"),
        (["--packed", "--op", "l2norm"], "--op: l2norm, expected an op"),
        (["--backward", "--op", "cache_append"], "--op: cache_append, expected an op"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _groups(*arguments)
