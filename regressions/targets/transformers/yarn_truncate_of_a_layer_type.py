"""A model with layer types: `truncate` is read beside the types, where it never is."""

from transformers import Gemma3TextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "truncate": False}
yarn["original_max_position_embeddings"] = 4096
rope = {"full_attention": yarn, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
sizes = {"head_dim": 64, "num_hidden_layers": 6, "max_position_embeddings": 16384}
config = Gemma3TextConfig(**sizes, rope_parameters=rope)
frequencies, _ = ROPE_INIT_FUNCTIONS["yarn"](config, None, layer_type="full_attention")
# Pair 15: the ramp goes from pair 10.47 to 22.51, and rounded to whole pairs from 10 to 23.
ramp = (15 - 10.4717) / (22.5133 - 10.4717)
print("expected", f"{10000 ** (-15 / 32) * (1 - 0.75 * ramp):.5f}")
print("got", f"{float(frequencies[15]):.5f}")
