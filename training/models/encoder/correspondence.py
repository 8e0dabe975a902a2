"""Which weights of an encoder belong where in one of other data: by what they stand for, not by their index.

Pure. A token's vector goes to the same token, a class's row to the same class, a column's weights to the column of the
same name. Invariant: what has no counterpart is not named, and stays as it was made.
"""

from collections.abc import Mapping, Sequence

from storage.errors import ConfigurationError
from training.models.correspondence import Copy, Correspondence, Described

# Sizes in which two models must agree before a weight of one means anything in the other.
SIZES = ("width", "layers", "heads", "feedforward")


def correspond(origin: Described, new: Described, names: Sequence[str]) -> Correspondence:
    """Weights to copy from a model with tensors of these `names` to a new one.

    Raises `ConfigurationError` if their sizes differ.
    """
    _require_same_sizes(origin, new)
    encoder = [name for name in names if name.startswith(("blocks.", "norm."))]
    whole = [Copy(name, name) for name in (*encoder, "hidden.bias")]
    columns = _columns(origin, new)
    tokens = _tokens(origin, new)
    classes = _matches(_outputs(origin), _outputs(new))
    copies = [
        *whole,
        _rows("position_embedding.weight", _first(origin.sizes["num_positions"], new.sizes["num_positions"])),
        _rows("token_embedding.weight", tokens),
        *_categories(origin, new),
        Copy("hidden.weight", "hidden.weight", 1, tuple(columns), tuple(columns.values())),
        *(_rows(name, classes) for name in ("head.weight", "head.bias") if classes),
    ]
    return Correspondence(copies, _describe(origin, new, len(tokens), len(classes)))


def _rows(name: str, indices: Mapping[int, int]) -> Copy:
    return Copy(name, name, 0, tuple(indices), tuple(indices.values()))


def _require_same_sizes(origin: Described, new: Described) -> None:
    shared = {column["name"] for column in origin.inputs["categorical"]} & {
        column["name"] for column in new.inputs["categorical"]
    }
    sizes = (*SIZES, "metadata_width") if shared else SIZES
    differing = [
        f"model.{name} is {new.sizes[name]}, expected {origin.sizes[name]}"
        for name in sizes
        if new.sizes[name] != origin.sizes[name]
    ]
    if differing:
        raise ConfigurationError(
            f"The model that train.start_from names has other sizes: {'; '.join(differing)}. Set [model] to its sizes, "
            "or leave train.start_from out."
        )
    if (origin.tokens is None) != (new.tokens is None):
        kinds = ["token ids" if described.tokens is None else "text" for described in (origin, new)]
        raise ConfigurationError(
            f"The model that train.start_from names reads {kinds[0]}, this run's data are {kinds[1]}: no token of one "
            "is known to the other. Leave train.start_from out, or give data of the same kind."
        )


def _tokens(origin: Described, new: Described) -> dict[int, int]:
    if origin.tokens is None or new.tokens is None:
        return _first(origin.sizes["vocabulary_size"], new.sizes["vocabulary_size"])
    return {index: new.tokens[token] for token, index in sorted(origin.tokens.items()) if token in new.tokens}


def _first(count: int, other: int) -> dict[int, int]:
    return {index: index for index in range(min(count, other))}


def _outputs(described: Described) -> list[str]:
    """What each output stands for: a class; a single output for all of them."""
    return [" or ".join(described.classes)] if described.sizes["num_outputs"] == 1 else described.classes


def _matches(origin: Sequence[str], new: Sequence[str], first: int = 0) -> dict[int, int]:
    indices = {name: index for index, name in enumerate(new)}
    return {first + index: first + indices[name] for index, name in enumerate(origin) if name in indices}


def _categories(origin: Described, new: Described) -> list[Copy]:
    """The vectors of each categorical column of the same name: for a missing value, an unseen one, and categories."""
    first = new.inputs["first_vocabulary_index"]
    own = {column["name"]: (number, column["vocabulary"]) for number, column in enumerate(new.inputs["categorical"])}
    copies = []
    for number, column in enumerate(origin.inputs["categorical"]):
        if column["name"] in own:
            target, vocabulary = own[column["name"]]
            rows = _first(first, first) | _matches(column["vocabulary"], vocabulary, first)
            names = (f"metadata.embeddings.{number}.weight", f"metadata.embeddings.{target}.weight")
            copies.append(Copy(*names, 0, tuple(rows), tuple(rows.values())))
    return copies


def _columns(origin: Described, new: Described) -> dict[int, int]:
    """Columns of the input of `hidden`: the text's vector, then numeric values, is-missing flags, and categories."""
    own = _ranges(new)
    return {
        column: own[name][index]
        for name, columns in _ranges(origin).items()
        if name in own
        for index, column in enumerate(columns)
    }


def _ranges(described: Described) -> dict[tuple[str, str], range]:
    width, num_numeric = described.sizes["width"], len(described.inputs["numeric"])
    columns = {("text", ""): range(width)}
    for index, column in enumerate(described.inputs["numeric"]):
        value = width + index
        columns["value", column["name"]] = range(value, value + 1)
        columns["missing", column["name"]] = range(value + num_numeric, value + num_numeric + 1)
    begin, size = width + 2 * num_numeric, described.sizes["metadata_width"]
    for index, column in enumerate(described.inputs["categorical"]):
        columns["category", column["name"]] = range(begin + index * size, begin + (index + 1) * size)
    return columns


def _describe(origin: Described, new: Described, num_tokens: int, num_classes: int) -> list[str]:
    known = {column["name"] for kind in ("numeric", "categorical") for column in origin.inputs[kind]}
    columns = [column["name"] for kind in ("numeric", "categorical") for column in new.inputs[kind]]
    fresh = [name for name in columns if name not in known]
    outputs = _outputs(new)
    return [
        f"{num_tokens:,} of {new.sizes['vocabulary_size']:,} tokens",
        f"{num_classes:,} of {len(outputs):,} {'output' if len(outputs) == 1 else 'outputs'}",
        *([f"not the columns {', '.join(fresh)}, which it does not have"] if fresh else []),
    ]
