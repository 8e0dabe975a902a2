"""Form of messages about the user's data, and words that several of them share."""

from storage.errors import ContractError

REWRITE = "write or copy it again, or take it out of data.source"


class BrokenContractError(ContractError):
    """What is wrong with the data, in its parts: another command than the preparation has another end for it."""

    def __init__(self, problem: str, expected: str, found: str, remedy: str) -> None:
        lines = (problem, f"  expected: {expected}", f"  found: {found}", f"  what to do: {remedy}")
        super().__init__("\n".join((*lines, "No data set was written.")))
        self.problem, self.expected, self.found, self._remedy = problem, expected, found, remedy

    def __reduce__(self) -> tuple[type["BrokenContractError"], tuple[str, ...]]:
        """For a process of a pool, whose errors are raised in the process that waits for it."""
        return type(self), (self.problem, self.expected, self.found, self._remedy)


def broken_contract(problem: str, expected: str, found: str, remedy: str) -> ContractError:
    """The one form of a message about the user's data."""
    return BrokenContractError(problem, expected, found, remedy)
