"""Classes of which a split has no row: refused, left out of everything, or made one class; and always said."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from storage.datasets import SPLITS, DatasetManifest, load_dataset
from storage.errors import ContractError
from storage.objects.local_store import LocalStore
from tasks.configuration.run import DataConfig
from tasks.data.contract.result import find_contract_result
from tasks.data.pipeline import prepare_dataset
from tasks.data.rare_classes import find_rare, treat_counts
from tasks.data.remarks.remarks import remarks_on
from tasks.models.labelled_table import SPLIT, prepare_table
from tests.helpers.parquet import read_rows, read_split, text_columns, text_config, token_columns, write_parquet

NUM_ROWS = 120
# By row: what is not named is 'travel' or 'work', of which every split has rows.
RARE = {3: "lost", 50: "lost", 100: "stolen", 101: "stolen", 110: "broken"}


def labels() -> list[str]:
    return [RARE.get(i, ("travel", "work")[i % 2]) for i in range(NUM_ROWS)]


def parts() -> list[str]:
    return ["train" if i < 80 else "dev" if i < 105 else "test" for i in range(NUM_ROWS)]


def columns_of(kind: str) -> dict[str, Any]:
    if kind == "text":
        return text_columns(NUM_ROWS) | {"domain": labels(), "part": parts()}
    return token_columns(NUM_ROWS) | {"domain": labels(), "part": parts()}


def config_of(kind: str, source: Path, **changes: Any) -> DataConfig:
    split = {"split": {"by": "given", "column": "part"}}
    if kind == "text":
        return text_config(source, **(split | changes))
    tokens = {"text": None, "tokens": "input_ids", "attention_mask": "attention_mask", "vocabulary_size": 1000}
    return text_config(source, **(split | tokens | changes))


def prepare(config: DataConfig, folder: Path) -> tuple[DatasetManifest, list[str]]:
    store = LocalStore(folder / "store")
    dataset = prepare_dataset(config, store, folder / "scratch")
    return dataset, remarks_on(dataset, find_contract_result(store, dataset), config)


def labels_by_id(dataset: DatasetManifest, folder: Path) -> dict[str, str]:
    rows = read_rows(LocalStore(folder / "store"), dataset)
    return {str(name): dataset.target.classes[row["label"]] for name, row in rows.items()}


def test_a_class_that_is_not_in_training_is_refused_by_name_with_what_can_be_set(tmp_path: Path) -> None:
    config = config_of("text", write_parquet(tmp_path / "a.parquet", columns_of("text")))
    with pytest.raises(ContractError) as caught:
        prepare(config, tmp_path)
    assert "training split has no row of 2 of 5 classes" in str(caught.value)
    assert "none of 'stolen' (2 rows), 'broken' (1 row)" in str(caught.value)
    assert 'data.rare_classes = "drop"' in str(caught.value)


@pytest.mark.parametrize("kind", ["text", "tokens"])
@pytest.mark.parametrize("classes", [None, ["work", "stolen", "travel", "lost", "broken", "unseen"]])
def test_rows_of_rare_classes_are_left_out_of_splits_statistics_and_tokens_and_are_said(
    tmp_path: Path, kind: str, classes: list[str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    columns, treatment = columns_of(kind) | {"n": [float(i) for i in range(NUM_ROWS)]}, {"rare_classes": "drop"}
    source = write_parquet(tmp_path / "a.parquet", columns, 16)
    dataset, said = prepare(config_of(kind, source, numeric=["n"], classes=classes, **treatment), tmp_path)
    assert dataset.target.classes == (["work", "travel"] if classes else ["travel", "work"])
    names = [str(name) for name in columns["sample_id"]]
    expected = {name: label for i, (name, label) in enumerate(zip(names, labels(), strict=True)) if i not in RARE}
    assert labels_by_id(dataset, tmp_path) == expected
    assert sum(split.num_rows for split in dataset.splits.values()) == NUM_ROWS - len(RARE)
    assert [dataset.splits[name].num_rows for name in SPLITS] == [78, 23, 14]
    kept = [float(i) for i in range(80) if i not in RARE]
    assert dataset.numeric[0].mean == pytest.approx(sum(kept) / len(kept))
    assert said[0].startswith(
        f"Left out: 5 rows of {'4' if classes else '3'} labels of which a split has no row "
        "(data.rare_classes = \"drop\"): 'lost' (2 rows), 'stolen' (2 rows), 'broken' (1 row)"
    )
    caplog.clear()
    with caplog.at_level(logging.INFO, "holdfast"):
        assert prepare(config_of(kind, source, numeric=["n"], classes=classes, **treatment), tmp_path)[0] == dataset
    assert caplog.messages == ["The source has 1 file with 120 rows; no file is left out."]
    # What is left is, to the byte, what data without these rows give: tokens too.
    left = pa.table(columns).filter(pa.array([i not in RARE for i in range(NUM_ROWS)]))
    other = config_of(kind, write_parquet(tmp_path / "other" / "a.parquet", left.to_pydict()), numeric=["n"])
    if kind == "text" and classes is None:
        assert prepare(other, tmp_path / "other")[0].splits == dataset.splits


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_rare_classes_become_one_class(tmp_path: Path, kind: str) -> None:
    columns = columns_of(kind)
    config = config_of(kind, write_parquet(tmp_path / "a.parquet", columns, 16), rare_classes="other")
    dataset, said = prepare(config, tmp_path)
    assert dataset.target.classes == ["other", "travel", "work"]
    names = map(str, columns["sample_id"])
    expected = {n: "other" if i in RARE else label for i, (n, label) in enumerate(zip(names, labels(), strict=True))}
    assert labels_by_id(dataset, tmp_path) == expected
    assert [split.class_counts[0] for split in dataset.splits.values() if split.class_counts] == [2, 2, 1]
    assert said[0].startswith("Of the class 'other' are 5 rows of 3 labels of which a split has no row")


def test_neither_the_order_of_files_and_rows_nor_the_cut_into_row_groups_changes_what_is_rare(tmp_path: Path) -> None:
    table = pa.table(columns_of("text"))
    found = []
    for folder, row_group_rows, order in (("a", 7, range(NUM_ROWS)), ("b", 64, range(NUM_ROWS - 1, -1, -1))):
        turned = table.take(list(order))
        for name, part in (("x", turned.slice(0, 50)), ("y", turned.slice(50))):
            write_parquet(tmp_path / folder / "source" / f"{name}.parquet", part.to_pydict(), row_group_rows)
        config = config_of("text", tmp_path / folder / "source", rare_classes="other")
        dataset, said = prepare(config, tmp_path / folder)
        found.append((dataset.splits, dataset.target, said))
    assert found[0] == found[1]


def test_one_class_is_not_made_where_one_has_its_name_or_it_would_be_rare_itself() -> None:
    config = text_config("a.parquet", rare_classes="other")
    with pytest.raises(ContractError, match=r"called 'other' already(?s:.*)12 rows of it; .*'x' \(1 row\)"):
        find_rare({"other": [8, 2, 2], "work": [8, 1, 1], "x": [0, 0, 1]}, config)
    with pytest.raises(ContractError, match=r"too rare itself(?s:.*)none in the validation split \(train 3, vali"):
        find_rare({"travel": [8, 2, 2], "work": [8, 1, 1], "x": [3, 0, 1]}, config)
    counts = {"other": [0, 1, 0], "work": [8, 1, 1], "x": [3, 0, 1]}  # its own rows are too few as well
    assert treat_counts(counts, find_rare(counts, config), config) == {"work": [8, 1, 1], "other": [3, 1, 1]}
    with pytest.raises(ContractError, match=r"has 1 of two classes or more(?s:.*)no row of 1 of 2: 'x' \(4 rows\)"):
        find_rare({"work": [8, 1, 1], "x": [3, 0, 1]}, text_config("a.parquet", rare_classes="drop"))


def test_each_treatment_of_rare_classes_is_a_data_set_of_its_own(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", text_columns(90))
    found = [prepare(text_config(source, rare_classes=treatment), tmp_path) for treatment in ("drop", "other", "error")]
    assert len({dataset.digest for dataset, _ in found}) == 3  # each is what its configuration asks for
    assert all(dataset.splits == found[0][0].splits and said == [] for dataset, said in found)
    with pytest.raises(ValidationError, match="a binary target needs both of its classes: rare_classes is 'drop'"):
        text_config("a.parquet", kind="binary", rare_classes="drop")


@pytest.mark.parametrize(("treatment", "num_left"), [("drop", 8), ("other", 12)])
def test_another_table_is_evaluated_with_the_classes_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, treatment: str, num_left: int
) -> None:
    config = config_of("text", write_parquet(tmp_path / "a.parquet", columns_of("text")), rare_classes=treatment)
    dataset, _ = prepare(config, tmp_path)
    few = text_columns(12, first=900) | {"domain": ["work", "travel", "stolen"] * 4}
    source = write_parquet(tmp_path / "few.parquet", few)
    (tmp_path / "table").mkdir()
    with caplog.at_level(logging.WARNING, "holdfast"):
        table = prepare_table(str(source), config, dataset, LocalStore(tmp_path / "store"), tmp_path / "table")
    own = LocalStore(Path(table.store))
    prepared = load_dataset(own, table.digest)
    counts = Counter(prepared.target.classes[i] for i in read_split(own, prepared, SPLIT)["label"].to_pylist())
    assert counts == {"work": 4, "travel": 4} | ({"other": 4} if treatment == "other" else {})
    assert ("Left out: 4 of 12 rows, of classes that the run leaves out too." in caplog.text) == (num_left == 8)
    (tmp_path / "unknown").mkdir()
    write_parquet(source, few | {"domain": ["work", "travel", "never seen"] * 4})
    with pytest.raises(ContractError, match="'never seen'"):
        prepare_table(str(source), config, dataset, LocalStore(tmp_path / "store"), tmp_path / "unknown")
