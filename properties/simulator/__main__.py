"""`python -m properties.simulator SCRIPT [args]`: run a script with every launch simulated.

The script is unchanged and its tensors are on the CPU. The exit status is the script's, or 1 if a
kernel has a fault, which is described on standard error.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from properties.arguments import count

from . import SimulationError, install


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m properties.simulator",
        description="Run a script with its Triton kernels on the CPU, every address checked.",
    )
    parser.add_argument(
        "--slab", type=count, default=0, help="programs that run together; 1 is one by one"
    )
    parser.add_argument(
        "--order",
        choices=("forward", "reverse", "shuffled"),
        default="forward",
        help="in which programs run (default: %(default)s)",
    )
    parser.add_argument(
        "--tf32", action="store_true", help="round float32 operands of tl.dot to tf32"
    )
    parser.add_argument(
        "--dump", action="store_true", help="print the generated source of each kernel"
    )
    parser.add_argument(
        "--no-checks", action="store_true", help="look for no races or unwritten memory"
    )
    parser.add_argument(
        "--unwritten",
        choices=("refused", "nan"),
        default="refused",
        help="loads of floats that nobody has written: an error, or NaN (default: %(default)s)",
    )
    parser.add_argument(
        "--index-bits",
        type=count,
        default=32,
        help="bits of the integers of addresses; fewer show on small tensors what wraps around on "
        "large ones (default: %(default)s)",
    )
    parser.add_argument("script", type=Path, help="a file of Python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    chosen = parser.parse_args(arguments)
    if not chosen.script.is_file():
        parser.error(f"script: {chosen.script}, expected a file")
    options = {"slab": chosen.slab, "order": chosen.order, "tf32": chosen.tf32}
    options |= {"unwritten": chosen.unwritten, "index_bits": chosen.index_bits}
    options |= {"checks": not chosen.no_checks} | ({"dump": True} if chosen.dump else {})
    try:
        install(**options)
    except ValueError as error:
        parser.error(str(error))
    sys.argv = [str(chosen.script), *chosen.arguments]
    sys.path.insert(0, str(chosen.script.resolve().parent))
    try:
        runpy.run_path(str(chosen.script), run_name="__main__")
    except SimulationError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
