"""The catalogue's ops in fla, in its modes and under our names."""

from dataclasses import replace
from inspect import signature

from properties.catalogue import OPS
from properties.targets.adapter import Implementation
from properties.targets.fla import conv, delta, gate, library, linear, norm, position, softmax, sums
from properties.targets.fla.library import release
from properties.targets.fla.mode import Modes
from properties.targets.fla.releases import as_released, with_heads_first

_FAMILIES = (linear, delta, softmax, position, conv, norm, sums, gate)
MODES: Modes = {op: modes for family in _FAMILIES for op, modes in family.MODES.items()}


def implementations() -> tuple[dict[str, dict[str, Implementation]], tuple[str, ...]]:
    """Op → mode → its implementation in the installed release; sentences about what it lacks."""
    made: dict[str, dict[str, Implementation]] = {}
    remarks: list[str] = []
    absent: list[str] = []
    for op, modes in MODES.items():
        for mode, declared in modes.items():
            try:
                found = library.kernel(declared.function)
            except ImportError as error:
                remarks.append(f"{op} ({mode}) is left out: {error}")
                continue
            if found is None or not declared.released(found):
                absent.append(f"{op} ({mode})")
                continue
            # A function that lacks a tensor of the op is another one, of another release.
            if lacking := declared.lacking(OPS[op], found):
                what = f"{declared.function.split()[0]} has no {', '.join(lacking)}"
                remarks.append(f"{op} ({mode}) is left out: {what}")
                continue
            declared = as_released(op, mode, declared, found)
            made.setdefault(op, {})[mode] = declared.implementation(OPS[op], found)
            if "head_first" in signature(found).parameters and release() < (0, 2):
                turned = replace(
                    declared, without=(*declared.without, "cu_seqlens", "cu_seqlens_k")
                )
                made[op][f"{mode}_heads_first"] = turned.implementation(
                    OPS[op], with_heads_first(found)
                )
    absent = [each for each in absent if each.partition(" ")[0] in made]
    if absent:
        version = ".".join(map(str, release()))
        remarks.append(f"release {version} of fla has no {', '.join(absent)}")
    return made, tuple(remarks)
