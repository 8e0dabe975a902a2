"""What a run keeps of all that the user brings besides data: a pretrained model, a module, an optimizer.

Invariant: it is read once, when the run begins, and what is there when it goes on is what was there then.
"""

from tasks.configuration.run import RunConfig
from tasks.models.own_code import pin_code, require_same_code
from tasks.models.pretrained import pin_model, require_same_model


def pin_brought(config: RunConfig) -> RunConfig:
    """The configuration of a new run with what it keeps. Raises `ConfigurationError`."""
    return pin_code(pin_model(config))


def require_same_brought(config: RunConfig) -> None:
    """Raise `IncompatibleRunError` for what a begun run was begun with and is not so any more."""
    require_same_model(config)
    require_same_code(config)
