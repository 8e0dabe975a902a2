"""Which folders and jobs that a file in the store names are ours, so that they may be removed or ended.

Whoever may write to a store can name any folder and any job there. Invariant: a folder is ours if it has a name that
`running.launch` gives, at its place below a scratch folder, and is reached through no link below that.
"""

import re
from pathlib import Path

FOLDER_NAME = re.compile(r"(?:evaluation-)?(\d{8,})")  # as `launch` names the folders of leases


def why_not_own(folder: Path, scratch: Path) -> str | None:
    """Why a folder is not that of a segment in the scratch folder of its run, SCRATCH/runs/RUN; None if it is."""
    if FOLDER_NAME.fullmatch(folder.name) is None:
        return "its name is not that of a segment's folder"
    if folder.parent.resolve() != scratch.resolve():
        return f"it is not in the run's scratch folder {scratch}"
    if any(path.is_symlink() for path in (scratch / folder.name, scratch, scratch.parent)):
        return "it is reached through a symbolic link"
    return None
