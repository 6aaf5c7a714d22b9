"""Attention, its linear forms and rotary embeddings of Hugging Face's models (transformers)."""

from collections.abc import Mapping
from importlib.util import find_spec

import torch

from properties.targets.adapter import Adapter
from properties.targets.bare import Absent
from properties.targets.transformers import attention, fallbacks
from properties.targets.transformers.models import implementations


def target(device: torch.device) -> Adapter:
    """Return the models' functions.

    Raises:
        ValueError: the package is not installed.
    """
    if find_spec("transformers") is None:
        raise ValueError(
            "target: transformers is not installed: pip install 'attention-oracles[transformers]'"
        )
    made, lacking = implementations()
    for op, modes in {**attention.DECLARED, **fallbacks.DECLARED}.items():
        for mode, declared in modes.items():
            try:
                made.setdefault(op, {})[mode] = declared()
            except (Absent, AttributeError, ImportError) as error:
                lacking[f"{op} ({mode})"] = str(error)
    return Adapter({op: modes for op, modes in made.items() if modes}, remarks=told(lacking))


def told(lacking: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each reason why modes are left out."""
    by_reason: dict[str, list[str]] = {}
    for mode, why in lacking.items():
        by_reason.setdefault(why, []).append(mode)
    return tuple(
        f"{', '.join(modes)} {'is' if len(modes) == 1 else 'are'} left out: {why}"
        for why, modes in by_reason.items()
    )
