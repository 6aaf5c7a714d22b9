"""Each trap of the printed IR as text, and text that must be refused rather than guessed at."""

from __future__ import annotations

import numpy as np
import pytest

from properties.simulator import lowering, numerics
from properties.simulator.compilation import Program
from properties.simulator.frontend import (
    Instruction,
    Type,
    UnreadableIR,
    parse,
    parse_type,
    split_list,
    walk,
)
from properties.simulator.launcher import START
from properties.simulator.memory import Buffer
from properties.simulator.runtime import Slab


def function(body: str, arguments: str = "%out: !tt.ptr<i32>, %n: i32") -> str:
    head = f"tt.func public @k({arguments}) attributes {{noinline = false}} {{"
    return f"module {{\n  {head}\n{body}\n  }}\n}}\n"


def instructions(body: str) -> list[Instruction]:
    (parsed,) = parse(function(body))
    return list(walk(parsed.blocks))


def execute(body: str, programs: int = 4, n: int = 3) -> list[int]:
    """Run a body that stores to `%out`, one element per program, and return what it stored."""
    import torch

    program = Program("k", lowering.generate(parse(function(body))))
    out = torch.full((programs,), -1, dtype=torch.int32)
    slab = Slab("k", (programs, 1, 1), np.arange(programs), False, 0.0)
    program.entry(slab, (Buffer("out", out, "i32"), START), np.array([n], np.int32))
    return [int(value) for value in out]


STORE = """
    %p = tt.addptr %out, %pid : !tt.ptr<i32>, i32
    tt.store %p, %value : !tt.ptr<i32>
    tt.return
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f32", Type("f32")),
        ("tensor<64xbf16>", Type("bf16", (64,))),
        ("tensor<64x1x!tt.ptr<f16>>", Type("ptr", (64, 1), "f16")),
        ("!tt.ptr<f8E4M3FN>", Type("ptr", (), "f8E4M3FN")),
        ("!tt.ptr<i32, 1>", Type("ptr", (), "i32")),
        ("!tt.ptr<!tt.ptr<f32>>", Type("ptr", (), "i64")),
        ("index", Type("index")),
    ],
)
def test_types(text: str, expected: Type) -> None:
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    "text", ["complex<f32>", "tensor<?xf32>", "memref<4xf32>", "!ttg.memdesc<4>"]
)
def test_unknown_types_are_refused(text: str) -> None:
    with pytest.raises(UnreadableIR):
        parse_type(text)


def test_lists_are_split_outside_brackets_and_strings() -> None:
    assert split_list('a, f(b, c), "d, e", tensor<4x!tt.ptr<f32>>, (i32) -> f32') == [
        "a", "f(b, c)", '"d, e"', "tensor<4x!tt.ptr<f32>>", "(i32) -> f32",
    ]  # fmt: skip


def test_a_yield_without_values_is_not_printed() -> None:
    assert execute(
        """
    %pid = tt.get_program_id x : i32
    %0 = arith.cmpi slt, %pid, %n : i32
    scf.if %0 {
      %p = tt.addptr %out, %pid : !tt.ptr<i32>, i32
      tt.store %p, %n : !tt.ptr<i32>
    }
    tt.return"""
    ) == [3, 3, 3, -1]


def test_results_with_a_name_and_a_count() -> None:
    assert execute(
        """
    %pid = tt.get_program_id x : i32
    %o = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    %ab:2 = scf.for %i = %o to %n step %one iter_args(%a = %pid, %b = %one) -> (i32, i32)  : i32 {
      %s = arith.addi %a, %b : i32
      scf.yield %b, %s : i32, i32
    } {tt.num_stages = 2 : i32}
    %value = arith.subi %ab#1, %ab#0 : i32"""
        + STORE
    ) == [1 + k for k in range(4)]


def test_blocks_may_be_printed_before_their_predecessors() -> None:
    assert execute(
        """
    %pid = tt.get_program_id x : i32
    %c1_i32 = arith.constant 1 : i32
    %0 = arith.cmpi eq, %pid, %c1_i32 : i32
    cf.cond_br %0, ^bb2(%n : i32), ^bb3
  ^bb1(%value: i32):  // pred: ^bb2
    %p = tt.addptr %out, %pid : !tt.ptr<i32>, i32
    tt.store %p, %value : !tt.ptr<i32>
    tt.return
  ^bb2(%x: i32):  // 2 preds: ^bb0, ^bb3
    %y = arith.addi %x, %x : i32
    cf.br ^bb1(%y : i32)
  ^bb3:  // pred: ^bb0
    cf.br ^bb2(%pid : i32)"""
    ) == [0, 6, 4, 6]


def test_sibling_regions_may_use_one_name_for_two_values() -> None:
    assert execute(
        """
    %pid = tt.get_program_id x : i32
    %c1_i32 = arith.constant 1 : i32
    %c = arith.cmpi sgt, %pid, %c1_i32 : i32
    %value = scf.if %c -> (i32) {
      %0 = arith.addi %pid, %n : i32
      scf.yield %0 : i32
    } else {
      %0 = arith.cmpi eq, %pid, %c1_i32 : i32
      %1 = arith.extui %0 : i1 to i32
      scf.yield %1 : i32
    }"""
        + STORE
    ) == [0, 1, 5, 6]


def test_while_loops_without_carried_values_and_with_other_results() -> None:
    assert execute(
        """
    %pid = tt.get_program_id x : i32
    %c1_i32 = arith.constant 1 : i32
    %value = scf.while (%x = %pid) : (i32) -> i32 {
      %c = arith.cmpi slt, %x, %n : i32
      %double = arith.addi %x, %x : i32
      scf.condition(%c) %double : i32
    } do {
    ^bb0(%y: i32):
      %next = arith.addi %y, %c1_i32 : i32
      scf.yield %next : i32
    }"""
        + STORE
    ) == [6, 6, 10, 6]


def test_locations_resolve_through_names_and_calls_to_the_kernel() -> None:
    text = """#loc = loc("k.py":1:0)
#loc1 = loc("/x/triton/language/standard.py":5:2)
#loc2 = loc("k.py":7:4)
#loc3 = loc("x"(#loc1))
#loc4 = loc(callsite(#loc3 at #loc2))
#loc5 = loc(fused[#loc4, #loc])
module {
  tt.func public @k(%out: !tt.ptr<i32> loc("out"(#loc))) attributes {noinline = false} {
    %a = tt.get_program_id x : i32 loc(#loc4)
    %b = tt.get_program_id y : i32 loc(#loc5)
    %c = tt.get_program_id z : i32 loc(unknown)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""
    (parsed,) = parse(text)
    assert [i.location.line for i in walk(parsed.blocks)] == [7, 7, 0, 1]


def test_attributes_words_and_strings() -> None:
    load, store, check, shape = instructions(
        """
    %a = tt.load %out evictionPolicy = evict_first {isVolatile = true} : !tt.ptr<i32>
    tt.store %out, %a {tt.divisibility = dense<16> : tensor<1xi32>} : !tt.ptr<i32>
    tt.assert %n, "a : b, loc(x) {y}" : i32
    %t = tt.trans %a {order = array<i32: 1, 0>} : tensor<2x4xf32> -> tensor<4x2xf32>
    """.rstrip()
    )
    assert load.attributes == {"evictionPolicy": "evict_first", "isVolatile": "true"}
    assert store.operands == ["%out", "%a"]
    assert check.strings == ["a : b, loc(x) {y}"]
    assert shape.integers("order") == (1, 0)


@pytest.mark.parametrize(
    "line",
    [
        "%a = tt.load %out ? : !tt.ptr<i32>",
        "%a, %b = arith.addi %n, %n : i32 -> i32",
        "scf.if %n, %n {",
        "%a = something",
        "scf.for %i = %n to %n {",
    ],
)
def test_text_that_is_not_understood_is_refused(line: str) -> None:
    with pytest.raises(UnreadableIR):
        instructions(line + "\n tt.return")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("%a = tt.new_operation %n : i32", "tt.new_operation"),
        ("%a = arith.addi %n, %n mystery : i32", "mystery"),
        ("%a = arith.cmpf foo, %n, %n : f32", "foo"),
    ],
)
def test_operations_that_are_not_known_are_refused(line: str, named: str) -> None:
    with pytest.raises(NotImplementedError, match=named):
        lowering.generate(parse(function(line + "\n tt.return")))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("arith.constant true", True),
        ("arith.constant dense<-3> : tensor<4xi32>", -3),
        ("arith.constant 0xFF800000 : f32", -np.inf),
        ("arith.constant dense<0xFF80> : tensor<4x4xbf16>", -np.inf),
        ("arith.constant 0x7C00 : f16", np.inf),
        ("arith.constant 1.729690e+01 : f16", 17.296875),
        ("arith.constant dense<1.000000e-01> : tensor<2xbf16>", 0.10009765625),
        ("arith.constant 0xFFF0000000000000 : f64", -np.inf),
    ],
)
def test_constants(text: str, value: object) -> None:
    source = lowering.generate(parse(function(f"%c = {text}\n tt.return")))
    scope: dict[str, object] = {}
    line = next(line for line in source.splitlines() if line.startswith("_c = "))
    exec(line, {"np": np, **vars(numerics)}, scope)
    assert np.asarray(scope["_c"]).ravel()[0] == value
