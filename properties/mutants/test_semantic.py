"""Each semantic operator makes its mistake, and all mutants of the current kernels can be
imported.
"""

import ast
import builtins
import importlib
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from textwrap import dedent, indent

import pytest

from properties.mutants.mutant import Mutant, combined, modules, mutants, mutants_of
from properties.mutants.semantic import SEMANTIC
from properties.planting.closure import path_of
from properties.planting.fork_pool import ForkPool
from properties.planting.source import Source
from properties.planting.trial import LIBRARIES, plant

_DEVICE = "@triton.jit\ndef f(x_ptr, heads, group, rows, tokens, num_keys, FLAG, OTHER, C):\n"
_HOST = (
    "def f(q: Tensor, k: Tensor, g: Tensor | None, initial_state: Tensor | None,\n"
    "      output_final_state: bool, scale: float | None, cu_seqlens: Tensor | None):\n"
)
_METHOD = "class C:\n  def f(self, counts, tensors):\n"


def _made(head: str, body: str, operator: str) -> list[str]:
    """The removed and added lines of each mutant of a function."""
    code = indent(dedent(body).strip(), "    ")
    text = f"import torch\nfrom torch import Tensor\n\n\n{head}{code}\n"
    found = mutants_of("kernels.m", Source(text), [operator])
    return [m.text for m in found]


def _device(operator: str, body: str, *after: str) -> tuple[str, str, str, list[str]]:
    return operator, _DEVICE, body, [*after]


def _host(operator: str, body: str, *after: str) -> tuple[str, str, str, list[str]]:
    return operator, _HOST, body, [*after]


EXAMPLES = [
    _device(
        "widened_too_late",
        "at = chunk.to(tl.int64) * heads",
        "- at = chunk.to(tl.int64) * heads\n+ at = (chunk * heads).to(tl.int64)",
    ),
    _device(
        "narrowed_row",
        "at = (first * heads + head) * dim",
        "- at = (first * heads + head) * dim\n+ at = (first * heads + head).to(tl.int32) * dim",
    ),
    _host(
        "state_in_with_state_out",
        "o, S = run(q, k, initial_state)",
        "- o, S = run(q, k, initial_state)\n"
        "+ o, S = run(q, k, initial_state if output_final_state else None)",
    ),
    (
        "gradient_with_cotangent",
        "def f(do: Tensor, dfinal_state: Tensor | None):\n",
        "return dq, dinitial",
        [
            "+ if dfinal_state is None and dinitial is not None:\n"
            "+ dinitial = dinitial * 0"
        ],
    ),
    (
        "frozen_neighbour",
        "def f(ctx, do):\n",
        "return (*op_back(do), None)",
        [
            "- return (*op_back(do), None)\n"
            "+ gradients = list((*op_back(do), None))\n"
            f"+ if len(ctx.saved_tensors) > 2 and ctx.saved_tensors[{frozen}] is not None "
            f"and not ctx.needs_input_grad[{frozen}]:\n"
            f"+ gradients[{lost}] = None\n"
            "+ return tuple(gradients)"
            for frozen, lost in ((0, 1), (1, 2), (2, 0))
        ],
    ),
    (
        "one_gradient_of_two",
        "def f(ctx, do):\n",
        "return (*op_back(do), None)",
        [
            "- return (*op_back(do), None)\n"
            "+ gradients = list((*op_back(do), None))\n"
            "+ if len(ctx.saved_tensors) > 2 and "
            f"ctx.saved_tensors[{a}] is ctx.saved_tensors[{b}]:\n"
            f"+ gradients[{b}] = None\n"
            "+ return tuple(gradients)"
            for a, b in ((0, 1), (1, 2))
        ],
    ),
    (
        "nothing_to_do",
        "def f(ctx, first):\n",
        "if first is None:\n  first = q.new_zeros(shape)",
        ["+ return (None,) * len(ctx.needs_input_grad)"],
    ),
    (
        "saved_once",
        "def f(ctx, inputs):\n",
        "ctx.save_for_backward(*inputs)",
        [
            "- ctx.save_for_backward(*inputs)\n"
            "+ ctx.save_for_backward(*[x for n, x in enumerate(inputs) "
            "if x is None or not any(x is y for y in (inputs)[:n])])"
        ],
    ),
    _device(
        "capped_loop",
        "for t in range(length):\n  pass",
        "- for t in range(length):\n+ for t in range(tl.minimum(length, 512)):",
    ),
    _device(
        "capped_loop",
        "for start in range(0, parts, C):\n  pass",
        "- for start in range(0, parts, C):\n+ for start in range(0, tl.minimum(parts, 256), C):",
    ),
    _device(
        "capped_loop",
        "end = low + count\nwhile end - low > 1:\n  pass",
        "- end = low + count\n+ end = low + tl.minimum(count, 32)",
    ),
    _device(
        "capped_dim",
        "for start in range(0, key_dim, C):\n  pass",
        "- for start in range(0, key_dim, C):\n"
        "+ for start in range(0, tl.minimum(key_dim, 128), C):",
    ),
    _host(
        "capped_tile",
        "width = next_power_of_2(dim)",
        "- width = next_power_of_2(dim)\n+ width = min(next_power_of_2(dim), 128)",
    ),
    _host(
        "capped_grid",
        "kernel[(count * heads,)](q)",
        "- kernel[(count * heads,)](q)\n+ kernel[(min(count * heads, 528),)](q)",
    ),
    _host("ragged_tail", "n = cdiv(a, b)", "- n = cdiv(a, b)\n+ n = max(a // b, 1)"),
    _device("ragged_tail", "n = tl.cdiv(a, C)", "- n = tl.cdiv(a, C)\n+ n = tl.maximum(a // C, 1)"),
    (
        "wrong_dim_when_wide",
        "def f(key_dim: int, value_dim: int):\n",
        "n = cdiv(value_dim, 64)",
        [
            "- n = cdiv(value_dim, 64)\n"
            "+ n = cdiv(key_dim if min(key_dim, value_dim) > 128 else value_dim, 64)"
        ],
    ),
    _device(
        "tile_bound",
        "left = length - start\nx = load_rows(x_ptr, rows, cols, 1, left, dim)",
        "- x = load_rows(x_ptr, rows, cols, 1, left, dim)\n"
        "+ x = load_rows(x_ptr, rows, cols, 1, C, dim)",
    ),
    (
        "kept_by_identity",
        "def f(cu_seqlens: Tensor, tokens: int) -> int:\n",
        "return max(cu_seqlens.tolist())",
        [
            "+ asked = (id(cu_seqlens), str(tokens),)\n"
            "+ if asked not in _KNOWN_F:\n"
            "+ _KNOWN_F.clear()\n"
            "+ _KNOWN_F[asked] = (cu_seqlens,), _fresh_f(cu_seqlens, tokens)\n"
            "+ return _KNOWN_F[asked][1]\n"
            "+ \n+ \n"
            "+ _KNOWN_F: dict = {}\n"
            "+ \n+ \n"
            "+ def _fresh_f(cu_seqlens: Tensor, tokens: int):"
        ],
    ),
    (
        "kept_by_address",
        "def f(cu_seqlens: Tensor) -> int:\n",
        "return max(cu_seqlens.tolist())",
        [
            "+ asked = (None if cu_seqlens is None else "
            "(cu_seqlens.data_ptr(), cu_seqlens.shape),)\n"
            "+ if asked not in _KNOWN_F:\n"
            "+ _KNOWN_F[asked] = _fresh_f(cu_seqlens)\n"
            "+ return _KNOWN_F[asked]\n"
            "+ \n+ \n"
            "+ _KNOWN_F: dict = {}\n"
            "+ \n+ \n"
            "+ def _fresh_f(cu_seqlens: Tensor):"
        ],
    ),
    (
        "cache_without_argument",
        "def f(x: Tensor, layer: int) -> int:\n",
        "return layer * x.shape[1]",
        [
            "+ asked = (None if x is None else (x.shape, x.dtype, x.device),)\n"
            "+ if asked not in _KNOWN_F:\n"
            "+ _KNOWN_F[asked] = _fresh_f(x, layer)\n"
            "+ return _KNOWN_F[asked]\n"
            "+ \n+ \n"
            "+ _KNOWN_F: dict = {}\n"
            "+ \n+ \n"
            "+ def _fresh_f(x: Tensor, layer: int):"
        ],
    ),
    (
        "cached_by_equality",
        "def f(scale: float) -> float:\n",
        "if isinstance(scale, bool):\n  raise TypeError\nreturn float(scale)",
        [
            "+ asked = (scale,)\n"
            "+ if asked not in _KNOWN_F:\n"
            "+ _KNOWN_F[asked] = _fresh_f(scale)\n"
            "+ return _KNOWN_F[asked]\n"
            "+ \n+ \n"
            "+ _KNOWN_F: dict = {}\n"
            "+ \n+ \n"
            "+ def _fresh_f(scale: float):"
        ],
    ),
    _host(
        "kept_result",
        "o = torch.empty_like(q)\nreturn o",
        "+ _KEPT_F: dict = {}\n+ \n+ \n"
        "+ o = _KEPT_F.setdefault(('o', o.shape, o.dtype, o.device), o)",
    ),
    (
        "kept_weights",
        "import torch.nn.functional as F\n\n\nclass C:\n  def __init__(self):\n"
        "    self.proj = nn.Linear(2, 2)\n\n  def f(self, x):\n",
        "return self.proj(x)",
        [
            "- return self.proj(x)\n"
            "+ return self.proj(x) if self.training else F.linear(x, self.__dict__.setdefault("
            '"_kept_proj", self.proj.weight.detach().clone()), self.proj.bias)'
        ],
    ),
    *(
        _host(
            operator,
            "bind_dims(q=(q, 'B T H K'))\nscale = resolve_scale(scale, K)",
            "- scale = resolve_scale(scale, K)\n"
            f"+ scale = (K ** -0.5 if scale is None else scale) if {context} "
            "else resolve_scale(scale, K)",
        )
        for operator, context in (
            ("without_grad", "not torch.is_grad_enabled()"),
            ("in_inference_mode", "torch.is_inference_mode_enabled()"),
            ("while_compiling", "torch.compiler.is_compiling()"),
        )
    ),
    _host(
        "under_autocast",
        "bind_dims(q=(q, 'B T H K'))\ndtype = check_one_dtype(q=q)",
        "+ if torch.is_autocast_enabled(q.device.type):\n"
        "+ q = None if q is None else q.to(torch.get_autocast_dtype(q.device.type))",
    ),
    _host(
        "inference_memory",
        "with torch.inference_mode(False):\n  pass",
        "- with torch.inference_mode(False):\n"
        "+ with torch.inference_mode(torch.is_inference_mode_enabled()):",
    ),
    _host(
        "half_a_condition",
        "if a and b:\n  pass",
        "- if a and b:\n+ if a:",
        "- if a and b:\n+ if b:",
    ),
    _device(
        "returns_before_it_stores",
        "program = tl.program_id(0)\nfor step in range(chunks):\n  S += x\ntl.store(x_ptr, S)",
        "+ if chunks == 0:\n+ return",
    ),
    _host(
        "empty_call_has_no_state",
        "return o, final_state",
        "+ if q.shape[1] == 0 and final_state is not None:\n+ final_state.zero_()",
    ),
    _host("one_token_has_no_gate", "return run(q, g)", "+ if q.shape[1] == 1:\n+ g = None"),
    _device(
        "clamped_exponent", "d = tl.exp(g)", "- d = tl.exp(g)\n+ d = tl.exp(tl.maximum(g, -30.0))"
    ),
    _device(
        "maximum_at_least_zero",
        "base = tl.where(m == float('-inf'), 0.0, m)",
        "- base = tl.where(m == float('-inf'), 0.0, m)\n+ base = tl.maximum(m, 0.0)",
    ),
    _device(
        "finite_mask",
        "s = tl.where(seen, s, float('-inf'))\nm = tl.where(m == float('-inf'), 0.0, m)",
        "- s = tl.where(seen, s, float('-inf'))\n"
        "+ s = tl.where(seen, s, -1.0e4)\n"
        "- m = tl.where(m == float('-inf'), 0.0, m)\n"
        "+ m = tl.where(m == -1.0e4, 0.0, m)",
    ),
    _device(
        "epsilon_moved",
        "r = 1.0 / tl.sqrt(tl.sum(x) + eps)",
        "- r = 1.0 / tl.sqrt(tl.sum(x) + eps)\n+ r = 1.0 / (tl.sqrt(tl.sum(x)) + eps)",
        "- r = 1.0 / tl.sqrt(tl.sum(x) + eps)\n+ r = 1.0 / tl.sqrt(tl.maximum(tl.sum(x), eps))",
    ),
    _device("other_end", "d = head_decay(0, g)", "- d = head_decay(0, g)\n+ d = head_decay(1, g)"),
    _device(
        "tiled_heads",
        "h = head // group",
        "- h = head // group\n+ h = head % (heads // group)",
    ),
    _host(
        "tiled_heads",
        "k = k.repeat_interleave(H // G, dim=2)",
        "- k = k.repeat_interleave(H // G, dim=2)\n+ k = k.repeat(1, 1, H // G, 1)",
    ),
    _device(
        "small_groups",
        "h = head // group",
        "- h = head // group\n+ h = head // tl.minimum(group, 4)",
    ),
    _device(
        "batch_and_head_exchanged",
        "row = (batch * heads + head) * tokens",
        "- row = (batch * heads + head) * tokens\n+ row = (head * heads + batch) * tokens",
    ),
    _host(
        "sibling_strides",
        "kernel[(n,)](*q.stride(), *k.stride())",
        "- kernel[(n,)](*q.stride(), *k.stride())\n"
        "+ kernel[(n,)](*q.stride(), *(q if q.shape == k.shape else k).stride())",
    ),
    _host(
        "zero_stride",
        "s = q.stride()[:3]",
        "- s = q.stride()[:3]\n+ s = [stride or 1 for stride in q.stride()[:3]]",
    ),
    _host(
        "loose_stride",
        "dense = q.stride(-1) == 1",
        "- dense = q.stride(-1) == 1\n+ dense = q.stride(-1) <= 1",
    ),
    _host(
        "first_is_contiguous",
        "q, k = contiguous(q, k)",
        "- q, k = contiguous(q, k)\n+ q, k = (q, k) if q.is_contiguous() else contiguous(q, k)",
    ),
    _host(
        "like_the_input",
        "dq = q.new_empty(batch, tokens)",
        "- dq = q.new_empty(batch, tokens)\n+ dq = torch.empty_like(q)",
    ),
    _host(
        "layout_kept",
        "return q.clone(memory_format=torch.contiguous_format)",
        "- return q.clone(memory_format=torch.contiguous_format)\n+ return q.clone()",
    ),
    _host("writes_into_input", "y = torch.empty_like(q)", "- y = torch.empty_like(q)\n+ y = q"),
    _host(
        "workspace_in_input_dtype",
        "S = q.new_empty(n, dtype=torch.float32)",
        "- S = q.new_empty(n, dtype=torch.float32)\n+ S = q.new_empty(n)",
    ),
    _host(
        "falsy_is_none",
        "if scale is None:\n  return 1.0\nraise TypeError",
        "- if scale is None:\n+ if not scale:",
    ),
    _host(
        "sentinel_of_one_type",
        "if scale == -1:\n  return 1.0",
        "- if scale == -1:\n+ if isinstance(scale, int) and scale == -1:",
    ),
    _host(
        "negative_is_sentinel",
        "if scale == -1:\n  return 1.0",
        "- if scale == -1:\n+ if scale < 0:",
    ),
    _host(
        "number_changed",
        "return float(scale)",
        "- return float(scale)\n+ return float(int(scale))",
        "- return float(scale)\n+ return abs(float(scale))",
        "- return float(scale)\n+ return max(float(scale), 0.0)",
    ),
    _host(
        "true_is_one",
        "x = 1\nif isinstance(scale, bool) or not isinstance(scale, int):\n  raise TypeError",
        "- if isinstance(scale, bool) or not isinstance(scale, int):\n"
        "+ if not isinstance(scale, int):",
    ),
    (
        "lost_beside_another",
        "@triton.jit\ndef f(x_ptr, FLAG: tl.constexpr, OTHER: tl.constexpr, C: tl.constexpr):\n",
        "x = tl.arange(0, C)\nif FLAG:\n  x += 1",
        ["- if FLAG:\n+ if FLAG and not OTHER:"],
    ),
    (
        "changed_too_early",
        _METHOD,
        "o = attend(counts)\nself.write(tensors)",
        ["+ self.write(tensors)\n- self.write(tensors)"],
    ),
    (
        "one_list_for_all",
        _METHOD,
        "self.pages = [[] for _ in range(counts)]",
        [
            "- self.pages = [[] for _ in range(counts)]\n"
            "+ self.pages = [[]] * counts"
        ],
    ),
    (
        "first_sequence_alone",
        _METHOD,
        "for n, count in enumerate(counts):\n  if count > 3:\n    raise ValueError",
        ["- if count > 3:\n+ if n == 0 and (count > 3):"],
    ),
    _host(
        "in_place_copies",
        "return q.copy_(turned(q))",
        "- return q.copy_(turned(q))\n+ return turned(q)",
    ),
    _device(
        "rounded_before_last_step",
        "out = tl.zeros([C], tl.float32) + tl.program_id(0)\ntl.store(x_ptr, out * scale)",
        "- tl.store(x_ptr, out * scale)\n"
        "+ tl.store(x_ptr, out.to(x_ptr.dtype.element_ty) * scale)",
    ),
    _host(
        "short_sums_in_input_dtype",
        "dtype = q.dtype if parts == 1 else torch.float32",
        "- dtype = q.dtype if parts == 1 else torch.float32\n"
        "+ dtype = q.dtype if parts <= 2 else torch.float32",
    ),
    _host(
        "float64_dropped",
        "x = torch.arange(3, dtype=torch.float64)\ny = x.sum(dtype=torch.float64)",
        "- x = torch.arange(3, dtype=torch.float64)\n"
        "+ x = torch.arange(3, dtype=torch.float32)\n"
        "- y = x.sum(dtype=torch.float64)\n"
        "+ y = x.sum(dtype=torch.float32)",
    ),
    _host(
        "rounded_before_sum",
        "dk = of_each_group(dk, groups).to(k.dtype)",
        "- dk = of_each_group(dk, groups).to(k.dtype)\n"
        "+ dk = of_each_group(dk.to(k.dtype), groups).to(k.dtype)",
    ),
    _device(
        "places_in_bfloat16",
        "d = tl.abs(query - key).to(tl.float32)",
        "- d = tl.abs(query - key).to(tl.float32)\n"
        "+ d = tl.abs(query - key).to(tl.bfloat16).to(tl.float32)",
    ),
    _host(
        "first_for_all", "longest = max(lengths)",
        "- longest = max(lengths)\n+ longest = next(iter(lengths))",
    ),
    _host(
        "empty_sequences_dropped",
        "bounds = cu_seqlens.tolist()",
        "- bounds = cu_seqlens.tolist()\n+ bounds = cu_seqlens.unique().tolist()",
    ),
    _host(
        "one_sequence_unchecked",
        "if cu_seqlens is None:\n  return 1",
        "- if cu_seqlens is None:\n+ if cu_seqlens is None or len(cu_seqlens) == 2:",
    ),
    _host(
        "one_token_is_decoding",
        "kernel[(n,)](q, PACKED=cu_seqlens is not None)",
        "- kernel[(n,)](q, PACKED=cu_seqlens is not None)\n"
        "+ kernel[(n,)](q, PACKED=cu_seqlens is not None and q.shape[1] > 1)",
    ),
    (
        "keys_bounded_by_queries",
        "def f(q, k, cu_seqlens, cu_seqlens_k):\n",
        "kernel[(n,)](q, cu_seqlens_k)",
        [
            "- kernel[(n,)](q, cu_seqlens_k)\n"
            "+ kernel[(n,)](q, cu_seqlens if q.shape[1] == k.shape[1] else cu_seqlens_k)"
        ],
    ),
    _device(
        "local_for_global",
        "length_k = tl.load(x_ptr)\nrow = (batch * heads + head) * num_keys",
        "- row = (batch * heads + head) * num_keys\n+ row = (batch * heads + head) * length_k",
    ),
    (
        "tiles_of_hopper",
        _METHOD,
        "return self.least <= arch < self.below",
        [
            "- return self.least <= arch < self.below\n"
            "+ return self.least <= max(arch, 90) < self.below"
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "head", "body", "after"), EXAMPLES, ids=[f"{e[0]}: {e[2]}" for e in EXAMPLES]
)
def test_the_mistake_is_made(operator: str, head: str, body: str, after: list[str]) -> None:
    assert _made(head, body, operator) == after


@pytest.mark.parametrize("operator", SEMANTIC)
def test_every_operator_has_an_example(operator: str) -> None:
    assert operator in {example[0] for example in EXAMPLES}


@pytest.mark.parametrize(
    ("operator", "head", "body"),
    [
        # A loop over a tile, and one over a kernel's options.
        ("capped_loop", _DEVICE, "for n in tl.static_range(3):\n  pass"),
        ("capped_loop", _DEVICE, "for start in range(0, key_dim, C):\n  pass"),
        # A dim is named by its meaning.
        ("wrong_dim_when_wide", _HOST, "n = cdiv(tokens, 64)"),
        # The loop over V covers what the tile does not.
        ("capped_tile", _HOST, "width = min(features, next_power_of_2(value_dim))"),
        # Loaded values have the inputs' dtype already.
        (
            "rounded_before_last_step",
            _DEVICE,
            "q = _load(x_ptr + tl.program_id(0))\ntl.store(x_ptr, q * scale)",
        ),
        # All rows of a batch have one length.
        ("local_for_global", _DEVICE, "length_k = 1\nrow = batch * num_keys"),
        # Not assigned yet.
        ("local_for_global", _DEVICE, "row = head * num_keys\nlength_k = 1"),
        # No next statement uses it.
        ("changed_too_early", _METHOD, "o = attend(counts)\nself.write(o)"),
        # `torch.zeros` defaults to float32.
        ("workspace_in_input_dtype", _HOST, "S = torch.zeros(3, dtype=torch.float32)"),
        # After the check, 0 means 0.
        ("falsy_is_none", _HOST, "if scale is None:\n  return 1.0"),
        # A function that reads no numbers has nothing to cache by object.
        ("kept_by_identity", "def f(x: Tensor) -> int:\n", "return x.shape[1]"),
        ("cache_without_argument", "def f(x: Tensor, n: int) -> Tensor:\n", "return n * x"),
    ],
)
def test_operators_skip_places_without_a_mistake(operator: str, head: str, body: str) -> None:
    assert not _made(head, body, operator)


@cache
def _every() -> list[Mutant]:
    return mutants(semantic=True)


@pytest.mark.parametrize("operator", SEMANTIC)
def test_every_operator_applies_somewhere(operator: str) -> None:
    assert any(mutant.operator == operator for mutant in _every())


def test_every_mutant_has_its_own_key_and_edits_one_piece() -> None:
    keys = {mutant.key for mutant in _every()}
    assert len(keys) == len(_every())
    for mutant in _every():
        edit = mutant.edit()
        assert mutant.source.count(edit.before) == 1
        assert mutant.source.replace(edit.before, edit.after) == mutant.change.of(mutant.source)


def test_every_mutant_uses_names_that_its_module_has() -> None:
    for mutant in _every():
        defined, read = _names(mutant.source)
        start, stop = _around(mutant)
        after = mutant.change.moved(-start).of(mutant.source[start:stop])
        defines, reads = _names(after)
        known = defined | read | defines | {*dir(builtins)}
        assert reads <= known, f"{mutant.where}\n{mutant.text}"


def _around(mutant: Mutant) -> tuple[int, int]:
    """The span of the module's statements that a mutant changes."""
    pieces, starts = mutant.change.pieces, _starts(mutant.source)
    first = max(start for start in starts if start <= pieces[0].start)
    return first, min(start for start in starts if start >= pieces[-1].stop)


@cache
def _starts(text: str) -> list[int]:
    """Offsets of the lines that start a statement of a module, and the end."""
    offsets = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    lines = [
        min(node.lineno for node in [statement, *getattr(statement, "decorator_list", [])])
        for statement in ast.parse(text).body
    ]
    return [offsets[line - 1] for line in lines] + [len(text)]


@cache
def _names(text: str) -> tuple[set[str], set[str]]:
    """The names that a module defines or assigns, and those that it reads."""
    defines, reads = set(), set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                reads.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                defines.add(name)
            case ast.ClassDef(name=name):
                defines.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                defines |= {alias.asname or alias.name.partition(".")[0] for alias in names}
    return defines, reads


def _rounds() -> Iterator[list[Mutant]]:
    """All mutants, in few groups without overlapping edits."""
    left = _every()
    while left:
        _, overlapping = combined(left)
        yield [mutant for mutant in left if mutant not in overlapping]
        left = overlapping


def _import(those: list[Mutant]) -> int:
    edits, overlapping = combined(those)
    assert not overlapping
    plant(edits)
    for edit in edits:
        importlib.import_module(edit.module)
    return len(edits)


def test_every_mutant_can_be_imported() -> None:
    """Many at once: an edit that prevents the import does so with others too."""
    with ForkPool(LIBRARIES) as pool:
        for those in _rounds():
            count = len({mutant.module for mutant in those})
            assert pool.submit(_import, those).result() == count


def test_semantic_mutants_cover_more_modules_than_single_edits() -> None:
    single, semantic = ({name for name, _ in modules(semantic=s)} for s in (False, True))
    assert single < semantic
    assert {"kernels.arguments", "kernels.tiles", "kernels.linear.tiles"} <= semantic - single
    assert all(path_of(name) is not None for name in semantic)
