"""What a microbatch keeps in memory is counted without any, and recomputing blocks saves it without changing a bit."""

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from storage.datasets import DatasetManifest
from tests.helpers.microbatches import microbatch_with
from tests.helpers.small_models import make_encoder
from training.batches.tensors import Microbatch
from training.configuration import TrainConfig
from training.data.samples import Samples
from training.model_configuration import EncoderConfig
from training.models import out_of_memory as exhausted
from training.models.activation_bytes import count_kept_bytes
from training.models.encoder.network import Classifier
from training.models.encoder.source import EncoderSource
from training.models.out_of_memory import MicrobatchOutOfMemoryError
from training.models.precision import AUTOCAST_TYPES, Precision

MODEL = EncoderConfig(width=32, layers=3, heads=2, feedforward=64, dropout=0.1)


def precision_of(name: str) -> Precision:
    return Precision(torch.device("cpu"), AUTOCAST_TYPES.get(name))


def make_model(dataset: DatasetManifest, checkpointing: bool) -> Classifier:
    torch.manual_seed(0)
    return make_encoder(MODEL, dataset, checkpointing)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("efficiency", [0.0, 0.97])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_bytes_are_those_that_a_real_forward_pass_keeps(
    dataset: DatasetManifest, samples: Samples, checkpointing: bool, efficiency: float, name: str
) -> None:
    model, microbatch = make_model(dataset, checkpointing), microbatch_with(samples, efficiency)
    for parameter in list(model.parameters())[::3]:  # which are weights too
        parameter.requires_grad_(False)
    before = torch.random.get_rng_state()
    counted = count_kept_bytes(model, microbatch, precision_of(name))
    assert torch.equal(torch.random.get_rng_state(), before)

    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor), precision_of(name).autocast():
        result = model(microbatch)
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in [*kept, result]}
    assert counted == pytest.approx(
        sum(size for at, size in storages.items() if at not in weights), rel=0.05
    )  # attention is computed in other ways


@pytest.mark.parametrize("name", ["fp32", "bf16"])
@pytest.mark.parametrize("efficiency", [0.0, 0.97])
def test_recomputing_saves_most_of_it_and_gives_the_same_gradients_bit_by_bit(
    dataset: DatasetManifest, samples: Samples, name: str, efficiency: float
) -> None:
    microbatch, precision = microbatch_with(samples, efficiency), precision_of(name)
    plain, recomputing = make_model(dataset, False), make_model(dataset, True)
    assert count_kept_bytes(recomputing, microbatch, precision) < 0.5 * count_kept_bytes(plain, microbatch, precision)
    expected, found = gradients_of(plain, microbatch, precision), gradients_of(recomputing, microbatch, precision)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_that_memory_ran_out_is_told_also_where_what_is_kept_cannot_be_counted(
    dataset: DatasetManifest, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(exhausted, "count_kept_bytes", fail)
    error = torch.OutOfMemoryError("Tried to allocate 2.00 GiB. See documentation for more")
    model, microbatch = make_model(dataset, False), microbatch_with(samples, 0.97)
    with pytest.raises(
        MicrobatchOutOfMemoryError, match=r"Tried to allocate 2\.00 GiB\. The model keeps an amount"
    ) as raised:
        exhausted.explain(error, EncoderSource(MODEL), model, microbatch, precision_of("fp32"), TrainConfig())
    assert raised.value.recomputing_helps and not model.activation_checkpointing


def gradients_of(model: Classifier, microbatch: Microbatch, precision: Precision) -> list[Tensor]:
    """With dropout, from one seed."""
    torch.manual_seed(1)
    with precision.autocast():
        logits = model(microbatch)
    torch.nn.functional.cross_entropy(logits.float(), microbatch.labels).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
