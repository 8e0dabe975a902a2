"""The one form of a message about the user's data, and what is said in more than one of them."""

from storage.errors import ContractError

REWRITE = "write or copy it again, or take it out of data.source"


def broken_contract(problem: str, expected: str, found: str, remedy: str) -> ContractError:
    """The one form of a message about the user's data."""
    lines = (problem, f"  expected: {expected}", f"  found: {found}", f"  what to do: {remedy}")
    return ContractError("\n".join((*lines, "No data set was written.")))
