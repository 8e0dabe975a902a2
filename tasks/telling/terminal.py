"""The one console: progress bars and messages share it, so that they do not write over each other."""

from rich.console import Console

console = Console(stderr=True, highlight=False)
