"""Whether the kernel has killed a process of this one's control group since it had no memory left.

Both versions of control groups count that: cgroups(7), and the kernel's `admin-guide/cgroup-v2.rst` and
`cgroup-v1/memory.rst`. Invariant: what cannot be read is not claimed: of a group whose files are hidden nothing is
known.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# By the type of the file system: which file of a group has the count.
COUNTS = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}


class OutOfMemoryKills:
    """Counts the out-of-memory kills of the group that this process is in."""

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._files = _files_with_counts(process)
        self._seen = self._count()

    def has_grown(self) -> bool:
        """Whether there were any since the last look."""
        before, self._seen = self._seen, self._count()
        return self._seen > before

    def _count(self) -> int:
        return sum(_count(file) for file in self._files)


def _count(file: Path) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _files_with_counts(process: Path) -> list[Path]:
    """One at most of a machine with either version, and of one with both that which has the memory."""
    try:
        groups = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    own = dict(_own_groups(groups))
    found = []
    for line in mounts:
        version, root, place = _mounted(line)
        # In a container a part of the groups is mounted, and this process's group stands below that part, or is it.
        if version in own and own[version].is_relative_to(root):
            found.append(place / own[version].relative_to(root) / COUNTS[version])
    return found


def _own_groups(lines: list[str]) -> Iterator[tuple[str, PurePosixPath]]:
    """The group that has this process's memory, by the type of its file system: lines `number:controllers:path`."""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield "cgroup2", PurePosixPath(path)
        elif "memory" in controllers.split(","):
            yield "cgroup", PurePosixPath(path)


def _mounted(line: str) -> tuple[str, str, Path]:
    """What is mounted, by proc_pid_mountinfo(5): its type, "" where it can have no count; of it which folder; where."""
    mount, _, what = line.partition(" - ")
    root, place = mount.split()[3:5]
    file_system, _, options = what.split(maxsplit=2)
    has_memory = file_system == "cgroup2" or (file_system == "cgroup" and "memory" in options.split(","))
    return file_system if has_memory else "", root, Path(place)
