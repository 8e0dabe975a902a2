"""The key figures at the top of a page."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """One key figure."""

    name: str
    value: str
    note: str = ""
