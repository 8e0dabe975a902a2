"""What a person sees of something that is printed to a terminal of a given width."""

import io

from rich.console import Console, RenderableType


def shown(content: RenderableType, width: int = 400) -> str:
    """The text, as a terminal of that width shows it."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(content, crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
