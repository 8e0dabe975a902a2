"""The sections of a configuration, as its types state them: one that has kinds is a section with other keys by kind.

Invariant: what a run fills in itself is no field that a person sets, and is not offered as one.
"""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo


def sections_of(annotation: Any) -> dict[str | None, type[BaseModel]]:
    """The section that a field is, by its kind; None stands for a section without kinds. Empty: it is none."""
    found: dict[str | None, type[BaseModel]] = {}
    for part in get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,):
        is_tagged = get_origin(part) is Annotated
        kind, *more = get_args(part) if is_tagged else (part,)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found[next((entry.tag for entry in more if isinstance(entry, Tag)), None)] = kind
    return found


def is_filled_in(field: FieldInfo) -> bool:
    """Whether a run sets the field when it begins, and nobody else."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("filled_in"))
