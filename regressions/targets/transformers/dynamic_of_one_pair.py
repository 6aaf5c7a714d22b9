"""Dynamic NTK of two dims: their frequency is 1, whatever the base."""

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
config = LlamaConfig(head_dim=2, max_position_embeddings=16, rope_parameters=dynamic)
print("expected", [1.0])
try:
    print("got", ROPE_INIT_FUNCTIONS["dynamic"](config, None, seq_len=20)[0].tolist())
except ZeroDivisionError as error:
    print("got", type(error).__name__)
