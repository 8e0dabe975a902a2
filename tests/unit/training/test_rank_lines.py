"""Whose line it is stands in front of it, also where several ranks print at once."""

import io
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest

from training.metrics.rank_lines import RankLines, prefix_of

NUM_LINES = 2000
# Each part in a call of its own, as `print` writes a text and the end of its line.
PRINTING = f"""
import sys
from training.metrics.rank_lines import name_own_lines

name_own_lines(int(sys.argv[1]))
for number in range({NUM_LINES}):
    print("line", number, sys.argv[1] * 50)
print("an error", file=sys.stderr)
"""


def printed(stream: RankLines) -> str:
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode()


@pytest.fixture
def stream() -> RankLines:
    return RankLines(3, io.TextIOWrapper(io.BytesIO()))


def test_every_line_has_the_rank_in_front_of_it(stream: RankLines) -> None:
    print("one", "two\nthree", file=stream)
    print(file=stream)
    assert printed(stream) == "[rank3]: one two\n[rank3]: three\n[rank3]: \n"


def test_a_line_is_written_when_it_ends_or_when_it_is_to_be_seen(stream: RankLines) -> None:
    print("begun", end="", file=stream)
    assert printed(stream) == ""
    print(" and ended", file=stream)
    print("last", end="", flush=True, file=stream)
    assert printed(stream) == "[rank3]: begun and ended\n[rank3]: last\n"


def test_a_line_for_which_the_disk_has_no_space_is_left_out() -> None:
    command = [sys.executable, "-u", "-c", PRINTING + "sys.exit(7)", "1"]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stdout=full, stderr=full, check=False).returncode == 7


def test_a_traceback_and_text_that_no_encoding_has_are_printed_all_the_same(stream: RankLines) -> None:
    try:
        raise ValueError("\ud800")
    except ValueError:
        traceback.print_exc(file=stream)
    lines = printed(stream).splitlines()
    assert lines[0] == "[rank3]: Traceback (most recent call last):"
    assert all(line.startswith("[rank3]: ") for line in lines) and lines[-1] == "[rank3]: ValueError: \\ud800"


def test_lines_of_two_threads_are_all_there(stream: RankLines) -> None:
    threads = [threading.Thread(target=lambda: [stream.write(f"{'x' * 20}\n") for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert printed(stream) == f"[rank3]: {'x' * 20}\n" * 2000


def test_lines_of_ranks_that_print_into_one_log_at_once_do_not_mix(tmp_path: Path) -> None:
    log = tmp_path / "ranks.log"
    with log.open("ab") as file:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PRINTING, str(rank)],
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
            )
            for rank in (0, 1)
        ]
        assert [rank.wait(60) for rank in ranks] == [0, 0]
    lines = log.read_text().splitlines()
    for rank in (0, 1):
        own = [line for line in lines if line.startswith(prefix_of(rank))]
        whole = [f"[rank{rank}]: line {number} {str(rank) * 50}" for number in range(NUM_LINES)]
        assert own == [*whole, f"[rank{rank}]: an error"]
    assert len(lines) == 2 * (NUM_LINES + 1)
