"""The command `holdfast`, as the installation names it: it works also where PYTHONPATH has a user's own folders."""

import holdfast.own_packages  # noqa: F401 - before all others: it decides which packages the next line imports
from flows.cli import main

__all__ = ["main"]
