"""A process that is left one processor of a machine takes no more."""

import subprocess
import sys
from pathlib import Path

import psutil

from storage.processors import count_processors
from tests.helpers.commands import ROOT

COUNT = """
import sys
from pathlib import Path
import psutil
from storage.processors import count_processors
from tasks.data.database import open_database
psutil.Process().cpu_affinity([int(sys.argv[2])])
with open_database("1GiB", Path(sys.argv[1])) as connection:
    print(count_processors(), connection.execute("SELECT current_setting('threads')").fetchone()[0])
"""


def test_a_process_counts_those_that_it_is_left_and_so_do_its_databases(tmp_path: Path) -> None:
    left = psutil.Process().cpu_affinity()
    assert count_processors() == len(left)
    line = [sys.executable, "-c", COUNT, str(tmp_path), str(left[0])]
    assert subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "1 1\n"
