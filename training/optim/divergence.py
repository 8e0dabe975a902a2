"""The error of training itself, where neither the machine nor a file is at fault."""

from torch import Tensor

from storage.runs.run_state import Divergence


class DivergedError(ArithmeticError):
    """Loss or gradient are nothing that training can go on from. The message has it in words, `evidence` in fields."""

    def __init__(self, message: str, evidence: Divergence) -> None:
        super().__init__(message)
        self.evidence = evidence


def require_finite(step: int, losses: Tensor, num_outside: float) -> None:
    """Raise `DivergedError` unless `losses` [microbatches] of a step, and its gradient, are finite."""
    if not bool(losses.isfinite().all()):
        found = losses[~losses.isfinite()][0].item()
        evidence = Divergence(kind="loss", step=step)
        raise DivergedError(f"The loss became {found} at step {step}.", evidence)
    if num_outside:
        raise DivergedError(
            f"At step {step} a microbatch's gradient was not finite, or so large that the sum over all microbatches "
            "would not be finite in fp32.",
            Divergence(kind="gradient", step=step),
        )
