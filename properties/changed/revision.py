"""Files that differ from a commit, by git."""

import ast
import os
import subprocess
from pathlib import Path

# The branch that work is merged into: in this clone and in `origin`.
_MAIN, _SHARED = "refs/heads/main", "refs/remotes/origin/main"
# Variables by which git tells its hooks the repository and the index.
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")


def files_since(revision: str, root: Path) -> tuple[str, tuple[str, ...]]:
    """The commit in a few words, and the files below `root` that differ from it: committed,
    uncommitted, untracked and deleted ones.

    Args:
        revision: a commit as git names it; "" for the merge base with main.

    Raises:
        ValueError: git knows no such commit, or the project is in no repository; or a file is no
            Python, so that nobody knows what it reaches.
    """
    if revision:
        base = _commit(revision, root)
        told = f"{revision} ({base[:9]})" if base is not None else ""
    else:
        # On main itself, compare with what `origin` has: every commit of main is in main.
        on_main = _git(root, "symbolic-ref", "--quiet", "HEAD") == _MAIN
        mains = (_SHARED, _MAIN) if on_main else (_MAIN, _SHARED)
        base = next(filter(None, (_git(root, "merge-base", "HEAD", name) for name in mains)), None)
        told = f"{base[:9]}, the merge base with main" if base is not None else ""
    if base is None:
        code, told = _ran(root, "rev-parse", "--git-dir")
        if code != 0:
            raise ValueError(f"--changed: {root}, expected a git repository: {told}")
        short = _git(root, "rev-parse", "--is-shallow-repository") == "true"
        more = "; the clone is shallow, try: git fetch --unshallow origin main:main"
        if revision:
            what = f"{revision!r}, expected a commit; files to test are named before it"
        else:
            what = "HEAD has no commit in common with 'main', expected --changed=REV"
        raise ValueError(f"--changed: {what}{more if short else ''}")
    names: set[str] = set()
    for listing in (
        ("diff", "--name-only", "--no-renames", "--relative", "-z", base),
        ("ls-files", "--others", "--exclude-standard", "-z"),
    ):
        code, listed = _ran(root, *listing)
        if code != 0:
            raise ValueError(f"--changed: git {listing[0]} in {root}: {listed}")
        names.update(filter(None, listed.split("\0")))
    for name in sorted(names):
        _expect_python(root, name)
    return told, tuple(sorted(names))


def _expect_python(root: Path, name: str) -> None:
    if not name.endswith(".py") or not (root / name).is_file():
        return
    try:
        ast.parse((root / name).read_text(encoding="utf-8"), name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # The last two for expressions that are nested too deep.
        raise ValueError(
            f"--changed: {name}, expected Python: {str(error) or type(error).__name__}"
        ) from error


def _commit(revision: str, root: Path) -> str | None:
    return _git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )


def _git(root: Path, *arguments: str) -> str | None:
    code, told = _ran(root, *arguments)
    return told if code == 0 else None


def _ran(root: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of git, and its output or the last line of its error."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    try:
        # The name of a file need not be text.
        ran = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            env=environment,
        )
    except OSError as error:
        return -1, f"git: {error.strerror}; install git, or run the tests without --changed"
    if ran.returncode != 0:
        return ran.returncode, (ran.stderr.strip().splitlines() or [""])[0]
    return 0, ran.stdout.strip("\n")
