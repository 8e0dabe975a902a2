"""The command `holdfast`, as the installation names it: it works also where PYTHONPATH has a user's own folders."""

from flows.cli import main

__all__ = ["main"]
