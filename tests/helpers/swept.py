"""What has to be gone when a block is left, also where this process is killed within it.

Invariant: whoever sweeps is told by a name alone, so that another process can do it: there is no state to hand over.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def swept_behind(sweep: Callable[[str], None], name: str) -> Iterator[None]:
    """Call `sweep(name)`, a function of a module, when the block is left, or when this process is gone.

    A watcher sees its standard input end then; it is in a session of its own, as a signal to this process's group must
    not reach it.
    """
    watch = f"import sys; sys.stdin.read(); from {sweep.__module__} import {sweep.__name__} as f; f(sys.argv[1])"
    watcher = subprocess.Popen(
        [sys.executable, "-c", watch, name], cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        sweep(name)
        watcher.kill()
        watcher.communicate()
