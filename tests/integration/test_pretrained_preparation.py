"""Data prepared for a pretrained model: tokens are those of its own tokenizer, of one text or of two."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from flows.commands.drill import Drill
from storage.errors import ConfigurationError, ContractError
from storage.objects.local_store import LocalStore
from tasks.config.template import render_configuration
from tasks.configuration.run import RunConfig
from tasks.data.pipeline import prepare_dataset
from tasks.data.tokenizer import load_tokenizer
from tasks.models.description import describe_inputs
from tasks.models.pretrained import pin_model
from tests.helpers.parquet import CLASSES, WORDS, read_rows, write_parquet
from tests.helpers.pretrained import write_pretrained_files
from training.export.standalone.holdfast_inputs import Inputs

ROWS = 60


def config_of(folder: Path, text: str | list[str], **data: Any) -> RunConfig:
    topics = [CLASSES[i % len(CLASSES)] for i in range(ROWS)]
    columns = {
        "id": [f"s{i:02d}" for i in range(ROWS)],
        "first": [f"{WORDS[topic]} {i}" for i, topic in enumerate(topics)],
        "second": [f"pay {'again ' * (i % 7)}[SEP] {i}" for i in range(ROWS)],
        "topic": topics,
    }
    source = write_parquet(folder / "data.parquet", columns)
    model = write_pretrained_files(folder / "model")
    settings = {
        "source": str(source), "id": "id", "text": text, "label": "topic", "kind": "multiclass", "max_tokens": 40,
        "row_group_rows": 16, "shard_rows": 64, "split": {"validation_fraction": 0.2, "test_fraction": 0.2}, **data,
    }  # fmt: skip
    values = {"run": "small", "store": str(folder / "store"), "data": settings}
    return pin_model(RunConfig.model_validate(values | {"model": {"kind": "pretrained", "name": str(model)}}))


@pytest.mark.parametrize("text", ["first", ["first", "second"]])
@pytest.mark.parametrize("max_tokens", [40, 9])
def test_shards_and_an_export_have_the_tokens_of_the_models_own_tokenizer(
    text: str | list[str], max_tokens: int, tmp_path: Path
) -> None:
    config = config_of(tmp_path, text, max_tokens=max_tokens, too_long="truncate")
    store, data = LocalStore(tmp_path / "store"), config.data
    dataset = prepare_dataset(data, store, tmp_path / "scratch")
    tokenizer = load_tokenizer(tmp_path / "model/tokenizer.json")
    assert dataset.vocabulary_size == tokenizer.get_vocab_size() and dataset.tokenizer is not None
    tokenizer.encode_special_tokens = True
    tokenizer.enable_truncation(max_tokens)
    found = read_rows(store, dataset)
    rows = {f"s{i:02d}": i for i in range(ROWS)}
    assert found.keys() == rows.keys()
    texts = {
        id_: [f"{WORDS[CLASSES[i % len(CLASSES)]]} {i}", f"pay {'again ' * (i % 7)}[SEP] {i}"]
        for id_, i in rows.items()
    }
    for id_, row in found.items():
        first, *second = texts[id_][: len(data.text_columns)]
        assert row["tokens"] == tokenizer.encode(first, second[0] if second else None).ids, id_
    inputs = Inputs(describe_inputs(data, dataset), tmp_path / "model")
    columns = {name: [texts[id_][place] for id_ in rows] for place, name in enumerate(data.text_columns)}
    assert [list(ids) for ids in inputs.encode(columns).tokens] == [found[id_]["tokens"] for id_ in rows]

    shutil.rmtree(tmp_path / "model")
    assert prepare_dataset(data, store, tmp_path / "scratch").digest == dataset.digest
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(ConfigurationError, match="The tokenizer of the pretrained model"):
        prepare_dataset(data, store, tmp_path / "scratch")


def test_rows_with_more_tokens_than_may_be_are_refused_with_both_columns_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, ["first", "second"], max_tokens=9)
    with pytest.raises(ContractError, match="'first and second' has rows that are too long"):
        prepare_dataset(config.data, LocalStore(tmp_path / "store"), tmp_path / "scratch")


def test_a_row_without_one_of_its_two_texts_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, ["first", "second"])
    topics = [CLASSES[i % len(CLASSES)] for i in range(ROWS)]
    columns = {"id": [f"s{i:02d}" for i in range(ROWS)], "first": ["a"] * ROWS, "second": [" "] + ["b"] * (ROWS - 1)}
    write_parquet(tmp_path / "data.parquet", columns | {"topic": topics})
    with pytest.raises(ContractError, match="Column 'second' breaks the contract: empty text"):
        prepare_dataset(config.data, LocalStore(tmp_path / "store"), tmp_path / "scratch")


def test_a_drill_prepares_the_data_set_that_its_runs_find(tmp_path: Path) -> None:
    config = config_of(tmp_path, ["first", "second"], too_long="truncate")
    path = tmp_path / "small.toml"
    path.write_text(render_configuration(config, full=False))
    Drill(path, [], kills=1, world_sizes=None, seed=1, report=lambda _text: None)._prepare()
    shutil.rmtree(tmp_path / "model")  # with which a data set would be prepared
    assert prepare_dataset(config.data, LocalStore(tmp_path / "store"), tmp_path / "scratch").tokenizer is not None
