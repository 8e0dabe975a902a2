"""Types of the user's columns: which kinds of type there are, which of them fit a column's meaning, and which agree.

To allow another type of column: its kind here, its test in `family_of`, the meanings that it fits in `FITTING`, and how
it is read in `samples_sql`.
"""

from collections.abc import Sequence

import pyarrow as pa

from storage.errors import ContractError
from tasks.data.sources.messages import broken_contract
from tasks.data.sources.source_file import SourceFile

TEXT, WHOLE, REAL, BOOLEAN, NOTHING = "text", "whole numbers", "real numbers", "booleans", "nothing but nulls"
TIME, ZONED_TIME = "times", "times with a zone"
WHOLE_LIST, BOOLEAN_LIST, TEXT_LIST = "lists of whole numbers", "lists of booleans", "lists of texts"
LISTS = {WHOLE: WHOLE_LIST, BOOLEAN: BOOLEAN_LIST, TEXT: TEXT_LIST}
TIMES = (TIME, ZONED_TIME)

# A column that is null in the whole of one file has no type there; how many nulls are allowed is the contract's matter.
FITTING = {
    "id": (TEXT, WHOLE),
    "text": (TEXT,),
    "tokens": (WHOLE_LIST,),
    "attention_mask": (WHOLE_LIST, BOOLEAN_LIST),
    "label": (TEXT, WHOLE, BOOLEAN),
    "label with kind multilabel": (TEXT_LIST, WHOLE_LIST),
    "label with several columns": (WHOLE, BOOLEAN),
    "weight": (WHOLE, REAL),
    "numeric": (WHOLE, REAL, BOOLEAN),
    "categorical": (TEXT, WHOLE, REAL, BOOLEAN),
    "split.column by column": (TEXT, WHOLE, BOOLEAN, *TIMES),
    "split.column by time": (*TIMES, WHOLE),
    "split.column by given": (TEXT, WHOLE),
}
# Types that may stand side by side: a reader widens them without changing a value.
AGREEING = {"weight": ({WHOLE, REAL},), "numeric": ({WHOLE, REAL, BOOLEAN},), "categorical": ({WHOLE, REAL},)}


def agreed_family(column: str, role: str, files: list[SourceFile], schemas: list[pa.Schema]) -> str:
    """The kind of type that a column has in all files."""
    first: dict[str, SourceFile] = {}
    for file, schema in zip(files, schemas, strict=True):
        family = family_of(schema.field(column).type)
        first.setdefault(family, file)
        if family not in (*FITTING[role], NOTHING):
            raise _wrong_type(column, role, file, schema.field(column).type, family)
    first.pop(NOTHING, None)
    if len(first) > 1 and not any(first.keys() <= together for together in AGREEING.get(role, ())):
        (family, file), (other_family, other_file) = list(first.items())[:2]
        raise broken_contract(
            f"The files disagree on the type of column {column!r}.",
            "one type in all files",
            f"{family} in {file.name}, {other_family} in {other_file.name}",
            "write these files with one type",
        )
    return REAL if REAL in first else next(iter(first), NOTHING)


def common_type(column: str, schemas: Sequence[pa.Schema]) -> str | None:
    """DuckDB's type of a column of all files together; None where it has one type in all of them."""
    types = list(dict.fromkeys(schema.field(column).type for schema in schemas))
    if len(types) == 1:
        return None
    import duckdb  # here: a mistake in a column is found in less time than DuckDB takes to load

    with duckdb.connect() as connection:
        for index, found in enumerate(types):
            connection.register(f"file{index}", pa.table({"value": pa.array([], found)}))
        union = " UNION ALL ".join(f"SELECT value FROM file{index}" for index in range(len(types)))
        common = str(connection.sql(union).types[0])
    # Of signed and unsigned numbers of 64 bits; Parquet has no such type, but this one, with the same values and texts.
    return "DECIMAL(38, 0)" if common == "HUGEINT" else common


def family_of(kind: pa.DataType) -> str:
    """What kind of type it is, as `FITTING` names it; one that fits nothing by Arrow's own name."""
    types = pa.types
    if types.is_dictionary(kind):
        return family_of(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return (LISTS | {NOTHING: NOTHING}).get(family_of(kind.value_type), str(kind))
    if types.is_timestamp(kind):
        return ZONED_TIME if kind.tz else TIME
    tests = (
        (TEXT, (types.is_string, types.is_large_string, types.is_string_view)),
        (WHOLE, (types.is_integer,)),
        (REAL, (types.is_floating, types.is_decimal)),
        (BOOLEAN, (types.is_boolean,)),
        (TIME, (types.is_date,)),
        (NOTHING, (types.is_null,)),
    )
    return next((family for family, checks in tests if any(check(kind) for check in checks)), str(kind))


def _wrong_type(column: str, role: str, file: SourceFile, found: pa.DataType, family: str) -> ContractError:
    hint = ""
    if family == REAL and role in ("text", "label", "id"):
        hint = "; pandas writes a column as floats when values are missing (NaN): fill them or drop those rows first"
    if family == REAL and role == "label":
        hint += "; a number is not predicted as a number (no regression): write the name of a range"
    if role == "label" and family in LISTS.values():
        hint = "; for a row with several labels set data.kind = 'multilabel'"
    if role == "label with kind multilabel" and family in (WHOLE, BOOLEAN):
        hint = ", or several columns of 0 and 1: data.label = ['toxic', 'insult']"
    if family == REAL and role == "label with several columns":
        hint = "; pandas writes a column as floats when values are missing (NaN): write 0 or 1 in every row"
    if family == TEXT and role in ("numeric", "weight", "split.column by time"):
        hint = "; it is text: convert it to numbers or timestamps when writing the file"
    return broken_contract(
        f"Column {column!r} in {file.name} has the wrong type.",
        f"{' or '.join(FITTING[role])}, for data.{role}",
        f"{found} in {file.location}",
        f"write the column with such a type, or name another one in data.{role.split()[0]}{hint}",
    )
