"""Each operator makes its mistake, and only at the right places."""

import ast
from textwrap import dedent, indent

import pytest

from properties.mutants.mutant import mutants_of
from properties.mutants.numbers import Numbers
from properties.mutants.operators import OPERATORS
from properties.planting.source import Source


def _made(body: str, operator: str, *, on_device: bool = True) -> list[str]:
    """The changes of an operator in a function body."""
    head = "@triton.jit\n" if on_device else ""
    head += "def f(x_ptr, K, V, stride_qb, stride_kb, heads, tokens, FLAG, C):\n"
    text = head + indent(dedent(body).strip(), "    ") + "\n"
    mutants = mutants_of("m", Source(text), [operator])
    return [dedent(m.change.of(text).removeprefix(head)).strip() for m in mutants]


DEVICE = {
    ("boundary", "inside = rows < K"): ["inside = rows <= K", "inside = rows < K - 1"],
    ("boundary", "inside = rows >= K"): ["inside = rows > K", "inside = rows >= K - 1"],
    ("mask", "x = tl.load(x_ptr, mask=m, other=0.0)"): ["x = tl.load(x_ptr)"],
    ("mask", "m = a & (b < K)"): ["m = a", "m = b < K"],
    ("other", "x = tl.load(x_ptr, mask=m, other=0.0)"): ["x = tl.load(x_ptr, mask=m)"],
    ("sibling", "x_ptr += n * stride_qb"): ["x_ptr += n * stride_kb"],
    ("block", "at = step * C + 1"): ["at = (step + 1) * C + 1"],
    ("block", "for i in range(0, K, C):\n  pass"): ["for i in range(0 + C, K, C):\n  pass"],
    ("loop", "for i in range(n):\n  pass"): [
        "for i in range(tl.minimum(n, 1)):\n  pass",
        "for i in range(n - 1):\n  pass",
    ],
    ("loop", "for i in range(a, n, C):\n  pass"): [
        "for i in range(a, tl.minimum(a + C, n), C):\n  pass",
        "for i in range(a, n - C, C):\n  pass",
    ],
    ("carry", "for i in range(n):\n  S *= tl.exp(g)"): [
        "for i in range(n):\n  pass",
        "for i in range(n):\n  S *= tl.exp(g)\n  S *= tl.exp(g)",
    ],
    ("carry", "for i in range(n):\n  S += tl.exp(g)"): ["for i in range(n):\n  pass"],
    ("accumulate", "S += tl.dot(a, b)"): ["S = tl.dot(a, b)"],
    ("accumulate", "S = tl.dot(a, b, S)"): ["S = tl.dot(a, b)"],
    ("term", "p = tl.exp(a) + tl.exp(b)"): ["p = tl.exp(a)", "p = tl.exp(b)"],
    ("term", "d = q + shift - k"): ["d = q + shift", "d = q - k"],
    ("scale", "o = tl.dot(a, b) * heads"): ["o = tl.dot(a, b)", "o = tl.dot(a, b) * -heads"],
    ("sign", "p = tl.exp(a) - tl.exp(b)"): ["p = tl.exp(a) + tl.exp(b)"],
    ("sign", "p = tl.exp(-a)"): ["p = tl.exp(a)"],
    ("branch", "if FLAG:\n  x = 1"): ["if False:\n  x = 1"],
    ("branch", "m = a == b"): ["m = a != b"],
    ("choice", "p = tl.where(seen, s, 0.0)"): ["p = s"],
    ("choice", "p = a if FLAG else b"): ["p = a", "p = b"],
    ("choice", "n = tl.maximum(k, 0)"): ["n = k"],
    ("exponential", "d = tl.exp(g)"): ["d = g"],
    ("division", "h = head // group"): ["h = head % group"],
    ("division", "n = tl.cdiv(K, C)"): ["n = K // C"],
    ("cast", "n = tl.program_id(0).to(tl.int64)"): ["n = tl.program_id(0)"],
    ("precision", "for i in range(tl.program_id(0)):\n  S += tl.exp(g)"): [
        "for i in range(tl.program_id(0)):\n"
        "  S = (S + tl.exp(g)).to(x_ptr.dtype.element_ty).to(tl.float32)"
    ],
    ("barrier", "tl.debug_barrier()"): ["pass"],
    # A mistake that reads the same as another is made once.
    ("barrier", "tl.debug_barrier()\na = b\ntl.debug_barrier()"): [
        "pass\na = b\ntl.debug_barrier()",
        "tl.debug_barrier()\na = b\npass",
    ],
    ("barrier", "tl.atomic_add(x_ptr, a, mask=m)"): ["tl.store(x_ptr, a, mask=m)"],
    ("order", "S *= a\nS += b"): ["S += b\nS *= a"],
}
HOST = {
    ("boundary", "n = a < b"): ["n = a <= b", "n = a < b - 1"],
    ("branch", "kernel[grid](USE_G=g is not None)"): ["kernel[grid](USE_G=False)"],
    ("branch", "run(reverse=True)"): ["run(reverse=False)"],
    ("choice", "n = batch if cu is None else len(cu) - 1"): ["n = batch"],
    ("cast", "q = k.contiguous()"): ["q = k"],
    ("cast", "q, *r = contiguous(q, k, *r)"): [
        "q, *r = (q, *contiguous(k, *r))",
        "q, *r = (*contiguous(q), k, *contiguous(*r))",
    ],
    ("cut", "x = x[1:n]"): ["x = x[1 + 1:n]", "x = x[1:n - 1]"],
    ("loop", "for t in range(n):\n  pass"): [
        "for t in range(min(n, 1)):\n  pass",
        "for t in range(n - 1):\n  pass",
    ],
    ("mask", "A = B.tril()"): ["A = B"],
    ("sibling", "n = q.shape[2]"): ["n = q.shape[1]"],
    ("scale", "o = scale * (a + b)"): ["o = a + b"],
    ("sign", "o = a - b"): ["o = a + b"],
    ("term", "S = R + k @ v"): ["S = R", "S = k @ v"],
}
EXAMPLES = [(*key, made, True) for key, made in DEVICE.items()]
EXAMPLES += [(*key, made, False) for key, made in HOST.items()]


@pytest.mark.parametrize(
    ("operator", "body", "made", "on_device"), EXAMPLES, ids=[f"{e[0]}: {e[1]}" for e in EXAMPLES]
)
def test_the_mistake_is_made(operator: str, body: str, made: list[str], on_device: bool) -> None:
    assert _made(body, operator, on_device=on_device) == made


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_an_example(operator: str) -> None:
    assert operator in {name for name, _ in (*DEVICE, *HOST)}


@pytest.mark.parametrize(
    "body",
    [
        "if scale < 0:\n  raise ValueError(f'scale: {scale}')",
        "check_range('K', K - 1, 1, 256)",
        "x: Float[Tensor, 'B T H K'] | None",
        "'''a - b'''",
        "assert a < b - 1",
        "raise ValueError(f'{a - b}')",
    ],
)
def test_code_that_computes_nothing_is_not_mutated(body: str) -> None:
    assert not [made for name in OPERATORS for made in _made(body, name, on_device=False)]


def test_hints_to_the_compiler_are_left_alone() -> None:
    body = "for level in tl.range(n, disable_licm=True):\n  pass"
    assert "disable_licm=False" not in str([_made(body, name) for name in OPERATORS])
    assert not _made("kernel[grid](num_warps=4 if wide else 8)", "choice", on_device=False)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("order", "x *= a\nx *= b"),
        ("order", "x = x * a\nif n > 0:\n  x = x * b"),
        ("order", "x += a\nif n > 0:\n  y = tl.load(x_ptr)\n  x -= y"),
        ("accumulate", "x = ()\nx += (tl.exp(a),)"),
        ("carry", "x = ()\nx += (tl.exp(a),)"),
        ("cast", "n = length.to(tl.int32)"),
        ("loop", "for n in tl.static_range(2):\n  x += (tl.exp(a),)"),
    ],
)
def test_operators_skip_places_without_a_mistake(name: str, body: str) -> None:
    assert not _made(body, name)


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("o = s * (tl.exp(a) + tl.exp(b))", "o = s * tl.exp(a)"),
        ("o = tl.exp(c) * (tl.exp(a) * tl.exp(b))", "o = tl.exp(c) * tl.exp(a)"),
        ("o = tl.exp(c) - (tl.exp(a) + tl.exp(b)) * d", "o = tl.exp(c) - tl.exp(a) * d"),
    ],
)
def test_a_remaining_operand_keeps_its_precedence(line: str, made: str) -> None:
    assert made in [text for name in ("term", "scale") for text in _made(line, name)]


def test_every_mutant_is_syntax_and_a_change() -> None:
    text = dedent("""
        @triton.jit
        def f(x_ptr, é, n):
            # Grüße: a line has more bytes than characters.
            s = "ä"; y = tl.load(x_ptr + n, mask=é < n, other=0.0) * tl.exp(n - é)
            if n > 0:
                y *= tl.exp(y)
            elif n < 0 and é:
                y = tl.where(é < n, y, -y)
            tl.store(x_ptr, y)
    """)
    mutants = mutants_of("m", Source(text), list(OPERATORS))
    assert len(mutants) > 15
    before = ast.dump(ast.parse(text))
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.change.of(text))) != before
        assert text.count(mutant.edit().before) == 1
    assert (
        len({m.key for m in mutants}) == len({(m.where, m.text) for m in mutants}) == len(mutants)
    )


def test_a_number_is_known_behind_calls_and_tables_are_no_numbers() -> None:
    source = Source(
        dedent("""
        @triton.jit
        def read(ptr, rows):
            return tl.load(ptr + rows)

        @triton.jit
        def locate(cu_seqlens_ptr, n):
            return tl.load(cu_seqlens_ptr + n), n * 2

        @triton.jit
        def halve(x):
            return x * 0.5

        @triton.jit
        def kernel(q_ptr, cu_seqlens_ptr, n, dim):
            first, length = locate(cu_seqlens_ptr, n)
            row = first * dim
            q = read(q_ptr, row)
            half = halve(q)
            wide = half.to(tl.float32)
            place = half.to(tl.int32)
        """)
    )
    functions = {f.name: f for f in source.functions}
    numbers = Numbers(functions.values())

    def is_number(function: str, name: str) -> bool:
        return numbers.floating(ast.parse(name, mode="eval").body, functions[function])

    names = ("first", "length", "row", "q", "half", "wide", "place")
    assert [n for n in names if is_number("kernel", n)] == ["q", "half", "wide"]
    assert is_number("halve", "x")
    assert not is_number("locate", "n")
