"""The first weights of a run with a pretrained model, brought into its own store before its manifest names them.

Invariant: they are of the very files that were pinned, and the run needs the model's folder no more once it has begun.
The copy stands under the hash of all that it is made of.
"""

import tempfile
from pathlib import Path

from storage.checkpoints.tensor_files import weights_sha256
from storage.errors import ConfigurationError
from storage.lazy_imports import lazy_imports
from storage.objects.digests import sha256_of_file
from storage.runs.run_records import StartRecord
from tasks.configuration.run import RunConfig
from tasks.console.announce import announce
from tasks.models.pretrained import find_folder
from tasks.models.start_files import put_start
from tasks.run_paths import RunPaths
from training.model_configuration import PretrainedConfig
from training.models.correspondence import Copy

# It loads transformers, which is an extra.
with lazy_imports():
    import training.models.pretrained.weights as weights


def bring_pretrained_weights(config: RunConfig, run_paths: RunPaths) -> StartRecord:
    """Copy the weights of the model that was pinned into the run's folder; the manifest's record of them.

    Raises `ConfigurationError` if the model cannot be trained, or is not any more what was pinned.
    """
    model = config.model
    assert isinstance(model, PretrainedConfig)
    folder = find_folder(model)
    run_paths.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=run_paths.scratch, prefix="start-") as name:
        try:
            first = weights.write_first_weights(folder, model, config.data.max_tokens, Path(name))
        except ImportError as error:
            raise ConfigurationError(f"{error}. It is not installed here.") from error
        changed = [name for name, sha256 in model.pin.files.items() if sha256_of_file(folder / name) != sha256]
        if changed:
            raise ConfigurationError(
                f"The folder of the pretrained model, {folder}, was changed while the run was being begun: "
                f"{', '.join(changed)}. Run again when no program writes to it any more."
            )
        announce(f"Starts from the pretrained model {model.name}: {len(first.names)} tensors.")
        copies = [Copy(name, name) for name in first.names]
        origin = {"model": model.name, "files": model.pin.files}
        sha256 = weights_sha256(first.files)
        return put_start(first.files, copies, run_paths, model.name, 0, sha256, origin, first.frozen)
