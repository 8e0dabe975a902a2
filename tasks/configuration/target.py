"""What a configuration may say of its target: the columns, the kind, the classes and their names.

Invariant: pure; what does not make sense is one error, with what was found.
"""

from collections.abc import Sequence


def require_label_columns(label: str | list[str], kind: str) -> None:
    """Raise `ValueError` unless as many columns have labels as the kind allows."""
    if isinstance(label, str):
        return
    if kind != "multilabel":
        raise ValueError(
            f"label names several columns, {label}: they are labels of which a row may have any number, for kind = "
            f"'multilabel' alone. Found kind = {kind!r}: set kind to 'multilabel', or name one column"
        )
    if len(label) < 2:
        raise ValueError(
            f"label must name at least two columns of 0 and 1, or one column of lists without brackets, found {label}"
        )


def require_classes(
    kind: str, label: str | list[str], classes: list[str] | None, rare_classes: str, described: str
) -> None:
    """Raise `ValueError` unless the kind may have these classes; `described` is how rare classes are to be treated."""
    if kind == "binary" and classes is not None and len(classes) != 2:
        raise ValueError(f"a binary target has two classes, found {classes}")
    if classes is not None and len(classes) < 2:
        raise ValueError(
            f"classes must name at least two, all that there are, found {classes}. Take it out to have all labels of "
            "the data"
        )
    if kind == "binary" and rare_classes != "error":
        raise ValueError(
            f"a binary target needs both of its classes: {described}. Take it out, or set kind to 'multiclass'"
        )
    if classes is not None and len(set(classes)) != len(classes):
        raise ValueError(f"classes must differ from each other, found {classes}")
    if classes is not None and not isinstance(label, str) and set(classes) != set(label):
        raise ValueError(f"classes must be the columns that label names, in any order: found {classes} for {label}")


def require_class_names(
    kind: str, label: str | list[str], given: Sequence[str] | dict[str, str], classes: list[str] | None
) -> None:
    """Raise `ValueError` unless these names can be those of the classes."""
    names = list(given.values() if isinstance(given, dict) else given)
    if classes is not None:
        raise ValueError("class_names names all labels in their order, so classes is not needed: take one of them out")
    if len(names) < 2 or (kind == "binary" and len(names) > 2):
        raise ValueError(f"class_names must name {'two' if kind == 'binary' else 'at least two'} classes: {names}")
    if len(set(names)) != len(names) or not all(name.strip() for name in names):
        raise ValueError(f"class_names must differ from each other and not be empty, found {names}")
    if not isinstance(label, str) and (not isinstance(given, dict) or set(given) != set(label)):
        raise ValueError(
            f"class_names must be a table with a name for each column that label names, {label}, found {given}"
        )
