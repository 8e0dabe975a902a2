"""Which folders and jobs that a file in the store names are ours, so that they may be removed or ended.

A user who may write to a store can name any folder and any job there. Invariant: a folder is ours if it has a name that
`running.launch` gives, at its path below a scratch folder, and is reached through no link below that.
"""

import re
from pathlib import Path

FOLDER_NAME = re.compile(r"(?:evaluation-)?(\d{8,})")  # as `launch` names the folders of leases
RUNS = "runs"  # SCRATCH/runs/RUN/FENCE


def why_not_own(folder: Path, scratch: Path) -> str | None:
    """Why a folder is not that of a segment in the scratch folder of its run, SCRATCH/runs/RUN; None if it is."""
    if FOLDER_NAME.fullmatch(folder.name) is None:
        return "its name is not that of a segment's folder"
    if folder.parent.resolve() != scratch.resolve():
        return f"it is not in the run's scratch folder {scratch}"
    if any(path.is_symlink() for path in (scratch / folder.name, scratch, scratch.parent)):
        return "it is reached through a symbolic link"
    return None


def require_own_folder(folder: Path, run: str, fence: int) -> None:
    """Raise `ValueError` unless this is where ranks of the segment work: SCRATCH/runs/RUN/FENCE, through no link."""
    named = FOLDER_NAME.fullmatch(folder.name)
    is_placed = folder.is_absolute() and ".." not in folder.parts and folder.parts[-3:-1] == (RUNS, run)
    if named is None or int(named[1]) != fence or not is_placed:
        raise ValueError(
            f"the scratch folder of segment {fence} of run {run!r} is to be SCRATCH/{RUNS}/{run}/{fence:08d}, and the "
            f"segment's job.json in the store names {folder}"
        )
    linked = next((path for path in (folder, *folder.parents[:2]) if path.is_symlink()), None)
    if linked is not None:
        raise ValueError(f"the scratch folder {folder} of segment {fence} is reached through the link {linked}")
