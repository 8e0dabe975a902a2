"""The user's module in an exported folder: what loads it, a copy of its code, and its ONNX file.

Invariant: the copy is for whoever uses the folder, who puts it on the path. Neither this program nor the code in the
folder imports it: what builds the module is given to `load_model`, or named with --factory.
"""

import json
import shutil
from pathlib import Path

from torch import nn

from storage.datasets import Target
from storage.errors import ConfigurationError
from training.export.standalone.holdfast_model import load_network
from training.export.standalone.holdfast_module import Factory
from training.export.standalone_code import write_code, write_network
from training.model_configuration import ModuleConfig
from training.own_code import load_function, own_errors, require_pinned

CODE_FILE = "holdfast_module.py"
# Where the user's own files are in an exported folder, each with the name that it has in the manifest.
OWN_CODE_FOLDER = "own_code"
MOST_CHARACTERS = 300


def write_export(folder: Path, config: ModuleConfig) -> None:
    """Write the code that loads the model, and the user's own; the weights are those of the module that it builds."""
    write_code(folder, [CODE_FILE])
    for name, path in require_pinned(config.reference, config.pin).items():
        copied = folder / OWN_CODE_FOLDER / name
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
    _load(folder, config)


def write_onnx(folder: Path, config: ModuleConfig, target: Target) -> None:
    """Write `model.onnx` into the folder, from the weights that are there, which predict `target`."""
    network = _load(folder, config)
    inputs = json.loads((folder / "preprocessing.json").read_text(encoding="utf-8"))
    try:
        write_network(folder, target, network, inputs["max_tokens"])
    except Exception as error:
        raise ConfigurationError(
            f"The module cannot be written as ONNX: torch's exporter does not follow its forward pass. Export it with "
            f"--no-onnx. The exporter's words: {str(error).strip()[:MOST_CHARACTERS]}"
        ) from error


def own_factory(config: ModuleConfig) -> Factory:
    """The user's function, which is that with which the run was begun."""
    return load_function(config.reference, config.pin)


def _load(folder: Path, config: ModuleConfig) -> nn.Module:
    files = require_pinned(config.reference, config.pin).values()
    with own_errors(f"{config.reference.name} does not build the module of the checkpoint", files):
        network: nn.Module = load_network(folder, own_factory(config))
    return network
