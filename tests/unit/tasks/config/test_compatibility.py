"""What a run cannot go on with is refused field by field; what may change is listed, and the list is true."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from storage.checkpoints.tensor_layout import TensorKind
from storage.datasets import (
    CategoricalColumn,
    DatasetManifest,
    FileRecord,
    NumericColumn,
    ShardRecord,
    SplitRecord,
    Target,
)
from storage.errors import IncompatibleRunError
from storage.objects.local_store import LocalStore
from storage.runs.run_state import RunState
from tasks.config.changes import CHANGEABLE, read_stored, require_compatible
from tasks.config.load import change_values, configure
from tasks.configuration.run import RunConfig
from tasks.data.identity.difference import describe_difference
from tests.helpers.runs import make_checkpoint
from training.checkpointing.restoring import load_weights
from training.checkpointing.signature import Signature, describe_differences, require_same_signature
from training.checkpointing.versions import describe_driver, describe_processor, describe_version_changes, read_versions
from training.determinism import CHOOSES_INSTRUCTIONS
from training.spec import ResumePoint

SOURCES = {"source": "s", "split": {"validation_source": "v", "test_source": "t"}}
CONFIG = RunConfig.model_validate({"run": "run", "data": {"text": "t", "label": "l", "kind": "binary", **SOURCES}})
PINNED = {"config": "{}", "files": {}, "padding_index": 0, "separator_index": None}
PRETRAINED = configure(
    RunConfig,
    CONFIG.model_dump(mode="json")
    | {"model": {"kind": "pretrained", "name": "./bert", "pinned": PINNED}}
    | {
        "data": CONFIG.data.model_dump(mode="json") | {"tokenizer": {"path": "bert/tokenizer.json", "sha256": "0" * 64}}
    },
    "configuration",
)
README = Path(__file__).parents[4] / "tasks/config/README.md"
# A change for each of the fields that may change.
CHANGES = (
    "owner=another team",
    "store=elsewhere", "scratch=/fast", "data.source=moved", "data.memory_limit=1GB", "train.steps=5000",
    "data.expectations=suite",
    "train.epochs=3", "train.device=cpu", "prepare.workers=3", "train.ranks=2", "train.patience=3",
    "train.share_gpus=true", "validation.every_steps=7", "validation.batch_size=3", "checkpoint.every_steps=9",
    "checkpoint.every_seconds=60", "checkpoint.keep=5",
    "data.split.validation_source=moved", "data.split.test_source=moved",
    "checkpoint.gate.lowest_metric=0.5", "divergence.max_rollbacks=1", "segment.seconds=9", "retry.attempts=0",
    "cluster.kind=slurm", "notices.file=/notice", "train.activation_checkpointing=true",
    "tracking.experiment=other", "report.baseline=false",
)  # fmt: skip
CHANGES_OF_PRETRAINED = ("model.name=./moved", "data.tokenizer.path=moved/tokenizer.json")
# Of the user's own code: `unit/tasks/models/test_own_code.py`.
TRIED_ELSEWHERE = ("model.factory", "train.optimizer_factory")


def state_of(config: RunConfig) -> RunState:
    return RunState(
        run="run",
        created_at=0,
        config=config.model_dump(mode="json"),
        dataset_digest="d",
        dataset_sha256="s" * 64,
        steps_total=10,
    )


def changed(*assignments: str, config: RunConfig = CONFIG) -> RunConfig:
    return configure(RunConfig, change_values(config.model_dump(mode="json"), list(assignments)), "configuration")


@pytest.mark.parametrize("assignment", CHANGES)
def test_what_may_change_just_works(assignment: str) -> None:
    assert changed(assignment) != CONFIG
    require_compatible(state_of(CONFIG), changed(assignment))  # raises where it may not


def test_a_run_from_before_there_were_owners_goes_on_with_one_and_without() -> None:
    begun = state_of(CONFIG)
    without = begun.model_copy(update={"config": {name: of for name, of in begun.config.items() if name != "owner"}})
    for config in (CONFIG, changed("owner=search team")):
        require_compatible(without, config)
    assert read_stored(without.config) == CONFIG.model_dump(mode="json")


def test_every_field_that_may_change_is_tried_here_and_listed_in_the_readme() -> None:
    fields = [assignment.partition("=")[0] for assignment in CHANGES + CHANGES_OF_PRETRAINED + TRIED_ELSEWHERE]
    assert [entry for entry in CHANGEABLE if not any(f"{field}.".startswith(f"{entry}.") for field in fields)] == []
    listed = README.read_text(encoding="utf-8")
    assert [entry for entry in CHANGEABLE if f"`{entry}`" not in listed and f"`[{entry}]`" not in listed] == []


def test_the_metric_that_decides_is_kept_while_further_ones_may_be_asked_for() -> None:
    require_compatible(state_of(CONFIG), changed('validation.metrics=["recall"]'))
    with pytest.raises(IncompatibleRunError, match=r"metric_for_best_model: was not set, is 'accuracy' now"):
        require_compatible(state_of(CONFIG), changed("validation.metric_for_best_model=accuracy"))


def test_where_the_model_is_compiled_its_blocks_are_recomputed_from_the_start_or_never() -> None:
    compiled, recomputing = changed("train.compile=true"), "train.activation_checkpointing=true"
    with pytest.raises(IncompatibleRunError, match=r"train\.activation_checkpointing: was False, is True now"):
        require_compatible(state_of(compiled), changed("train.compile=true", recomputing))


def test_what_decides_the_model_is_refused_field_by_field() -> None:
    with pytest.raises(IncompatibleRunError) as raised:
        require_compatible(state_of(CONFIG), changed("model.width=64", "train.seed=5", "train.steps=2000"))
    lines = str(raised.value).splitlines()
    assert lines[1:-1] == ["  model.width: was 128, is 64 now", "  train.seed: was 0, is 5 now"]


def signature(**kinds: tuple[str, tuple[int, ...]]) -> Signature:
    return {name: TensorKind(*kind) for name, kind in kinds.items()}


def test_models_are_told_apart_by_name_type_and_shape_of_each_tensor() -> None:
    before = signature(a=("F32", (3,)), b=("F32", (2, 2)), c=("F32", ()), gone=("F32", (1,)))
    now = signature(a=("F32", (3,)), b=("F32", (2, 4)), c=("F16", ()), new=("I64", (5,)))
    assert describe_differences(before, now) == [
        "b: F32 [2, 2] in the checkpoint, F32 [2, 4] in the model",
        "c: F32 [] in the checkpoint, F16 [] in the model",
        "gone: F32 [1] in the checkpoint, nothing in the model",
        "new: nothing in the checkpoint, I64 [5] in the model",
    ]
    require_same_signature("path", before, dict(before))
    with pytest.raises(IncompatibleRunError, match="path does not fit the configured model:\n  b: F32"):
        require_same_signature("path", before, now)


def test_of_many_differences_ten_are_named_and_the_others_counted() -> None:
    before = {f"{number:02d}": TensorKind("F32", (1,)) for number in range(14)}
    with pytest.raises(IncompatibleRunError) as raised:
        require_same_signature("path", before, {**before, **signature(other=("F32", (1,))), **_wider(before, 12)})
    lines = str(raised.value).splitlines()
    assert len(lines) == 1 + 10 + 1 + 1
    assert lines[10].startswith("  09: ") and lines[11] == "  and 3 more of 15 tensors"


def _wider(kinds: Signature, count: int) -> Signature:
    return {name: TensorKind("F32", (2,)) for name in list(kinds)[:count]}


class Weights(nn.Module):
    """The model that the checkpoints made by hand are of, or one that is not."""

    def __init__(self, rows: int = 16, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, 4, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(4))


def test_weights_are_loaded_only_into_the_model_that_they_are_of(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    found = make_checkpoint(store, tmp_path / "files", step=7, fence=2)
    point = ResumePoint(path=found.path, digest=found.digest, step=7)
    model = Weights()
    load_weights(store, point, model)
    assert set(model.weight.flatten().tolist()) == set(model.bias.tolist()) == {7}
    for other, words in (
        (Weights(rows=8), "weight: F32 [16, 4] in the checkpoint, F32 [8, 4] in the model"),
        (Weights(dtype=torch.bfloat16), "weight: F32 [16, 4] in the checkpoint, BF16 [16, 4] in the model"),
        (nn.Linear(4, 16, bias=False), "bias: F32 [4] in the checkpoint, nothing in the model"),
        (nn.Bilinear(1, 1, 1), "bias: F32 [4] in the checkpoint, F32 [1] in the model"),
    ):
        with pytest.raises(IncompatibleRunError) as raised:
            load_weights(store, point, other)
        assert words in str(raised.value)


def dataset(**changes: Any) -> DatasetManifest:
    rows = changes.pop("rows", 100)
    shard = ShardRecord(
        name="train-00000.parquet",
        num_rows=rows,
        num_bytes=9,
        sha256=changes.pop("sha256", "a" * 64),
        footer_sha256="f" * 64,
    )
    manifest = DatasetManifest(
        digest="d" * 64,
        inputs={},
        versions={},
        target=Target(kind="multiclass", column="label", classes=["a", "b"], class_counts=[60, 40]),
        vocabulary_size=64,
        max_tokens=24,
        row_group_rows=16,
        numeric=[NumericColumn(name="age", mean=3.5, standard_deviation=1, median=3, missing_share=0.25)],
        categorical=[CategoricalColumn(name="region", vocabulary=["north", "south"], missing_share=0)],
        splits={"train": SplitRecord(num_rows=rows, num_tokens=10 * rows, shards=[shard])},
        tokenizer=None,
    )
    return manifest.model_copy(update=changes)


MAX_TOKENS_CHANGED = "max_tokens: was 24, is 32 now"
AGE = {"name": "age", "standard_deviation": 1.0, "median": 3.0, "missing_share": 0.25}


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        ({}, []),
        ({"rows": 1200}, ["train split, rows: was 100, is 1,200 now", "train split, tokens: was 1,000, is 12,000 now"]),
        ({"sha256": "b" * 64}, ["train split: other content in 1 of 1 shards"]),
        ({"numeric": []}, ["numeric columns: was ['age'], is [] now"]),
        ({"numeric": [NumericColumn(mean=4.25, **AGE)]}, ["numeric column 'age', mean: was 3.5, is 4.25 now"]),
        (
            {"categorical": [CategoricalColumn(name="region", vocabulary=["north", "west"], missing_share=0)]},
            ["categorical column 'region', vocabulary: 1 gone ('south'), 1 new ('west')"],
        ),
        (
            {"categorical": [CategoricalColumn(name="region", vocabulary=["south", "north"], missing_share=0)]},
            ["categorical column 'region', vocabulary: the same values in another order"],
        ),
        (
            {"target": Target(kind="multiclass", column="label", classes=["a", "b"], class_counts=[50, 50])},
            ["target, class counts: was [60, 40], is [50, 50] now"],
        ),
        ({"vocabulary_size": 128, "max_tokens": 32}, ["vocabulary_size: was 64, is 128 now", MAX_TOKENS_CHANGED]),
        (
            {"tokenizer": FileRecord(name="tokenizer.json", num_bytes=1, sha256="c" * 64)},
            ["tokenizer, SHA-256: was None, is 'cccccccccccccccc' now"],
        ),
    ],
)  # fmt: skip
def test_data_sets_are_told_apart_by_what_differs_in_them(change: dict[str, Any], lines: list[str]) -> None:
    assert describe_difference(dataset(), dataset(**change)) == lines


def test_of_many_differences_between_data_sets_ten_are_named_and_the_others_counted() -> None:
    columns = [NumericColumn(mean=0.0, **{**AGE, "name": f"column {number}"}) for number in range(12)]
    others = [column.model_copy(update={"mean": 1.0}) for column in columns]
    lines = describe_difference(dataset(numeric=columns), dataset(numeric=others))
    assert len(lines) == 11 and lines[-1] == "and 2 more differences"


def test_a_changed_library_or_device_is_said_field_by_field_and_an_unchanged_one_is_not() -> None:
    now = read_versions(torch.device("cpu"))
    assert describe_version_changes(dict(now), now) is None
    before = now | {"torch": "2.12.0", "device": "NVIDIA H100", "cuda": "12.8"}
    said = describe_version_changes(before, now)
    assert said is not None
    assert said.splitlines()[1:-1] == [
        "  cuda was 12.8, is not used now",
        f"  device was NVIDIA H100, is {now['device']} now",
        f"  torch was 2.12.0, is {now['torch']} now",
    ]
    assert "same order of samples" in said


def test_a_name_that_a_checkpoint_does_not_have_is_no_change() -> None:
    now = read_versions(torch.device("cpu"))
    before = {name: now[name] for name in ("torch", "numpy", "pyarrow", "python", "device")}
    assert describe_version_changes(before, now) is None


@pytest.mark.parametrize(
    ("flags", "features"),
    [
        ("fpu sse4_2 avx avx2 f16c fma avx512f amx_tile amx_bf16", "amx_bf16 amx_tile avx avx2 avx512f f16c fma"),
        ("fpu sse4_2", ""),
    ],
)
def test_a_processor_is_told_by_its_kind_and_by_the_features_that_choose_how_it_computes(
    flags: str, features: str
) -> None:
    """As Linux describes it, of the first of its cores."""
    core = f"vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nstepping\t: 8\nflags\t\t: {flags}"
    found = describe_processor(f"processor\t: 0\n{core}\n\nprocessor\t: 1\n{core}\n")
    assert found == {"processor": "GenuineIntel 6 143 8", "processor features": features}
    assert describe_processor("")["processor features"] == ""
    now = read_versions(torch.device("cpu"))
    assert {"mkl", "onednn", "processor", "processor features"} <= now.keys()


def test_instructions_that_a_user_allows_are_told_with_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOOSES_INSTRUCTIONS:  # what this shell has set
        monkeypatch.delenv(name, raising=False)
    before = read_versions(torch.device("cpu"))
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    said = describe_version_changes(before, read_versions(torch.device("cpu")))
    assert said is not None and "  instructions was libraries choose, is MKL_CBWR=AVX2 now" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build", "560.35.03"),
        ("", "unknown"),
    ],
)
def test_a_driver_is_told_by_its_version(text: str, expected: str) -> None:
    assert describe_driver(text) == expected
