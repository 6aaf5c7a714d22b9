"""Compile a `@triton.jit` function to executable Python through Triton's own frontend.

Generated source and its bytecode are cached on disk, keyed by the kernel's source (with everything
it calls), argument types, constants, the versions of Triton and Python and this package.
`TRITON_SIM_CACHE` names another directory.
"""

from __future__ import annotations

import hashlib
import linecache
import marshal
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import compiler as triton_compiler
from triton.language.semantic import TritonSemantic

from . import analysis, frontend, loops, lowering, memory, numerics, ptx, runtime, writer
from .frontend import Type
from .writer import NAMESPACE

# The newest types are there from 90 on; the passes for 80 turn descriptors into plain pointers.
CAPABILITY = 90
LOWERED_FOR = 80
LAUNCH_ONLY = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ptx_version", "extern_libs")


class SimulatedTarget(GPUTarget):  # type: ignore[misc]
    """Marks compilations that are the simulator's own."""


def target() -> SimulatedTarget:
    """The GPU that kernels are told to be on."""
    return SimulatedTarget("cuda", CAPABILITY, 32)


class Program:
    """Executable form of one specialisation of a kernel."""

    def __init__(self, name: str, source: str, code: CodeType) -> None:
        self.name, self.source = name, source
        file = code.co_filename
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        scope: dict[str, Any] = dict(NAMESPACE)
        exec(code, scope)
        self.entry = scope["ENTRY"]
        self.tile: int = scope["TILE"]
        self.written: list[int] = scope["WRITTEN"]
        self.read: list[int] = scope["READ"]
        self.updated: list[int] = scope["UPDATED"]
        self.synchronises: bool = scope["SYNCHRONISES"]
        self.sequential: bool = scope["SEQUENTIAL"]
        self.lines: list[tuple[str, int]] = scope.get("LINES", [])
        self.arguments: tuple[Type, ...] = tuple(Type(*parts) for parts in scope["ARGUMENTS"])


def bytecode(name: str, source: str) -> CodeType:
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    return compile(source, f"<simulated {name} {digest}>", "exec")


def cache_directory() -> Path:
    chosen = os.environ.get("TRITON_SIM_CACHE")
    if chosen:
        return Path(chosen)
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        # A user without a home has no cache.
        home = os.devnull
    return Path(home) / "attention-oracles" / "simulator"


@lru_cache(maxsize=1)
def own_version() -> str:
    """A hash of the code that decides what is generated."""
    digest = hashlib.sha256(f"{triton.__version__} {sys.version}".encode())
    for module in (analysis, frontend, loops, lowering, memory, numerics, ptx, runtime, writer):
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()


def constant_key(value: Any) -> str:
    return str(value.cache_key) if hasattr(value, "cache_key") else repr(value)


def key_of(source: Any, options: dict[str, Any]) -> str:
    """Return everything that the generated source depends on; no alignment of arguments does."""
    constants = [(path, constant_key(value)) for path, value in sorted(source.constants.items())]
    kept = sorted((k, repr(v)) for k, v in options.items() if k not in LAUNCH_ONLY)
    where = source.fn.fn.__code__.co_filename
    parts = (own_version(), where, source.fn.cache_key, list(source.signature.items()), constants)
    return hashlib.sha256(repr((parts, kept)).encode()).hexdigest()


@contextmanager
def asserted_promises() -> Iterator[None]:
    """Kernels assert what they promise the compiler, and what TMA asks of their descriptors.

    The plain pointers that stand for descriptors work at any address, while a GPU since 90 raises
    an error or copies other elements. Descriptors of the host assert the same by themselves.

    A promise that a number is a multiple lets the compiler load several elements at once, which
    fails at another address. Promises about tiles are not checked: of a row whose width is no
    multiple they are false, but its mask keeps such a load away.
    """
    describe, promise = TritonSemantic.make_tensor_descriptor, TritonSemantic.multiple_of

    def described(self: Any, base: Any, *geometry: Any, **options: Any) -> Any:
        made = describe(self, base, *geometry, **options)
        size = self.to_tensor(base.dtype.element_ty.primitive_bitwidth // 8)
        numbers = {"address": self.cast(base, tl.int64)}
        for dim, stride in enumerate(list(made.strides)[:-1]):
            numbers[f"stride {dim}"] = self.mul(stride, size, False)
        for name, number in numbers.items():
            text = f"{name} of a tensor descriptor: no multiple of 16 bytes"
            _assert_multiple(self, number, 16, text)
        return made

    def promised(self: Any, x: Any, values: list[int]) -> Any:
        if not x.shape:
            text = f"no multiple of {values[0]}"
            _assert_multiple(self, self.cast(x, tl.int64), values[0], text)
        return promise(self, x, values)

    TritonSemantic.make_tensor_descriptor = described
    TritonSemantic.multiple_of = promised
    try:
        yield
    finally:
        TritonSemantic.make_tensor_descriptor = describe
        TritonSemantic.multiple_of = promise


def _assert_multiple(semantic: Any, number: Any, divisor: int, text: str) -> None:
    rest = semantic.mod(number, semantic.cast(semantic.to_tensor(divisor), number.dtype))
    semantic.device_assert(semantic.equal(rest, semantic.to_tensor(0)), text, None)


def ttir(source: Any, options: dict[str, Any]) -> str:
    """Optimised Triton IR of a kernel, as text with source locations."""
    from triton._C.libtriton import ir, passes

    chosen = {**options, "debug": True, "sanitize_overflow": False}
    backend = triton_compiler.make_backend(target())
    parsed = backend.parse_options(chosen)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(parsed)
    source.attrs = {}
    with asserted_promises(), loops.visited_once():
        module = source.make_ir(target(), parsed, functions, backend.get_module_map(), context)
    module = backend.make_ttir(module, {}, parsed, LOWERED_FOR)
    manager = ir.pass_manager(context)
    passes.ttir.add_triton_licm(manager)
    passes.common.add_cse(manager)
    passes.common.add_canonicalizer(manager)
    manager.run(module, "simulator")
    # A module with a property of its own does not verify, and MLIR prints what does not verify in
    # its generic form.
    module.set_attr("generic", ir.builder(context).get_unit_attr())
    return str(module.str())


PROGRAMS: dict[str, Program] = {}


def program_of(source: Any, options: dict[str, Any]) -> Program:
    """The executable form of a kernel specialisation: from memory, from disk, or compiled."""
    key = key_of(source, options)
    known = PROGRAMS.get(key)
    if known is None:
        path = cache_directory() / f"{source.name[:60]}-{key}"
        kept = saved(path)
        if kept is None:
            module = ttir(source, options)
            text = lowering.generate(frontend.parse(module))
            text += f"\nLINES = {frontend.source_lines(module)!r}\n"
            kept = text, bytecode(source.name, text)
            save(path, *kept)
        known = PROGRAMS[key] = Program(source.name, *kept)
    return known


def save(path: Path, source: str, code: CodeType) -> None:
    """Write a cache file whole or not at all; a cache that cannot be written is no error."""
    content = marshal.dumps((source, code))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(_seal(content) + content)
        partial.replace(path)
    except OSError:
        pass


def saved(path: Path) -> tuple[str, CodeType] | None:
    """The source and its bytecode in a cache file, if there is one as it was written."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    # A machine that lost its power, or a disk its blocks, leaves files of any contents.
    seal, content = whole[:_SEAL], whole[_SEAL:]
    return marshal.loads(content) if seal == _seal(content) else None


_SEAL = hashlib.sha256().digest_size


def _seal(content: bytes) -> bytes:
    """The first bytes of a cache file, which tell whether the rest is whole."""
    return hashlib.sha256(content).digest()
