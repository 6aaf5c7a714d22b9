"""Every kernel compiles for every architecture within its limits, without a GPU.

There is an item per (op, mode, dtype, architecture). `nightly` runs all. Other profiles run
bfloat16 on sm_90 and, for every third op and mode, one of `_IN_TURN`, with fewer options, head
dims, tiles and layouts (see `Compilation.runs`), and compile two launches of each kernel there (see
`two_of_each`).
"""

import re
from collections.abc import Iterator

import pytest
from hypothesis import settings

from kernels.arguments import FLOATS
from properties.aot.cases import Compilation, families
from properties.aot.checks import CompileResult, check, check_compilation, never_launched
from properties.aot.planted import (
    crash,
    keep_too_many_registers,
    multiply,
    multiply_8_wide,
    multiply_too_much,
)
from properties.aot.worker import CompilerProcess
from properties.architectures import ARCHITECTURES

# A test of what checks a compilation, by kernels of its own.
_OF_THE_CHECKS = pytest.mark.ops("l2norm")


@pytest.fixture(scope="session")
def worker() -> Iterator[CompilerProcess]:
    worker = CompilerProcess()
    yield worker
    worker.close()


def _nightly() -> bool:
    return settings.get_current_profile_name() == "nightly"


# Besides sm_90. sm_120 has the least shared memory of NVIDIA's, and float32 needs the most.
_IN_TURN = (
    *(("bfloat16", architecture) for architecture in ARCHITECTURES if architecture != "sm_90"),
    *[("float32", "sm_120")] * 4,
)


def _always(family: int, dtype: str, architecture: str) -> bool:
    third, rest = divmod(family, 3)
    beside = [_IN_TURN[third % len(_IN_TURN)]] if rest == 1 else []
    return (dtype, architecture) in [("bfloat16", "sm_90"), *beside]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "compilation" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption
    ops, modes, dtypes = (option(f"oracles_{name}") for name in ("op", "mode", "dtype"))
    compilations = [
        Compilation(op, mode, dtype, architecture)
        for family, (op, mode) in enumerate(families())
        for dtype in (str(float_dtype).removeprefix("torch.") for float_dtype in FLOATS)
        for architecture in ARCHITECTURES
        if (_nightly() or _always(family, dtype, architecture))
        and (not ops or op in ops)
        and (not modes or mode in modes)
        and (not dtypes or dtype in dtypes)
    ]
    metafunc.parametrize("compilation", compilations, ids=str)


def test_every_launch_compiles_within_the_limits(
    compilation: Compilation, worker: CompilerProcess
) -> None:
    answer = worker.call(check_compilation, compilation, thorough=_nightly())
    assert answer.launches > 0
    if answer.faults:
        pytest.fail("\n".join(answer.faults), pytrace=False)


def test_every_kernel_is_compiled(worker: CompilerProcess) -> None:
    compilations = [Compilation(op, mode, "bfloat16", "sm_90") for op, mode in families()]
    missed = worker.call(never_launched, compilations)
    assert not missed, f"{missed} are launched by no case, so that nothing compiles them"


def test_a_kernel_that_nothing_launches_is_named(worker: CompilerProcess) -> None:
    missed = worker.call(never_launched, [Compilation("cache", "sliding", "bfloat16", "sm_90")])
    assert "kernels.position.rotary._rotate" in missed
    assert not any(name.startswith("kernels.cache") for name in missed)


@_OF_THE_CHECKS
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_sound_kernel_passes(architecture: str, worker: CompilerProcess) -> None:
    assert worker.call(check, [multiply], architecture) == CompileResult(1, [])


# AMD's compiler has no such minimum.
@_OF_THE_CHECKS
@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if a.startswith("sm_")])
def test_a_dot_of_operands_8_wide_is_reported(architecture: str, worker: CompilerProcess) -> None:
    answer = worker.call(check, [multiply_8_wide], architecture)
    assert len(answer.faults) == 1
    assert "does not compile" in answer.faults[0]
    assert "16" in answer.faults[0]


@_OF_THE_CHECKS
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_too_much_shared_memory_is_reported(architecture: str, worker: CompilerProcess) -> None:
    answer = worker.call(check, [multiply_too_much], architecture)
    limit = ARCHITECTURES[architecture].shared_memory
    told = rf"needs (\d+) bytes of shared memory, {architecture} has {limit} "
    (needed,) = re.findall(told, "\n".join(answer.faults))
    assert int(needed) > limit


@_OF_THE_CHECKS
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_spilled_registers_are_reported(architecture: str, worker: CompilerProcess) -> None:
    answer = worker.call(check, [keep_too_many_registers], architecture)
    assert any("spills" in fault for fault in answer.faults)


@_OF_THE_CHECKS
def test_a_compiler_that_crashes_is_reported_and_survived(worker: CompilerProcess) -> None:
    with pytest.raises(RuntimeError, match="compiler ended its process"):
        worker.call(crash)
    assert worker.call(check, [multiply], "sm_90").launches == 1
