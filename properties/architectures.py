"""The architectures to compile for, and their limits."""

from dataclasses import dataclass

from triton.backends.compiler import GPUTarget

_CUDA = "CUDA C++ Programming Guide, table of technical specifications per compute capability"
_CDNA3 = "AMD Instinct MI300 ISA Reference Guide, section on LDS"


@dataclass(frozen=True)
class Architecture:
    """A kind of GPU.

    Args:
        gpu: Triton's name of it.
        capability: compute capability times ten, as in `kernels.tiles`; 0 for AMD.
        shared_memory: the most that one program can have, in bytes.
        source: where that number is from.
    """

    name: str
    gpu: GPUTarget
    capability: int
    shared_memory: int
    source: str


def _nvidia(capability: int, kibibytes: int) -> Architecture:
    gpu = GPUTarget("cuda", capability, 32)
    return Architecture(f"sm_{capability}", gpu, capability, kibibytes * 1024, _CUDA)


ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        _nvidia(80, 163),
        _nvidia(90, 227),
        _nvidia(100, 227),
        _nvidia(120, 99),
        Architecture("gfx942", GPUTarget("hip", "gfx942", 64), 0, 64 * 1024, _CDNA3),
    )
}
