"""Files that differ from a commit, by git."""

import subprocess
from pathlib import Path

# Branches that work is merged into.
_MAIN = ("main", "origin/main")


def files_since(revision: str, root: Path) -> tuple[str, tuple[str, ...]]:
    """The commit in a few words, and the files below `root` that differ from it: committed,
    uncommitted, untracked and deleted ones.

    Args:
        revision: a commit as git names it; "" for the merge base with main.

    Raises:
        ValueError: git knows no such commit, or the project is in no repository.
    """
    if revision:
        base = _commit(revision, root)
        told = f"{revision} ({base[:9]})" if base is not None else ""
    else:
        base = next(filter(None, (_git(root, "merge-base", "HEAD", name) for name in _MAIN)), None)
        told = f"{base[:9]}, the merge base with main" if base is not None else ""
    if base is None:
        if _git(root, "rev-parse", "--git-dir") is None:
            raise ValueError(f"--changed: {root} is in no git repository, expected one")
        if revision:
            raise ValueError(
                f"--changed: {revision!r}, expected a commit; files to test are named before it"
            )
        raise ValueError(
            "--changed: HEAD has no commit in common with 'main', expected --changed=REV"
        )
    differing = _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", base)
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    assert differing is not None
    assert untracked is not None
    names = {name for name in (differing + "\0" + untracked).split("\0") if name}
    return told, tuple(sorted(names))


def _commit(revision: str, root: Path) -> str | None:
    return _git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    )


def _git(root: Path, *arguments: str) -> str | None:
    try:
        ran = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return ran.stdout.strip("\n") if ran.returncode == 0 else None
