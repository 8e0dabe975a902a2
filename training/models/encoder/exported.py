"""The encoder in an exported folder: its code, which stands alone, and its ONNX file."""

from pathlib import Path

from storage.datasets import Target
from training.export.standalone.holdfast_model import load_network
from training.export.standalone_code import write_network


def write_encoder(folder: Path, target: Target) -> None:
    """Write `model.onnx` into the folder, from the weights that are there, which predict `target`."""
    network = load_network(folder)
    write_network(folder, target, network, network.sizes.num_positions)
