"""Which Holdfast this is: version, git commit where it is a checkout, and a hash of the code itself.

Invariant: the hash follows from the files of our own packages alone, wherever they are installed, so two copies of one
code are one Holdfast. A commit says where the code is from; that nobody has changed it since, only the hash shows.
"""

import functools
import hashlib
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import Field

from storage.runs.run_records import Record

PACKAGES = ("flows", "holdfast", "storage", "tasks", "training")
ROOT = Path(__file__).parents[2]
SHOWN_CHARACTERS = 12
NAME = "Holdfast"


class CodeVersion(Record):
    """The Holdfast that a process runs."""

    version: str = Field(description="Of the installed package.")
    commit: str | None = Field(description="What is checked out; None: it is installed, and no checkout.")
    code_sha256: str = Field(description="Over the paths and bytes of all Python files of our packages.")

    def describe(self) -> str:
        """'0.1.0 (commit 04fb6cc9e2a1, code 5d41402abc4b)'."""
        commit = f"commit {self.commit[:SHOWN_CHARACTERS]}, " if self.commit is not None else ""
        return f"{self.version} ({commit}code {self.code_sha256[:SHOWN_CHARACTERS]})"


def tell_apart(before: CodeVersion | None, now: CodeVersion | None) -> tuple[str, str] | None:
    """Both in words where the code is another; None where it is the same, or one of them was not recorded."""
    if before is None or now is None or before.code_sha256 == now.code_sha256:
        return None
    return before.describe(), now.describe()


@functools.cache
def own_version() -> CodeVersion:
    """Of this process: read once, so that it stays what was there at the first call, whatever is installed later."""
    try:
        installed = version("holdfast")
    except PackageNotFoundError:  # run from its folder, without an installation
        installed = "unknown"
    return CodeVersion(version=installed, commit=find_commit(ROOT), code_sha256=hash_code(ROOT))


def hash_code(root: Path) -> str:
    """SHA-256 over the Python files of our packages in the folder `root`: path, size and bytes of each, by path."""
    found = [
        os.path.join(folder, name)  # noqa: PTH118 - hundreds of files, at the start of each process that trains
        for package in PACKAGES
        for folder, _, names in os.walk(root / package)
        for name in names
        if name.endswith(".py")
    ]
    digest = hashlib.sha256()
    for path, file in sorted((Path(file).relative_to(root).as_posix(), Path(file)) for file in found):
        data = file.read_bytes()
        digest.update(f"{path}\n{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def find_commit(root: Path) -> str | None:
    """The commit that is checked out in the folder `root`, from git's own files; None if it is no checkout of git's."""
    try:
        folder = _git_folder(root / ".git")
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        return _find_reference(folder, head.removeprefix("ref: "))
    except (OSError, UnicodeDecodeError):
        return None


def _git_folder(path: Path) -> Path:
    """A worktree has a file in its place, which names it."""
    if path.is_dir():
        return path
    named = path.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
    return path.parent / named


def _find_reference(folder: Path, name: str) -> str | None:
    """What a branch points to. Those of a worktree are in the folder that it shares with the others."""
    shared_name = folder / "commondir"
    shared = folder / shared_name.read_text(encoding="utf-8").strip() if shared_name.exists() else folder
    own = shared / name
    if own.exists():
        return own.read_text(encoding="utf-8").strip()
    for line in (shared / "packed-refs").read_text(encoding="utf-8").splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name:
            return commit
    return None
