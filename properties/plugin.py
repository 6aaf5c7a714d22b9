"""The plugin of pytest: the options of the suite.

An environment that has this suite has the plugin in all its runs of pytest, so it is nothing but
options until `--target` is given. Then `properties.session` is the rest of it.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import pytest

NAME = "attention-oracles"
_OPTIONS: dict[str, dict[str, Any]] = {
    "target": {
        "metavar": "NAME",
        "help": "whose kernels: ours, oracle, torch, fla, transformers, sglang, vllm, or "
        "package.module:attribute",
    },
    "device": {
        "default": "auto",
        "choices": ["auto", "cuda", "simulator", "interpreter"],
        "help": "where kernels run (auto: the GPU if there is one, else the simulator)",
    },
    "ledger": {
        "default": "auto",
        "metavar": "FILE",
        "help": "file of the target's known failures, which pass with a warning; 'none' has them "
        "fail",
    },
    "changed": {
        "nargs": "?",
        "const": "",
        "metavar": "REV",
        "help": "only what can be reached by files that differ from this commit, uncommitted and "
        "untracked ones too (default: the merge base with main)",
    },
    **{
        name: {
            "action": "append",
            "default": [],
            "metavar": name.upper(),
            "help": f"only this {name} of the catalogue (repeatable)",
        }
        for name in ("op", "mode", "law", "dtype")
    },
}


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Iterator[None]:
    yield
    # After the repository's own options, which come first.
    add_options(parser)


def add_options(parser: pytest.Parser) -> None:
    """Add the options of the suite: where a repository has a `--device`, `--oracles-device`."""
    group = parser.getgroup(NAME)
    for name, about in _OPTIONS.items():
        given = {**about, "dest": f"oracles_{name}"}
        try:
            group.addoption(f"--{name}", **given)
        except (argparse.ArgumentError, ValueError):
            group.addoption(f"--oracles-{name}", **given)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("oracles_target") is None:
        return
    try:
        from properties import session
    except ModuleNotFoundError as error:
        raise pytest.UsageError(
            f"--target: {error}; try: pip install 'attention-oracles[test]'"
        ) from error
    config.pluginmanager.register(session, f"{NAME}-session")
