"""All pairs turn more than beta_fast times in the original length: none is to be interpolated."""

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

yarn = {"rope_type": "yarn", "rope_theta": 10.0, "factor": 4.0}
yarn["original_max_position_embeddings"] = 2**17
config = LlamaConfig(head_dim=64, max_position_embeddings=2**19, rope_parameters=yarn)
frequencies, _ = ROPE_INIT_FUNCTIONS["yarn"](config, None)
print("expected", 1.0)
print("got", float(frequencies[0]))
