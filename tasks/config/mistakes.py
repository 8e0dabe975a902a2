"""Messages about a field of a configuration that is wrong.

Invariant: one line for each mistake: which key, what is expected there, what was found.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from tasks.config.sections import is_filled_in, sections_of

# As difflib measures how alike two words are: 1 is the same.
SURELY_MEANT = 0.8
# May have a password in it, which is never shown.
ADDRESS_WITH_USER = re.compile(r"://[^/]*@")


def describe_mistake(model: Any, problem: Any) -> str:
    """One line about one wrong field: where it is, what is wanted there, what was found."""
    where = ".".join(str(part) for part, _ in _walk(model, problem["loc"])) or "(whole file)"
    if problem["type"] == "extra_forbidden":
        return f"{where}: there is no such key; {_suggest_key(model, problem['loc'], where)}"
    found = problem.get("input")
    is_shown = isinstance(found, str | int | float | bool) and not ADDRESS_WITH_USER.search(str(found))
    shown = f" (found {found!r})" if is_shown else ""
    return f"{where}: {_describe(problem)}{_choices(model, problem)}{shown}"


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


def _choices(model: Any, problem: Any) -> str:
    """The values of which a field that is missing takes one, where it is so."""
    if problem["type"] != "missing":
        return ""
    field = _section_of(model, problem["loc"]).model_fields[str(problem["loc"][-1])]
    values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return f", one of {', '.join(map(repr, values))}" if values else ""


def _section_of(model: Any, location: Sequence[Any]) -> Any:
    """The section that the key at the end of a location is in."""
    return [model, *(section for _, section in _walk(model, location[:-1]))][-1]


def _suggest_key(model: Any, location: Sequence[Any], where: str) -> str:
    section, name = _section_of(model, location), str(location[-1])
    keys = [key for key, field in section.model_fields.items() if not is_filled_in(field)]

    def elsewhere(cutoff: float) -> list[str]:  # what another kind of the section has is at the same place
        return [place for place in _find_elsewhere(model, name, cutoff) if place != where]

    similar = elsewhere(1.0) or difflib.get_close_matches(name, keys, n=1) or elsewhere(SURELY_MEANT)
    return f"did you mean {' or '.join(similar)}?" if similar else f"the keys there are {', '.join(keys)}"


def _walk(model: Any, location: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each part of a location with the section that it leads to; None where that is no section.

    Of a section that has kinds the library names the kind too, as a part of its own, which is left out here.
    """
    parts = iter(location)
    for part in parts:
        field = None if model is None else model.model_fields.get(part)
        sections = {} if field is None else sections_of(field.annotation)
        has_kinds = bool(sections) and None not in sections
        model = sections.get(next(parts, None) if has_kinds else None)
        yield part, model


def _find_elsewhere(model: Any, name: str, cutoff: float) -> list[str]:
    """Where in the whole configuration there is a key of this name, or one like it."""
    keys = _keys_of(model)
    similar = difflib.get_close_matches(name, {key for _, key in keys}, n=1, cutoff=cutoff)
    return [f"{path}{key}" for path, key in keys if key in similar]


def _keys_of(model: Any, path: str = "") -> list[tuple[str, str]]:
    """Every key of a model and of the models in it, with the path of its section."""
    found = []
    for key, field in model.model_fields.items():
        if is_filled_in(field):
            continue
        sections = sections_of(field.annotation)
        found += [entry for section in sections.values() for entry in _keys_of(section, f"{path}{key}.")]
        found += [] if sections else [(path, key)]
    return list(dict.fromkeys(found))
