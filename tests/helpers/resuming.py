"""The flow behind the deployment `resume` in a process of its own: parameters in, how it ended out."""

import json
import subprocess
import sys
from typing import Any

from flows.resume import resume
from tests.helpers.commands import ROOT, RUN_SECONDS, Runner


def resume_by_flow(runner: Runner, **parameters: Any) -> "subprocess.CompletedProcess[str]":
    """Resume the runner's run; the flow run's last message is on stdout, and the exit code 0 if it completed."""
    given = {"store": str(runner.settings["store"]), "run": str(runner.settings["run"]), **parameters}
    line = [sys.executable, "-m", "tests.helpers.resuming", json.dumps(given)]
    environment = dict(runner.environment)
    return subprocess.run(line, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS)


def main() -> None:
    """What the process does."""
    state = resume(**json.loads(sys.argv[1]), return_state=True)
    print(state.message)
    sys.exit(0 if state.is_completed() else 1)


if __name__ == "__main__":
    main()
