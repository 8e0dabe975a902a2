"""A pretrained model before it is loaded: what is read of its folder, what a run keeps of it, what is refused."""

import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from storage.errors import ConfigurationError, IncompatibleRunError
from storage.objects.digests import sha256_of_file
from storage.runs.run_state import RunState
from tasks.config.changes import as_begun, require_compatible
from tasks.config.load import configure
from tasks.config.paths import absolute_paths
from tasks.config.template import render_configuration
from tasks.configuration.run import RunConfig
from tasks.data.contract.rules import row_rules
from tasks.data.identity.fingerprints import read_inputs
from tasks.data.text_pairs import text_sql, text_sql_of_each, texts_of
from tasks.data.tokenizer import encode_texts, load_tokenizer, shortened
from tasks.models.pretrained import pin_model, require_same_model
from tests.helpers.pretrained import make_tokenizer, write_pretrained_files
from training.configuration import TrainConfig
from training.model_configuration import EncoderConfig, PretrainedConfig
from training.models.source import microbatch_cut, source_of

SETTINGS: dict[str, Any] = {
    "run": "small",
    "data": {"source": "/data", "text": "text", "label": "topic", "kind": "multiclass", "max_tokens": 64},
    "train": {"steps": 4},
}


def config_of(folder: Path, **changes: dict[str, Any]) -> RunConfig:
    sections = {name: SETTINGS[name] | changes.get(name, {}) for name in ("data", "train")}
    model = {"kind": "pretrained", "name": str(folder), **changes.get("model", {})}
    return configure(RunConfig, SETTINGS | sections | {"model": model}, "test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pretrained_files(tmp_path / "model")


def test_what_is_read_of_the_folder_is_pinned_and_stands_for_the_model_from_then_on(folder: Path) -> None:
    config = pin_model(config_of(folder))
    assert isinstance(config.model, PretrainedConfig) and config.data.tokenizer is not None
    pin = config.model.pin
    assert set(pin.files) == {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert all(sha256_of_file(folder / name) == sha256 for name, sha256 in pin.files.items())
    assert config.data.tokenizer.sha256 == pin.files["tokenizer.json"]
    assert (pin.padding_index, pin.separator_index) == (0, None)
    assert pin.read_config()["hidden_size"] == 16 and "architectures" not in pin.read_config()
    shutil.rmtree(folder)
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    source = source_of(config.model)
    assert (source.layout, source.attention_length) == ("padded", 2 * 16 + 32)
    assert microbatch_cut(config.model, TrainConfig()).padding_efficiency == 0


def test_another_kind_of_model_pins_nothing_and_its_data_set_is_what_it_was() -> None:
    config = configure(RunConfig, SETTINGS, "test")
    assert config.model == EncoderConfig() and pin_model(config) is config
    assert "tokenizer" not in read_inputs(config.data, [], [])["data"]


def test_the_tokenizer_decides_the_data_set_by_its_content_and_not_by_where_it_is(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    here, moved = (read_inputs(pin_model(config_of(f)).data, [], []) for f in (folder, tmp_path / "moved"))
    assert here == moved
    tokenizer = make_tokenizer(["other"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert read_inputs(pin_model(config_of(folder)).data, [], []) != here


def test_a_begun_run_keeps_its_model_wherever_the_folder_is_now_and_notices_other_files(
    folder: Path, tmp_path: Path
) -> None:
    begun = pin_model(config_of(folder))
    values = begun.model_dump(mode="json")
    state = RunState(run="small", created_at=1.0, config=values, dataset_digest="d", dataset_sha256="s", steps_total=4)
    moved = folder.rename(tmp_path / "moved")
    config = as_begun(config_of(moved), state)
    assert isinstance(config.model, PretrainedConfig) and isinstance(begun.model, PretrainedConfig)
    assert config.model.pinned == begun.model.pinned and config.data.tokenizer == begun.data.tokenizer
    require_compatible(state, config)
    require_same_model(config)
    (moved / "model.safetensors").write_bytes(b"others")
    with pytest.raises(IncompatibleRunError, match=r"was changed since the run began: model\.safetensors"):
        require_same_model(config)
    shutil.rmtree(moved)
    require_same_model(config)  # which is reported, and ends no run
    with pytest.raises(IncompatibleRunError, match="pooling: was 'mean', is 'cls' now"):
        require_compatible(state, as_begun(config_of(moved, model={"pooling": "cls"}), state))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_encoder_decoder": True}, "has an encoder and a decoder"),
        ({"quantization_config": {"bits": 4}}, "are quantised"),
        ({"vocab_size": 7}, "tokens, and the model knows 7"),
        ({"max_position_embeddings": 60}, "takes at most 56 tokens, and data.max_tokens is 64"),
        ({"model_type": "roberta", "max_position_embeddings": 64, "pad_token_id": 1}, "takes at most 56 tokens"),
        ({"model_type": None}, "has no model_type"),
        ({"weights": None}, r"Files of other formats, such as pytorch_model\.bin"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_pretrained_files(tmp_path / "model", **changes)
    with pytest.raises(ConfigurationError, match=message) as raised:
        pin_model(config_of(folder))
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_folder_without_a_file_that_is_needed_is_refused(name: str, folder: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(ConfigurationError, match=name):
        pin_model(config_of(folder))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_makes_no_sense_is_refused(name: str, folder: Path) -> None:
    (folder / name).write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        pin_model(config_of(folder))


def test_the_padding_is_found_by_its_name_where_the_model_does_not_say(tmp_path: Path) -> None:
    folder = write_pretrained_files(tmp_path / "model", pad_token_id=None)
    model = pin_model(config_of(folder)).model
    assert isinstance(model, PretrainedConfig) and model.pin.padding_index == 0
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigurationError, match="no token for padding"):
        pin_model(config_of(folder))


def test_a_folder_that_is_not_there_is_no_name_on_a_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        pin_model(config_of(tmp_path / "none"))


def test_a_relative_folder_is_taken_from_the_file_and_a_name_on_the_hub_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    names = {"./model": f"{tmp_path}/model", "here": f"{tmp_path}/here", "organisation/model": "organisation/model"}
    for name, expected in names.items():
        assert absolute_paths({"model": {"name": name}}, tmp_path)["model"]["name"] == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"poling": "cls"}}, r"model\.poling: there is no such key; did you mean pooling\?"),
        (
            {"model": {"width": 3}},
            r"model\.width: there is no such key; model\.width goes with model\.kind = 'encoder'",
        ),
        ({"model": {"kind": "other"}}, "kind must be 'encoder', 'pretrained' or 'module'"),
        ({"model": {"pooling": "max"}}, r"model\.pooling: must be 'mean' or 'cls' \(found 'max'\)"),
        ({"train": {"compile": True}}, "train.compile does not go with model.kind"),
        ({"train": {"start_from": "/x"}}, "train.start_from does not go with model.kind"),
        ({"data": {"text": None, "tokens": "ids"}}, r"needs data\.text"),
    ],
)
def test_a_mistake_in_the_configuration_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config_of(tmp_path, **changes)


def test_the_file_that_a_run_is_written_to_has_the_name_and_nothing_that_was_pinned(folder: Path) -> None:
    text = render_configuration(pin_model(config_of(folder)), full=True)
    assert f'name = "{folder}"' in text and "sha256" not in text and "pinned" not in text


def test_special_tokens_stand_around_a_text_and_stay_where_it_is_shortened(folder: Path) -> None:
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    texts = ["pay the card bill again and again and again", "[SEP] [PAD]"]
    whole = encode_texts(tokenizer, texts, with_special_tokens=True).to_pylist()
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    assert len(whole[0]) > 8  # neither shortened nor padded by what the file says
    for ids in whole:
        assert (ids[0], ids[-1]) == (cls, sep) and not {cls, sep, 0} & set(ids[1:-1])
    short = shortened(tokenizer, texts, 5, with_special_tokens=True).to_pylist()
    assert short[0] == [*whole[0][:4], sep]


PAIR: dict[str, Any] = {"text": ["premise", "hypothesis"]}


def test_two_texts_are_read_together_and_the_model_is_told_which_is_the_second(folder: Path) -> None:
    config = pin_model(config_of(folder, data=PAIR))
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    assert isinstance(config.model, PretrainedConfig)
    assert config.model.pin.separator_index == tokenizer.token_to_id("[SEP]")
    (found,) = encode_texts(tokenizer, [("pay the card", "book")], with_special_tokens=True).to_pylist()
    assert found == tokenizer.encode("pay the card", "book").ids
    short = shortened(tokenizer, [("pay the card bill again", "book a flight")], 8, with_special_tokens=True)
    assert len(short[0]) == 8 and short.to_pylist()[0].count(tokenizer.token_to_id("[SEP]")) == 2


def test_a_model_that_knows_one_type_of_text_is_told_nothing(tmp_path: Path) -> None:
    folder = write_pretrained_files(tmp_path / "model", type_vocab_size=1)
    model = pin_model(config_of(folder, data=PAIR)).model
    assert isinstance(model, PretrainedConfig) and model.pin.separator_index is None


def test_two_texts_go_with_a_pretrained_model_alone() -> None:
    with pytest.raises(ConfigurationError, match=r"goes with model\.kind"):
        configure(RunConfig, SETTINGS | {"data": SETTINGS["data"] | PAIR}, "test")
    with pytest.raises(ConfigurationError, match="text must name one column or two"):
        configure(RunConfig, SETTINGS | {"data": SETTINGS["data"] | {"text": ["a", "b", "c"]}}, "test")


def test_a_pair_is_one_text_in_sql_and_two_again_whatever_they_have_in_them() -> None:
    rows = [("a", "b"), ("it's\x1fodd", ""), ("x", None)]
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE given (premise VARCHAR, hypothesis VARCHAR)")
        connection.executemany("INSERT INTO given VALUES (?, ?)", rows)
        columns = PAIR["text"]
        each = ", ".join(text_sql_of_each(columns).values())
        found = connection.execute(f"SELECT text, {each} FROM (SELECT {text_sql(columns)} AS text FROM given)")
        joined = found.fetchall()
    assert [row[1:] for row in joined] == [("a", "b"), ("it's odd", ""), (None, None)]
    assert texts_of([row[0] for row in joined[:2]], columns) == [("a", "b"), ("it's odd", "")]
    assert joined[2][0] is None and texts_of(["a"], ["text"]) == ["a"]


def test_the_rules_of_a_text_hold_for_each_of_two(folder: Path) -> None:
    rules = row_rules(config_of(folder, data=PAIR).data)
    names = [rule.name for rule in rules if "text" in rule.problem]
    assert names == [
        "premise and hypothesis: missing text (null or NaN)",
        "premise: empty text",
        "premise: NaN as text",
        "hypothesis: empty text",
        "hypothesis: NaN as text",
    ]
