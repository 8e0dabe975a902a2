"""A batch of a table's columns without the rows that the model does not take.

Invariant: what stays has the order of the batch, and each row that is left out is named once, with its reason.
"""

from typing import NamedTuple

from training.export.standalone.holdfast_inputs import Columns, Encoded, InputError, Inputs, join


class Refused(NamedTuple):
    """A row of the batch, counted from 0, and why the model does not take it."""

    row: int
    error: InputError


def encode_good_rows(inputs: Inputs, columns: Columns, num_rows: int) -> tuple[Encoded | None, list[Refused]]:
    """The rows that the model takes, None if it takes none of them, and the others. All columns must be there."""
    parts, refused = _encode(inputs, columns, 0, num_rows)
    return (join(parts) if parts else None), refused


def _encode(inputs: Inputs, columns: Columns, start: int, stop: int) -> tuple[list[Encoded], list[Refused]]:
    """Encode by halves: for one bad row among a thousand all others are encoded about twice, not a thousand times."""
    if start == stop:
        return [], []
    try:
        return [inputs.encode({name: values[start:stop] for name, values in columns.items()})], []
    except InputError as error:
        if stop - start == 1:
            return [], [Refused(start, error)]
    middle = (start + stop) // 2
    first, second = _encode(inputs, columns, start, middle), _encode(inputs, columns, middle, stop)
    return first[0] + second[0], first[1] + second[1]
