"""Messages about a field of a configuration that is wrong.

Invariant: one line for each mistake: which key, what is expected there, what was found.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

# As difflib measures how alike two words are: 1 is the same.
SURELY_MEANT = 0.8
# May have a password in it, which is never shown.
ADDRESS_WITH_USER = re.compile(r"://[^/]*@")


def describe_mistake(model: Any, problem: Any) -> str:
    """One line about one wrong field: where it is, what is wanted there, what was found."""
    location = problem["loc"]
    where = ".".join(str(part) for part in location) or "(whole file)"
    if problem["type"] == "extra_forbidden":
        return f"{where}: there is no such key; {_suggest_key(model, location)}"
    found = problem.get("input")
    is_shown = isinstance(found, str | int | float | bool) and not ADDRESS_WITH_USER.search(str(found))
    shown = f" (found {found!r})" if is_shown else ""
    return f"{where}: {_describe(problem)}{shown}"


def _describe(problem: Any) -> str:
    """The library's message in the words of this program."""
    if problem["type"] == "missing":
        return "must be given"
    if problem["type"] == "model_type":
        return "must be a section with keys of its own"
    message: str = problem["msg"].removeprefix("Value error, ")
    for theirs, ours in (("Input should be", "must be"), ("String should", "must")):
        if message.startswith(theirs):
            wanted = message.removeprefix(theirs)
            # Where it is no list, what follows the comma is how the library tried to read the value.
            return ours + (wanted if problem["type"] == "literal_error" else wanted.partition(", ")[0])
    return message


def _suggest_key(model: Any, location: Sequence[Any]) -> str:
    section = model
    for part in location[:-1]:
        section = section.model_fields[part].annotation
    keys, name = list(section.model_fields), str(location[-1])
    similar = _find_elsewhere(model, name, 1.0) or difflib.get_close_matches(name, keys, n=1)
    similar = similar or _find_elsewhere(model, name, SURELY_MEANT)
    return f"did you mean {' or '.join(similar)}?" if similar else f"the keys there are {', '.join(keys)}"


def _find_elsewhere(model: Any, name: str, cutoff: float) -> list[str]:
    """Where in the whole configuration there is a key of this name, or one like it."""
    keys = _keys_of(model)
    similar = difflib.get_close_matches(name, {key for _, key in keys}, n=1, cutoff=cutoff)
    return [f"{path}{key}" for path, key in keys if key in similar]


def _keys_of(model: Any, path: str = "") -> list[tuple[str, str]]:
    """Every key of a model and of the models in it, with the path of its section."""
    found = []
    for key, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += _keys_of(field.annotation, f"{path}{key}.")
        else:
            found.append((path, key))
    return found
