"""The tests of the kernels, one file for each promise."""
