"""The error that says that training itself went wrong, and neither the machine nor a file did."""

from storage.runs.run_state import Divergence


class DivergedError(ArithmeticError):
    """Loss or gradient are nothing that training can go on from. The message says it in words, `evidence` in fields."""

    def __init__(self, message: str, evidence: Divergence) -> None:
        super().__init__(message)
        self.evidence = evidence
