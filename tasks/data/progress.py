"""How those who take long tell how far they are: a phase, and the share of it that is done, from 0 to 1."""

from collections.abc import Callable

OnProgress = Callable[[str, float], None]
