"""How samples are assigned to splits, as a person configures it.

Invariant: a `SplitConfig` that was built is consistent in itself.
"""

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from training.configuration import ConfigModel

# Usual values of a column that names splits, in any case of letters. "eval" is not here: to some it is the
# validation, to others the test.
USUAL_SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "validate", "valid", "val", "dev", "development"),
    "test": ("test", "testing"),
}

COLUMN_FOR = {
    "column": "the values whose rows are to stay together",
    "time": "the times of the rows",
    "given": "the names of the splits",
}


class SplitConfig(ConfigModel):
    """How samples are assigned to training, validation and test. Always a pure function of the row."""

    by: Literal["id", "text", "column", "time", "given"] = Field(
        "id",
        description="id: by the hash of the id. text: by the hash of the text, or of the tokens that count, so that "
        "equal texts are in one split. column: by the hash of a column's value, so that all rows of one "
        "value stay together (shard_id). time: the newest rows are test, those before them validation (created_at). "
        "given: a column names the split of each row; the fractions are not used then.",
    )
    column: str | None = Field(None, description="The column for by = column, by = time and by = given.")
    validation_source: str | None = Field(
        None,
        min_length=1,
        description="A file, a folder of files, or a glob, as in data.source, all of whose rows are for validation; no "
        "row of data.source is then. The files must have the format and the columns of data.source, and no file may "
        "be in both. validation_fraction and validation_values are not used then; where test_source is given too, "
        "all rows of data.source are for training.",
    )
    test_source: str | None = Field(
        None, min_length=1, description="As validation_source, of the rows for the final test."
    )
    validation_fraction: float = Field(0.1, gt=0, lt=0.5, description="Share of the rows used for validation.")
    test_fraction: float = Field(0.1, gt=0, lt=0.5, description="Share of the rows used for the final test.")
    train_values: list[str] | None = Field(
        None,
        min_length=1,
        description="For by = given: the values of the column that mean training, exactly as they are in the data. "
        "Default: train and training, in upper or lower case.",
    )
    validation_values: list[str] | None = Field(
        None,
        min_length=1,
        description="For by = given: the values that mean validation. Default: validation, validate, valid, val, dev "
        "and development, in upper or lower case.",
    )
    test_values: list[str] | None = Field(
        None,
        min_length=1,
        description="For by = given: the values that mean test. Default: test and testing, in upper or lower case.",
    )

    def values_of(self, split: str) -> list[str] | None:
        """The values of the column that mean a split; None for its usual names."""
        values: list[str] | None = getattr(self, f"{split}_values")
        return values

    def source_of(self, split: str) -> str | None:
        """The source of a split's own; None where its rows are of data.source."""
        return {"validation": self.validation_source, "test": self.test_source}.get(split)

    @property
    def splits_of_source(self) -> list[str]:
        """The splits to which the rows of data.source go: training, and those without a source of their own."""
        return [split for split in USUAL_SPLIT_NAMES if self.source_of(split) is None]

    @property
    def has_own_sources(self) -> bool:
        """Whether a split has a source of its own."""
        return len(self.splits_of_source) < len(USUAL_SPLIT_NAMES)

    @model_serializer(mode="wrap")
    def _only_what_decides(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without fractions that are not used: read again, one that is set would be refused."""
        unused = [f"{split}_fraction" for split in ("validation", "test") if self._is_fraction_unused(split)]
        return {name: value for name, value in write(self).items() if name not in unused}

    def _is_fraction_unused(self, split: str) -> bool:
        return self.by == "given" or self.source_of(split) is not None

    @model_validator(mode="after")
    def _column_is_named(self) -> "SplitConfig":
        if self.column is None and self.by in COLUMN_FOR:
            raise ValueError(f"by = {self.by!r} needs column, the name of the column with {COLUMN_FOR[self.by]}")
        if self.column is not None and self.by not in COLUMN_FOR:
            raise ValueError(
                f"column goes with by = {' or '.join(map(repr, COLUMN_FOR))} alone: {self.describe('by', 'column')}. "
                "Set by to one of these, or take column out"
            )
        return self

    @model_validator(mode="after")
    def _fractions_or_values(self) -> "SplitConfig":
        fractions = [name for name in ("validation_fraction", "test_fraction") if name in self.model_fields_set]
        if self.by == "given" and fractions:
            raise ValueError(
                f"with by = 'given' the column alone decides, but {self.describe(*fractions)}. Take "
                f"{' and '.join(fractions)} out, or set by to 'id', 'column' or 'time'"
            )
        values = [f"{split}_values" for split in USUAL_SPLIT_NAMES if self.values_of(split) is not None]
        if self.by != "given" and values:
            raise ValueError(
                f"{' and '.join(values)} can be set with by = 'given' only: {self.describe('by')}. Set by to 'given', "
                f"or take {'it' if len(values) == 1 else 'them'} out"
            )
        return self

    @model_validator(mode="after")
    def _a_source_alone_decides(self) -> "SplitConfig":
        own = [split for split in USUAL_SPLIT_NAMES if self.source_of(split) is not None]
        for split in own:
            unused = [name for name in (f"{split}_fraction", f"{split}_values") if name in self.model_fields_set]
            unused = [name for name in unused if getattr(self, name) is not None]
            if unused:
                raise ValueError(
                    f"all rows of the {split} split are those of {split}_source, but {self.describe(*unused)}. Take "
                    f"{' and '.join(unused)} out, or {split}_source"
                )
        if self.splits_of_source == ["train"] and self.by != "id":
            raise ValueError(
                "with validation_source and test_source all rows of data.source are for training, but "
                f"{self.describe('by', 'column')}. Take by and column out, or one of the two sources"
            )
        return self

    @model_validator(mode="after")
    def _each_value_means_one_split(self) -> "SplitConfig":
        meanings = [(value, split) for split in USUAL_SPLIT_NAMES for value in self.values_of(split) or []]
        usual = {
            name: split
            for split in self.splits_of_source
            for name in USUAL_SPLIT_NAMES[split]
            if not self.values_of(split)
        }
        meant: dict[str, str] = {}
        for value, split in meanings:
            other = usual.get(value.strip().lower(), meant.setdefault(value, split))
            if other != split:
                raise ValueError(
                    f"{value!r} would mean both {other} and {split}. Set {other}_values and {split}_values so that "
                    "each value is in one of them"
                )
        return self
