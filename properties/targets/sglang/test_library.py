"""Kernels of SGLang are found without the rest of the package."""

import sys
from pathlib import Path

import pytest

from properties.targets.bare import Absent
from properties.targets.engines import of_release
from properties.targets.sglang import library
from properties.targets.sglang.implementations import DECLARED

MERGE = "sglang/srt/layers/attention/triton_ops/merge_state.py"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, in a process that has not imported sglang."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_a_kernel_is_found_and_no_server_is_imported(bare: Path) -> None:
    file = bare / MERGE
    file.parent.mkdir(parents=True)
    for folder in [*file.relative_to(bare).parents][:-1]:
        (bare / folder / "__init__.py").write_text("raise ImportError('the server')")
    file.write_text(
        "from sglang.srt.environ import envs\n"
        "from sglang.srt.utils import is_cuda, is_hip\n"
        "def merge(): return is_hip(), envs.SGLANG_ANY.get()\n"
    )
    assert library.kernel("merge_state:merge")() == (False, False)
    with pytest.raises(Absent, match="this release of sglang has no merge_state:another"):
        library.kernel("merge_state:another")


def test_what_a_release_lacks_is_left_out(bare: Path) -> None:
    """An old release without LSEs of splits, causal switches, windows and merging."""
    folder = bare / MERGE.rpartition("/")[0]
    folder.mkdir(parents=True)
    (bare / "sglang/__init__.py").touch()
    (folder / "prefill_attention.py").write_text("import absent_package")
    (folder / "extend_attention.py").write_text("def extend_attention_fwd(q, sm_scale): ...")
    (folder / "decode_attention.py").write_text("def decode_attention_fwd(q, sm_scale): ...")
    target = of_release(DECLARED)
    assert {op: [*modes] for op, modes in target.ops.items()} == {
        "attention": ["extend"],
        "paged_attention": ["decode", "latent"],
    }
    extend = target.ops["attention"]["extend"]
    assert "causal" in extend.bounds
    assert not any(extend.has(name) for name in ("window", "sink", "return_lse"))
    assert target.remarks == (
        "attention (prefill) is left out: No module named 'absent_package'",
        "merge_attention (fused) is left out: this release of sglang has no "
        "merge_state:merge_state_triton",
    )


def test_without_the_package_the_error_says_how_to_install_it(bare: Path) -> None:
    with pytest.raises(ValueError, match="sglang is not installed: pip install --no-deps sglang"):
        library.kernel("merge_state:merge")
