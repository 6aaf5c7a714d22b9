"""These tests need fla-core (`tox -e fla`); without it they are not collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("fla") else ["test_*.py"]
