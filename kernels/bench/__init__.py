"""Time the kernels on a GPU, each beside those of others in the same run."""
