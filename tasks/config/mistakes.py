"""Messages about a field of a configuration that is wrong.

Invariant: one line for each mistake: which key, what is expected there, what was found.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from storage.objects.addresses import RUN_NAME_PATTERN, RUN_NAME_WORDS
from tasks.config.sections import is_filled_in, sections_of
from tasks.configuration.cluster import DNS_LABEL, QUANTITY, SLURM_TIME
from tasks.configuration.run import OWNER_PATTERN

# As difflib measures how alike two words are: 1 is the same.
SURELY_MEANT = 0.8
# May have a password in it, which is never shown.
ADDRESS_WITH_USER = re.compile(r"://[^/]*@")
# What is wanted, by what the library calls a mistake; {} is the limit.
WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": 'a list, as ["a", "b"]',
    "model_type": "a section with keys of its own",
    "greater_than_equal": "at least {}",
    "greater_than": "above {}",
    "less_than_equal": "at most {}",
    "less_than": "below {}",
}
PATTERNS = {
    RUN_NAME_PATTERN: RUN_NAME_WORDS,
    OWNER_PATTERN: "1 to 100 characters in one line, none of them a control character, the first and the last no space",
    DNS_LABEL: "at most 63 small letters, digits and `-`, at both ends a letter or a digit",
    QUANTITY: 'an amount of memory, as "64Gi"',
    SLURM_TIME: 'minutes, hours:minutes:seconds or days-hours:minutes:seconds, as "1-12:00:00"',
}
# A section with more has a list that nobody reads.
NUM_KEYS_SHOWN = 12


def describe_mistakes(model: Any, problems: Sequence[Any]) -> list[str]:
    """A line about each wrong field: where it is, what is wanted there, what was found."""
    described: dict[str, list[str]] = {}
    found: dict[str, str] = {}
    for problem in problems:
        where = ".".join(str(part) for part, _ in _walk(model, problem["loc"]))
        described.setdefault(where, []).append(_describe(model, problem, where))
        found[where] = _found(problem)
    # A field that takes values of several types has a mistake for each of them.
    wanted = {
        where: " or ".join(dict.fromkeys(texts)).replace(" or must be ", " or ") for where, texts in described.items()
    }
    return [f"{where}: {text}{found[where]}" if where else text for where, text in wanted.items()]


def _found(problem: Any) -> str:
    found = problem.get("input")
    is_shown = isinstance(found, str | int | float | bool) and not ADDRESS_WITH_USER.search(str(found))
    found = str(found).lower() if isinstance(found, bool) else repr(found)  # as TOML has it
    return f" (found {found})" if is_shown and problem["type"] != "extra_forbidden" else ""


def _describe(model: Any, problem: Any, where: str) -> str:
    """The library's message in the words of this program."""
    if problem["type"] == "extra_forbidden":
        return f"there is no such key; {_suggest_key(model, problem['loc'], where)}"
    if problem["type"] == "missing":
        return f"must be given{_choices(model, problem)}"
    context = problem.get("ctx", {})
    if problem["type"] in WANTED:
        limit = next((value for value in context.values() if isinstance(value, int | float)), 0)
        return f"must be {WANTED[problem['type']].format(f'{int(limit):,}' if limit == int(limit) else limit)}"
    if context.get("pattern") in PATTERNS:
        return f"must be {PATTERNS[context['pattern']]}"
    message: str = problem["msg"].removeprefix("Value error, ")
    for theirs, ours in (("Input should be", "must be"), ("String should", "must")):
        if message.startswith(theirs):
            wanted = message.removeprefix(theirs)
            # Where it is no list, what follows the comma is how the library tried to read the value.
            return ours + (wanted if problem["type"] == "literal_error" else wanted.partition(", ")[0])
    return message


def _choices(model: Any, problem: Any) -> str:
    """Of a field that is missing: the values of which it takes one, or what a section must have."""
    name = str(problem["loc"][-1])
    field = _section_of(model, problem["loc"]).model_fields[name]
    if None in (sections := sections_of(field.annotation)):
        needed = [key for key, of_section in sections[None].model_fields.items() if of_section.is_required()]
        return f", a section [{name}] with at least {' and '.join(needed)}"
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
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    if kinds := _kinds_with(model, location, name):
        return f"{where} goes with {location[0]}.kind = {' or '.join(map(repr, kinds))}"
    if len(keys) > NUM_KEYS_SHOWN:
        return "none is like it, and `holdfast config` prints all that there are, each with its meaning"
    return f"the keys there are {', '.join(keys)}"


def _kinds_with(model: Any, location: Sequence[Any], name: str) -> list[str]:
    """The kinds of the section in the file's top that have a key of this name, where that section has kinds."""
    field = model.model_fields.get(str(location[0]))
    sections = {} if field is None or len(location) == 1 else sections_of(field.annotation)
    return [kind for kind, section in sections.items() if kind is not None and name in section.model_fields]


def _walk(model: Any, location: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each part of a location with the section that it leads to; None where that is no section.

    Of a section that has kinds, and of a field that takes several types, the library names the kind or type too, as a
    part of its own, which is left out here.
    """
    parts = iter(location)
    for part in parts:
        field = None if model is None else model.model_fields.get(part)
        sections = {} if field is None else sections_of(field.annotation)
        has_kinds = bool(sections) and None not in sections
        is_of_types = field is not None and not sections and _num_types(field.annotation) > 1
        of_kind = next(parts, None) if has_kinds or is_of_types else None
        model = sections.get(of_kind if has_kinds else None)
        yield part, model


def _num_types(annotation: Any) -> int:
    """How many types a field takes, besides none at all."""
    types = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return sum(kind is not NoneType for kind in types)


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
