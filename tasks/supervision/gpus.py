"""How many GPUs torch would find here.

Invariant: torch is asked, so that whatever hides a GPU from it counts; but in a process of its own, since loading it
takes seconds and much memory.
"""

import subprocess
import sys

QUESTION = "import torch; print(torch.cuda.device_count())"


def count_gpus() -> int:
    """0 where there is none, or where torch cannot be asked: the ranks will report what is wrong with it."""
    # -P: else Python would import from the current folder first, where a file of the user's may be called as a library.
    answer = subprocess.run([sys.executable, "-P", "-c", QUESTION], capture_output=True, text=True)
    last_line = answer.stdout.strip().rpartition("\n")[2]
    return int(last_line) if answer.returncode == 0 and last_line.isdecimal() else 0
