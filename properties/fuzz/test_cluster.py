"""A night on the nodes of a Ray cluster."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from properties.fuzz import planted
from properties.fuzz.__main__ import main
from properties.fuzz.conftest import Fuzz, on_l2norm

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="ray is an extra")

_ROOT = Path(__file__).parents[2]
_MORE = ["--law", "causality", "--law", "permutation", "--law", "determinism"]
_MORE += ["--dtype", "bfloat16", "--dtype", "float16", "--examples", "40", "--seed", "3"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Nodes that run one process each, beside one that runs none."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv(planted.MARK, str(tmp_path / "mark"))
    head = {"num_cpus": 0, "include_dashboard": False}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


def _ancestors(process: int) -> Iterator[int]:
    while process > 1:
        yield process
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        process = int(fields[1])


def _jobs(report: Path) -> dict[tuple[str, str], int]:
    """Law and dtype → examples, where there were some."""
    data = json.loads((report / "report.json").read_text())
    return {(j["law"], j["dtype"]): j["examples"] for j in data["jobs"] if j["examples"]}


def _bugs(report: Path) -> list[str]:
    data = json.loads((report / "report.json").read_text())
    return [bug["fingerprint"] for bug in data["bugs"]]


def test_losing_a_node_loses_no_example(cluster: Any, fuzz: Fuzz, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    chosen = on_l2norm("waiting_once_but_wrong", *_MORE, "--report", "beside", "--no-shrink")
    command = [sys.executable, "-m", "properties.fuzz", *chosen]
    run = subprocess.Popen(
        [*command, "--jobs", "2", "--ray", cluster.address],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    mark = tmp_path / "mark"
    while not (mark.exists() and mark.read_text().endswith("\n")):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)
    at_work = {*_ancestors(int(mark.read_text()))}
    (lost,) = (n for n in nodes if n.all_processes["raylet"][0].process.pid in at_work)
    cluster.remove_node(lost, allow_graceful=False)
    printed = run.communicate(timeout=120)[0]
    assert run.returncode == 1
    assert "2 processes of a Ray cluster" in printed
    assert "1 bug in" in printed, printed
    assert "the machine may be at fault" not in printed
    assert "an error of the suite" not in printed
    # The same night on this machine, which knows of no case yet.
    shutil.rmtree(tmp_path / ".hypothesis")
    fuzz("waiting_once_but_wrong", *_MORE, "--report", "here", "--no-shrink")
    assert _bugs(tmp_path / "beside") == _bugs(tmp_path / "here")
    remote, local = _jobs(tmp_path / "beside"), _jobs(tmp_path / "here")
    # The length of rounds that find the bug depends on which finds it first.
    both = {job for job in remote.keys() & local.keys() if job[1] != "bfloat16"}
    assert len(both) >= 4
    assert {job: remote[job] for job in both} == {job: local[job] for job in both}
    left = at_work - {*_ancestors(os.getpid())}
    for _ in range(100):
        left = {*filter(_there, left)}
        time.sleep(0.05 if left else 0)
    assert not left


def _there(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False


def test_a_wrong_cluster_address_is_rejected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main(on_l2norm("good", "--ray", "127.0.0.1:1"))
    assert "--ray: '127.0.0.1:1', expected a running cluster" in capsys.readouterr().err


def test_a_cluster_without_a_core_is_refused(
    cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    try:
        with pytest.raises(SystemExit):
            main(on_l2norm("good", "--ray", cluster.address))
        assert "expected a cluster with a CPU" in capsys.readouterr().err
    finally:
        ray.shutdown()
