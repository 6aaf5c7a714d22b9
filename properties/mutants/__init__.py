"""Code with a bug planted, run by the laws: what the suite would have caught."""
