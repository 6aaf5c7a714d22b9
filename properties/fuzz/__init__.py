"""The fuzzer, which draws cases for a fixed time: `python -m properties.fuzz --help`."""
