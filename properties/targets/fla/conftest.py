"""These tests need fla-core, which `tox -e fla` installs; elsewhere they are not collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("fla") else ["test_*.py"]
