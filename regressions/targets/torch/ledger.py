"""Known failures of PyTorch 2.13's attention."""

from collections.abc import Mapping
from typing import Any

from properties.case import Case
from properties.targets.ledger import KnownFailure

Given = Mapping[str, Any]


def _top_left(given: Given) -> bool:
    """Whether the adapter says is_causal, rather than writing the mask out."""
    masked = given.get("window") is not None or given.get("alibi_slopes") is not None
    return given["causal"] and not masked and given["q"].shape[1] == given["k"].shape[1]


def _flash(given: Given) -> bool:
    """Whether the CPU's flash kernel runs."""
    return given["mode"] == "sdpa_flash" or given["q"].shape[-1] == given["v"].shape[-1]


def _not_positive(scale: float | None) -> bool:
    return scale is not None and scale != -1 and scale <= 0


LEDGER = (
    KnownFailure(
        name="flash_scale_not_positive",
        law="differential",
        case=Case.from_json(
            '{"op":"attention","mode":"sdpa_flash","dtype":"float32","dims":{"B":1,"G":1,"R":1,'
            '"K":1,"V":1},"lengths":[2],"options":{"scale":0.0,"causal":true,"window":null}}'
        ),
        modes=("sdpa", "sdpa_flash"),
        shows=lambda given: _flash(given) and _top_left(given) and _not_positive(given["scale"]),
        expected="[1.0, 1.0]",
        got="[nan, 1.0]",
        cause="is_causal hides keys by -inf before the logits are scaled: -inf times 0 is NaN, and "
        "times a negative scale +inf.",
    ),
)
