"""A module of a user's own before the first step: what is right of it is tried out and taken, all else is refused."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from storage.datasets import DatasetManifest
from storage.errors import ConfigurationError, HoldfastError, IncompatibleRunError
from tests.helpers.microbatches import microbatch_with
from tests.helpers.own_modules import module_config, parameters_of, write_module
from tests.helpers.specifications import spec_of
from training.batches.seeds import seed_everything, seed_initial_weights
from training.configuration import TrainConfig
from training.data.samples import PADDING_MULTIPLE, Samples
from training.export.standalone.holdfast_module import LENGTH_MULTIPLE
from training.model_configuration import ModuleConfig
from training.models.objective import Objective
from training.models.precision import Precision
from training.models.source import microbatch_cut, source_of
from training.models.trial import Trial
from training.targets.registry import kind_of
from training.world import World

CPU = torch.device("cpu")


class Tried:
    """A module that is tried out on two microbatches, by the first rank of one."""

    def __init__(self, dataset: DatasetManifest, samples: Samples, folder: Path) -> None:
        self.notes: list[str] = []
        self._dataset, self._folder = dataset, folder / "scratch"
        self._folder.mkdir()
        self._microbatches = [
            microbatch_with(part, 0.0) for part in (samples.at(slice(0, 20)), samples.at(slice(20, 40)))
        ]

    def __call__(self, config: ModuleConfig, **train: Any) -> str:
        """What people are told. Raises what is raised."""
        settings = TrainConfig(steps=4, batch_size=40, microbatches=2, **train)
        spec = spec_of(str(self._folder.parent / "store"), self._dataset, self._folder, config, settings)
        objective = Objective(self._dataset.target, 100, 0.5, 0.0, 40)
        world, precision = World(0, 1, 0, 1), Precision(CPU, None)
        trial = Trial(spec, world, self._dataset, precision, objective, lambda: self._microbatches, self.notes.append)
        source_of(config).try_out(trial)
        assert list(self._folder.iterdir()) == []
        (note,) = self.notes
        return note


@pytest.fixture
def tried(dataset: DatasetManifest, samples: Samples, tmp_path: Path) -> Tried:
    return Tried(dataset, samples, tmp_path)


def test_a_right_one_is_taken_and_its_size_and_memory_are_stated(
    tried: Tried, dataset: DatasetManifest, tmp_path: Path
) -> None:
    """With shared weights, a persistent mask of -inf, and random numbers of each generator that is set."""
    forward = "vectors = vectors * (1 + self.training * (random.random() + np.random.rand() + torch.rand(())) / 9)"
    note = tried(module_config(write_module(tmp_path, forward=forward), width=16))
    weights = f"{parameters_of(dataset):,}"
    assert f"my_models.py:build has {weights} weights, {weights} of them trained; between forward and backward" in note
    assert "MiB" in note and "tried out in" in note and "used the parameters" not in note


REFUSED = {
    "batch normalisation": (
        {"init": "self.norm = nn.BatchNorm1d(width)", "forward": "vectors = self.norm(vectors.mT).mT"},
        "buffer 'norm.running_mean' was changed by a forward pass in training, as batch normalisation does",
    ),
    "statistics of the batch": (
        {
            "init": "self.norm = nn.BatchNorm1d(width, track_running_stats=False)",
            "forward": "vectors = self.norm(vectors.mT).mT",
        },
        "gives a sample another answer, in evaluation, by what it is padded to",
    ),
    "padding": ({"forward": "mask = torch.ones_like(mask)"}, "by what it is padded to"),
    "other samples": (
        {"forward": "vectors = vectors + (0 if self.training else tokens.float().mean() / 9)"},
        "gives a sample another answer, in evaluation, by",
    ),
    "a generator of its own": (
        {
            "init": "self.generator = torch.Generator().manual_seed(1)",
            "forward": "vectors = vectors * torch.rand((), generator=self.generator)",
        },
        "gave other bits when the same microbatch was computed a second time",
    ),
    "numpy's own generator": (
        {"init": "self.generator = np.random.default_rng(1)", "forward": "vectors = vectors * self.generator.random()"},
        "gave other bits when the same microbatch was computed a second time",
    ),
    "what it keeps": (
        {"init": "self.last = 0", "forward": "vectors = vectors + self.last; self.last = vectors.detach().mean()"},
        "gave other bits when the same microbatch was computed a second time",
    ),
    "dropout in evaluation": (
        {"forward": "vectors = functional.dropout(vectors, 0.1)"},
        r"functional\.dropout, for one, needs training=self\.training",
    ),
    "no gradient": ({"forward": "return self.head(torch.zeros(len(tokens), self.head.in_features)).detach()"},
        "returned logits without a gradient"),
    "a wrong shape": ({"forward": "return vectors.sum(dim=1)"}, r"returned torch\.float32 \[20, 16\].*\[20, 3\]"),
    "no tensor": ({"forward": "return {'logits': vectors}"}, "returned dict"),
    "not finite": ({"forward": "vectors = vectors / 0"}, "returned logits that are not finite numbers"),
    "a half": ({"init": "self.head.to(torch.float16)"}, "parameter 'head.weight' is of type torch.float16"),
    "a lazy layer": ({"init": "self.lazy = nn.LazyLinear(3)"}, "the size of 'lazy.weight' is not known"),
    "complex": ({"init": "self.register_buffer('w', torch.zeros(2).cfloat())"}, "'w' is of type torch.complex64"),
    "sparse": ({"init": "self.embedding.sparse = True"}, "the layer 'embedding' has sparse gradients"),
    "frozen": ({"init": "self.requires_grad_(False)"}, "no parameter requires a gradient"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_exactly_is_refused_before_the_first_step(
    name: str, tried: Tried, tmp_path: Path
) -> None:
    lines, message = REFUSED[name]
    with pytest.raises(ConfigurationError, match=message):
        tried(module_config(write_module(tmp_path, **lines)))
    assert tried.notes == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"head": "import os; SCALE = 1 + int(os.environ.get('RANK', 0))", "forward": "vectors = vectors * SCALE"},
         "gave other bits for the same microbatch in a process with another rank"),
        ({"init": "import os; self.head.weight.data *= 1 + int(os.environ.get('WORLD_SIZE', 1))"},
         "had other first weights in a process with another rank"),
        ({"forward": "import torch.distributed as d; vectors = vectors + (d.is_initialized() and d.get_rank())"},
         "gave other bits for the same microbatch in a process with another rank"),
    ],
    ids=["environment", "weights", "torch.distributed"],
)  # fmt: skip
def test_a_look_at_the_rank_is_noticed(lines: dict[str, str], message: str, tried: Tried, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tried(module_config(write_module(tmp_path, **lines)))


def test_an_unused_branch_is_named_and_taken(tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact sum gives what no microbatch uses the gradient zero, whichever rank has the microbatch."""
    without_other_process(monkeypatch)
    note = tried(module_config(write_module(tmp_path, init="self.branch = nn.Linear(4, 4)")))
    assert "used the parameters branch.bias, branch.weight: where none ever does, they stay as they were" in note


def test_in_training_a_sample_may_depend_on_the_others_of_its_microbatch(
    tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the same on any number of ranks."""
    without_other_process(monkeypatch)
    tried(module_config(write_module(tmp_path, forward="vectors = vectors - self.training * vectors.mean()")))


def without_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not what the test is about, and takes seconds."""
    from training.models.module import trying

    monkeypatch.setattr(trying._Trying, "_require_blind_to_rank", lambda *_: None)
    monkeypatch.setattr(trying, "ask_another_process", lambda *_: None)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"init": "self.head = nn.Linear('x')"}, r"could not build the module: TypeError(.*\n)+.*py, line 23, in"),
        ({"forward": "vectors = vectors @ vectors"}, r"its module failed: RuntimeError: .*\n.*, in forward: vec"),
        ({"head": "import not_there"}, r"could not be imported: ModuleNotFoundError: .*\n.*line 1, in <module>"),
        ({"head": "def f(:"}, r"could not be imported: SyntaxError: .*\n.*line 1: def f\(:"),
    ],
    ids=["build", "forward", "import", "syntax"],
)  # fmt: skip
def test_what_its_own_code_raises_is_shown_with_its_own_lines(
    lines: dict[str, str], message: str, tried: Tried, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        tried(module_config(write_module(tmp_path, **lines)))
    assert "site-packages" not in str(raised.value)


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        ("missing", "", "expected a function 'missing' there: there is none"),
        ("build", "build = 3", "expected a function 'build' there: found int"),
        ("build", "def build(inputs): return 3", r"returned int, expected a torch\.nn\.Module"),
        ("build", "from torch import nn\nclass N(nn.Linear):\n  def forward(self, ids): return ids\n"
         "def build(inputs): return N(2, 2)", r"the forward pass of N takes \(ids\), expected first"),
    ],
)  # fmt: skip
def test_a_function_that_builds_no_module_is_refused(
    function: str, code: str, message: str, dataset: DatasetManifest, tmp_path: Path
) -> None:
    path = tmp_path / "other.py"
    path.write_text(code)
    with pytest.raises(ConfigurationError, match=message):
        source_of(module_config(path, function)).build(dataset, 3)


def test_nothing_is_executed_that_is_not_what_was_pinned(dataset: DatasetManifest, tmp_path: Path) -> None:
    path = write_module(tmp_path, head="import layers")
    (tmp_path / "layers.py").write_text("")
    config = module_config(path)
    assert set(config.pin.files) == {"my_models.py", "layers.py"}
    (tmp_path / "layers.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    with pytest.raises(IncompatibleRunError, match=r"not what the run was begun with: layers\.py was changed\."):
        source_of(config).build(dataset, 3)
    path.write_text(f"{path.read_text()}\nimport json")
    (tmp_path / "layers.py").unlink()
    with pytest.raises(IncompatibleRunError, match=r"layers\.py was removed, my_models\.py was changed"):
        source_of(config).build(dataset, 3)
    assert not (tmp_path / "executed").exists()


def test_of_a_package_all_files_are_pinned_and_it_is_imported_by_its_name(
    dataset: DatasetManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_package_of_a_test"
    write_module(package / "deep", name="models.py")
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    config = ModuleConfig(kind="module", factory=f"{package.name}.deep.models:build")
    pinned = module_config(package / "other.py").pin.model_copy(update={"files": hash_of(config)})
    assert set(pinned.files) == {f"{package.name}/{name}" for name in ("__init__.py", "other.py", "deep/models.py")}
    model = source_of(config.model_copy(update={"pinned": pinned})).build(dataset, 3)
    assert type(model).__module__ == f"{package.name}.deep.models"


def hash_of(config: ModuleConfig) -> dict[str, str]:
    from training.own_code import hash_files

    return hash_files(config.reference)


@pytest.mark.parametrize("factory", ["./none.py:build", "no_such_package.models:build"])
def test_what_is_not_there_is_named(factory: str) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.factory is .*: there is no (file|package)"):
        hash_of(ModuleConfig(kind="module", factory=factory))


@pytest.mark.parametrize("factory", ["my_models.py", "build", "./my_models.py:2", "a b:build", "my_models.ipynb:build"])
def test_a_text_that_names_no_function_is_refused(factory: str) -> None:
    with pytest.raises(ValueError, match=r"expected './my_file\.py:build'"):
        ModuleConfig(kind="module", factory=factory)


def test_a_function_of_a_notebook_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"with %%writefile my_models\.py as the first line of its cell"):
        ModuleConfig(kind="module", factory="__main__:build")


def test_a_source_of_it_imports_nothing_and_is_cut_into_padded_microbatches(tmp_path: Path) -> None:
    config = ModuleConfig(kind="module", factory=f"{tmp_path}/none.py:build", options={"width": 8})
    assert config.options == {"width": 8}
    assert microbatch_cut(config, TrainConfig()).padding_efficiency == 0
    assert LENGTH_MULTIPLE == PADDING_MULTIPLE


def test_activation_checkpointing_is_the_modules_own_or_refused(dataset: DatasetManifest, tmp_path: Path) -> None:
    source = source_of(module_config(write_module(tmp_path)))
    model: Any = source.build(dataset, 3)
    source.set_activation_checkpointing(model, False)
    with pytest.raises(ConfigurationError, match=r"expected a method set_activation_checkpointing\(is_on\)"):
        source.set_activation_checkpointing(model, True)
    model.set_activation_checkpointing = lambda is_on: setattr(model, "recomputes", is_on)
    source.set_activation_checkpointing(model, True)
    assert model.recomputes is True


def test_tensors_have_the_names_that_they_have_in_the_module(
    dataset: DatasetManifest, samples: Samples, tmp_path: Path
) -> None:
    source, microbatch = source_of(module_config(write_module(tmp_path))), microbatch_with(samples, 0.0)
    seed_initial_weights(3)
    model = source.build(dataset, kind_of(dataset.target).num_outputs)
    assert {"embedding.weight", "first.weight", "second.weight", "window"} <= model.state_dict().keys()
    assert "second.weight" not in dict(model.named_parameters())
    seed_everything(1, 2, 3)
    logits: Tensor = model(microbatch)
    assert logits.shape == (len(samples), 3)


def test_other_errors_of_ours_are_not_taken_for_the_users() -> None:
    from training.own_code import own_errors

    with pytest.raises(HoldfastError, match=r"^ours$"), own_errors("what", []):
        raise HoldfastError("ours")
    assert not dist.is_initialized() and "RANK" not in os.environ
