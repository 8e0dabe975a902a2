"""What can be configured about the model and its training; the Prefect UI shows these fields as a form.

Invariant: nothing here names a machine. `ranks` and `threads` set how the work is cut, not where it runs.
"""

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from storage.runs.retention import RetentionPolicy
from training.own_code import Reference, parse_reference

# No more training than this may hang on one save, whatever a step takes.
LONGEST_EVERY_SECONDS = 900.0
# Together below 2^63: a position in the order of samples is a number of 64 bits.
MOST_STEPS, MOST_SAMPLES_A_STEP = 10**12, 10**6
# Default of a new run for how well it fills its microbatches.
# What a field shows in the template where it is not set.
BY_ROWS: dict[str, JsonValue] = {"by_rows": True}
# Fields that a run fills in when it begins, and that nobody sets.
FILLED_IN: dict[str, JsonValue] = {"filled_in": True}


class ConfigModel(BaseModel):
    """Frozen, and strict about unknown keys: a misspelt option is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False)

    def describe(self, *names: str) -> str:
        """The values of these fields in words, and which of them are defaults: for a message about how they agree."""
        return " and ".join(
            f"{name} is not set"
            if (value := getattr(self, name)) is None
            else f"{name} is {value!r}" + ("" if name in self.model_fields_set else " (the default)")
            for name in names
        )


class PinnedCode(ConfigModel):
    """What a run keeps of code of the user's own, as it was when the run began."""

    function: str = Field(description="The function that is called.")
    files: dict[str, str] = Field(description="SHA-256 of each file of the code, by its name.")


# Fields of training that mean something with some choices alone: the field of the choice, and which.
ONLY_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "adam_beta1": ("optimizer", ("adamw",)),
    "adam_beta2": ("optimizer", ("adamw",)),
    "momentum": ("optimizer", ("sgd",)),
    "nesterov": ("optimizer", ("sgd",)),
    "optimizer_factory": ("optimizer", ("factory",)),
    "optimizer_options": ("optimizer", ("factory",)),
    "optimizer_pinned": ("optimizer", ("factory",)),
    "final_learning_rate_fraction": ("schedule", ("cosine", "linear")),
}


class TrainConfig(ConfigModel):
    """How the model is trained. One step is one optimizer step over `batch_size` samples."""

    steps: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="Optimizer steps of the whole run. Give this or epochs. Default: by the number of training rows, "
        "once, when the run begins.",
        json_schema_extra=BY_ROWS,
    )
    epochs: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="How often the run goes through the training rows. Give this or steps, into which it is turned "
        "when the run begins.",
    )
    batch_size: int = Field(
        64, ge=1, le=MOST_SAMPLES_A_STEP, description="Samples of one step, over all ranks together."
    )
    microbatches: int = Field(
        4,
        ge=1,
        description="Parts a batch is cut into; each is one forward and backward pass. A rank accumulates the "
        "gradients of its microbatches, so this is also the largest possible number of ranks.",
    )
    padding_efficiency: float = Field(
        0.97,
        ge=0,
        le=1,
        description="Lowest share of real tokens among the computed ones, padding included, in each batch. The samples "
        "of a microbatch stand in groups by length, and each group is padded to its longest sample: more groups, less "
        "padding. 0: each microbatch is padded to its longest sample and to a multiple of 8.",
    )
    ranks: int = Field(1, ge=1, description="Processes on this machine, one per GPU where there are GPUs.")
    sum: Literal["exact", "fast"] = Field(
        "exact",
        description="How microbatches' gradients are added. exact: the same bits on any number of ranks. fast: DDP, "
        "half the bytes between ranks, the same bits on the same number of ranks only.",
    )
    threads: int = Field(
        1,
        ge=1,
        description="CPU threads of one rank. Fixed for a run: another number changes the last bits of the weights.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="auto takes the GPU where there is one, and refuses a CPU if the run was trained on a GPU before.",
    )
    share_gpus: bool = Field(
        False, description="Let ranks share GPUs where there are fewer, through Gloo: slow, meant for a drill."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the order of samples and of every random number.")
    optimizer: Literal["adamw", "sgd", "factory"] = Field(
        "adamw",
        description="What changes the weights by their gradient. sgd, with momentum, keeps half of what adamw keeps of "
        "each weight, and needs another learning_rate, often a hundred times larger. factory: what optimizer_factory "
        "makes.",
    )
    optimizer_factory: str | None = Field(
        None,
        description="The function that makes an optimizer of torch's class Optimizer, for optimizer = factory: "
        "'./my_optim.py:build' for one in a file, whose path is taken from the configuration file's folder, or "
        "'my_package.optim:build' for one in a package that is installed. It is called as build(groups, **options).",
    )
    optimizer_options: dict[str, JsonValue] = Field(
        {}, description="What optimizer_factory is given besides, by its own names."
    )
    optimizer_pinned: PinnedCode | None = Field(
        None, description="What the run keeps of its code; filled in when it begins.", json_schema_extra=FILLED_IN
    )
    learning_rate: float = Field(1e-3, gt=0, description="Highest learning rate, reached after the warm-up.")
    warmup_fraction: float = Field(0.05, ge=0, le=1, description="Share of the steps with a rising learning rate.")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="How the learning rate falls after the warm-up; with constant it does not."
    )
    final_learning_rate_fraction: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Learning rate at the last step, as a share of the highest one; not with schedule = constant.",
    )
    weight_decay: float = Field(
        0.01,
        ge=0,
        description="Decay of matrices; not of biases and norms. adamw: decoupled from the gradient. sgd: added to the "
        "gradient, times the weight.",
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the gradient's running mean.")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="AdamW's decay of the squared gradient's running mean.")
    momentum: float = Field(0.9, ge=0, lt=1, description="sgd's decay of the gradients' running sum. 0: no momentum.")
    nesterov: bool = Field(False, description="Whether sgd's step has the momentum of after the step: Nesterov's.")
    clip_norm: float = Field(1.0, gt=0, description="Largest norm of the whole gradient.")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Share of the target spread over all classes.")
    class_weighting: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Exponent on the inverse class frequency: 0 weighs all samples alike, 1 all classes alike.",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="Arithmetic of forward and backward; weights stay fp32. fp16 uses a gradient scaler."
    )
    activation_checkpointing: bool = Field(
        False,
        description="Recompute blocks in the backward pass: less memory, and one more forward pass in a step. Changes "
        "no bit of the model: may change between segments, unless compile is set.",
    )
    compile: bool = Field(
        False, description="Compile the model with torch.compile: slower start; whether steps are faster, try."
    )
    log_every_steps: int = Field(10, ge=1, description="Steps between two points of the loss curve.")
    start_from: str | None = Field(
        None,
        description="Another run, STORE/runs/NAME, or a folder that `holdfast export` wrote: a new run begins with its "
        "weights. Sizes of the model must agree; data, classes and columns may differ.",
    )
    start_checkpoint: str = Field(
        "best", description="Which checkpoint of that run: best, newest, or the step of one that it keeps."
    )
    patience: int | None = Field(
        None,
        ge=0,
        json_schema_extra=BY_ROWS,
        description="Validations in a row without a better AUC or macro-F1, or validation.metric_for_best_model, after "
        "which training ends; the best model has a checkpoint, see checkpoint.keep_best. 0: all steps are made. "
        "Default: by the number of training rows where neither steps nor epochs is set, else 0.",
    )

    @model_serializer(mode="wrap")
    def _without_what_means_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what has no meaning, so that no default is refused when a configuration is read again."""
        return {name: value for name, value in handler(self).items() if self._means_something(name)}

    def _means_something(self, name: str) -> bool:
        choice, values = ONLY_WITH.get(name, ("", ()))
        return not choice or getattr(self, choice) in values

    @property
    def optimizer_reference(self) -> Reference | None:
        """The function that makes the optimizer, where it is not one of ours."""
        if self.optimizer_factory is None:
            return None
        return parse_reference(self.optimizer_factory, "train.optimizer_factory")

    @property
    def num_steps(self) -> int:
        """The steps of a run that was begun: in its manifest, and in what its ranks get, they are never open."""
        assert self.steps is not None, "resolved when a run begins"
        return self.steps

    @model_validator(mode="after")
    def _one_length(self) -> "TrainConfig":
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"give steps or epochs, not both: {self.describe('steps', 'epochs')}. Take one of them out"
            )
        return self

    @model_validator(mode="after")
    def _nothing_without_a_meaning(self) -> "TrainConfig":
        for name in sorted(self.model_fields_set):
            if not self._means_something(name):
                choice, values = ONLY_WITH[name]
                wanted = " or ".join(map(repr, values))
                raise ValueError(
                    f"{name} goes with {choice} = {wanted} alone: {self.describe(choice, name)}. Take {name} out, or "
                    f"set {choice} to {wanted}"
                )
        if self.optimizer == "factory" and self.optimizer_reference is None:
            raise ValueError(
                "optimizer is 'factory', which needs optimizer_factory: './my_optim.py:build', or "
                "'my_package.optim:build'"
            )
        if self.nesterov and not self.momentum:
            raise ValueError(
                f"nesterov needs momentum: {self.describe('nesterov', 'momentum')}. Set momentum above 0, or take "
                "nesterov out"
            )
        return self

    @model_validator(mode="after")
    def _work_for_every_rank(self) -> "TrainConfig":
        if self.microbatches > self.batch_size:
            raise ValueError(
                f"microbatches must be at most batch_size: {self.describe('microbatches', 'batch_size')}. "
                f"Set microbatches to at most {self.batch_size}, or a larger batch_size"
            )
        if self.ranks > self.microbatches:
            raise ValueError(
                f"ranks must be at most microbatches: {self.describe('ranks', 'microbatches')}. "
                f"Set ranks to at most {self.microbatches}, or for a new run microbatches to at least {self.ranks}"
            )
        return self


class DivergenceConfig(ConfigModel):
    """When training counts as diverged, and how a run answers. A loss that is not finite always counts.

    A loss spike is a number of steps, one after the other, whose losses are all far above those of the steps before.
    """

    spikes: bool = Field(True, description="Whether a loss spike counts too.")
    spike_sigmas: float = Field(
        6.0,
        gt=0,
        description="How far above: in robust standard deviations (1.4826 times the median absolute deviation) from "
        "the median.",
    )
    window_steps: int = Field(100, ge=20, description="Steps before a possible spike that it is compared with.")
    consecutive_steps: int = Field(
        10, ge=2, description="Steps one after the other that make a spike: a single hard batch is none."
    )
    rollback_steps: int = Field(
        100,
        ge=1,
        description="How many steps a diverged run goes back. What they took from the order of samples is left out.",
    )
    learning_rate_factor: float = Field(
        1.0, gt=0, le=1, description="What each rollback multiplies the learning rate with, from there to the end."
    )
    max_rollbacks: int = Field(5, ge=0, description="Rollbacks of the whole run; the next divergence ends it.")

    @model_validator(mode="after")
    def _goes_back_behind_the_spike(self) -> "DivergenceConfig":
        if self.spikes and self.rollback_steps < self.consecutive_steps:
            raise ValueError(
                "rollback_steps must be at least consecutive_steps, or a run would go back into the spike: "
                f"{self.describe('rollback_steps', 'consecutive_steps')}. Set rollback_steps to at least "
                f"{self.consecutive_steps}, or fewer consecutive_steps"
            )
        return self


class GateConfig(ConfigModel):
    """What the last validation must have shown before a checkpoint becomes the resume point; off if nothing is given.

    By AUC, macro-F1 or validation.metric_for_best_model: higher is better, and a value that is not finite passes no
    limit. A checkpoint that does not pass is kept, and training goes on; but if it is interrupted, it goes on from the
    last one that passed.
    """

    lowest_metric: float | None = Field(None, description="Lowest value of the metric that passes.")
    lowest_from_step: int | None = Field(
        None,
        ge=0,
        description="First step that lowest_metric is asked of. If not given the last step alone: what is still "
        "learning is no worse for it.",
    )
    largest_drop: float | None = Field(
        None, ge=0, description="How far below the best validation so far the metric may be."
    )

    @model_validator(mode="after")
    def _step_goes_with_a_limit(self) -> "GateConfig":
        if self.lowest_from_step is not None and self.lowest_metric is None:
            raise ValueError("lowest_from_step is the first step where lowest_metric holds: give lowest_metric too")
        return self


class CheckpointConfig(ConfigModel):
    """When checkpoints are written, and which of the promoted ones stay.

    The resume point, the one before it, the best one and what is being read stay in any case.
    """

    every_steps: int = Field(2000, ge=1, description="Steps between two checkpoints.")
    every_seconds: float = Field(
        600,
        gt=0,
        le=LONGEST_EVERY_SECONDS,
        description="Seconds between two checkpoints: the most training that a kill can cost.",
    )
    background: bool = Field(
        True,
        description="Write beside training, from a copy of the state in host memory. If false training waits for the "
        "store, and no copy is needed.",
    )
    keep: int = Field(3, ge=2, description="Newest checkpoints that stay: the resume point and its fallbacks.")
    keep_best: int = Field(
        1,
        ge=0,
        description="Checkpoints that stay because their validation was the best: by AUC, or by macro-F1, or by "
        "validation.metric_for_best_model. At each validation that is better than all before a checkpoint is saved, "
        "whatever the cadence; the best one stays in any case. 0: none is saved or stays for that.",
    )
    keep_every_steps: int | None = Field(
        None,
        ge=1,
        description="Steps between two milestones that stay for good: the first checkpoint at or after each multiple. "
        "None if not given.",
    )
    keep_bytes: int | None = Field(
        None,
        ge=1,
        description="Bytes that all checkpoints that stay may take: three of them at least, the resume point, the one "
        "before it and the best one. Beyond it milestones go first, the oldest ahead, then the newest ones, and the "
        "other best ones last. Unbounded if not given.",
    )

    gate: GateConfig = GateConfig()

    @property
    def num_always_kept(self) -> int:
        """Checkpoints that stay whatever `keep_bytes` is: the resume point, the one before it, and the best one."""
        return 3 if self.keep_best else 2

    def retention(self, divergence: DivergenceConfig) -> RetentionPolicy:
        """What these fields mean for the checkpoints of a run, which may have to go back to one of them."""
        rollback_steps = divergence.rollback_steps if divergence.max_rollbacks else None
        return RetentionPolicy(self.keep, self.keep_best, self.keep_every_steps, self.keep_bytes, rollback_steps)
