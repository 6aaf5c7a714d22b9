"""A nested tensor, in inference mode, of values that were made before it."""

import torch
from torch.nested import nested_tensor_from_jagged

values, bounds = torch.ones(4, 8), torch.tensor([0, 2, 4])
print("expected", (4, 8))
with torch.inference_mode():
    try:
        print("got", tuple(nested_tensor_from_jagged(values, bounds).values().shape))
    except RuntimeError as error:
        print("got", error)
