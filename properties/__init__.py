"""Compare kernels with the oracles: the laws, what draws their cases, and what judges them."""

from pathlib import Path

# The folder of the four packages: the root of the checkout, or `attention_oracles` where they are
# installed. There the names of their modules begin with HOME.
ROOT = Path(__file__).parents[1]
HOME = __name__.removesuffix("properties")
PACKAGES = ("kernels", "properties", "reference", "regressions")


def package_of(module: str) -> str:
    """The package that a module is in: one of `PACKAGES`, or the first part of another name."""
    return module.removeprefix(HOME).partition(".")[0]
