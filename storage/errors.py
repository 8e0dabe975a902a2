"""Every error that Holdfast raises about its own domain.

A message states what was expected, what was found, where, and what to do now. The command line prints the message
alone: a `HoldfastError` never reaches a user as a traceback.
"""

from typing import Literal


class HoldfastError(Exception):
    """Base of all errors whose message is written for the person at the terminal."""


class ConfigurationError(HoldfastError, ValueError):
    """A configuration file or a `--set` is wrong."""


class DeviceMissingError(HoldfastError):
    """torch finds fewer GPUs than are asked for, or none where a run had one: another node may have them."""


class ContractError(HoldfastError, ValueError):
    """The user's data break the contract: column, expectation and count are in the message."""


class StoreError(HoldfastError):
    """The store cannot be used: not there, not writable, full."""


class StoreUnavailableError(StoreError):
    """The store does not answer: the same operation may succeed later."""

    was_waited_for = False  # set where it is raised again after `retry.store_seconds`: no caller waits twice


class StoreRefusedError(StoreUnavailableError):
    """The store does not accept the credentials, or they may not do this: for now, or until a person renews them."""


class ObjectUnreadableError(StoreUnavailableError):
    """An object that must be there is missing, or its disk cannot read it: for a second, or for good."""


class ClusterUnavailableError(HoldfastError):
    """The cluster's controller does not answer; the request may have reached it."""


class ClusterLoginError(ClusterUnavailableError):
    """The cluster's controller does not know who asks, as when a token has run out: with the next one it answers."""


class CorruptManifestError(StoreError):
    """The manifest's head is not what was written, in several reads. What the head names may be intact."""


class ObjectMissingError(StoreError):
    """No object has this key."""


class ObjectExistsError(StoreError):
    """Put-if-absent found an object with this key."""


class CorruptObjectError(HoldfastError):
    """An object's bytes are not the ones that were written, in the one look that was taken."""


class CheckpointUnusableError(HoldfastError):
    """A checkpoint that was read for as long as a verdict takes: damaged, or unreadable."""

    def __init__(self, message: str, verdict: Literal["damaged", "unreadable"]) -> None:
        super().__init__(message)
        self.verdict = verdict


class BestNotReadError(HoldfastError):
    """A checkpoint is not promoted yet: that would delete the best model's, which was unreadable just now: `error`.

    The checkpoint itself was read whole at the same time: that one's store can be read.
    """

    def __init__(self, step: int, path: str, error: "CorruptObjectError | ObjectUnreadableError") -> None:
        super().__init__(f"The best model's checkpoint, of step {step:,}, is to be promoted first: {error}")
        self.step = step
        self.path = path
        self.error = error


class NoCheckpointError(HoldfastError):
    """No checkpoint of a run that had some can be used: only a person lets it begin anew at step 0."""


class ConflictError(HoldfastError):
    """Another writer committed first, and what it committed forbids ours."""


class FencedError(ConflictError):
    """The lease was taken by a later segment: this one may promote nothing any more."""


class RunBusyError(ConflictError):
    """A living process holds the run's lease."""


class RunMissingError(HoldfastError):
    """No run of this name has ever been started in this store."""


class IncompatibleRunError(HoldfastError):
    """The run exists, but its configuration, data or software is not the one it was started with."""


class RunStoppedError(HoldfastError):
    """A user, or a notice that the machine goes away, asked for the end of training; what was made is saved."""


class RunHandedOverError(RunStoppedError):
    """Prefect begins the same flow run again, in another process: that one goes on with the run and sets its state."""


class UnequalRanksError(HoldfastError):
    """Ranks have not the same where they must: a memory, a processor or the network between them changed bits."""


class SegmentFailedError(HoldfastError):
    """A segment ended as `failed` or `lost`: trying again may help. The message carries its cause."""


class RunDivergedError(HoldfastError):
    """Training diverged, and the rollbacks that are allowed did not help. The message lists each of them."""


class LedgerViolationError(HoldfastError):
    """The run's ledger does not prove that the promoted checkpoint was trained on the samples that it must."""


class ResultUnwrittenError(HoldfastError):
    """A command has done what it was to do, and what it found cannot be printed."""


class QualityGateError(HoldfastError):
    """The run reached its last step, and its model did not pass the gate. Trying again would come to the same model."""
