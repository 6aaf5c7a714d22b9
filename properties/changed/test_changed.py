"""A change reaches every check that ever noticed an edit of its files, and little else."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from properties import ROOT, session
from properties.cases.case import Case
from properties.catalogue import OPS
from properties.catalogue.op import Op
from properties.changed import Changed, files_since
from properties.changed.reach import named_in
from properties.changed.uses import names_of_tests
from properties.mutants import killers
from properties.mutants.mutant import modules
from properties.planting.closure import path_of
from properties.planting.edit import Edit
from properties.planting.op_modules import OpModules
from properties.planting.trial import LawAbout, Pinned, TestAt, pinned_of
from properties.targets import load

_LAWS = ROOT / "properties" / "suite" / "test_laws.py"
_WITH_KERNELS = [op for op in OPS.values() if op.modes]
# A file that no test names.
_UNREAD = next(ROOT.glob("LICEN*")).name
Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Git in a new repository with two commits on main and one on a branch."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]

    def run(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), *author, *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment
        ).stdout.strip()

    run("init", "--quiet", "--initial-branch=main")
    (tmp_path / ".gitignore").write_text("ignored\n")
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
        run("add", "-A")
        run("commit", "--quiet", "-m", name)
    run("checkout", "--quiet", "-b", "branch")
    (tmp_path / "committed").write_text("")
    run("add", "-A")
    run("commit", "--quiet", "-m", "committed")
    return run


def test_committed_uncommitted_untracked_and_deleted_files_count(git: Git, tmp_path: Path) -> None:
    (tmp_path / "first").unlink()
    (tmp_path / "staged in\nits folder").write_text("")
    git("add", "-A")
    (tmp_path / "second").write_text("edited")
    (tmp_path / "ignored").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "untracked").write_text("")
    here = ("first", "folder/untracked", "second", "staged in\nits folder")
    since, files = files_since("", tmp_path)
    assert files == ("committed", *here)
    assert since == f"{git('rev-parse', 'main')[:9]}, the merge base with main"
    assert files_since("HEAD", tmp_path)[1] == here
    assert "second" in files_since("main~1", tmp_path)[1]


def test_later_commits_on_main_are_no_change(git: Git, tmp_path: Path) -> None:
    git("checkout", "--quiet", "main")
    (tmp_path / "third").write_text("")
    git("add", "-A")
    git("commit", "--quiet", "-m", "third")
    git("checkout", "--quiet", "branch")
    assert files_since("", tmp_path)[1] == ("committed",)
    assert files_since("main", tmp_path)[1] == ("committed", "third")


def test_commits_on_main_that_are_not_shared_yet_count(git: Git, tmp_path: Path) -> None:
    git("checkout", "--quiet", "main")
    assert files_since("", tmp_path)[1] == ()
    git("update-ref", "refs/remotes/origin/main", "main~1")
    assert files_since("", tmp_path)[1] == ("second",)
    # A branch may begin at commits that are not shared.
    git("checkout", "--quiet", "branch")
    assert files_since("", tmp_path)[1] == ("committed",)


def test_a_project_may_lie_below_its_repository(git: Git, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("")
    assert files_since("", tmp_path / "folder")[1] == ("file",)
    git("add", "-A")
    assert files_since("", tmp_path / "folder")[1] == ("file",)


@pytest.mark.parametrize("revision", ["nosuch", "kernels", "--all", "main..branch"])
def test_an_unknown_commit_is_rejected(revision: str, git: Git, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^--changed: '{revision}', expected a commit"):
        files_since(revision, tmp_path)


def test_without_a_main_branch_a_commit_must_be_named(git: Git, tmp_path: Path) -> None:
    git("branch", "--quiet", "-D", "main")
    with pytest.raises(ValueError, match=r"^--changed: HEAD has no commit .* 'main'"):
        files_since("", tmp_path)


def test_a_folder_without_git_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a git repository: fatal: not a git repos"):
        files_since("", tmp_path)


def test_what_git_refuses_is_told(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git" / "config").write_text("[broken")
    with pytest.raises(ValueError, match=r"expected a git repository: fatal: bad config"):
        files_since("", tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"git repository: git: No such file .*; install git"):
        files_since("", tmp_path)


def test_a_broken_index_is_told(git: Git, tmp_path: Path) -> None:
    (tmp_path / ".git" / "index").write_text("broken")
    with pytest.raises(ValueError, match=r"--changed: git diff in .*: (error|fatal): .*index"):
        files_since("", tmp_path)


def test_a_shallow_clone_says_so(git: Git, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git("clone", "--quiet", "--depth=1", "--branch=branch", f"file://{tmp_path}", str(clone))
    for revision in ("", "main~1"):
        with pytest.raises(ValueError, match="the clone is shallow, try: git fetch --unshallow"):
            files_since(revision, clone)


def test_a_name_that_is_no_text_counts(git: Git, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"bad\xff.py")).write_text("")
    assert files_since("HEAD", tmp_path)[1] == (r"bad\xff.py",)


def test_a_tag_named_main_is_not_the_branch(git: Git, tmp_path: Path) -> None:
    git("tag", "main")
    assert files_since("", tmp_path)[1] == ("committed",)


def test_what_git_tells_its_hooks_is_not_used(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, "elsewhere")
    assert files_since("", tmp_path)[1] == ("committed",)


@pytest.mark.parametrize("text", [b"def (", b"# \xe9\n", b"x = " + b"a." * 100_000 + b"a"])
def test_a_file_that_is_no_python_is_named(text: bytes, git: Git, tmp_path: Path) -> None:
    (tmp_path / "test_new.py").write_bytes(text)
    with pytest.raises(ValueError, match=r"^--changed: test_new.py, expected Python: "):
        files_since("", tmp_path)


def _file(module: str) -> str:
    path = path_of(module)
    assert path is not None
    return path.relative_to(ROOT).as_posix()


def _reached(file: str, check: Pinned) -> bool:
    """Whether a change of a file selects the item of a check."""
    changed = Changed("", (file,))
    if isinstance(check, LawAbout):
        return changed.reaches(_LAWS, "test_law_holds", [check.case.op, check.law])
    path, _, test = check.node.partition("::")
    name, _, values = test.partition("[")
    return changed.reaches(ROOT / path, name, named_in(values))


@cache
def _seen() -> dict[str, set[str]]:
    """Module → the checks that failed from an edit of it."""
    found: dict[str, set[str]] = {}
    known = killers.joined(killers.read(), killers.read(killers.SEMANTIC_PATH))
    for function, checks in known.items():
        module = function
        while path_of(module) is None:
            module = module.rpartition(".")[0]
        found.setdefault(module, set()).update(checks)
    return found


@pytest.mark.parametrize("module", sorted(_seen()))
def test_every_recorded_killer_of_an_edit_is_reached(module: str) -> None:
    assert _seen()[module]
    missed = [text for text in _seen()[module] if not _reached(_file(module), pinned_of(text))]
    assert missed == []


def _ops(*files: str) -> set[str]:
    changed = Changed("", files)
    return {op.name for op in _WITH_KERNELS if changed.reaches(_LAWS, "test_law_holds", [op.name])}


@pytest.mark.parametrize("op", _WITH_KERNELS, ids=lambda op: op.name)
def test_the_modules_of_an_op_reach_its_laws(op: Op) -> None:
    """Mutants plant their edits in the same modules."""
    assert load("ours", torch.device("cpu")).function(op).__module__ in OpModules.of(op).kernels
    modules = OpModules.of(op)
    assert all(op.name in _ops(_file(one)) for one in (*modules.modules, modules.declaration))


def _wrapped(name: str) -> set[str]:
    return {name, *(op.name for op in OPS.values() if op.wraps == name)}


def test_a_kernel_reaches_only_the_laws_of_ops_that_call_it() -> None:
    assert _ops("kernels/linear/gla.py") == _wrapped("gla") | {"gated_oja_rule"}
    assert _ops("kernels/linear/simple_gla.py") == _wrapped("simple_gla")
    assert _ops("kernels/delta/dplr.py") == _wrapped("dplr")
    assert _ops("kernels/softmax/backward.py") == {
        "attention", "differential_attention", "mla", "nsa", "wall_attn",
    }  # fmt: skip
    assert _ops("reference/softmax/attention.py") == {"attention", "differential_attention"}
    reached = {name: _ops(_file(name)) for name, _ in modules(["kernels"])}
    for op in _WITH_KERNELS:
        far = reached.keys() - OpModules.of(op).kernels
        assert not any(op.name in reached[module] for module in far)


def test_laws_budgets_and_strategies_reach_every_op() -> None:
    for file in (
        "laws/expect.py",
        "verdict/budgets.py",
        "cases/strategies.py",
        "simulator/memory.py",
    ):
        assert _ops(f"properties/{file}") == {op.name for op in _WITH_KERNELS}


def _law_holds(file: str, op: str, law: str) -> bool:
    return Changed("", (file,)).reaches(_LAWS, "test_law_holds", [op, law])


def test_a_law_reaches_itself_alone() -> None:
    assert _law_holds("properties/laws/packing.py", "gla", "packing")
    assert not _law_holds("properties/laws/packing.py", "gla", "determinism")


def test_an_op_is_reached_by_itself_or_through_others() -> None:
    shared = Changed("", ("kernels/linear/hgrn.py",))
    assert [op for op in ("hgrn", "mlstm", "lightnet") if shared.is_of_others(op)] == [
        "mlstm",
        "lightnet",
    ]
    assert not Changed("", ("kernels/linear/mlstm.py", *shared.files)).is_of_others("mlstm")
    assert not Changed("", ("kernels/primitives/layout.py",)).is_of_others("mlstm")
    assert not Changed("", ("reference/linear/hgrn.py",)).is_of_others("hgrn")
    # A file that no kernel and no oracle imports belongs to all ops.
    assert not Changed("", ("properties/laws/packing.py",)).is_of_others("mlstm")


def _reaches(file: str, node: str, *parameters: object) -> bool:
    path, _, test = node.partition("::")
    return Changed("", (file,)).reaches(ROOT / path, test, parameters)


def test_a_test_of_a_tool_is_reached_by_the_ops_that_it_is_marked_with() -> None:
    runs = "properties/fuzz/test_faults.py::test_an_exit_of_python_is_reported"
    assert _reaches("kernels/norm/l2norm.py", runs)
    assert _reaches("properties/laws/differential.py", runs)
    assert not _reaches("kernels/softmax/forward.py", runs)


def test_a_test_beside_kernels_is_reached_by_the_ops_that_it_imports() -> None:
    saves = "kernels/delta/test_rule.py::test_saved_systems_change_no_bit"
    assert _reaches("kernels/delta/delta_rule.py", saves)
    assert _reaches("kernels/primitives/triangular.py", saves)
    assert not _reaches("kernels/linear/hgrn.py", saves)
    # One that imports no op runs for all.
    none = "kernels/test_op.py::test_none_in_the_place_of_a_tensor_is_refused"
    assert _reaches("kernels/linear/hgrn.py", none)


@pytest.mark.parametrize(
    "test",
    [
        "suite/test_first_calls.py::test_calls_with_gradients_are_right_after_first_calls_without",
        "suite/test_library.py::test_every_registered_op_is_called_by_some_case",
        "simulator/test_engines.py::test_another_engine_agrees_on_an_op",
    ],
)
def test_a_kernel_reaches_its_part_of_a_test_of_all_ops(test: str) -> None:
    node = f"properties/{test}"
    assert test.partition("::")[2] in names_of_tests(ROOT / node.partition("::")[0])
    assert _reaches("kernels/linear/gla.py", node, "gla")
    assert not _reaches("kernels/linear/gla.py", node, "attention")
    assert _reaches("properties/cases/tensors.py", node, "attention")


def test_a_test_whose_code_names_ops_is_reached_by_their_kernels() -> None:
    tiles = "properties/suite/test_attention_tiles.py::test_sums_over_tiles_keep_their_bits"
    assert _reaches("kernels/softmax/forward.py", tiles)
    assert not _reaches("kernels/softmax/stickbreaking.py", tiles)
    timed = "kernels/bench/test_baselines.py::test_every_form_can_be_called_and_modes_agree_in_it"
    assert _reaches("kernels/linear/gla.py", timed, "gla")
    assert not _reaches("kernels/softmax/stickbreaking.py", timed, "gla")


def test_a_test_that_names_another_target_is_not_reached_by_ours() -> None:
    flipped = "properties/selftest/test_oracles_notice.py::test_flipped_sign_is_noticed"
    assert _reaches("reference/linear/gla.py", flipped)
    assert not _reaches("kernels/linear/gla.py", flipped)
    # It asks for the target under test.
    pinned = "regressions/test_regressions.py::test_case_catches_the_planted_bug"
    assert _reaches("kernels/linear/gla.py", pinned, "oracle")


def test_a_test_is_reached_through_the_names_it_uses() -> None:
    file = "properties/mutants/test_hunt.py"
    kills = f"{file}::test_a_wrong_sign_is_killed_by_a_law_that_looks_at_results"
    malformed = f"{file}::test_a_malformed_list_is_refused"
    assert _reaches("properties/planting/fork_pool.py", kills)
    assert _reaches("properties/mutants/equivalents.py", malformed)
    assert not _reaches("properties/planting/fork_pool.py", malformed)
    # Its fixture makes mutants of that file and names it in a string.
    assert _reaches("kernels/position/rotary.py", kills)
    assert all(_reaches(file, node) for node in (kills, malformed))


def test_a_test_of_one_op_is_reached_by_the_modules_of_that_op() -> None:
    agree = "properties/selftest/test_oracles.py::test_second_form_agrees_with_the_first_in_float64"
    assert agree.partition("::")[2] in names_of_tests(
        ROOT / "properties" / "selftest" / "test_oracles.py"
    )
    assert _reaches("reference/linear/gla.py", agree, OPS["gla"])
    assert not _reaches("reference/linear/gla.py", agree, OPS["attention"])
    # Nothing says of which op.
    assert _reaches("reference/linear/gla.py", agree)
    assert not _reaches("kernels/linear/gla.py", agree)


@dataclass(frozen=True)
class _Bug:
    pinned: Pinned
    planted: Edit


def test_a_pinned_bug_is_reached_by_its_case_its_test_and_what_it_edits() -> None:
    node = "regressions/test_regressions.py::test_case_passes_today"
    edit = Edit("kernels.position.rotary", "a", "b")
    case = Case(op="l2norm", mode="fused", dtype="float32", dims={}, lengths=())
    beside = TestAt("kernels/softmax/test_logits.py::test_it")
    bugs = [
        _Bug(LawAbout("packing", case), edit),
        _Bug(beside, edit),
    ]
    each = {
        "kernels/position/rotary.py": [True, True],
        "properties/laws/packing.py": [True, False],
        "properties/laws/splitting.py": [False, False],
        "kernels/norm/l2norm.py": [True, False],
        "kernels/softmax/logits.py": [False, True],
        "kernels/delta/kda.py": [False, False],
    }
    assert each == {file: [_reaches(file, node, bug) for bug in bugs] for file in each}


def test_documents_and_data_reach_tests_that_name_them() -> None:
    current = "properties/selftest/test_readme.py::test_table_of_ops_is_current"
    assert _reaches("properties/README.md", current)
    assert _reaches("properties/mutants/triggers.json", current)
    assert not _reaches("CHANGELOG.md", current)
    assert not any(map(_ops, ("README.md", "CONTRIBUTING.md", _UNREAD)))
    assert _reaches("properties/verdict/worst.json", "properties/verdict/test_worst.py::test_any")


def test_files_that_affect_every_test_reach_every_test() -> None:
    for file in ("conftest.py", "pyproject.toml", "constraints.txt"):
        assert _reaches(file, "reference/test_scale.py::test_any")
    assert _reaches("kernels/bench/conftest.py", "kernels/bench/test_table.py::test_any")
    assert not _reaches("kernels/bench/conftest.py", "reference/test_scale.py::test_any")


def test_a_package_runs_if_one_of_its_modules_runs() -> None:
    assert _ops("kernels/norm/__init__.py") >= {"l2norm"}
    assert "attention" not in _ops("kernels/norm/__init__.py")


@pytest.mark.parametrize("file", ["regressions/nosuch.py", "regressions/softmax/nosuch.py"])
def test_files_that_nothing_names_reach_the_nearest_tests(file: str) -> None:
    assert _reaches(file, "regressions/test_regressions.py::test_case_passes_today")
    assert not _reaches(file, "properties/suite/test_laws.py::test_law_holds")


@pytest.mark.parametrize("file", ["properties/nosuch.py", "properties/cases/nosuch/nosuch.py"])
def test_files_that_no_tests_lie_beside_reach_those_below(file: str) -> None:
    assert _reaches(file, "properties/suite/test_laws.py::test_law_holds")
    assert not _reaches(file, "regressions/test_regressions.py::test_case_passes_today")


def test_the_header_says_what_each_file_reaches() -> None:
    files = (_UNREAD, "kernels/linear/gla.py", "properties/cases/strategies.py", "pyproject.toml")
    told = Changed("main", files).header()
    assert told[0] == "changed since main: 4 files"
    assert told[1] == f"  {_UNREAD} -> nothing"
    assert re.fullmatch(r"  kernels/linear/gla.py -> laws of gla, .*; tests in \d+ files", told[2])
    assert told[3].startswith(
        f"  properties/cases/strategies.py -> laws of all {len(_WITH_KERNELS)} ops; tests in"
    )
    assert told[4] == "  pyproject.toml -> every test"
    assert Changed("main", ()).header() == ["changed since main: 0 files"]


_SOME = ("properties/suite/test_laws.py", "reference/test_scale.py", "kernels/norm/")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with some of its tests in a repository of its own, with an edited kernel.

    To tell what a file reaches, every test is read, which takes as long as all else here.
    """
    folder = tmp_path_factory.mktemp("project")
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others"]
    names = subprocess.run(
        [*listed, "--exclude-standard"], check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        left_out = Path(name).name.startswith("test_") and not name.startswith(_SOME)
        if (ROOT / name).is_file() and not left_out:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(folder), *author, *command], check=True)
    kernel = folder / "kernels" / "linear" / "gla.py"
    kernel.write_text(kernel.read_text() + "\n# edited\n")
    return folder


def _pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    options = ["-p", "no:cacheprovider", "--device", "simulator", *arguments]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=folder, capture_output=True, text=True
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.ops("gla")
def test_pytest_combines_changed_with_other_options(copy: Path) -> None:
    code, told = _pytest(
        copy, *_SOME, "--collect-only", "-k", "packing or scale", "--op", "gla", "--changed"
    )
    assert code == 0, told
    assert "the merge base with main: 1 file" in told
    assert "kernels/linear/gla.py -> laws of gla" in told
    chosen = re.findall(r"<Function (\S+)>", told)
    assert chosen
    assert all(re.match(r"test_law_holds\[gla-\w+-(packing|scale_equivariance)", n) for n in chosen)


@pytest.mark.ops("gla")
@pytest.mark.parametrize(
    ("target", "revision", "told"),
    [
        ("ours", "nosuch", "'nosuch', expected a commit"),
        ("mine:target", "", "target 'mine:target', expected one of a checkout of this suite"),
    ],
)
def test_pytest_rejects_an_unknown_commit_and_a_target_of_another_repository(
    target: str,
    revision: str,
    told: str,
    pytestconfig: pytest.Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mine.py").write_text("from properties.targets.oracle import target\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(pytestconfig.option, "oracles_target", target)
    monkeypatch.setattr(pytestconfig.option, "oracles_changed", revision)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    before = dict(os.environ)
    with pytest.raises(pytest.UsageError, match=f"^--changed: {told}"):
        session.pytest_configure(pytestconfig)
    assert dict(os.environ) == before


@pytest.mark.ops("gla")
def test_workers_leave_out_the_rest_and_no_test_is_no_failure(copy: Path) -> None:
    code, told = _pytest(copy, "reference/test_scale.py", "-n", "1", "--changed")
    assert code == 0, told
    assert "no tests ran" in told
