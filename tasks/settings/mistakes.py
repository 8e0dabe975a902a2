"""What a person is told about a field of a configuration that is wrong.

Invariant: one line for each mistake: which key, what is expected there, what was found.
"""

import difflib
from collections.abc import Sequence
from typing import Any


def describe_mistake(model: Any, problem: Any) -> str:
    """One line about one wrong field: where it is, what is wanted there, what was found."""
    location = problem["loc"]
    where = ".".join(str(part) for part in location) or "(whole file)"
    if problem["type"] == "extra_forbidden":
        return f"{where}: there is no such key; {_suggest_key(model, location)}"
    found = problem.get("input")
    shown = f" (found {found!r})" if isinstance(found, str | int | float | bool) else ""
    return f"{where}: {_say(problem)}{shown}"


def _say(problem: Any) -> str:
    """The library's message in the words of this program."""
    if problem["type"] == "missing":
        return "must be given"
    if problem["type"] == "model_type":
        return "must be a section with keys of its own"
    message: str = problem["msg"].removeprefix("Value error, ")
    for theirs, ours in (("Input should be", "must be"), ("String should", "must")):
        if message.startswith(theirs):
            # What follows the comma says how the library tried to read the value.
            return ours + message.removeprefix(theirs).partition(", ")[0]
    return message


def _suggest_key(model: Any, location: Sequence[Any]) -> str:
    for part in location[:-1]:
        model = model.model_fields[part].annotation
    keys = list(model.model_fields)
    similar = difflib.get_close_matches(str(location[-1]), keys, n=1)
    return f"did you mean {similar[0]}?" if similar else f"the keys there are {', '.join(keys)}"
