"""The product's modules that load transformers and peft, which takes seconds: when a test first uses one.

A file of tests imports this module, and not those: pytest asks each name in such a file for attributes while it
collects, and what is imported on first use would be loaded then, by each worker.
"""

from storage.lazy_imports import lazy_imports

with lazy_imports():
    from training.export.standalone import holdfast_pretrained
    from training.models.pretrained import adapter, exported, lora, network, weights

__all__ = ["adapter", "exported", "holdfast_pretrained", "lora", "network", "weights"]
