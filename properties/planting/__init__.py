"""Plant bugs in source code, in processes of their own, and run what should notice them."""
