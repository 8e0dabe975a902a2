"""Records of a run as a whole in its manifest: how it began, what was changed, what was found at its end.

Invariant: as in `run_state.py`, which has the rest.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from storage.runs.metric_values import MetricValue


class Record(BaseModel):
    """Base of everything kept in the manifest: immutable and strict."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ViewRecord(Record):
    """That training went on in the same segment with other ranks than before."""

    step: int = Field(description="Steps made before; the next one is made by the others.")
    lost: list[int] = Field([], description="The ranks that died, or left with their node.")
    causes: list[str] = Field([], description="What ended each of them, such as SIGKILL, or why it left.")
    joined: list[int] = Field([], description="The ranks that were begun anew and joined the others.")
    lost_nodes: list[str] = Field([], description="The nodes of a cluster that were lost, with all their ranks.")
    joined_nodes: list[str] = Field([], description="The nodes that came, or came back, with ranks that joined.")
    num_ranks: int = Field(description="From here on.")
    seconds: float = Field(description="From when an end was seen, or a rank was taken in, until training went on.")


class ViewTotals(Record):
    """What all views of a segment come to, also those that its list leaves out."""

    num_views: int
    num_lost: int = Field(description="Ranks that died, or left, after which the others went on.")
    num_joined: int
    longest_seconds: float = Field(description="The longest pause after a death.")
    stay_out: list[int] = Field([], description="Ranks that died so often that none was begun in their place.")


class ChangeRecord(Record):
    """What was changed between two segments, after which the model is not, or may not be, that of an uninterrupted run.

    The steps that lead to the resume point were made with `before` up to `step`, and with `now` from there on.
    """

    step: int = Field(description="Steps made before the change.")
    what: str = Field(description="train.steps, train.ranks with fast sums, or a library or device of the ranks.")
    before: str
    now: str


class FrozenFile(Record):
    """A file of weights that training does not change: it stands beside the checkpoints, once for all of them."""

    key: str
    num_bytes: int
    sha256: str


class StartRecord(Record):
    """Where the first weights of a run are from that did not begin with random ones."""

    origin: str = Field(description="A run's address or a folder, `train.start_from`, or `model.name`.")
    step: int
    weights_sha256: str = Field(description="As in the origin's checkpoint; of a pretrained model, of the copy.")
    frozen: list[FrozenFile] = Field([], description="Those of the copy's files that no checkpoint has again.")
    path: str = Field(description="Key of the run's own copy, a folder with start.json.")
    digest: str = Field(description="SHA-256 of start.json, which has those of the other files.")


class OverrideValue(Record):
    """A value that a person gave a run. It holds until the configuration's file has a third one."""

    instead_of: int | float | None = Field(description="What the file had when it was given.")
    value: int | float


class ByRows(Record):
    """What the configuration left open when the run began, and what it became by the number of training rows."""

    training_rows: int
    epochs: float | None = Field(None, description="`train.epochs`, where the configuration gave them.")
    settings: dict[str, int | float] = Field(description="By dotted field of the run's first configuration.")


class TestedRecord(Record):
    """What the test split showed of a kept checkpoint."""

    __test__ = False  # pytest takes the name for that of a test

    step: int
    path: str = Field(description="Key of the checkpoint's folder.")
    metrics: dict[str, MetricValue]


class QuarantineRecord(Record):
    """A checkpoint that was found damaged or unreadable, and why. Its files stay until they are discarded.

    The process that takes the run up looks at it again, for as long as it `stands`: one that is sound is used again.
    """

    step: int
    path: str
    reason: str
    quarantined_at: float
    verdict: Literal["damaged", "unreadable"] = Field("damaged", description="Unreadable ones are called passed over.")
    digest: str | None = Field(
        None,
        description="As the manifest stated it; None: it was never promoted.",
    )
    num_rollbacks: int = Field(
        0,
        description="That the run had made: after a further one its steps may be others, and it stands no more.",
    )
    is_given_up: bool = Field(
        False,
        description="A person had the run begin anew at step 0: it stands no more.",
    )
    is_discarded: bool = Field(False, description="Its files are deleted, or about to be.")
