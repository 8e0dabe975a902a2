"""Which weights of a model belong where in a model of other data: the same token, class, category and column."""

from typing import Any

import pytest

from storage.errors import ConfigurationError
from training.models.correspondence import Copy, Described
from training.models.encoder.correspondence import correspond

SIZES = {
    "width": 8, "layers": 1, "heads": 2, "feedforward": 16, "metadata_width": 2, "num_positions": 16,
    "vocabulary_size": 3,
}  # fmt: skip
NAMES = (
    "blocks.0.attention.project_in.weight", "head.bias", "head.weight", "hidden.bias", "hidden.weight",
    "metadata.embeddings.0.weight", "norm.weight", "position_embedding.weight", "token_embedding.weight",
)  # fmt: skip


def described(
    classes: tuple[str, ...] = ("a", "b", "c"),
    numeric: tuple[str, ...] = ("age", "size"),
    categorical: tuple[tuple[str, list[str]], ...] = (("language", ["de", "en"]),),
    tokens: dict[str, int] | None = None,
    kind: str = "multiclass",
    **sizes: int,
) -> Described:
    inputs: dict[str, Any] = {
        "numeric": [{"name": name} for name in numeric],
        "categorical": [{"name": name, "vocabulary": vocabulary} for name, vocabulary in categorical],
        "first_vocabulary_index": 2,
        "adds_special_tokens": False,
    }
    outputs = {"num_outputs": 1 if kind == "binary" else len(classes)}
    return Described(inputs, {"kind": kind, "classes": list(classes)}, SIZES | outputs | sizes, tokens)


def copies(origin: Described, new: Described) -> dict[str, Copy]:
    return {copy.target: copy for copy in correspond(origin, new, NAMES).copies}


def places(copy: Copy) -> dict[int, int]:
    return dict(zip(copy.from_, copy.to, strict=True))


def test_a_model_of_the_same_data_is_taken_over_as_it_is() -> None:
    found = copies(described(), described())
    assert found.keys() == set(NAMES)
    for name in NAMES:
        assert found[name].source == name
        assert found[name].from_ == found[name].to
    assert found["hidden.weight"].axis == 1
    assert len(found["hidden.weight"].to) == 8 + 2 * 2 + 2
    assert places(found["metadata.embeddings.0.weight"]) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_classes_and_tokens_are_found_by_name_wherever_they_stand() -> None:
    found = copies(
        described(("a", "b", "c"), tokens={"[PAD]": 0, "x": 1, "y": 2}),
        described(("b", "new", "c", "a"), tokens={"[PAD]": 0, "z": 1, "x": 2}),
    )
    assert places(found["head.weight"]) == places(found["head.bias"]) == {0: 3, 1: 0, 2: 2}
    assert places(found["token_embedding.weight"]) == {0: 0, 1: 2}


def test_columns_and_categories_are_found_by_name_wherever_they_stand() -> None:
    origin = described(numeric=("age", "size"), categorical=(("language", ["de", "en"]), ("region", ["x"])))
    new = described(numeric=("size", "new"), categorical=(("region", ["y", "x"]), ("language", ["en", "fr"])))
    found = copies(origin, new)
    assert (found["metadata.embeddings.1.weight"].source, found["metadata.embeddings.0.weight"].source) == (
        "metadata.embeddings.0.weight",
        "metadata.embeddings.1.weight",
    )
    assert places(found["metadata.embeddings.1.weight"]) == {0: 0, 1: 1, 3: 2}  # en
    assert places(found["metadata.embeddings.0.weight"]) == {0: 0, 1: 1, 2: 3}  # x
    hidden = places(found["hidden.weight"])
    assert {place: hidden[place] for place in range(8)} == {place: place for place in range(8)}
    assert (hidden[9], hidden[11]) == (8, 10)  # size: value, and is-missing flag
    assert not {8, 10} & hidden.keys()  # age
    assert [hidden[place] for place in (12, 13, 14, 15)] == [14, 15, 12, 13]  # language, region
    assert correspond(origin, new, NAMES).words[-1] == "not the columns new, which it does not have"


def test_the_one_output_of_a_binary_target_is_taken_over_for_the_same_two_classes_alone() -> None:
    def binary(*classes: str) -> Described:
        return described(classes, kind="binary")

    assert places(copies(binary("no", "yes"), binary("no", "yes"))["head.weight"]) == {0: 0}
    assert "head.weight" not in copies(binary("no", "yes"), binary("yes", "no"))
    assert "head.weight" not in copies(binary("a", "b"), described(("a", "b")))


def test_longer_or_shorter_texts_have_the_positions_that_both_know() -> None:
    for num_positions in (24, 8):
        found = copies(described(), described(num_positions=num_positions))
        assert found["position_embedding.weight"].to == tuple(range(min(16, num_positions)))


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (described(width=16, heads=4), r"model\.width is 16, expected 8; model\.heads is 4, expected 2"),
        (described(metadata_width=4), r"model\.metadata_width is 4, expected 2"),
        (described(tokens={"x": 0}), "reads token ids, this run's data are text"),
    ],
)
def test_another_size_or_kind_of_input_is_refused_by_name(new: Described, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        correspond(described(), new, NAMES)


def test_the_size_of_metadata_does_not_matter_where_no_column_is_shared() -> None:
    found = copies(described(), described(categorical=(("other", ["x"]),), metadata_width=4))
    assert not any(name.startswith("metadata.") for name in found)
    assert sorted(found["hidden.weight"].to) == list(range(8 + 2 * 2))  # the text's vector and the numeric columns
