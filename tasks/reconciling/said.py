"""Sentences about what goes wrong look after look: each is printed when it is new, and not again and again."""

from tasks.console.announce import warn


class Said:
    """What was said about one store. The sentence begins with the store's address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._last: dict[str, str] = {}

    def say(self, about: str, sentence: str) -> None:
        """Print it, unless it is what was said last of this."""
        if self._last.get(about) != sentence:
            self._last[about] = sentence
            warn(f"{self._address}: {sentence}")

    def forget(self, about: str) -> None:
        """It is over: the next time it is said again."""
        self._last.pop(about, None)
