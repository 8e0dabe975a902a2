"""What `ps` shows of a rank."""

import subprocess
import sys
from pathlib import Path

import psutil

from tests.helpers.fault_plans import ROOT

NAME = "import sys; from training.titles import name_process; name_process(sys.argv[1], sys.argv[2])\n"


def test_a_process_is_shown_by_its_title_and_the_title_stays_within_its_arguments() -> None:
    code = NAME + "import os; print(os.environ['MARK'], flush=True); input()"
    for title, shown in (("holdfast rank 3 /scratch", "holdfast rank 3 /scratch"), ("x" * 10_000, "x" * 100)):
        command = [sys.executable, "-c", code, "hf-rank-3", title[:200]]
        with subprocess.Popen(
            command, cwd=ROOT, env={"MARK": "kept"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == "kept\n"
            assert psutil.Process(process.pid).cmdline()[0].startswith(shown)
            assert Path(f"/proc/{process.pid}/comm").read_text() == "hf-rank-3\n"
            process.communicate("\n")
