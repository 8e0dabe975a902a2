"""What the functions return: the JSON of the commands, as it is.

Invariant: the names are those that `holdfast COMMAND --json` prints. Times are seconds since 1970, sizes are bytes,
steps are counted from 0, and addresses are as the commands take them.
"""

from typing import Any, Literal, TypedDict


class Checkpoint(TypedDict):
    """A checkpoint that a run keeps. `metric` is that of its validation, None where there was none."""

    step: int
    path: str
    digest: str
    weights_sha256: str
    num_bytes: int
    metric: float | None
    not_finite: dict[str, Any] | None
    promoted_at: float


class Status(TypedDict):
    """Where a run stands.

    `state` is completed, running, lost, silent, or how the run ended last; `step` is that of the resume point
    `promoted`, and `live_step` the one that the ranks of a run in training have reached. `metrics` are those of the
    test split, of the model of `metrics_step`, and so are those of `slices`, by columns of metadata. `baseline` has
    those of a linear model on the same data, with a `warning` where it is better, or the `reason` why there are none.
    `clock` says by what it shows that a machine's clock was wrong, `other_holdfast` that the segment under way is
    trained by another Holdfast than the one before. `owner` is that of the configuration it was started with last.
    """

    run: str
    address: str
    owner: str | None
    state: str
    holder: dict[str, Any] | None
    step: int
    steps_total: int
    by_rows: dict[str, Any] | None
    ended_early: str | None
    live_step: int | None
    live: dict[str, Any] | None
    promoted: Checkpoint | None
    kept: list[Checkpoint]
    quarantined: list[dict[str, Any]]
    setback: str | None
    segments: list[dict[str, Any]]
    rollbacks: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    other_holdfast: str | None
    rejected: list[dict[str, Any]]
    steps_lost_total: int
    steps_lost_is_least: bool
    time: dict[str, Any] | None
    clock: str | None
    dataset_digest: str
    metrics: dict[str, float] | None
    metrics_step: int | None
    last_metrics: dict[str, float] | None
    slices: list[dict[str, Any]]
    best: str | None
    overfitting: str | None
    baseline: dict[str, Any] | None
    generation: int
    last_sign_of_life_at: float


class RunResult(Status):
    """Where a run stands that was trained, and the address of its report."""

    report: str


class Run(TypedDict, total=False):
    """A run in a list. One that cannot be read has `store`, `run` and `error` alone, the reason.

    `needs_person` is why a person has to look at it, and what to do; None where it goes on by itself.
    """

    store: str
    run: str
    error: str | None
    address: str
    owner: str | None
    state: str
    step: int
    steps_total: int
    steps_lost_total: int
    steps_lost_is_least: bool
    live_step: int | None
    last_sign_of_life_at: float
    holder: dict[str, Any] | None
    goodput: float | None
    live: dict[str, Any] | None
    newest_metric: dict[str, Any] | None
    promoted_at: float | None
    save_every_seconds: float | None
    needs_person: str | None


class ListedStore(TypedDict):
    """A store whose runs are listed; `error` is why it could not be read."""

    store: str
    num_runs: int
    error: str | None


class RunList(TypedDict):
    """The runs of stores. `store` is the address of a lone one."""

    store: str | None
    stores: list[ListedStore]
    runs: list[Run]


class PreparedData(TypedDict):
    """A data set: its address, its digest, and how many rows each split has, and tokens and classes all have."""

    run: str
    dataset: str
    digest: str
    rows: dict[Literal["train", "validation", "test"], int]
    tokens: int
    classes: int


class Page(TypedDict):
    """Where the page about a run is."""

    run: str
    report: str


class Evaluation(TypedDict):
    """A checkpoint's metrics on a split or on the table `source`, and the scores of each class and each slice."""

    run: str
    address: str
    checkpoint: str
    split: str | None
    source: str | None
    step: int
    checkpoint_digest: str
    weights_sha256: str
    kind: str
    classes: list[str]
    num_samples: int
    metrics: dict[str, float]
    slices: list[dict[str, Any]]
    calibration: dict[str, Any] | None


class Export(TypedDict):
    """An exported model: the folder, and the checkpoint that is in it, with the metric of its validation."""

    run: str
    out: str
    step: int
    metric: float | None
    metric_name: str
    checkpoint: str


class Prediction(TypedDict):
    """A table that was predicted: the file, how many rows are in it, and how many are in `bad_rows` instead."""

    result: str
    rows: int
    left_out: int
    bad_rows: str | None
    seconds: float


class VerifiedCheckpoint(TypedDict):
    """A checkpoint that was hashed; `reason` is what is wrong with one that is not valid."""

    step: int
    path: str
    digest: str
    valid: bool
    reason: str | None


class Verification(TypedDict):
    """Which of a run's checkpoints are as they were written."""

    run: str
    address: str
    valid: bool
    checkpoints: list[VerifiedCheckpoint]
    quarantined: list[dict[str, Any]]


class Audit(TypedDict):
    """Which samples trained a run: `ok` if each was used once per epoch, in the order that the seed gives.

    `violations` lists what was wrong, and `skipped` which samples rollbacks left out.
    """

    run: str
    address: str
    ok: bool
    steps: int
    samples: int
    microbatches: int
    parts: int
    epochs: list[dict[str, Any]]
    segments: list[dict[str, Any]]
    skipped: list[dict[str, Any]]
    violations: list[dict[str, Any]]
    num_violations: int


class StopRequest(TypedDict):
    """A request to save and end: who was asked, and whether the segment has ended, with a sentence about its end."""

    run: str
    asked: str
    ended: bool
    message: str
