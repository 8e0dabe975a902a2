"""What happens meanwhile, on the terminal: the messages that tasks announce, above the progress bar.

Invariant: stderr alone; stdout is for results.
"""

import logging

from rich.logging import RichHandler

from tasks.console.terminal import console

TIME = "[%X]"


def show_messages() -> None:
    """From now on."""
    # Its modules set levels of their own, and Prefect's handler prints whatever reaches the root.
    logging.getLogger("great_expectations").propagate = False
    # It logs a Prefect server that hangs with a traceback; Prefect connects again by itself.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    handler: logging.Handler = logging.StreamHandler()
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, show_level=False, markup=False, log_time_format=TIME)
    else:  # whole lines, as a file or another program wants them
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", TIME))
    logger = logging.getLogger("holdfast")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
