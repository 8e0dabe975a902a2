"""The configuration of a run: one TOML file, every field with a default where one is sensible.

Invariant: a `RunConfig` that was built is consistent in itself; what it states about files is checked when they are
read.
"""

from collections import Counter
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from storage.objects.addresses import MAX_RUN_NAME_CHARACTERS, RUN_NAME_PATTERN
from storage.target_kinds import KindName
from tasks.configuration.cluster import ClusterConfig
from tasks.configuration.notices import NoticesConfig
from tasks.configuration.scores import require_deciding_metric, require_metrics, require_slices
from tasks.configuration.split import SplitConfig
from tasks.configuration.target import require_class_names, require_classes, require_label_columns
from tasks.configuration.tracking import TrackingConfig
from training.configuration import FILLED_IN, CheckpointConfig, ConfigModel, DivergenceConfig, TrainConfig
from training.model_configuration import EncoderConfig, ModelConfig, ModuleConfig, PretrainedConfig
from training.validation_configuration import ValidationConfig

UNLIMITED = "unlimited"
# Only what Python, JavaScript and Rust read alike: a form of Prefect checks by it too.
OWNER_PATTERN = r"^[^\s\x00-\x1f\x7f-\x9f]([^\x00-\x1f\x7f-\x9f\u2028\u2029]{0,98}[^\s\x00-\x1f\x7f-\x9f])?$"


class GivenTokenizer(ConfigModel):
    """The tokenizer of a pretrained model, which the data are prepared with instead of one that is learned."""

    path: str = Field(description="Its tokenizer.json, where it was when the run began.")
    sha256: str


class DataConfig(ConfigModel):
    """Where the samples are and which columns mean what."""

    source: str = Field(
        "",
        description="A file, a folder of files, or a glob, on this machine or in a bucket: s3://bucket/prefix/, "
        "s3://bucket/data/**/*.parquet; server and credentials are those of boto3's environment and profile. All files "
        "have one format, which their names end with: Parquet (.parquet), CSV (.csv), TSV (.tsv), JSON Lines (.jsonl, "
        ".ndjson), these also compressed (.gz), or Arrow IPC and Feather (.arrow, .feather). CSV and TSV have a "
        "header, are UTF-8, and an empty field, quoted or not, is a missing value. In JSON Lines null, NaN in a "
        "metadata column and an absent key are missing values. Each file that is not Parquet is read by one process, "
        "so a large one is better split, or converted to Parquet. A relative path is taken from the configuration "
        "file's folder.",
    )
    id: str | None = Field(
        None,
        description="Column with a unique id. Default: file and row number are the id; a file or row that is inserted "
        "then gives those after it other ids. A run keeps the column that it was begun with.",
    )
    text: str | list[str] | None = Field(
        None,
        description="Column with raw text. Give this or tokens. Two columns, as ['premise', 'hypothesis'], where a "
        "pretrained model reads two texts together.",
    )
    tokens: str | None = Field(None, description="Column with lists of token ids. Give this or text.")
    attention_mask: str | None = Field(
        None, description="Column with lists of 0 and 1; tokens whose value here is 0 are dropped."
    )
    label: str | list[str] = Field(
        description="Column with the target: text, whole number or boolean. With kind = multilabel a column with lists "
        "of texts or of whole numbers, or several columns of 0 and 1, or of booleans, which are called as the labels "
        "are: label = ['toxic', 'insult']."
    )
    kind: KindName = Field(
        description="What is predicted: one class of several, one of two, or any number of classes at once."
    )
    weight: str | None = Field(
        None,
        description="Column with the weight of each row in the training loss: a number of at least 0, in every row. "
        "Weights are divided by their mean over the training split, so a row with twice the weight of another counts "
        "twice as much, and the size of a step stays what it is. Metrics and validation loss are not weighted.",
    )
    classes: list[str] | None = Field(
        None,
        description="All labels, in the order of the model's outputs; booleans are 1 and 0 if these are the labels. "
        "Default: the labels of the data in natural order, numbers by value, also those within a text, so level 2 "
        "comes before level 10; for a binary target 0 and 1, or false and true, which booleans are called.",
    )
    class_names: list[str] | dict[str, str] | None = Field(
        None,
        description="What the classes are called, where the labels in the data are codes: the names of 0, 1, 2 and so "
        'on, as ["world", "sports"], or of each code, as {1 = "world", 2 = "sports"}, in the order of the model\'s '
        "outputs. A label without a name is an error. Not with classes. Default: a class is called what its label is.",
    )
    rare_classes: Literal["error", "drop", "other"] = Field(
        "error",
        description="What becomes of classes of which a split has no row, unless kind = binary. error: data whose "
        "training split lacks a class are refused; where another split does, there is a warning. drop: their rows are "
        "left out, and their number is reported; with kind = multilabel the rows stay, without these labels. other: "
        "they become one class called other. Labels count as rows are "
        "assigned to the splits, so which classes these are follows from data.split too.",
    )
    numeric: list[str] = Field([], description="Numeric metadata columns; missing values are imputed and flagged.")
    categorical: list[str] = Field([], description="Categorical metadata columns; missing is a category of its own.")
    max_missing_fraction: float = Field(0.2, ge=0, le=1, description="Largest share of nulls in a metadata column.")
    expectations: str | None = Field(
        None,
        description="A suite of expectations of your own: a JSON file in Great Expectations' format. It is validated "
        "over a sample of about 10,000 rows, and over the measures of all rows, before a data set is published. A "
        "relative path is taken from the configuration file's folder.",
    )
    max_tokens: int = Field(512, ge=1, description="Longest sequence in tokens.")
    too_long: Literal["error", "truncate"] = Field(
        "error", description="What to do with a longer row: refuse the data, or keep its first tokens."
    )
    vocabulary_size: int = Field(
        8192,
        ge=260,
        description="Most tokens the tokenizer learns; for token input, more than every token id.",
    )
    tokenizer: GivenTokenizer | None = Field(
        None,
        description="The tokenizer of a pretrained model; filled in when the run begins.",
        json_schema_extra=FILLED_IN,
    )
    split: SplitConfig = SplitConfig()
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the split and of the order of rows in the shards.")
    shard_rows: int = Field(65_536, ge=1, description="Rows of one shard; a multiple of row_group_rows.")
    row_group_rows: int = Field(1024, ge=1, description="Rows that are read from a shard in one piece.")
    memory_limit: str = Field(
        "2GB",
        description="Most memory that DuckDB may use while preparing and auditing, such as 512MB; more is spilled to "
        f"disk. {UNLIMITED}: no limit; the system may then stop the process when memory runs out.",
    )

    @field_validator("class_names", mode="before")
    @classmethod
    def _is_a_list_or_a_table_of_names(cls, value: Any) -> Any:
        names = list(value.values()) if isinstance(value, dict) else value
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str | int) for name in names)):
            raise ValueError('must be a list of names, as ["no", "yes"], or a table of them, as {1 = "no", 2 = "yes"}')
        return value

    @field_validator("memory_limit")
    @classmethod
    def _is_a_size_or_says_that_there_is_no_limit(cls, value: str) -> str:
        # DuckDB itself takes "none", "null" and every negative size for no limit.
        if value != UNLIMITED and not value.strip()[:1].isdigit():
            raise ValueError(f"must be a size like '2GB' or '512MB', or '{UNLIMITED}' for no limit")
        return value

    @model_validator(mode="after")
    def _names_make_sense(self) -> "DataConfig":
        if self.class_names is None:
            return self
        require_class_names(self.kind, self.label, self.class_names, self.classes)
        return self

    @property
    def text_columns(self) -> list[str]:
        """The columns with texts: none, one, or two."""
        return [] if self.text is None else [self.text] if isinstance(self.text, str) else self.text

    @property
    def label_columns(self) -> list[str]:
        """The columns that the labels are in."""
        return [self.label] if isinstance(self.label, str) else self.label

    @property
    def target_name(self) -> str:
        """What is predicted, in a message: the columns that the labels are in."""
        return ", ".join(self.label_columns)

    @property
    def body(self) -> str:
        """What is classified, in a message: the columns with texts, or the one with tokens."""
        return " and ".join(self.text_columns) or str(self.tokens)

    @model_validator(mode="after")
    def _columns_make_sense(self) -> "DataConfig":
        if (self.text is None) == (self.tokens is None):
            found = "neither is set. Set text" if self.text is None else "both are set. Take one of them out"
            raise ValueError(f"exactly one of text and tokens must name a column: {found}")
        if self.text is not None and len(self.text_columns) not in (1, 2):
            raise ValueError(f"text must name one column or two: {self.describe('text')}")
        if self.attention_mask is not None and self.tokens is None:
            raise ValueError("attention_mask goes with tokens, not with text")
        if self.shard_rows % self.row_group_rows:
            raise ValueError(
                f"shard_rows must be a multiple of row_group_rows: {self.describe('shard_rows', 'row_group_rows')}. "
                f"Set shard_rows to a multiple of {self.row_group_rows}"
            )
        require_label_columns(self.label, self.kind)
        require_classes(self.kind, self.label, self.classes, self.rare_classes, self.describe("rare_classes"))
        named = [c for c in (self.id, self.tokens, self.attention_mask, self.weight) if c is not None]
        named += self.label_columns + self.text_columns
        counts = Counter(named + self.numeric + self.categorical)
        if "" in (*self.text_columns, *self.numeric, *self.categorical):
            raise ValueError("a column must have a name, and one is named ''. Give its name, or take it out")
        twice = sorted(column for column, count in counts.items() if count > 1)
        if twice:
            raise ValueError(
                f"each column has one meaning, but these are named twice: {', '.join(twice)}. Name each in one place"
            )
        return self


class PrepareConfig(ConfigModel):
    """Who prepares the data, where they are many: no byte of the data set depends on it."""

    workers: int | None = Field(
        None,
        ge=1,
        description="Processes on this machine. Default: as many as it has processors, and as data.memory_limit "
        "leaves room for.",
    )
    dask: str | None = Field(
        None,
        description="Address of a Dask scheduler, such as tcp://10.0.0.5:8786, whose workers prepare the data instead "
        "of processes on this machine. They need this version of Holdfast, and must reach source and store under the "
        "same paths or addresses. Needs the package prefect-dask.",
    )


class SegmentConfig(ConfigModel):
    """How one launch of the ranks is bounded."""

    seconds: float | None = Field(
        None,
        gt=0,
        description="Time budget of one segment: seconds of training and validation. Starting the ranks and the last "
        "save are not counted. Default: no limit.",
    )
    hang_seconds: float = Field(
        900,
        gt=0,
        description="Seconds without a report after which the ranks count as hanging and are killed; the run goes on "
        "from its last checkpoint. They report each step and each part of a validation, but nothing while they start, "
        "restore or compile.",
    )
    lost_seconds: float | None = Field(
        None,
        ge=10,
        description="Seconds without a step after which ranks are killed that cannot get on for certain: a machine is "
        "not heard of any more and the others wait for it, or all wait for each other and nothing arrives. Default: 20 "
        "times the longest of the last 100 steps, and at least 60; never more than hang_seconds.",
    )
    out_of_memory: Literal["fail", "adapt"] = Field(
        "fail",
        description="What follows when a device has too little memory for a microbatch. fail: the error names what "
        "helps. adapt: the run goes on with train.activation_checkpointing = true from then on, where that helps.",
    )
    grace_seconds: float = Field(90, gt=0, description="Seconds the ranks get to save and leave when asked to stop.")
    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port on which the process that supervises the segment answers GET /metrics in the Prometheus text "
        "format, from the segment's start to its end. Default: none.",
    )
    metrics_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address that it listens on. By default only this machine reaches it. 0.0.0.0 is all addresses of "
        "this machine, for a Prometheus on another one: whoever reaches the port then reads the figures, unasked.",
    )


class ReportConfig(ConfigModel):
    """What the report of a run shows beside its records."""

    baseline: bool = Field(
        True,
        description="Whether the test metrics of a linear model on counts of tokens are shown beside the network's. It "
        "is trained once, when the run is complete, on this machine, in at most 60 s; where it is better than the "
        "network, report and terminal say so in their first lines.",
    )


class RetryConfig(ConfigModel):
    """What happens after a segment was lost or failed, and while the store does not answer."""

    attempts: int = Field(3, ge=0, description="How often the flow is tried again before it fails.")
    delay_seconds: float = Field(5, ge=0, description="Seconds before the next attempt.")
    store_seconds: float = Field(
        600,
        ge=0,
        description="Seconds for which an operation is tried again while the store does not answer: a time-out, a "
        "refused connection, 503, an I/O error; or refuses the credentials. Training goes on meanwhile. A missing "
        "bucket ends the run at once, and so does each of these when the command starts. A checkpoint that is missing "
        "or cannot be read is waited for as long, before it is passed over.",
    )
    reread_seconds: float = Field(
        30,
        ge=0,
        description="Seconds after which a checkpoint whose bytes differ from their hash is read a second time, before "
        "it is called damaged.",
    )


class RunConfig(ConfigModel):
    """Everything about one run."""

    run: str = Field(pattern=RUN_NAME_PATTERN, max_length=MAX_RUN_NAME_CHARACTERS, description="The run's name.")
    owner: str | None = Field(
        None,
        pattern=OWNER_PATTERN,
        description="The team or person that people ask about the run, as in lists of runs. Nothing is decided by it.",
    )
    store: str = Field(
        "holdfast-store",
        min_length=1,
        description="Durable storage: a folder, or s3://bucket/prefix. A relative path is taken from the "
        "configuration file's folder.",
    )
    scratch: str | None = Field(
        None,
        description="Folder on fast local disk for temporary files. A relative path is taken from the configuration "
        "file's folder. Default: inside the store, or below TMPDIR where the store is a bucket.",
    )
    data: DataConfig
    prepare: PrepareConfig = PrepareConfig()
    model: ModelConfig = EncoderConfig()
    train: TrainConfig = TrainConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    divergence: DivergenceConfig = DivergenceConfig()
    segment: SegmentConfig = SegmentConfig()
    notices: NoticesConfig = NoticesConfig()
    cluster: ClusterConfig = ClusterConfig()
    tracking: TrackingConfig = TrackingConfig()
    report: ReportConfig = ReportConfig()
    retry: RetryConfig = RetryConfig()

    @property
    def num_ranks(self) -> int:
        """The ranks of all nodes together."""
        return self.cluster.nodes * self.train.ranks

    @model_validator(mode="after")
    def _scores_are_known(self) -> "RunConfig":
        data, validation = self.data, self.validation
        require_slices(validation.slices, data.categorical, data.numeric)
        require_metrics(validation.metrics, data.kind)
        require_deciding_metric(validation.metric_for_best_model, validation.metrics, data.kind)
        return self

    @model_validator(mode="after")
    def _fits_a_pretrained_model(self) -> "RunConfig":
        if not isinstance(self.model, PretrainedConfig):
            if len(self.data.text_columns) == 2:
                raise ValueError(
                    f"data.text names two columns, {self.data.body}: that goes with model.kind = 'pretrained' alone. "
                    "Name one column, or join the two texts into one before"
                )
            return self
        if self.data.text is None:
            raise ValueError("model.kind = 'pretrained' needs data.text: the model's own tokenizer reads texts")
        if self.train.compile:
            raise ValueError(
                "train.compile does not go with model.kind = 'pretrained': a padded model is not compiled. Take "
                "train.compile out"
            )
        if self.train.start_from is not None:
            raise ValueError(
                "train.start_from does not go with model.kind = 'pretrained', whose first weights are those of "
                f"model.name: {self.model.name!r}. Take train.start_from out"
            )
        return self

    @model_validator(mode="after")
    def _fits_own_code(self) -> "RunConfig":
        """Where ranks are on other machines, a store would tell them what to import."""
        if isinstance(self.model, ModuleConfig):
            for name, is_set in (("compile", self.train.compile), ("start_from", self.train.start_from is not None)):
                if is_set:
                    raise ValueError(f"train.{name} does not go with model.kind = 'module'. Take train.{name} out")
        own = [
            name
            for name, is_own in (
                ("model.kind = 'module'", isinstance(self.model, ModuleConfig)),
                ("train.optimizer = 'factory'", self.train.optimizer == "factory"),
            )
            if is_own
        ]
        if own and self.cluster.kind != "local":
            raise ValueError(
                f"{own[0]} needs cluster.kind = 'local', found {self.cluster.kind!r}: the ranks of a cluster read in "
                "the store what to train, and no code is imported that a store names. Train on one machine"
            )
        return self

    @model_validator(mode="after")
    def _a_microbatch_for_each_rank(self) -> "RunConfig":
        microbatches = self.train.microbatches
        if self.num_ranks > microbatches:
            raise ValueError(
                f"all ranks together must be at most train.microbatches: cluster.nodes = {self.cluster.nodes} with "
                f"train.ranks = {self.train.ranks} each are {self.num_ranks}, and train.microbatches is "
                f"{microbatches}. Set cluster.nodes to at most {microbatches // self.train.ranks}, or for a new run "
                f"train.microbatches to at least {self.num_ranks}"
            )
        return self
