"""These tests need the scalings of transformers 4.43 and later; else they are not collected."""

from importlib.util import find_spec

_FOUND = find_spec("transformers") and find_spec("transformers.modeling_rope_utils")
collect_ignore_glob = [] if _FOUND else ["test_*.py"]
