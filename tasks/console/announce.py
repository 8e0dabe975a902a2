"""What a person should know while a flow runs, in one place.

Goes to the logger `holdfast`: the terminal shows it above the progress bar, a Prefect worker sends it to the UI.
"""

import logging


class Trouble(str):
    """A sentence about something that went wrong, which is handled without a user's action."""

    __slots__ = ()


_logger = logging.getLogger("holdfast")
_logger.setLevel(logging.INFO)  # a Prefect worker adds its handler but leaves the level at warnings


def announce(message: str) -> None:
    """Something happened that a person may want to know."""
    _logger.info(message)


def warn(message: str) -> None:
    """Something went wrong and was handled."""
    _logger.warning(message)
