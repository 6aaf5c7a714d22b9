"""Device functions that several kernels share, and the host side that belongs to them."""
