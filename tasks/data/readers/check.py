"""A first look at the columns of a source and at its first rows, before anything takes long.

Invariant: what it refuses the preparation would refuse too; the preparation looks at all files and all rows.
"""

from tasks.configuration.run import DataConfig
from tasks.data.readers.arrow_files import read_arrow_schema
from tasks.data.readers.conversion import look_at_rows
from tasks.data.readers.lines import read_header
from tasks.data.sources.columns import read_each, read_parquet_schema, require_columns, require_fitting
from tasks.data.sources.formats import ARROW, CSV, JSON_LINES, TSV, format_of
from tasks.data.sources.label_registry import form_of
from tasks.data.sources.messages import broken_contract
from tasks.data.sources.several_labels import LabelList
from tasks.data.sources.source_file import SourceFile

NUM_FILES_LOOKED_AT = 16
# Of all of these together: that takes some tenths of a second.
NUM_BYTES_LOOKED_AT = 4 * 1024**2


def check_columns(files: list[SourceFile], config: DataConfig) -> None:
    """Raise `ContractError` for a column that is missing or of a wrong type in the first few files of each source.

    Of CSV and TSV only the names are known before all values were read, of JSON Lines not even these.
    """
    looked_at, kind = _first_files(files), format_of(files[0].name)
    if kind in (CSV, TSV):
        _require_no_lists(files[0], config)
        for file, names in zip(looked_at, read_each(read_header, looked_at), strict=True):
            require_columns(file, names, config)
    elif kind != JSON_LINES:
        read = read_arrow_schema if kind == ARROW else read_parquet_schema
        require_fitting(looked_at, read_each(read, looked_at), config)


def check_first_rows(files: list[SourceFile], config: DataConfig) -> None:
    """Raise `ContractError` for first rows of the same files that cannot be read: quotes, encoding, kinds of values.

    Of files of lines alone: what the others have is known by the types of their columns.
    """
    if format_of(files[0].name) in (CSV, TSV, JSON_LINES):
        looked_at = _first_files(files)
        for file in looked_at:
            look_at_rows(file, config, NUM_BYTES_LOOKED_AT // len(looked_at))


def _first_files(files: list[SourceFile]) -> list[SourceFile]:
    sources = dict.fromkeys(file.setting for file in files)
    return [file for name in sources for file in [f for f in files if f.setting == name][:NUM_FILES_LOOKED_AT]]


def _require_no_lists(file: SourceFile, config: DataConfig) -> None:
    """Raise `ContractError` where the labels would have to be lists, which CSV and TSV do not have."""
    if isinstance(form_of(config), LabelList):
        raise broken_contract(
            f"Column {config.target_name!r} in {file.name} cannot have lists of labels.",
            "a column of lists for data.kind = 'multilabel', in Parquet, Arrow or JSON Lines",
            f"a {format_of(file.name)} file, which has no lists",
            "give the data in such a format, or a column of 0 and 1 for each label and name these: "
            "data.label = ['toxic', 'insult']",
        )
