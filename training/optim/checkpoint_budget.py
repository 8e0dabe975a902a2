"""Whether the checkpoints that always stay fit into what they may take, and one into the store: before the first step.

Invariant: nothing is written. The budget is a function of the configuration and the model's tensors, so all ranks have
one answer.
"""

import shutil

from torch import nn

from storage.errors import ConfigurationError
from storage.objects.local_store import LocalStore
from storage.objects.store import Store
from training.configuration import CheckpointConfig
from training.models.frozen import tensors_to_save
from training.optim.optimization import Optimization


def least_checkpoint_bytes(model: nn.Module, optimization: Optimization, leaves_out_frozen: bool = False) -> int:
    """What one checkpoint takes at least: weights, all or those that are trained, and what their optimizer keeps."""
    weights: int = sum(tensor.nbytes for tensor in tensors_to_save(model, leaves_out_frozen).values())
    return weights + sum(tensor.num_bytes for tensor in optimization.expected.values())


def require_budget(config: CheckpointConfig, checkpoint_bytes: int) -> None:
    """Raise `ConfigurationError` where `keep_bytes` is less than what those that always stay take."""
    least = config.num_always_kept * checkpoint_bytes
    if config.keep_bytes is None or config.keep_bytes >= least:
        return
    best = ", and the best one" if config.keep_best else ""
    raise ConfigurationError(
        f"checkpoint.keep_bytes is {config.keep_bytes:,}, expected at least {least:,}: {config.num_always_kept} "
        f"checkpoints of {checkpoint_bytes:,} bytes each stay in any case, the resume point, the one before it{best}. "
        f"Set keep_bytes to at least that, with room for others, or leave it out. Nothing was trained."
    )


def require_room(store: Store, checkpoint_bytes: int) -> None:
    """Raise `ConfigurationError` where the store is a folder on a file system with less space than one checkpoint."""
    if not isinstance(store, LocalStore):
        return
    try:
        usage = shutil.disk_usage(store.root)
    except OSError:  # what cannot be looked at fails, and is explained, where it is used
        return
    # Some file systems, of a network or an object store, do not report how large they are.
    if usage.total == 0 or usage.free >= checkpoint_bytes:
        return
    raise ConfigurationError(
        f"The store {store.address} has {usage.free:,} bytes free, and one checkpoint takes at least "
        f"{checkpoint_bytes:,}: not one could be saved. Make room there, or set store to another folder. Nothing was "
        "trained."
    )
