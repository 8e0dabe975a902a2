"""A configuration as a TOML file that a person reads and changes: each field with its description and its default.

Invariant: the text is valid TOML, and read again it is the same configuration: a field that was not set is a comment.
"""

import json
import textwrap
import types
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from tasks.config.load import change_values, configure
from tasks.config.sections import is_filled_in, sections_of
from tasks.configuration.run import RunConfig
from training.configuration import ConfigModel

WIDTH = 100
# To start from: what only the user knows, and what most people change.
START = {
    "run": "my-run",
    "store": "holdfast-store",
    "data": {
        "source": "path/to/data",
        "text": "text",
        "label": "label",
        "kind": "multiclass",
        "numeric": [],
        "categorical": [],
    },
    "train": {"batch_size": 64, "ranks": 1},
}
BOUNDS = ((Ge, "ge", "at least"), (Gt, "gt", "more than"), (Le, "le", "at most"), (Lt, "lt", "less than"))
PLACEHOLDERS = {int: "whole number", float: "number", str: '"text"', bool: "true or false"}


def start_configuration(assignments: Sequence[str]) -> RunConfig:
    """The configuration that a new user starts from, after the assignments; its columns and its source are examples."""
    return configure(RunConfig, change_values(START, assignments), "configuration to start from")


def render_configuration(config: RunConfig, full: bool) -> str:
    """The fields that were set; with `full` all others too, each commented out with its default."""
    return "\n".join(_render_section(config, "", full)).lstrip("\n") + "\n"


def _render_section(section: ConfigModel, path: str, full: bool) -> Iterator[str]:
    fields = type(section).model_fields
    fields = {name: field for name, field in fields.items() if not is_filled_in(field)}
    inner = [name for name in fields if isinstance(getattr(section, name), ConfigModel)]
    left_out = [name for name, field in fields.items() if name not in inner and sections_of(field.annotation)]
    for name, field in fields.items():
        is_set = name in section.model_fields_set
        if name in left_out and full:
            yield from ("", *_describe(field), f"# [{path}{name}]")
        elif name not in (*inner, *left_out) and (is_set or full):
            yield from ("", *_describe(field), _render_field(name, field, getattr(section, name), is_set))
    for name in inner:
        dotted = f"{path}{name}"
        body = list(_render_section(getattr(section, name), f"{dotted}.", full))
        if body or fields[name].default is None:  # which an empty table is not
            # A table that is only comments is a table without keys: every default.
            yield from ("", *_comment(type(getattr(section, name)).__doc__ or ""), f"[{dotted}]", *body)


def _describe(field: FieldInfo) -> Iterator[str]:
    """Comment lines: the description, the values that are allowed, the default."""
    facts = [field.description or "", _allowed(field)]
    if not field.is_required() and field.default is not None:
        facts.append(f"Default: {_toml(field.default)}.")
    return _comment(" ".join(fact for fact in facts if fact))


def _allowed(field: FieldInfo) -> str:
    bounds = [
        f"{words} {getattr(entry, attribute)}"
        for entry in field.metadata
        for kind, attribute, words in BOUNDS
        if isinstance(entry, kind)
    ]
    choices = [
        _toml(value) for part in _parts(field.annotation) if get_origin(part) is Literal for value in get_args(part)
    ]
    allowed = " or ".join(choices) or ", ".join(bounds)
    return f"Allowed: {allowed}." if allowed else ""


def _render_field(name: str, field: FieldInfo, value: Any, is_set: bool) -> str:
    if value is None:
        extra = field.json_schema_extra
        is_by_rows = isinstance(extra, dict) and extra.get("by_rows")
        return f"# {name} = {_placeholder(field)}   ({'by the number of rows' if is_by_rows else 'not set'})"
    return f"{'' if is_set else '# '}{name} = {_toml(value)}"


def _placeholder(field: FieldInfo) -> str:
    """What kind of value is wanted where there is no default to show."""
    kind = next(part for part in _parts(field.annotation) if part is not types.NoneType)
    if get_origin(kind) is list:
        return '["text", "text"]'
    if get_origin(kind) is Literal:
        return " or ".join(map(_toml, get_args(kind)))
    return PLACEHOLDERS[kind]


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; a type that is none alone."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{_toml(key)} = {_toml(entry)}" for key, entry in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    # JSON's texts, numbers and booleans are TOML's too, but for the one control character that only TOML escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield from textwrap.wrap(" ".join(paragraph.split()), WIDTH, initial_indent="# ", subsequent_indent="# ")
