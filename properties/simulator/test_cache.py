"""Compiled kernels are kept on disk, and a damaged file costs a compilation only."""

from pathlib import Path

import pytest

from properties.simulator.compilation import bytecode, cache_directory, save, saved

KERNEL = "X = 1\n", bytecode("kernel", "X = 1\n")


def test_a_file_that_is_not_as_it_was_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernel"
    assert saved(path) is None
    save(path, *KERNEL)
    assert saved(path) == KERNEL
    whole = path.read_bytes()
    for damaged in (b"", whole[:9], whole[:-1], whole[9:], b"\0" * len(whole), b"\xff" + whole):
        path.write_bytes(damaged)
        assert saved(path) is None
    path.unlink()
    path.mkdir()
    assert saved(path) is None
    save(path, *KERNEL)


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("TRITON_SIM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    path = cache_directory() / "kernel"
    save(path, *KERNEL)
    assert saved(path) is None
