"""What `make gpu` asks a GPU runs at all: here on the CPU, with the smallest model."""

import json
import subprocess
import sys

from tests.helpers.commands import ROOT


def test_a_step_of_a_synthetic_model_is_measured() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.gpu.step", "cpu", "tiny", "4", "exact", "eager"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    measured = json.loads(asked.stdout.splitlines()[-1])
    assert measured["tokens_per_second"] > 0 and len(measured["all_step_seconds"]) == 5
