"""Difficult printed IR is parsed, and unknown text is rejected."""

from __future__ import annotations

import numpy as np
import pytest

from properties.simulator import lowering, numerics
from properties.simulator.compilation import Program, bytecode
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
from properties.simulator.options import Options
from properties.simulator.runtime import Slab


def function(body: str) -> str:
    """A module in the generic form whose kernel `k` has the body, and arguments `%out` and `%n`."""
    kind = "function_type = (!tt.ptr<i32>, i32) -> ()"
    return f"""
"builtin.module"() ({{
  "tt.func"() <{{{kind}, sym_name = "k", sym_visibility = "public"}}> ({{
  ^bb0(%out: !tt.ptr<i32>, %n: i32):
    {body}
  }}) {{noinline = false}} : () -> ()
}}) {{generic}} : () -> ()
"""


def instructions(body: str) -> list[Instruction]:
    (parsed,) = parse(function(body))
    return list(walk(parsed.blocks))


def execute(body: str, programs: int = 4, n: int = 3) -> list[int]:
    """Run a body that stores to `%out`, one element per program, and return what it stored."""
    import torch

    source = lowering.generate(parse(function(body)))
    program = Program("k", source, bytecode("k", source))
    out = torch.full((programs,), -1, dtype=torch.int32)
    slab = Slab("k", (programs, 1, 1), np.arange(programs), Options())
    program.entry(slab, (Buffer("out", out, "i32"), START), np.array([n], np.int32))
    return [int(value) for value in out]


PID = '%pid = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32'
ONE = '%one = "arith.constant"() <{value = 1 : i32}> : () -> i32'
SIZES = "operandSegmentSizes = array<i32: 1, 1, 0>"
STORE = """
    %p = "tt.addptr"(%out, %pid) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    "tt.store"(%p, %value) : (!tt.ptr<i32>, i32) -> ()
    "tt.return"() : () -> ()"""


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
def test_types_are_parsed(text: str, expected: Type) -> None:
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


def test_a_branch_may_be_empty() -> None:
    assert execute(
        f"""{PID}
    %0 = "arith.cmpi"(%pid, %n) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
    "scf.if"(%0) ({{
      %p = "tt.addptr"(%out, %pid) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
      "tt.store"(%p, %n) : (!tt.ptr<i32>, i32) -> ()
      "scf.yield"() : () -> ()
    }}, {{
    }}) : (i1) -> ()
    "tt.return"() : () -> ()"""
    ) == [3, 3, 3, -1]


def test_results_with_a_name_and_a_count() -> None:
    assert execute(
        f"""{PID}
    {ONE}
    %o = "arith.constant"() <{{value = 0 : i32}}> : () -> i32
    %ab:2 = "scf.for"(%o, %n, %one, %pid, %one) ({{
    ^bb0(%i: i32, %a: i32, %b: i32):
      %s = "arith.addi"(%a, %b) <{{overflowFlags = #arith.overflow<none>}}> : (i32, i32) -> i32
      "scf.yield"(%b, %s) : (i32, i32) -> ()
    }}) {{tt.num_stages = 2 : i32}} : (i32, i32, i32, i32, i32) -> (i32, i32)
    %value = "arith.subi"(%ab#1, %ab#0) : (i32, i32) -> i32"""
        + STORE
    ) == [1 + k for k in range(4)]


def test_blocks_may_be_printed_before_their_predecessors() -> None:
    assert execute(
        f"""{PID}
    {ONE}
    %0 = "arith.cmpi"(%pid, %one) <{{predicate = 0 : i64}}> : (i32, i32) -> i1
    "cf.cond_br"(%0, %n)[^bb2, ^bb3] <{{{SIZES}}}> : (i1, i32) -> ()
  ^bb1(%value: i32):  // pred: ^bb2
    %p = "tt.addptr"(%out, %pid) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
    "tt.store"(%p, %value) : (!tt.ptr<i32>, i32) -> ()
    "tt.return"() : () -> ()
  ^bb2(%x: i32):  // 2 preds: ^bb0, ^bb3
    %y = "arith.addi"(%x, %x) : (i32, i32) -> i32
    "cf.br"(%y)[^bb1] : (i32) -> ()
  ^bb3:  // pred: ^bb0
    "cf.br"(%pid)[^bb2] : (i32) -> ()"""
    ) == [0, 6, 4, 6]


def test_sibling_regions_may_use_one_name_for_two_values() -> None:
    assert execute(
        f"""{PID}
    {ONE}
    %c = "arith.cmpi"(%pid, %one) <{{predicate = 4 : i64}}> : (i32, i32) -> i1
    %value = "scf.if"(%c) ({{
      %0 = "arith.addi"(%pid, %n) : (i32, i32) -> i32
      "scf.yield"(%0) : (i32) -> ()
    }}, {{
      %0 = "arith.cmpi"(%pid, %one) <{{predicate = 0 : i64}}> : (i32, i32) -> i1
      %1 = "arith.extui"(%0) : (i1) -> i32
      "scf.yield"(%1) : (i32) -> ()
    }}) : (i1) -> i32"""
        + STORE
    ) == [0, 1, 5, 6]


def test_while_loops_may_return_other_values_than_they_carry() -> None:
    assert execute(
        f"""{PID}
    {ONE}
    %value = "scf.while"(%pid) ({{
    ^bb0(%x: i32):
      %c = "arith.cmpi"(%x, %n) <{{predicate = 2 : i64}}> : (i32, i32) -> i1
      %double = "arith.addi"(%x, %x) : (i32, i32) -> i32
      "scf.condition"(%c, %double) : (i1, i32) -> ()
    }}, {{
    ^bb0(%y: i32):
      %next = "arith.addi"(%y, %one) : (i32, i32) -> i32
      "scf.yield"(%next) : (i32) -> ()
    }}) : (i32) -> i32"""
        + STORE
    ) == [6, 6, 10, 6]


def test_locations_resolve_through_names_and_calls_to_the_kernel() -> None:
    text = """#loc = loc("k.py":1:0)
#loc1 = loc("/x/triton/language/standard.py":5:2)
#loc2 = loc("k.py":7:4)
#loc3 = loc("x"(#loc1))
#loc4 = loc(callsite(#loc3 at #loc2))
#loc5 = loc(fused[#loc4, #loc])
"builtin.module"() ({
  "tt.func"() <{function_type = (!tt.ptr<i32>) -> (), sym_name = "k"}> ({
  ^bb0(%out: !tt.ptr<i32> loc("out"(#loc))):
    %a = "tt.get_program_id"() <{axis = 0 : i32}> : () -> i32 loc(#loc4)
    %b = "tt.get_program_id"() <{axis = 1 : i32}> : () -> i32 loc(#loc5)
    %c = "tt.get_program_id"() <{axis = 2 : i32}> : () -> i32 loc(unknown)
    "tt.return"() : () -> () loc(#loc)
  }) : () -> () loc(#loc)
}) {generic} : () -> () loc(#loc)
"""
    (parsed,) = parse(text)
    assert [i.location.line for i in walk(parsed.blocks)] == [7, 7, 0, 1]


def test_attributes_and_strings() -> None:
    load, check, shape = instructions(
        """
    %a = "tt.load"(%out) <{boundaryCheck = array<i32>, isVolatile = true}> : (!tt.ptr<i32>) -> i32
    "tt.assert"(%n) <{message = "a : b\\22, loc(x) -> }>"}> : (i32) -> ()
    %t = "tt.trans"(%a) <{order = array<i32: 1, 0>}> {tt.a} : (tensor<2x4xf32>) -> tensor<4x2xf32>
    """.rstrip()
    )
    assert load.attributes == {"boundaryCheck": "array<i32>", "isVolatile": "true"}
    assert load.integers("boundaryCheck") == ()
    assert check.attributes["message"] == 'a : b", loc(x) -> }>'
    assert shape.integers("order") == (1, 0)
    assert shape.attributes["tt.a"] == "true"
    assert shape.type == Type("f32", (4, 2))


@pytest.mark.parametrize(
    "line",
    [
        "%a = tt.load %out : !tt.ptr<i32>",
        '%a = "tt.load"(%out) : !tt.ptr<i32>',
        '%a, %b = "arith.addi"(%n, %n) : (i32, i32) -> i32',
        '"scf.if"(%n) ({',
        '%a = "something"() : () -> i32',
        '%a = "arith.addi"(%n, %n) <{unfinished : (i32, i32) -> i32',
    ],
)
def test_unknown_text_is_rejected(line: str) -> None:
    with pytest.raises(UnreadableIR):
        instructions(line + '\n "tt.return"() : () -> ()')


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('%a = "tt.new_operation"(%n) : (i32) -> i32', "tt.new_operation"),
        ('%a = "arith.addi"(%n, %n) <{mystery}> : (i32, i32) -> i32', "mystery"),
        ('%a = "arith.cmpf"(%n, %n) <{predicate = 15 : i64}> : (i32, i32) -> i1', "predicate 15"),
    ],
)
def test_unknown_operations_are_rejected(line: str, named: str) -> None:
    with pytest.raises(NotImplementedError, match=named):
        lowering.generate(parse(function(line + '\n "tt.return"() : () -> ()')))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("dense<-3> : tensor<4xi32>", -3),
        ("0xFF800000 : f32", -np.inf),
        ("dense<0xFF80> : tensor<4x4xbf16>", -np.inf),
        ("0x7C00 : f16", np.inf),
        ("1.729690e+01 : f16", 17.296875),
        ("dense<1.000000e-01> : tensor<2xbf16>", 0.10009765625),
        ("0xFFF0000000000000 : f64", -np.inf),
    ],
)
def test_constants_have_the_values_that_are_printed(text: str, value: object) -> None:
    kind = text.rpartition(" : ")[2] if " : " in text else "i1"
    line = f'%c = "arith.constant"() <{{value = {text}}}> : () -> {kind}'
    source = lowering.generate(parse(function(line + '\n "tt.return"() : () -> ()')))
    scope: dict[str, object] = {}
    line = next(line for line in source.splitlines() if line.startswith("_k_c = "))
    exec(line, {"np": np, **vars(numerics)}, scope)
    assert np.asarray(scope["_k_c"]).ravel()[0] == value
