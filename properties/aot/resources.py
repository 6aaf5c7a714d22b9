"""The resources that a compiled kernel needs, and whether its architecture has them."""

import re
import subprocess
import tempfile
from dataclasses import dataclass

from triton import knobs
from triton.compiler import CompiledKernel

from properties.aot.launches import Launch
from properties.architectures import Architecture

TOLERATED = 32
"""Bytes of a thread's registers that may spill: eight registers.

ptxas spills a few to run more threads or to get an instruction order that it prefers: version 13
spills 4 to 28 bytes at 96, 128 and 168 registers of 255. The affected kernels change with its
version, and none is slow.
"""

_KNOWN = {
    ("kernels.softmax.selection.selected_backward_q", "sm_120"): 192,
    ("kernels.softmax.forward.attention_forward", "sm_120"): 368,
    ("kernels.softmax.backward.attention_backward_q", "sm_120"): 384,
    ("kernels.softmax.backward.attention_backward_kv", "sm_120"): 40,
}
"""Bytes that kernels are known to spill at a head dim of 256 in float32, by name and architecture.

So many are left in the best of the tiles tried: seven of `selected_backward_q` (2 to 16 warps, 16
to 64 keys), eight of attention with a bias and a mask (4 to 16 warps, 16 and 32 queries and keys).
The kernels are slow there, and right.
"""


def _tolerated(launch: Launch, architecture: Architecture) -> int:
    wide = 256 in launch.constants.values() and "*fp32" in launch.signature.values()
    known = _KNOWN.get((launch.name, architecture.name), TOLERATED)
    return known if wide else TOLERATED


@dataclass(frozen=True)
class Resources:
    """The resources that one program of a compiled kernel needs.

    Args:
        shared_memory: in bytes.
        registers: of a thread.
        spilled: bytes of spilled registers of a thread, its stack.
    """

    shared_memory: int
    registers: int
    spilled: int


def resources(kernel: CompiledKernel) -> Resources:
    shared = kernel.metadata.shared
    if "cubin" in kernel.asm:
        # A kernel's stack holds spilled registers only: Triton inlines every call and has no
        # indexed arrays.
        usage = _cuobjdump(kernel.asm["cubin"])
        return Resources(shared, usage["REG"], usage["STACK"] + usage["LOCAL"])
    # The count includes accumulation registers; since CDNA2 they are one register file.
    text = kernel.asm["amdgcn"]
    registers, stack, spills = (
        int(re.search(rf"\.{field}:\s+(\d+)", text)[1])  # type: ignore[index]
        for field in ("vgpr_count", "private_segment_fixed_size", "vgpr_spill_count")
    )
    return Resources(shared, registers, max(stack, 4 * spills))


def _cuobjdump(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", text)}


def faults(launch: Launch, architecture: Architecture) -> list[str]:
    """Why this launch cannot run, or runs badly, on this architecture; empty if it is fine."""
    try:
        need = resources(launch.compile(architecture.gpu))
    except Exception as error:  # compilers raise every kind of error
        return [f"{launch} does not compile for {architecture.name}: {_innermost(error)}"]
    found = []
    if need.shared_memory > architecture.shared_memory:
        found.append(
            f"{launch} needs {need.shared_memory} bytes of shared memory, {architecture.name} has "
            f"{architecture.shared_memory} ({architecture.source})"
        )
    if need.spilled > _tolerated(launch, architecture):
        found.append(
            f"{launch} spills {need.spilled} bytes of each thread's registers on "
            f"{architecture.name}, beside the {need.registers} registers it has"
        )
    return found


def _innermost(error: BaseException) -> str:
    """The messages of an error and its causes, outermost first."""
    messages = [f"{type(error).__name__}: {error}"]
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
        messages.append(f"{type(error).__name__}: {error}")
    return "\n  from ".join(messages)
