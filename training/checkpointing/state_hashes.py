"""A hash of each tensor of one rank's state, by which all ranks see before a save whether theirs is the same.

So they do before a divergence is believed, and they can wherever all are at one boundary.

What this rank writes is hashed as it is written; what others write, and what no checkpoint has since it is not trained,
as it is in this rank's own memory. Invariant: the tensors are hashed as they were at one step boundary: until
`are_read` is set nobody may change them. Each rank hashes all of them, so whichever of them are left when others have
died compare all; a rank that came later knows none of the hashes, and is left out of the comparison.
"""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from storage.checkpoints.checkpoints import MODEL_STEM, OPTIMIZER_STEM
from storage.checkpoints.tensor_layout import TensorFile
from training.checkpointing.equality import require_equal_state, unequal_weights
from training.checkpointing.state_tensors import HostFile, StateTensors
from training.linear_hash import hash_of_bits
from training.trainer import Trainer
from training.world import World

WORDS = {MODEL_STEM: "the weights", OPTIMIZER_STEM: "the optimizer's"}


class StateHashes:
    """The hashes of one state, as they come to be known. Who began as the only rank has nothing to compare with.

    `own` are the files that this rank writes; `device` is where most of the tensors are.
    """

    def __init__(self, state: StateTensors, own: Sequence[TensorFile], world: World, device: torch.device) -> None:
        self.are_read = threading.Event()
        self._state = state
        self._own = own
        self._world = world
        self._device = device
        self._hashes: dict[str, int] = {}
        self._names: list[str] = []
        self._on_device: Tensor | None = None
        self._is_hashed = world.size > 1
        if not self._is_hashed:
            self.skip()

    def skip(self) -> None:
        """Hash nothing: the state is not the one that this rank has."""
        self._is_hashed = False
        self.are_read.set()

    def read(self) -> None:
        """Hash what this rank does not write. On a GPU that is begun: what comes after in its stream is."""
        if self.are_read.is_set():
            return
        own = {_name_of(self._state.stem_of(file), entry.name) for file in self._own for entry in file.entries}
        live = self._everything()
        self._names = [name for name in live if name not in own]
        if self._names:
            self._on_device = torch.stack([hash_of_bits(live[name]).to(self._device) for name in self._names])

    def settle(self) -> None:
        """Wait for the hashes that `read` began, in the stream in which it did."""
        if self._on_device is not None:
            self._hashes |= zip(self._names, self._on_device.tolist(), strict=True)
            self._on_device = None

    def add_file(self, file: HostFile) -> None:
        """Hash what is about to be written."""
        if self._is_hashed:
            stem = self._state.stem_of(file.layout)
            self._hashes |= {_name_of(stem, name): int(hash_of_bits(t)) for name, t in file.tensors.items()}

    def require_equal(self, step: int) -> None:
        """Raise `UnequalRanksError` on every rank alike unless all have the same. A collective."""
        self.settle()
        if self._world.size > 1:
            names = sorted(self._everything())
            require_equal_state(step, names, self._hashes if self._is_hashed else None, self._world)

    def _everything(self) -> dict[str, Tensor]:
        return {_name_of(stem, name): t for stem, named in self._state.everything.items() for name, t in named.items()}


def require_equal_now(trainer: Trainer, world: World, step: int) -> None:
    """Raise `UnequalRanksError` on every rank alike unless all have the same in their memories. A collective.

    And had it when they computed the last step's gradients.
    """
    hashes = StateHashes(StateTensors(trainer), (), world, trainer.device)
    hashes.read()
    hashes.require_equal(step)
    if trainer.unequal_hashes:
        raise unequal_weights(step + 1, trainer.unequal_hashes, world)


def _name_of(stem: str, tensor: str) -> str:
    return f"{WORDS[stem]} {tensor!r}"
