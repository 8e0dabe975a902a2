"""Which Holdfast a process is: a hash that follows from the code alone, and the commit, read without git."""

import subprocess
import sys
from pathlib import Path

import pytest

from storage.runs.code_version import (
    PACKAGES,
    ROOT,
    CodeVersion,
    find_commit,
    hash_code,
    own_version,
    tell_apart,
)

COMMIT, OTHER_COMMIT = "a" * 40, "b" * 40


def make_code(root: Path, text: bytes = b"x = 1\n") -> Path:
    for package in PACKAGES:
        (root / package / "inner").mkdir(parents=True)
        (root / package / "inner" / "module.py").write_bytes(text)
    return root


def test_two_copies_of_one_code_have_one_hash_whatever_lies_beside_it(tmp_path: Path) -> None:
    one, two = make_code(tmp_path / "one"), make_code(tmp_path / "two")
    (two / "tests").mkdir()
    (two / "tests" / "test_x.py").write_bytes(b"not ours to hash")
    (two / "tasks" / "inner" / "module.cpython-311.pyc").write_bytes(b"compiled")
    assert hash_code(one) == hash_code(two)


def test_a_changed_an_added_and_a_renamed_file_are_other_code(tmp_path: Path) -> None:
    hashes = {hash_code(make_code(tmp_path / "one")), hash_code(make_code(tmp_path / "bytes", b"x = 2\n"))}
    added, renamed = make_code(tmp_path / "added"), make_code(tmp_path / "renamed")
    (added / "training" / "__init__.py").touch()
    (renamed / "training" / "inner" / "module.py").rename(renamed / "training" / "inner" / "other.py")
    assert len(hashes | {hash_code(added), hash_code(renamed)}) == 4


def test_all_processes_of_one_code_have_the_same_version() -> None:
    line = "from storage.runs.code_version import own_version; print(own_version().model_dump_json())"
    printed = subprocess.run([sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert CodeVersion.model_validate_json(printed) == own_version()
    assert own_version() is own_version()


def test_the_packages_are_those_that_are_installed() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert set(PACKAGES) == folders


def test_the_commit_is_that_of_a_branch_a_packed_one_or_none_at_all(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    assert find_commit(tmp_path) is None
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert find_commit(tmp_path) is None  # nothing is committed yet
    (git / "packed-refs").write_text(
        f"# pack-refs with: peeled\n{OTHER_COMMIT} refs/heads/other\n{COMMIT} refs/heads/main\n"
    )
    assert find_commit(tmp_path) == COMMIT
    (git / "refs" / "heads" / "main").write_text(f"{OTHER_COMMIT}\n")
    assert find_commit(tmp_path) == OTHER_COMMIT
    (git / "HEAD").write_text(f"{COMMIT}\n")
    assert find_commit(tmp_path) == COMMIT


def test_the_commit_of_a_worktree_is_found_in_the_folder_that_it_shares(tmp_path: Path) -> None:
    shared = tmp_path / "main" / ".git"
    own = shared / "worktrees" / "one"
    (shared / "refs" / "heads").mkdir(parents=True)
    own.mkdir(parents=True)
    (shared / "HEAD").write_text("ref: refs/heads/main\n")
    (shared / "refs" / "heads" / "main").write_text(f"{OTHER_COMMIT}\n")
    (shared / "refs" / "heads" / "one").write_text(f"{COMMIT}\n")
    (own / "HEAD").write_text("ref: refs/heads/one\n")
    (own / "commondir").write_text("../..\n")
    tree = tmp_path / "one"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert find_commit(tree) == COMMIT


@pytest.mark.parametrize("commit", [None, OTHER_COMMIT])
def test_another_code_is_told_and_another_commit_or_version_of_the_same_code_is_not(commit: str | None) -> None:
    before = CodeVersion(version="0.1.0", commit=COMMIT, code_sha256="1" * 64)
    now = CodeVersion(version="0.2.0", commit=commit, code_sha256="2" * 64)
    words = "0.2.0 (code 222222222222)" if commit is None else "0.2.0 (commit bbbbbbbbbbbb, code 222222222222)"
    assert tell_apart(before, now) == ("0.1.0 (commit aaaaaaaaaaaa, code 111111111111)", words)
    assert tell_apart(before, now.model_copy(update={"code_sha256": "1" * 64})) is None
    assert tell_apart(None, now) is None and tell_apart(before, None) is None
