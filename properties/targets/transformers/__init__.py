"""The rotary embeddings of Hugging Face's models (transformers), which need torch alone."""

from importlib.util import find_spec

import torch

from properties.targets.adapter import Adapter
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
    ops, remarks = implementations()
    return Adapter(ops, remarks=remarks)
