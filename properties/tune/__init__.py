"""The search for the entries of `kernels.tiles.TABLE`: each candidate is checked, then timed."""
