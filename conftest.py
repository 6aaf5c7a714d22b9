"""The plugin of this checkout, for a pytest that does not know it."""

import os

# One thread per worker: the workers are the parallelism. Set before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Generator
from pathlib import Path

import pytest

from properties import ROOT, plugin


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """One worker more than `-n auto` starts, as some wait for the commands that their tests run."""
    workers = yield
    return workers if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else workers + 1


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    here = Path(__file__).resolve().parent
    if ROOT.resolve() != here:
        # That of a second checkout would test these kernels, or those there, with the rest of it.
        what = f"expected its own `properties`, but Python finds that of {ROOT}"
        raise pytest.UsageError(f"{here}: {what}; try here: python -m pytest")
    # An installed checkout has registered the plugin already.
    if not pluginmanager.has_plugin(plugin.NAME):
        pluginmanager.register(plugin, plugin.NAME)
        plugin.add_options(parser)
