"""Loading a folder by transformers.

Invariant: nothing is read but safetensors, no code of a model's own is run, and no hub is asked.
"""

from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from training.export.standalone.holdfast_pretrained import attention_of

# What `load` raises for a folder that is not of such a model.
NOT_LOADED = (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError)


def load(auto_class: Any, folder: Path, config: Any) -> tuple[Any, dict[str, Any]]:
    """The model in fp32, by one of transformers' Auto classes, and what it says of the tensors it did not find."""
    logging.set_verbosity_error()  # what is not of the model, as another head, is not asked for
    logging.disable_progress_bar()
    model, info = auto_class.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        attn_implementation=attention_of(config),
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
    )
    return model, info
