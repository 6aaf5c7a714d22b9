"""The search for the entries of `kernels.tiles.TABLE`: each is checked, and then timed."""
