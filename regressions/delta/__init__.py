"""Delta rules."""
