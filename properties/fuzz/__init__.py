"""Draw cases until the time is up: `python -m properties.fuzz --help`."""
