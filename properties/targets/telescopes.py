"""Gate gradients of delta rules and linear attention that several libraries form alike."""

from properties.cases.case import Case
from properties.catalogue.telescope import Telescope

SEEN = (("B T H V", "gradient of o", "o"), ("B T H V", "v", "dv"))


def values_telescope(case: Case) -> tuple[Telescope, ...]:
    """The gate gradient of a delta rule, a difference of sums over values."""
    return (Telescope("dg", "B T H", SEEN + carried(case)),)


def channels_telescope(case: Case) -> tuple[Telescope, ...]:
    """The gradient of a gate of each key channel, a difference of sums over keys.

    Grouped query heads have no gradient each, so sums over values stand in for those over keys.
    """
    alone = case.dims.get("R", 1) == 1
    name, query = {"dplr": ("dgk", "q"), "rwkv7": ("dw", "r"), "rwkv6": ("dw", "r")}.get(
        case.op, ("dg", "q")
    )
    keys = (("B T H K", query, f"d{query}"), ("B T H K", "k", "dk"))
    return (Telescope(name, "B T H K", (*(keys if alone else SEEN), *carried(case))),)


def carried(case: Case, dims: str = "N H K V") -> tuple[tuple[str, str, str], ...]:
    """The final state's term of the telescope."""
    state = (dims, "gradient of final_state", "final_state")
    return (state,) if case.options.get("output_final_state") else ()
