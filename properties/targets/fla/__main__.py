"""Run every public operation of `fla.ops` on this machine and print a table of what works."""

import argparse
import sys
from pathlib import Path

from rich.progress import track

from properties.device import activate
from properties.screen import screen

TABLE = Path(__file__).with_name("operations.md")
HEAD = """\
# Operations of fla-core {version}

What `python -m properties.targets.fla --write` finds of every public operation of `fla.ops` in each
of its modes: forward, backward through every output that has a history, and packed behind
`cu_seqlens` with an empty sequence among them. "none" is what fla does not have, "no" is what it
has and does not run here. Calls are small and ragged, {tokens} tokens in a batch and sequences of
{lengths}; that something runs does not say that it is right.

"""


def main() -> int:
    parse = argparse.ArgumentParser(prog="python -m properties.targets.fla", description=__doc__)
    parse.add_argument(
        "--device", default="auto", choices=["auto", "cuda", "simulator"], help="where kernels run"
    )
    parse.add_argument("--write", action="store_true", help=f"write it to {TABLE.name} as well")
    chosen = parse.parse_args()
    try:
        text = table(chosen.device)
    except (ImportError, ValueError) as error:
        print(f"no table: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    if chosen.write:
        TABLE.write_text(text)
    return 0


def table(device: str) -> str:
    """The document.

    Raises:
        ImportError: fla is not installed.
        ValueError: this machine does not have the device.
    """
    here = activate(device)
    # Imported here, since fla looks for its device at import.
    from properties.targets.fla import operations, target
    from properties.targets.fla.library import release
    from properties.targets.fla.table import HEADER, support

    target(here)
    calls, broken = operations.public()
    progress = track(calls, "operations of fla", console=screen(stderr=True), transient=True)
    lines = [support(call, here).line() for call in progress]
    lines += [f"| `{name}` | | no | no | no | {why} |" for name, why in broken.items()]
    head = HEAD.format(
        version=".".join(str(part) for part in release()),
        tokens=operations.TOKENS,
        lengths="{} and {}".format(
            ", ".join(map(str, operations.LENGTHS[:-1])), operations.LENGTHS[-1]
        ),
    )
    return "\n".join([head + HEADER, *lines, ""])


if __name__ == "__main__":
    sys.exit(main())
