"""An mscale_all_dim of 0, DeepSeek's default: its m is 1, and mscale counts alone."""

import math

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.707}
yarn |= {"mscale_all_dim": 0.0, "original_max_position_embeddings": 4096}
config = LlamaConfig(head_dim=64, max_position_embeddings=16384, rope_parameters=yarn)
print("expected", round(1 + 0.0707 * math.log(4), 4))
print("got", round(ROPE_INIT_FUNCTIONS["yarn"](config, None)[1], 4))
