"""The command `attention-oracles`: one name for all that can be run."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from properties import HOME, ROOT

# A package that `python -m` runs, and what it does.
COMMANDS = {
    "fuzz": ("properties.fuzz", "draw cases until the time is up, and report what breaks a law"),
    "test": ("pytest", "test laws and caches with pytest, and that the ledger is current"),
    "simulate": ("properties.simulator", "run a Triton script on the CPU, every address checked"),
    "mutants": ("properties.mutants", "plant mistakes in kernels, and see which are noticed"),
    "regressions": (f"{HOME}regressions", "see known bugs caught when they are planted again"),
    "tune": ("properties.tune", "search for faster tiles on a GPU, each checked by the oracle"),
}
TESTS = tuple(f"properties/suite/test_{what}.py" for what in ("laws", "target_modules", "ledger"))


def parser() -> argparse.ArgumentParser:
    rows = [f"  {name:13}{what}" for name, (_, what) in COMMANDS.items()]
    parse = argparse.ArgumentParser(
        prog="attention-oracles",
        description="Oracles and differential testing for attention kernels.",
        epilog="\n".join(
            [
                "commands:",
                *rows,
                "",
                "`attention-oracles COMMAND --help` has the arguments of each; those of `test` are "
                "pytest's.",
                "Your own kernels: attention-oracles test --target my.adapter:target",
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parse.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parse.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the command"
    )
    return parse


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Go on as `python -m` does, from the folder that this began in: an adapter may lie there."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # Later arguments belong to the command, `--help` too.
    chosen = parser().parse_args(given[:1])
    module, _ = COMMANDS[chosen.command]
    if chosen.command == "test":
        # Its tests, of a target that may be named again.
        given[1:1] = [*(str(ROOT / test) for test in TESTS), "--target", "ours"]
    os.execv(sys.executable, [sys.executable, "-m", module, *given[1:]])
