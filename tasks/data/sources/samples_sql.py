"""SQL of the samples: all rows of the user's files in the one form that every later query reads."""

import glob
from collections.abc import Sequence

from tasks.configuration.run import DataConfig
from tasks.data.sources.column_types import REAL
from tasks.data.sources.columns import ROW_NUMBER_COLUMNS, RowRange, SourceTable
from tasks.data.sources.label_registry import form_of
from tasks.data.sources.messages import broken_contract
from tasks.data.sources.source_file import SourceFile
from tasks.data.sql import identifier, literal
from tasks.data.text_pairs import text_sql

LARGEST_WHOLE = 2**63 - 1  # of a BIGINT


def samples_sql(
    table: SourceTable, config: DataConfig, row_range: RowRange | None = None, is_narrow: bool = False
) -> str:
    """SQL of all rows, or those of a row range, in the one form that everything else reads.

    Columns: `id`, `label` in the form that the target's labels have, `text` or (`tokens`, `mask`), `split_key`, `n0`...
    and, where rows have one, `weight` (DOUBLE, missing is null), `c0`... (VARCHAR, missing is null); `source_row` is
    its number in its file, null where the user's columns hide it. Where a split has a source of its own: `own_split`,
    that split's index, null for a row of data.source. Tokens and mask are BIGINT[]; with `is_narrow` INTEGER[] and
    TINYINT[], where a value that does not fit is null, and so are its list's.
    """
    if row_range is None and config.split.has_own_sources:
        whole = (RowRange(index, 0, num_rows) for index, num_rows in enumerate(table.num_rows))
        return " UNION ALL ".join(samples_sql(table, config, row_range, is_narrow) for row_range in whole)
    row = "file_row_number" if table.has_row_numbers else "NULL::BIGINT"
    file_index = None if row_range is None else row_range.file_index
    expressions = {
        "id": _id_sql(table, config, file_index),
        "source_row": row,
        "label": form_of(config).label_sql(table.families, config),
    }
    if config.text is not None:
        expressions["text"] = text_sql(config.text_columns)
    # Not by way of BIGINT[]: to cast all values once more takes as long as half of their decoding.
    for name, column, narrow in (("tokens", config.tokens, "INTEGER[]"), ("mask", config.attention_mask, "TINYINT[]")):
        if column is not None:
            expressions[name] = f"TRY_CAST({identifier(column)} AS {narrow})" if is_narrow else _list_sql(column)
    expressions["split_key"] = _split_key_sql(table, config)
    if row_range is not None and config.split.has_own_sources:
        own = table.files[row_range.file_index].split
        expressions["own_split"] = f"CAST({'NULL' if own is None else own} AS INTEGER)"
    if config.weight is not None:
        expressions["weight"] = _number_sql(config.weight)
    for index, column in enumerate(config.numeric):
        expressions[f"n{index}"] = _number_sql(column)
    for index, column in enumerate(config.categorical):
        expressions[f"c{index}"] = _category_sql(identifier(column), table.families[column])
    selected = ", ".join(f"{expression} AS {name}" for name, expression in expressions.items())
    if row_range is None:
        return f"SELECT {selected} FROM {_files_sql(table.files)}"
    rows = f"SELECT {selected} FROM {_files_sql([table.files[row_range.file_index]])}"
    if (row_range.start, row_range.stop) == (0, table.num_rows[row_range.file_index]):
        return rows
    # DuckDB reads no row group in which there is none of these rows.
    return f"{rows} WHERE file_row_number >= {row_range.start} AND file_row_number < {row_range.stop}"


def _number_sql(column: str) -> str:
    number = f"CAST({identifier(column)} AS DOUBLE)"
    return f"CASE WHEN isnan({number}) THEN NULL ELSE {number} END"


def _split_key_sql(table: SourceTable, config: DataConfig) -> str:
    if config.split.column is None:
        return "NULL"
    column = identifier(config.split.column)
    return column if table.split_type is None else f"CAST({column} AS {table.split_type})"


def _files_sql(files: Sequence[SourceFile]) -> str:
    # DuckDB takes every path for a pattern, and folders called key=value for columns.
    paths = ", ".join(literal(glob.escape(str(file.rows))) for file in files)
    return f"read_parquet([{paths}], union_by_name = true, hive_partitioning = false)"


def _id_sql(table: SourceTable, config: DataConfig, file_index: int | None) -> str:
    if config.id:
        return f"CAST({identifier(config.id)} AS VARCHAR)"
    if not table.has_row_numbers:
        raise broken_contract(
            "Rows cannot be numbered.",
            f"no column called {' or '.join(sorted(ROW_NUMBER_COLUMNS))} when data.id is not set",
            "such a column: DuckDB counts rows in a column of the same name",
            "rename the column, or set data.id to a column with unique ids",
        )
    return f"({'file_index' if file_index is None else file_index} || ':' || file_row_number)"


def _list_sql(column: str) -> str:
    """A list of whole numbers as BIGINT[]; what is beyond that, as padding of unsigned numbers may be, is its largest.

    DuckDB knows the type when it plans, so lists of other types are cast and nothing else.
    """
    found = identifier(column)
    # Not `least`, which would make a null the largest.
    at_most = f"CASE WHEN n > {LARGEST_WHOLE} THEN {LARGEST_WHOLE} ELSE n END"
    cut = f"list_transform({found}::HUGEINT[], lambda n: {at_most})"
    is_beyond = f"typeof({found}) IN ('UBIGINT[]', 'HUGEINT[]')"
    return f"CASE WHEN {is_beyond} THEN {cut}::BIGINT[] ELSE {found}::BIGINT[] END"


def _category_sql(column: str, family: str) -> str:
    """A category's name. Whole numbers with nulls often arrive as floats: 3.0 and 3 are one category."""
    if family != REAL:
        return f"CAST({column} AS VARCHAR)"
    number = f"CAST({column} AS DOUBLE)"
    whole = f"{number} = trunc({number}) AND abs({number}) < 1e15"
    return (
        f"CASE WHEN isnan({number}) THEN NULL WHEN {whole} THEN CAST(CAST({number} AS BIGINT) AS VARCHAR) "
        f"ELSE CAST({number} AS VARCHAR) END"
    )
