"""The plugin of this checkout, for a pytest that does not know it."""

import os

# One thread per worker: the workers are the parallelism. Set before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from properties import plugin


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # It is there already where this checkout is installed.
    if not pluginmanager.has_plugin(plugin.NAME):
        pluginmanager.register(plugin, plugin.NAME)
        plugin.add_options(parser)
