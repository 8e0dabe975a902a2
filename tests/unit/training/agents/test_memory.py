"""Kills for want of memory are counted where the kernel counts them, and nothing is claimed elsewhere.

With real groups and kills: `integration/test_ends_of_ranks.py`.
"""

from pathlib import Path

import pytest

from training.agents.memory import OutOfMemoryKills

NO_GROUPS = "22 1 0:20 / /proc rw,relatime - proc proc rw"


def describe(process: Path, groups: str, mounts: str) -> None:
    process.mkdir(exist_ok=True)
    (process / "cgroup").write_text(groups + "\n")
    (process / "mountinfo").write_text(f"{NO_GROUPS}\n{mounts}\n")


@pytest.mark.parametrize(
    ("groups", "mounted", "group", "name"),
    [
        ("12:cpu:/elsewhere\n0::/a/b", "/ {} rw shared:9 - cgroup2 cgroup2 rw,nsdelegate", "a/b", "memory.events"),
        ("0::/", "/ {} rw - cgroup2 cgroup rw", ".", "memory.events"),
        ("4:cpuset,memory:/a/b\n0::/", "/ {} rw - cgroup cgroup rw,cpuset,memory", "a/b", "memory.oom_control"),
        ("4:memory:/docker/c/d", "/docker/c {} ro master:1 - cgroup cgroup rw,memory", "d", "memory.oom_control"),
    ],
)
def test_a_kill_since_the_last_look_is_seen_once(
    groups: str, mounted: str, group: str, name: str, tmp_path: Path
) -> None:
    place = tmp_path / "groups"
    file = place / group / name
    file.parent.mkdir(parents=True)
    describe(tmp_path / "process", groups, f"35 31 0:32 {mounted.format(place)}")
    file.write_text("low 0\noom 3\noom_kill 2\n")
    kills = OutOfMemoryKills(tmp_path / "process")
    assert not kills.has_grown()
    file.write_text("low 0\noom 4\noom_kill 3\n")
    assert kills.has_grown() and not kills.has_grown()


def test_where_nothing_can_be_read_nothing_is_claimed(tmp_path: Path) -> None:
    process, place = tmp_path / "process", tmp_path / "groups"
    assert not OutOfMemoryKills(process).has_grown()
    describe(process, "4:memory:/a\n0::/a", NO_GROUPS)
    assert not OutOfMemoryKills(process).has_grown()
    describe(process, "0::/a", f"35 31 0:32 /other {place} rw - cgroup2 cgroup2 rw")
    assert not OutOfMemoryKills(process).has_grown()
    describe(process, "0::/a", f"35 31 0:32 / {place} rw - cgroup2 cgroup2 rw")
    assert not OutOfMemoryKills(process).has_grown()
