"""Whether the kernel has killed a process of this one's control group since it had no memory left.

Invariant: what cannot be read is not claimed: without control groups of version 2, or in a group whose files are
hidden, nothing is known.
"""

from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


class OutOfMemoryKills:
    """Counts the out-of-memory kills of the group that this process is in."""

    def __init__(self, groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> None:
        self._file = _events_file(groups, own)
        self._seen = self._count()

    def has_grown(self) -> bool:
        """Whether there were any since the last look."""
        before, self._seen = self._seen, self._count()
        return self._seen > before

    def _count(self) -> int:
        try:
            lines = self._file.read_text().splitlines() if self._file is not None else []
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _events_file(groups: Path, own: Path) -> Path | None:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    found = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return groups / found[0].lstrip("/") / "memory.events" if found else None
