"""LoRA: what is trained, the same first values whoever builds the model, and one answer merged and apart."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from storage.checkpoints.tensor_files import weights_sha256
from storage.datasets import DatasetManifest, Target
from storage.errors import ConfigurationError
from tests.helpers import pretrained_modules as modules
from tests.helpers.microbatches import microbatch_with
from tests.helpers.pretrained import write_tiny_bert
from tests.unit.training.test_pretrained import KINDS, no_metadata, pinned, random_tokens
from training.batches.seeds import seed_everything, seed_initial_weights
from training.configuration import TrainConfig
from training.data.samples import Samples
from training.model_configuration import LoraConfig, PretrainedConfig
from training.models.frozen import frozen_names, tensors_to_save
from training.models.source import source_of
from training.models.whole_weights import write_whole
from training.optim.checkpoint_budget import least_checkpoint_bytes
from training.optim.optimization import Optimization

if TYPE_CHECKING:
    from training.export.standalone.holdfast_pretrained import PretrainedNetwork

pytestmark = pytest.mark.usefixtures("transformers", "peft")
CPU = torch.device("cpu")
TARGET = Target(column="topic", kind="multiclass", classes=["a", "b"], class_counts=[1, 1])


def with_lora(pooling: str = "mean", kind: str = "bert", **lora: Any) -> PretrainedConfig:
    settings = {"rank": 2, "target_modules": modules.lora.known_targets(kind), **lora}
    changes = {"pooling": pooling, "lora": LoraConfig(**settings), "name": "/model"}
    return pinned(model_type=kind, **KINDS[kind]).model_copy(update=changes)


def trained_network(config: PretrainedConfig) -> "PretrainedNetwork":
    """With adapters that change the answers, as after some steps."""
    torch.manual_seed(5)
    network = modules.holdfast_pretrained.PretrainedNetwork(modules.network.probed(config))
    modules.lora.adapt(network, config)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return network.eval()


def written(network: "PretrainedNetwork", folder: Path) -> Path:
    path = folder / "trained.safetensors"
    save_file({name: tensor.clone() for name, tensor in network.state_dict().items()}, path)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_adapters_and_what_stands_behind_the_encoder_are_trained_and_nothing_else(kind: str, pooling: str) -> None:
    network = trained_network(with_lora(pooling, kind))
    network(random_tokens(2, 8), torch.tensor([8, 5]), *no_metadata(2)).square().sum().backward()
    for name, parameter in network.named_parameters():
        is_trained = "lora_" in name or "pooler" in name or name.startswith("classifier.")
        assert parameter.requires_grad == is_trained == (parameter.grad is not None), name
    assert any("lora_" in name for name, _ in network.named_parameters())


def test_every_build_has_the_same_bits_and_dropout_of_adapters_follows_the_seed_of_the_microbatch(
    dataset: DatasetManifest, samples: Samples, tmp_path: Path
) -> None:
    config = with_lora(dropout=0.5)
    source, microbatch = source_of(config), microbatch_with(samples, 0.0)
    models: list[torch.nn.Module] = []
    for _ in range(2):
        torch.manual_seed(len(models))
        seed_initial_weights(7)
        models.append(source.build(dataset, 3).train())
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    first = next(name for name in states[0] if "lora_A" in name)
    seed_initial_weights(8)
    assert not torch.equal(states[0][first], source.build(dataset, 3).state_dict()[first])
    with torch.no_grad():
        for name, parameter in models[0].named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)

    def answers(step: int) -> torch.Tensor:
        seed_everything(1, step, 3)
        logits: torch.Tensor = models[0](microbatch)
        return logits

    assert torch.equal(answers(2), answers(2)) and not torch.equal(answers(2), answers(3))


def test_a_checkpoint_has_the_trained_part_alone_and_its_hash_is_over_all_weights(
    dataset: DatasetManifest, tmp_path: Path
) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    config = with_lora()
    source = source_of(config)
    first = modules.weights.write_first_weights(folder, config, 64, tmp_path)
    model = source.build(dataset, 3)
    (frozen,) = first.frozen
    assert first.files == [frozen] and set(load_file(frozen)) == frozen_names(model)
    saved = tensors_to_save(model, leaves_out_frozen=True)
    assert set(saved) | frozen_names(model) == set(model.state_dict())
    optimization = Optimization(model, TrainConfig(steps=4), CPU, rate_factors=source.rate_factors(model))
    num_trained = sum(tensor.nbytes for tensor in saved.values())
    assert least_checkpoint_bytes(model, optimization, leaves_out_frozen=True) < 3 * num_trained + 1024
    model.load_state_dict(load_file(frozen), strict=False)
    save_file({name: tensor.clone() for name, tensor in saved.items()}, tmp_path / "model.safetensors")
    save_file({name: t.clone() for name, t in model.state_dict().items()}, tmp_path / "whole.safetensors")
    assert weights_sha256([tmp_path / "model.safetensors", frozen]) == weights_sha256([tmp_path / "whole.safetensors"])


@pytest.mark.parametrize("kind", KINDS)
def test_merged_weights_are_those_of_a_plain_model_with_the_same_answers(kind: str, tmp_path: Path) -> None:
    config = with_lora("cls", kind, rslora=True)
    network = trained_network(config)
    (tmp_path / "out").mkdir()
    (name,) = write_whole([written(network, tmp_path)], tmp_path / "out", source_of(config))
    plain = modules.holdfast_pretrained.PretrainedNetwork(modules.network.probed(config)).eval()
    plain.load_state_dict(load_file(tmp_path / "out" / name))
    arguments = random_tokens(3, 16), torch.tensor([16, 7, 2]), *no_metadata(3)
    torch.testing.assert_close(plain(*arguments), network(*arguments), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_peft_loads_the_adapter_over_the_model_that_it_was_trained_on(
    pooling: str, tmp_path: Path, transformers: Any, peft: Any
) -> None:
    folder = write_tiny_bert(tmp_path / "model")
    config = with_lora(pooling, target_modules="all-linear").model_copy(update={"name": str(folder)})
    (tmp_path / "first").mkdir()
    first = modules.weights.write_first_weights(folder, config, 64, tmp_path / "first")
    network = trained_network(config)
    frozen = {name: tensor for path in first.frozen for name, tensor in load_file(path).items()}
    network.load_state_dict(frozen, strict=False)
    out = tmp_path / "adapter"
    out.mkdir()
    found = modules.adapter.write_adapter([written(network, tmp_path)], out, config, TARGET)
    tokens = random_tokens(2, 9)
    with torch.no_grad():
        ours = network(tokens, torch.full((2,), 9), *no_metadata(2))
        if pooling == "cls":
            assert found["task"] == "SEQ_CLS" and not (out / "head.safetensors").exists()
            theirs = peft.AutoPeftModelForSequenceClassification.from_pretrained(out, num_labels=2).eval()
            logits = theirs(input_ids=tokens).logits
        else:
            assert found["task"] == "FEATURE_EXTRACTION"
            encoder = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained(folder), out).eval()
            head = load_file(out / "head.safetensors")
            pooled = encoder(input_ids=tokens).last_hidden_state.mean(dim=1)
            logits = torch.nn.functional.linear(pooled, head["classifier.weight"], head["classifier.bias"])
    torch.testing.assert_close(ours, logits, atol=1e-5, rtol=1e-4)
    size = (out / "adapter_model.safetensors").stat().st_size
    assert size < sum(tensor.nbytes for tensor in frozen.values())


def test_layers_with_adapters_learn_at_the_rates_of_their_layers(dataset: DatasetManifest) -> None:
    source = source_of(with_lora().model_copy(update={"layer_decay": 0.5}))
    factors = source.rate_factors(source.build(dataset, 3))
    assert factors["bert.encoder.layer.0.attention.self.query.lora_A.default.weight"] == 0.25
    assert factors["bert.encoder.layer.1.attention.self.query.lora_B.default.weight"] == 0.5


@pytest.mark.parametrize("targets", [["nothing"], ["word_embeddings"], "no.*such", ["LayerNorm"]])
def test_targets_that_are_no_linear_layers_are_refused(targets: Any, dataset: DatasetManifest) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.lora\.target_modules is .* cannot be adapted in the model"):
        source_of(with_lora(target_modules=targets)).build(dataset, 3)


def test_frozen_layers_and_an_adapter_of_a_model_without_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen_layers does not go with lora"):
        PretrainedConfig(kind="pretrained", name="/model", frozen_layers=1, lora=LoraConfig())
    with pytest.raises(ValueError, match="must name layers"):
        LoraConfig(target_modules=[])
    with pytest.raises(ConfigurationError, match=r"--adapter goes with model\.lora alone"):
        source_of(pinned()).write_adapter([], tmp_path, TARGET)
