"""An outside repository with the installed wheel: `tox -e example` runs this beside Hugging Face's
`kernels`, in an environment that knows nothing of the checkout.
"""

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import attention_oracles

EXAMPLE = Path(__file__).with_name("scalar_decay")
COMMANDS = ("fuzz", "test", "simulate", "mutants", "regressions", "tune")
FEW = ("--law", "differential", "--law", "causality", "--dtype", "float32")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")} | {"CI": "1"}
    scripts = Path(sys.executable).parent
    return subprocess.run(
        [str(scripts / command[0]), *command[1:]],
        cwd=folder,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "scalar_decay"))


def plant(repository: Path) -> None:
    kernel = repository / "kernel.py"
    text = kernel.read_text()
    assert text.count("# decay = tl.exp2") == 1
    kernel.write_text(text.replace("# decay = tl.exp2", "decay = tl.exp2"))


def test_the_names_of_others_are_theirs() -> None:
    kernels = importlib.import_module("kernels")
    assert hasattr(kernels, "get_kernel"), "this is not Hugging Face's package"
    for name in ("reference", "properties", "regressions"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    assert attention_oracles.reference.gla.__module__ == "attention_oracles.reference.linear.gla"


def test_every_module_is_imported_and_none_by_the_name_of_the_checkout() -> None:
    ours = [m.name for m in pkgutil.walk_packages(attention_oracles.__path__, "attention_oracles.")]
    tests = [name for name in ours if ".test_" in name or name.endswith(("__main__", "conftest"))]
    # These need an extra.
    extra = ["properties.fuzz.cluster", "kernels.bench.chart"]
    for name in {*ours} - {*tests, *(f"attention_oracles.{one}" for one in extra)}:
        importlib.import_module(name)
    assert not {"reference", "properties", "regressions"} & {*sys.modules}


def test_every_planted_bug_and_listed_mutant_applies_to_the_wheel() -> None:
    from attention_oracles.properties.mutants import equivalents, killers
    from attention_oracles.properties.mutants.mutant import mutants
    from attention_oracles.regressions.known_bug import known_bugs

    for bug in known_bugs().values():
        bug.planted.source()
    for table, semantic in (("equivalent", False), ("semantic", True)):
        _, gone = equivalents.match(equivalents.read(table=table), mutants(semantic=semantic))
        assert not gone
    assert {name.partition(".")[0] for name in killers.read()} == {"attention_oracles"}


def test_the_plugin_and_the_command_are_installed(tmp_path: Path) -> None:
    (plugin,) = entry_points(group="pytest11", name="attention-oracles")
    assert plugin.load().__name__ == "attention_oracles.properties.plugin"
    assert all(name in run(tmp_path, "attention-oracles", "--help").stdout for name in COMMANDS)
    helped = run(tmp_path, "attention-oracles", "fuzz", "--help")
    assert helped.returncode == 0
    assert "attention_oracles.properties.fuzz" in helped.stdout


def test_the_plugin_leaves_other_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        'def pytest_addoption(parser):\n    parser.addoption("--device", default="mine")\n'
    )
    (tmp_path / "test_own.py").write_text(
        "import sys\n\n\ndef test_own(pytestconfig):\n"
        '    assert pytestconfig.getoption("device") == "mine"\n'
        '    assert pytestconfig.getoption("oracles_device") == "auto"\n'
        '    assert "torch" not in sys.modules\n'
    )
    ran = run(tmp_path, "pytest", "-q")
    assert ran.returncode == 0, ran.stdout
    assert "--oracles-device" in run(tmp_path, "pytest", "--help").stdout


def test_the_example_passes_and_its_planted_bug_is_reported(repository: Path) -> None:
    ran = run(repository, "pytest", *FEW)
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout
    plant(repository)
    ran = run(repository, "pytest", *FEW)
    assert ran.returncode == 1, ran.stdout
    assert "differential does not hold for simple_gla (fused_recurrent, float32)" in ran.stdout
    assert "REPRO: python -m attention_oracles.properties.fuzz --law differential" in ran.stdout
    assert "1 failed, 1 passed" in ran.stdout


def test_the_fuzzer_writes_what_pins_the_bug_and_a_ledger_entry(repository: Path) -> None:
    plant(repository)
    few = ("--law", "differential", "--dtype", "float32", "--jobs", "1", "--no-shrink")
    # Cases of one example have the same tensors, and half of them have no gate: 16 may draw none.
    few += ("--examples", "64", "--seed", "1")
    ran = run(repository, "attention-oracles", "fuzz", "--target", "adapter:target", *few)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    entry, pin = sorted(
        (repository / "findings").iterdir(), key=lambda path: "entry" not in path.name
    )
    assert 'Edit(module="adapter"' in pin.read_text()

    text = entry.read_text().replace('releases=("package 1.2.3",)', "releases=()")
    text = text.replace("lambda given: False", 'lambda given: given.get("g") is not None')
    text = re.sub(r"results=.*?, most=[^,]+", "results=None, most=inf", text)
    (repository / "ledger.py").write_text(text + "\nLEDGER = (ENTRY,)\n")
    with_ledger = ("--target", "adapter:target", "--ledger", "ledger.py")
    ran = run(repository, "attention-oracles", "test", *with_ledger, *FEW)
    assert ran.returncode == 0, ran.stdout
    shutil.copy(EXAMPLE / "kernel.py", repository / "kernel.py")
    ran = run(repository, "attention-oracles", "test", *with_ledger, *FEW)
    assert ran.returncode == 1
    assert "passes again: delete it from the ledger of adapter:target" in ran.stdout


def test_a_regression_of_ones_own_is_caught(repository: Path) -> None:
    own = ("--module", "known_bugs", "--target", "adapter:target", "--jobs", "1")
    ran = run(repository, "attention-oracles", "regressions", *own)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 of 1 known bugs hold as the code stands and are caught when planted" in ran.stdout


def test_mutants_of_ones_own_kernel_are_killed(repository: Path) -> None:
    own = ("--module", "kernel", "--target", "adapter:target", "--jobs", "1")
    few = ("--law", "differential", "--dtype", "float32", "--operator", "exponential")
    ran = run(repository, "attention-oracles", "mutants", *own, *few, "--cache", str(repository))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^([1-9]) of \1 mutants killed, 0 survive", ran.stdout, re.MULTILINE)


def test_a_script_is_simulated(repository: Path) -> None:
    (repository / "script.py").write_text(
        "import torch\nfrom kernel import scalar_decay\n"
        "q, g = torch.ones(1, 2, 1, 3), torch.zeros(1, 2, 1)\n"
        "print(scalar_decay(q, q, q, g, 1.0)[0].flatten().tolist())\n"
    )
    ran = run(repository, "attention-oracles", "simulate", "script.py")
    assert ran.stdout == "[3.0, 3.0, 3.0, 6.0, 6.0, 6.0]\n", ran.stderr
