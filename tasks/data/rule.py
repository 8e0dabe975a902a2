"""One rule of the contract, and the rules that several parts of it state alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.configuration.run import DataConfig
from tasks.data.labels import may_be_without_classes

OUTSIDE = "unknown labels"
LIST = "list all that may occur in data.classes"
LIST_BOTH = 'list both in data.classes, the one to detect as the second: classes = ["no", "yes"]'


@dataclass(frozen=True)
class Rule:
    """What no row may do. `broken` is SQL that is true of a row that does; `shown` is SQL of the value to show."""

    column: str
    problem: str
    expected: str
    broken: str
    shown: str
    remedy: str

    @property
    def name(self) -> str:
        return f"{self.column}: {self.problem}"


def not_null(column: str, name: str, remedy: str) -> Rule:
    """A value in every row; `name` is what the column is called in `samples`."""
    return Rule(column, "missing values", "a value in every row", f"{name} IS NULL", f"{name}::VARCHAR", remedy)


def outside_the_domain(column: str, domain: Sequence[str], broken: str, shown: str, config: DataConfig) -> Rule:
    """No label but those of the domain."""
    remedy = f"correct these labels, or {_how_to_list_labels(config)}"
    return Rule(column, OUTSIDE, f"one of {', '.join(domain)}", broken, shown, remedy)


def _how_to_list_labels(config: DataConfig) -> str:
    if config.class_names:
        return "name all that may occur in data.class_names"
    return LIST if may_be_without_classes(config) or config.classes else LIST_BOTH
