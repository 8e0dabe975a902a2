"""Whether the checkpoints that stay in any case fit into what they may take: asked before the first step.

Invariant: a function of the configuration and the number of parameters, so all ranks have one answer.
"""

from storage.errors import ConfigurationError
from training.configuration import CheckpointConfig

# The weights and AdamW's two moments, each in fp32.
BYTES_PER_PARAMETER = 3 * 4


def require_budget(config: CheckpointConfig, num_parameters: int) -> None:
    """Raise `ConfigurationError` where `keep_bytes` is less than what those that always stay take."""
    one = num_parameters * BYTES_PER_PARAMETER
    least = config.num_always_kept * one
    if config.keep_bytes is None or config.keep_bytes >= least:
        return
    best = ", and the best one" if config.keep_best else ""
    raise ConfigurationError(
        f"checkpoint.keep_bytes is {config.keep_bytes:,}, expected at least {least:,}: {config.num_always_kept} "
        f"checkpoints of {one:,} bytes each stay in any case, the resume point, the one before it{best}. Set "
        f"keep_bytes to at least that, with room for others, or leave it out. Nothing was trained."
    )
