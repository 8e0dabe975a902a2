"""The one console for what happens, so that bars and messages do not write over each other; and stdout, for results.

Invariant: what is printed is text: a path with `[red]` or `:cat:` in it is shown as it is. Where there is no terminal,
lines are whole, however long, and end where their text does.
"""

import io

from rich.console import Console, RenderableType

WHOLE_LINE = 100_000

console = Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_content(content: RenderableType) -> None:
    """Print to stdout what a command has found."""
    terminal = Console(highlight=False, markup=False, emoji=False)
    if terminal.is_terminal:
        terminal.print(content, crop=False)  # a path that is cut off is of no use
        return
    whole = Console(file=io.StringIO(), width=WHOLE_LINE, highlight=False, markup=False, emoji=False)
    with whole.capture() as captured:
        whole.print(content)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
