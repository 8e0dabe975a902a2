"""Libraries that take seconds to load, loaded without a search for garbage among what they make.

Hardly anything of a module is garbage, and Python's collector looks through all of it time and again: with Prefect and
its server that is a sixth of the processor time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading_libraries() -> Iterator[None]:
    """A block in which libraries are loaded: Python's collector is off in this process, and then as it was before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
