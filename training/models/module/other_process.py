"""The module in a process of its own, which takes itself for another rank: `python -m` this, with a folder.

It builds the module with the seed of the run and makes the first pass, and leaves the digests of both. Invariant: all
that a rank could be known by is another's here, and by the number of ranks too: the environment's variables,
torch.distributed, and the seed of Python's hashes, by which sets are ordered.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pydantic import BaseModel
from safetensors.torch import load_file, save_file

from storage.datasets import DatasetManifest
from training.batches.groups import Group
from training.batches.tensors import Microbatch
from training.determinism import pin_numerics
from training.model_configuration import ModuleConfig
from training.models.module.passes import build_anew, digest_of, make_pass
from training.models.objective import Objective
from training.models.precision import AUTOCAST_TYPES, Precision
from training.models.trial import Trial
from training.spec import SegmentSpec
from training.stopping import follow_parent

OTHER_RANK, MORE_RANKS = 1, 2
ASKED_FILE, TENSORS_FILE, FOUND_FILE = "asked.json", "tensors.safetensors", "found.json"
TENSORS = ("tokens", "lengths", "numeric", "categorical", "labels", "weights")
LAST_CHARACTERS = 1500


class _Asked(BaseModel):
    """What the other process is given, beside the microbatch."""

    spec: SegmentSpec
    dataset: DatasetManifest
    device: str
    index: int
    world_size: int


class Found(BaseModel):
    """What came of it there: digests of the first weights and of the first pass, or why there is none."""

    weights: str = ""
    first_pass: str = ""
    error: str | None = None


def ask_another_process(trial: Trial, microbatch: Microbatch, folder: Path) -> Found:
    """What another process finds, with this microbatch."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: getattr(microbatch, name).contiguous() for name in TENSORS}, folder / TENSORS_FILE)
    asked = _Asked(
        spec=trial.spec, dataset=trial.dataset, device=str(trial.precision.device), index=microbatch.index,
        world_size=trial.world.size + MORE_RANKS,
    )  # fmt: skip
    (folder / ASKED_FILE).write_text(asked.model_dump_json(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=_environment(asked.world_size),
        preexec_fn=partial(follow_parent, os.getpid()),
        check=False,
    )
    found = folder / FOUND_FILE
    if not found.exists():
        return Found(error=f"exit code {done.returncode}: {done.stdout[-LAST_CHARACTERS:].strip()}")
    return Found.model_validate_json(found.read_bytes())


def _environment(world_size: int) -> dict[str, str]:
    ranks = {name: str(OTHER_RANK) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "SLURM_PROCID")}
    sizes = {name: str(world_size) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "SLURM_NTASKS")}
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    hashes = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    own = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": hashes}
    return os.environ | ranks | sizes | own


def _find(folder: Path) -> Found:
    asked = _Asked.model_validate_json((folder / ASKED_FILE).read_bytes())
    spec, train = asked.spec, asked.spec.train
    assert isinstance(spec.model, ModuleConfig)
    pin_numerics(train.threads)
    _be_another_rank(asked.world_size)
    device = torch.device(asked.device)
    precision = Precision(device, AUTOCAST_TYPES.get(train.precision))
    objective = Objective(
        asked.dataset.target,
        asked.dataset.splits["train"].num_rows,
        train.class_weighting,
        train.label_smoothing,
        train.batch_size,
    )
    try:
        model = build_anew(spec.model, asked.dataset, train.seed, precision)
        weights = digest_of(model.state_dict())
        microbatch = _read_microbatch(folder, asked.index)
        return Found(
            weights=weights,
            first_pass=make_pass(model, objective.to(device), microbatch, train.seed, precision).digest,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the process that asked says it
        return Found(error=f"{type(error).__name__}: {error}")


def _read_microbatch(folder: Path, index: int) -> Microbatch:
    tensors: dict[str, Any] = load_file(folder / TENSORS_FILE)
    num_samples, length = tensors["tokens"].shape
    groups = (Group(num_samples, length),)
    return Microbatch(index=index, rows=np.arange(num_samples), ids=b"", groups=groups, **tensors)


def _be_another_rank(world_size: int) -> None:
    """To all that asks torch.distributed: its collectives then do nothing."""
    # Here: it registers the backend, which no rank needs.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=OTHER_RANK, world_size=world_size)


def main() -> None:
    """Leave in the folder what is found."""
    folder = Path(sys.argv[1])
    found = _find(folder)
    (folder / FOUND_FILE).write_text(found.model_dump_json(), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
