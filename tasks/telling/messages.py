"""What happens meanwhile, on the terminal: the messages that tasks announce, above the progress bar.

Invariant: stderr alone; stdout is for results.
"""

import logging

from rich.logging import RichHandler

from tasks.telling.terminal import console


def show_messages() -> None:
    """From now on."""
    # Its modules set levels of their own, and Prefect's handler prints whatever reaches the root.
    logging.getLogger("great_expectations").propagate = False
    handler = RichHandler(console=console, show_path=False, show_level=False, markup=False, log_time_format="[%X]")
    logger = logging.getLogger("holdfast")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
