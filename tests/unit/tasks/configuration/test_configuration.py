"""The configuration of a run: the files that are shipped, `--set`, and what a person is told about each mistake."""

import json
from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from tasks.config.load import configure, load_configuration
from tasks.configuration.run import RunConfig
from tasks.corpora.generate import Job
from tasks.corpora.policy import CLASSES
from tasks.corpora.policy import SCHEMA as POLICY_SCHEMA
from tasks.corpora.quality import SCHEMA as QUALITY_SCHEMA
from tasks.corpora.quality import VOCABULARY_SIZE
from training.validation_configuration import EXTRAS

CONFIGS = Path(__file__).parents[4] / "deployments" / "configs"
SHIPPED = sorted(CONFIGS.glob("*.toml"))
# How the library behind the models talks; nobody who writes a configuration knows what it means.
NOISE = (
    "pydantic",
    "Input should",
    "Extra inputs",
    "instance of",
    "Value error",
    "validation error",
    "type=",
    "https:",
)

SMALL = """
run = "small"

[data]
source = "here"
text = "prompt"
label = "class"
kind = "multiclass"
numeric = ["length"]

[train]
steps = 10
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_a_byte_order_mark_before_the_configuration_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf" + (CONFIGS / "intents.toml").read_bytes())
    assert load_configuration(path).run == "intents"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    assert load_configuration(path).run == path.stem


def test_the_promised_configurations_are_shipped() -> None:
    assert {"demo", "policy", "quality"} <= {path.stem for path in SHIPPED}


@pytest.mark.parametrize(
    ("name", "job"),
    [("demo", "policy"), ("policy", "policy"), ("quality", "quality")],
    ids=["demo", "policy", "quality"],
)
def test_the_configurations_name_columns_that_the_corpora_have(name: str, job: Job) -> None:
    data = load_configuration(CONFIGS / f"{name}.toml").data
    schema = {"policy": POLICY_SCHEMA, "quality": QUALITY_SCHEMA}[job]
    named = {data.id, data.label, data.text or data.tokens, data.attention_mask, data.split.column}
    assert named - {None} | set(data.numeric) | set(data.categorical) <= set(schema.names)


def test_the_policy_configuration_lists_the_classes_of_its_corpus() -> None:
    assert load_configuration(CONFIGS / "policy.toml").data.classes == [entry.name for entry in CLASSES]


def test_the_quality_configuration_has_room_for_every_token_of_its_corpus() -> None:
    data = load_configuration(CONFIGS / "quality.toml").data
    assert data.vocabulary_size >= VOCABULARY_SIZE and data.max_tokens >= 2048


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("train.steps=500", "train.steps", 500),
        ("train.steps = 500", "train.steps", 500),
        ("train.learning_rate=2e-3", "train.learning_rate", 0.002),
        ("train.compile=true", "train.compile", True),
        ("run=other-name", "run", "other-name"),
        ("run=7", "run", "7"),
        ("run=2026-01-01", "run", "2026-01-01"),
        ("store=s3://bucket/some/prefix", "store", "s3://bucket/some/prefix"),
        ("store=/a folder/with=signs", "store", "/a folder/with=signs"),
        ('store="/quoted"', "store", "/quoted"),
        ("data.source=/data/*/part-[0-9].parquet", "data.source", "/data/*/part-[0-9].parquet"),
        ("data.source=/[1", "data.source", "/[1"),
        ('data.numeric=["length", "age"]', "data.numeric", ["length", "age"]),
        ("data.numeric=[]", "data.numeric", []),
        ("checkpoint.every_steps=7", "checkpoint.every_steps", 7),
        ("segment.seconds=30", "segment.seconds", 30.0),
        ("data.split.test_fraction=0.3", "data.split.test_fraction", 0.3),
    ],
)
def test_set_changes_one_key_and_no_other(small: Path, assignment: str, key: str, value: object) -> None:
    before, after = load_configuration(small), load_configuration(small, [assignment])
    assert _value_at(after, key) == value
    assert _without(after, key) == _without(before, key)


def test_of_two_assignments_to_a_key_the_later_one_counts(small: Path) -> None:
    assert load_configuration(small, ["train.steps=1", "train.steps=2"]).train.steps == 2


def test_two_assignments_that_only_make_sense_together_are_taken_together(small: Path) -> None:
    split = load_configuration(small, ["data.split.by=time", "data.split.column=created_at"]).data.split
    assert (split.by, split.column) == ("time", "created_at")


def test_a_split_that_is_given_is_written_without_fractions_and_read_again_as_it_was(small: Path) -> None:
    assignments = ["data.split.by=given", "data.split.column=part", "data.split.test_values=[8, 9]"]
    config = load_configuration(small, assignments)
    written = config.model_dump(mode="json")
    assert not {"validation_fraction", "test_fraction"} & written["data"]["split"].keys()
    assert RunConfig.model_validate(written) == config == RunConfig.model_validate_json(config.model_dump_json())


def test_what_a_validation_gives_beyond_the_usual_is_recorded_where_it_is_asked_for(small: Path) -> None:
    assert not EXTRAS & load_configuration(small).model_dump(mode="json")["validation"].keys()
    asked = {"slices": ["country"], "metrics": ["recall"], "metric_for_best_model": "recall"}
    assignments = [f"validation.{name}={json.dumps(value)}" for name, value in asked.items()]
    config = load_configuration(small, ['data.categorical=["country"]', *assignments])
    assert config.model_dump(mode="json")["validation"].items() >= asked.items() and asked.keys() == EXTRAS
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_set_leaves_the_file_as_it_is(small: Path) -> None:
    load_configuration(small, ["train.steps=500"])
    assert small.read_text() == SMALL


def test_a_configuration_cannot_be_changed_after_it_was_loaded(small: Path) -> None:
    config = load_configuration(small)
    with pytest.raises(ValueError, match="frozen"):
        config.run = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.stepz=5", "train.stepz: there is no such key; did you mean steps?"),
        (
            'validation.slices=["length"]',
            "validation.slices names columns of data.categorical, by whose values samples are put together: 'length' "
            "is a numeric column. data.categorical = []",
        ),
        (
            'validation.metrics=["log_loss"]',
            "validation.metrics: 'log_loss' is not known for kind = 'multiclass'. Known are auroc, average_precision, "
            "calibration_error, cohen_kappa, jaccard_index, matthews_corrcoef, precision, recall, specificity; "
            "computed in any case: macro_f1, accuracy, loss",
        ),
        ('validation.metrics=["accuracy"]', "validation.metrics: accuracy is computed in any case. Take it out"),
        ('validation.metrics=["recall", "recall"]', "validation.metrics names recall twice"),
        ("validation.metric_for_best_model=loss", "is 'loss': lower is better. It may be one of macro_f1, accuracy;"),
        ("validation.metric_for_best_model=recall", "is 'recall': it is not computed. It may be one of"),
        ('validation.slices=["contry"]', "'contry' is not among data.categorical"),
        ("trian.steps=5", "trian: there is no such key; did you mean train?"),
        ("retry.colour=red", "retry.colour: there is no such key; the keys there are attempts, delay_seconds"),
        ("data.split.bye=id", "data.split.bye: there is no such key; did you mean by?"),
        ("train.steps=many", "train.steps: must be a whole number (found 'many')"),
        ("train.steps=5.5", "train.steps: must be a whole number (found 5.5)"),
        ("train.steps=0", "train.steps: must be at least 1 (found 0)"),
        ("train.learning_rate=nan", "train.learning_rate: must be a finite number (found nan)"),
        ("train.compile=perhaps", "train.compile: must be true or false (found 'perhaps')"),
        ("cluster.kind=podman", "cluster.kind: must be 'local', 'slurm' or 'kubernetes' (found 'podman')"),
        ("checkpoint.every_seconds=1000", "checkpoint.every_seconds: must be at most 900 (found 1000)"),
        (
            "data.memory_limit=none",
            "data.memory_limit: must be a size like '2GB' or '512MB', or 'unlimited' for no limit (found 'none')",
        ),
        ("data.memory_limit=-1", "or 'unlimited' for no limit (found"),
        ("data.kind=ternary", "data.kind: must be 'multiclass', 'binary' or 'multilabel' (found 'ternary')"),
        ("data.numeric=length", 'data.numeric: must be a list, as ["a", "b"] (found \'length\')'),
        ("train=5", "train: must be a section with keys of its own (found 5)"),
        ("run=two words", "run: must be 1 to 100 letters, digits"),
        ("run=../elsewhere", "run: must be 1 to 100 letters, digits"),
        ("data.tokens=ids", "data: exactly one of text and tokens must name a column"),
        ("data.attention_mask=mask", "data: attention_mask goes with tokens, not with text"),
        ("data.label=prompt", "data: each column has one meaning, but these are named twice: prompt"),
        ('data.classes=["a", "a"]', "data: classes must differ from each other, found ['a', 'a']"),
        ("data.shard_rows=1000", "row_group_rows: shard_rows is 1000 and row_group_rows is 1024 (the default)"),
        ("data.split.by=column", "data.split: by = 'column' needs column, the name of"),
        ("data.split.column=shard_id", "by is 'id' (the default) and column is 'shard_id'"),
        ("data.split.by=given", "data.split: by = 'given' needs column, the name of the column with the names of the"),
        (
            'data.split={by = "given", column = "part", test_fraction = 0.1}',
            "data.split: with by = 'given' the column alone decides, but test_fraction is 0.1. Take test_fraction out",
        ),
        (
            'data.split.test_values=["eval"]',
            "data.split: test_values can be set with by = 'given' only: by is 'id' (the default)",
        ),
        ('data.split={by = "given", column = "part", test_values = []}', "data.split.test_values: "),
        (
            'data.split={by = "given", column = "part", test_values = ["DEV"]}',
            "data.split: 'DEV' would mean both validation and test. Set validation_values and test_values so that",
        ),
        (
            'data.split={validation_source = "v", validation_fraction = 0.2}',
            "data.split: all rows of the validation split are those of validation_source, but validation_fraction is",
        ),
        (
            'data.split={by = "given", column = "part", validation_source = "v", test_source = "t"}',
            "data.split: with validation_source and test_source all rows of data.source are for training, but by is",
        ),
        (
            'data.split={by = "given", column = "part", train_values = ["a"], test_values = ["a"]}',
            "data.split: 'a' would mean both train and test",
        ),
        (
            "train.ranks=8",
            "train: ranks must be at most microbatches: ranks is 8 and microbatches is 4 (the default). Set ranks to "
            "at most 4",
        ),
        (
            "train.microbatches=100",
            "train: microbatches must be at most batch_size: microbatches is 100 and batch_size is 64 (the default)",
        ),
        (
            "train.batch_size=2",
            "microbatches is 4 (the default) and batch_size is 2. Set microbatches to at most 2, or a larger",
        ),
        ("train.steps=100000000000000000000", "train.steps: must be at most 1,000,000,000,000 (found 1"),
        ("train.batch_size=9223372036854775807", "train.batch_size: must be at most 1,000,000 (found 9"),
        ("model.width=30", "model: heads must divide width: width is 30 and heads is 4 (the default)"),
        ("steps=500", "steps: there is no such key; did you mean train.steps?"),
        ("learning_rate=0.1", "learning_rate: there is no such key; did you mean train.learning_rate?"),
        ("model.every_step=5", "did you mean validation.every_steps or checkpoint.every_steps?"),
        ("steps", "--set takes key=value, for instance train.steps=500; found 'steps'."),
        ("=5", "--set takes key=value, for instance train.steps=500; found '=5'."),
        ("run.name=x", "--set run.name=x: run is a value, not a section."),
    ],
)
def test_a_mistake_is_named_with_its_place_and_what_is_wanted(small: Path, assignment: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(small, [assignment])
    assert message in str(caught.value)
    assert not [noise for noise in NOISE if noise in str(caught.value)]


@pytest.mark.parametrize("owner", ["Suche und Empfehlung", "7", "jo@example.org", "é", "検索", "x" * 100])
def test_an_owner_is_a_line_of_any_characters(small: Path, owner: str) -> None:
    assert load_configuration(small).owner is None
    assert load_configuration(small, [f"owner={owner}"]).owner == owner


@pytest.mark.parametrize(
    "owner", ["", " ", " team", "team ", "two\nlines", "team\n", "a\tb", "\x1b[31mred", "a\x9fb", "a\u2028b", "x" * 101]
)
def test_an_owner_that_is_no_line_to_read_is_one_mistake(owner: str) -> None:
    values = {"run": "r", "owner": owner, "data": {"text": "t", "label": "l", "kind": "binary"}}
    wanted = "1 to 100 characters in one line, none of them a control character, the first and the last no space"
    with pytest.raises(ConfigurationError) as caught:
        configure(RunConfig, values, "configuration")
    assert str(caught.value).splitlines()[1:] == [f"  owner: must be {wanted} (found {owner!r})"]


@pytest.mark.parametrize("assignment", ["data.id=", 'data.id=""'])
def test_an_empty_id_means_that_rows_are_numbered(small: Path, assignment: str) -> None:
    assert not load_configuration(small, [assignment]).data.id


def test_a_binary_target_with_three_classes_is_refused(small: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"data: a binary target has two classes, found \['a', 'b', 'c'\]"):
        load_configuration(small, ["data.kind=binary", 'data.classes=["a", "b", "c"]'])


def test_all_mistakes_are_named_at_once_each_on_a_line_of_its_own(small: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(small, ["train.steps=0", "model.widht=3", "segment.seconds=-1"])
    first, *others = str(caught.value).splitlines()
    assert first == f"The configuration {small} is wrong:"
    assert [line.split(":")[0] for line in sorted(others)] == ["  model.widht", "  segment.seconds", "  train.steps"]


def test_a_key_that_must_be_there_is_named_when_it_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "bare.toml"
    path.write_text('run = "bare"\n')
    with pytest.raises(
        ConfigurationError, match=r"  data: must be given, a section \[data\] with at least label and k"
    ):
        load_configuration(path)


def test_the_values_of_a_key_that_must_be_there_are_named_where_it_has_some(small: Path) -> None:
    small.write_text("".join(line for line in small.read_text().splitlines(True) if not line.startswith("kind")))
    with pytest.raises(ConfigurationError, match=r"data.kind: must be given, one of 'multiclass', 'binary', 'multil"):
        load_configuration(small)


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Cannot read the configuration .*none\.toml: No such file"):
        load_configuration(tmp_path / "none.toml")


def test_a_folder_in_place_of_a_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Cannot read the configuration .*: Is a directory"):
        load_configuration(tmp_path)


@pytest.mark.parametrize("content", [b"run = \n", b"[data\n", b"run = 'a'\nrun = 'b'\n", b"\xff\xfe\x00"])
def test_a_file_that_is_not_toml_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"The configuration .*broken\.toml is not valid TOML: "):
        load_configuration(path)


def _value_at(config: RunConfig, key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _without(config: RunConfig, key: str) -> dict[str, object]:
    values = config.model_dump()
    *sections, name = key.split(".")
    inner = values
    for section in sections:
        inner = inner[section]
    del inner[name]
    return values
