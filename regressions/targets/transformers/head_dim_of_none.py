"""A head_dim of None, Mixtral's default: it is hidden_size / num_attention_heads."""

from transformers import MixtralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
yarn["original_max_position_embeddings"] = 32768
config = MixtralConfig(hidden_size=64, num_attention_heads=8, rope_parameters=yarn)
print("expected", 4, "pairs")
try:
    print("got", len(ROPE_INIT_FUNCTIONS["yarn"](config, None)[0]), "pairs")
except TypeError as error:
    print("got", type(error).__name__)
