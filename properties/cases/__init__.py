"""Cases as plain data, the strategies that draw them, and the tensors built from them."""
