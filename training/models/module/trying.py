"""What is asked of the user's module before a run's first step, with microbatches of the run.

A run can be interrupted anywhere and go on elsewhere to the same weights if the module is a function of its weights, a
microbatch and the generators that are set before each: asked here, once, at the price of some passes and of a process
that loads torch. Invariant: the model that is to be trained is not touched; and what is found is said by the name that
it has in the user's code.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from storage.errors import ConfigurationError
from training.batches.groups import Group
from training.batches.tensors import Microbatch
from training.collectives import all_reduce
from training.data.samples import padded_length
from training.model_configuration import ModuleConfig
from training.models.activation_bytes import count_kept_bytes
from training.models.buffers import Buffers
from training.models.module.other_process import Found, ask_another_process
from training.models.module.passes import Pass, build_anew, digest_of, make_pass
from training.models.precision import Precision
from training.models.trial import Trial
from training.own_code import own_errors, require_pinned
from training.rank_status import Collective
from training.world import World

# So many samples are computed alone, as well as among others.
SAMPLES_ALONE = 4
# What a sample's logits may differ by, as a part of the largest of them: by rounding alone they differ by far less.
LARGEST_DIFFERENCE = 1e-3
MORE_PADDING = 8
MOST_NAMES = 5
MEBIBYTE = 1 << 20
GENERATORS = "Python's `random`, NumPy's `np.random` and torch's default generator are set before each microbatch"


def try_out(config: ModuleConfig, trial: Trial) -> None:
    """Raise `ConfigurationError` for a module that is refused; say what it takes. A collective."""
    began, computed = time.monotonic(), sum(os.times()[:4])
    model = build_anew(config, trial.dataset, trial.spec.train.seed, trial.precision)
    weights = digest_of(model.state_dict())
    if trial.world.is_first:
        trying = _Trying(config, trial, model)
        with own_errors(f"{trying.name}: its module failed", require_pinned(config.reference, config.pin).values()):
            trying.require_fit(weights)
        seconds, computing = time.monotonic() - began, sum(os.times()[:4]) - computed
        trial.note(f"{trying.describe()} It was tried out in {seconds:.1f} s, with {computing:.1f} s of computing.")
    _require_same_on_all_ranks(config, weights, trial.world)


class _Trying:
    """One module, built anew, and what it is asked."""

    def __init__(self, config: ModuleConfig, trial: Trial, model: nn.Module) -> None:
        self.name = config.reference.name
        self._trial = trial
        self._model = model
        self._microbatches = trial.microbatches()
        self._unused: frozenset[str] = frozenset()

    def require_fit(self, weights: str) -> None:
        first = self._require_bits()
        self._require_repeatable_evaluation()
        self._require_blind_to_others()
        with TemporaryDirectory(dir=self._trial.spec.scratch_folder, prefix="trial-") as folder:
            self._require_blind_to_rank(
                ask_another_process(self._trial, self._microbatches[0], Path(folder)), weights, first
            )

    def describe(self) -> str:
        parameters = list(self._model.parameters())
        trained = sum(p.numel() for p in parameters if p.requires_grad)
        text = (
            f"The module of {self.name} has {sum(p.numel() for p in parameters):,} weights, {trained:,} of them trained"
        )
        microbatch = self._microbatches[0]
        with suppress(Exception):  # that it cannot be counted without computing is no fault
            kept = count_kept_bytes(self._model.train(), microbatch, self._trial.precision)
            text += (
                f"; between forward and backward of a microbatch of {len(microbatch.rows):,} samples with "
                f"{microbatch.tokens.numel():,} tokens it keeps about {kept / MEBIBYTE:,.1f} MiB"
            )
        if not self._unused:
            return f"{text}."
        names = sorted(self._unused)
        listed = ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if names[MOST_NAMES:] else "")
        return (
            f"{text}. No microbatch so far used the parameters {listed}: where none ever does, they stay as they were "
            "made, but for weight decay."
        )

    def _require_bits(self) -> Pass:
        """The first pass; the same one again has the same bits, also with another one in between."""
        trial, seed = self._trial, self._trial.spec.train.seed
        buffers, passes = Buffers(self._model), []
        for microbatch in (*self._microbatches[:2], self._microbatches[0]):
            with buffers.held():
                found = make_pass(self._model, trial.objective, microbatch, seed, trial.precision)
            self._require_logits(found.logits, len(microbatch.rows))
            passes.append(found)
        if passes[0].digest != passes[-1].digest:
            raise self._refused(
                "gave other bits when the same microbatch was computed a second time, with the same weights",
                "It draws from a random generator of its own, or keeps something from one pass to the next: "
                f"{GENERATORS}, and no others. Draw from these alone",
            )
        self._unused = frozenset.intersection(*(found.unused for found in passes))
        return passes[0]

    def _require_logits(self, logits: object, num_samples: int) -> None:
        shape = (num_samples, self._trial.objective.kind.num_outputs)
        if not isinstance(logits, Tensor):
            raise self._refused(f"returned {type(logits).__name__}", f"Expected logits, a tensor {list(shape)}")
        if logits.shape != shape or not logits.is_floating_point():
            found = f"{logits.dtype} {list(logits.shape)}"
            raise self._refused(f"returned {found}", f"Expected logits, floating-point numbers {list(shape)}")
        if not logits.requires_grad:
            raise self._refused("returned logits without a gradient", "Take out what detaches them: .detach(), no_grad")
        if not bool(torch.isfinite(logits).all()):
            raise self._refused(
                "returned logits that are not finite numbers, before any step",
                "Look for a division by zero, a logarithm of zero, or a softmax over nothing but -inf",
            )

    def _require_repeatable_evaluation(self) -> None:
        model, microbatch = self._model.eval(), self._microbatches[0]
        found = []
        for seed in range(2):
            torch.manual_seed(seed)
            with Buffers(model).held():
                found.append(_logits(model, microbatch, self._trial.precision))
        if not torch.equal(found[0], found[1]):
            raise self._refused(
                "gave other answers for the same samples in evaluation, model.eval()",
                "It draws random numbers there: functional.dropout, for one, needs training=self.training",
            )

    def _require_blind_to_others(self) -> None:
        """In evaluation a sample's answer is its own, whatever stands beside it, and behind it as padding.

        In training it may depend on the others of its microbatch, which are the same on any number of ranks.
        """
        model, microbatch = self._model.eval(), self._microbatches[0]
        exact = Precision(self._trial.precision.device, None)
        together = _logits(model, microbatch, exact)
        if microbatch.tokens.shape[1] + MORE_PADDING <= padded_length(self._trial.dataset.max_tokens):
            _require_close(self, together, _logits(model, _padded(microbatch), exact), "what it is padded to")
        rows = range(min(SAMPLES_ALONE, len(microbatch.rows)))
        alone = torch.cat([_logits(model, _sample(microbatch, row), exact) for row in rows])
        _require_close(self, together[: len(rows)], alone, "which others stand in its microbatch, or its padding")
        model.train()

    def differs(self, by: str) -> ConfigurationError:
        return self._refused(
            f"gives a sample another answer, in evaluation, by {by}",
            "An answer would depend on what else is asked: use the mask or the lengths wherever tokens are brought "
            "together, and no statistics over samples, such as those of batch normalisation",
        )

    def _require_blind_to_rank(self, found: Found, weights: str, first: Pass) -> None:
        if found.error is not None:
            raise self._refused(
                f"failed in a process with another rank and another number of ranks: {found.error}",
                "It must not ask for either",
            )
        if found.weights != weights:
            raise self._refused(
                "had other first weights in a process with another rank, number of ranks and PYTHONHASHSEED",
                "It looks at one of these (RANK, torch.distributed.get_rank, the order of a set) when it is built, or "
                f"draws from a generator of its own: {GENERATORS.partition(' are set')[0]} are set before it is built",
            )
        if found.first_pass != first.digest:
            raise self._refused(
                "gave other bits for the same microbatch in a process with another rank and another number of ranks",
                "It looks at one of these (RANK, WORLD_SIZE, torch.distributed) in its forward pass: a run may go on "
                "with any number of ranks, and must come to the same weights",
            )

    def _refused(self, problem: str, advice: str) -> ConfigurationError:
        return ConfigurationError(f"The module of {self.name} {problem}. {advice}. Nothing was trained.")


@torch.no_grad()
def _logits(model: nn.Module, microbatch: Microbatch, precision: Precision) -> Tensor:
    with precision.autocast():
        logits: Tensor = model(microbatch.to(precision.device))
    return logits.float().cpu()


def _require_close(trying: _Trying, found: Tensor, expected: Tensor, by: str) -> None:
    largest = expected.abs().max().clamp(min=1)
    if found.shape != expected.shape or not bool((found - expected).abs().max() <= LARGEST_DIFFERENCE * largest):
        raise trying.differs(by)


def _padded(microbatch: Microbatch) -> Microbatch:
    """The same samples with more padding."""
    tokens = torch.nn.functional.pad(microbatch.tokens, (0, MORE_PADDING))
    return _with(microbatch, range(len(tokens)), tokens)


def _sample(microbatch: Microbatch, row: int) -> Microbatch:
    """One sample alone, as it would be padded."""
    length = padded_length(max(1, int(microbatch.lengths[row])))
    return _with(microbatch, [row], microbatch.tokens[row : row + 1, :length])


def _with(microbatch: Microbatch, rows: Sequence[int], tokens: Tensor) -> Microbatch:
    chosen = torch.tensor(list(rows))
    return Microbatch(
        index=microbatch.index,
        rows=microbatch.rows[chosen.numpy()],
        ids=b"",
        groups=(Group(*tokens.shape),),
        tokens=tokens,
        lengths=microbatch.lengths[chosen],
        numeric=microbatch.numeric[chosen],
        categorical=microbatch.categorical[chosen],
        labels=microbatch.labels[chosen],
        weights=microbatch.weights[chosen],
    )


def _require_same_on_all_ranks(config: ModuleConfig, weights: str, world: World) -> None:
    """A collective; ranks of other machines among them, where a library may be another."""
    found = torch.zeros(world.size, len(weights) // 2, dtype=torch.uint8)
    found[world.rank] = torch.frombuffer(bytearray.fromhex(weights), dtype=torch.uint8)
    all_reduce(found, world, Collective.WEIGHTS)
    if any(not torch.equal(found[0], other) for other in found):
        raise ConfigurationError(
            f"The module of {config.reference.name} has other first weights on some ranks than on others. It looks at "
            "the rank when it is built, or draws from a generator of its own. Nothing was trained."
        )
