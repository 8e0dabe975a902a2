"""Kills for want of memory are counted where the kernel counts them, and nothing is claimed elsewhere."""

from pathlib import Path

from training.agents.memory import OutOfMemoryKills


def test_a_kill_since_the_last_look_is_seen_once(tmp_path: Path) -> None:
    own, group = tmp_path / "cgroup", tmp_path / "groups" / "a" / "b"
    group.mkdir(parents=True)
    own.write_text("12:cpu:/elsewhere\n0::/a/b\n")
    (group / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    kills = OutOfMemoryKills(tmp_path / "groups", own)
    assert not kills.has_grown()
    (group / "memory.events").write_text("low 0\noom 4\noom_kill 3\n")
    assert kills.has_grown() and not kills.has_grown()


def test_where_nothing_can_be_read_nothing_is_claimed(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    assert not OutOfMemoryKills(tmp_path, own).has_grown()
    own.write_text("12:memory:/old\n")
    assert not OutOfMemoryKills(tmp_path, own).has_grown()
    own.write_text("0::/\n")
    assert not OutOfMemoryKills(tmp_path, own).has_grown()
