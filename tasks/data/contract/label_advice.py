"""What a person may have meant by labels that are none of a binary target's, for the error about them."""

import json

import duckdb

from tasks.configuration.run import DataConfig
from tasks.data.label_form import describe_form, find_form
from tasks.data.labels import label_domain, may_be_without_classes
from tasks.data.rule import OUTSIDE

NUM_SHOWN = 3
# The class to detect is called so where labels are a yes and a no; else it is the one with fewer rows.
AFFIRMATIVE = {"1", "true", "yes", "y", "t", "positive", "pos"}


def advise_on_labels(problem: str, connection: duckdb.DuckDBPyConnection, config: DataConfig) -> str | None:
    """What to do about this problem of a rule, by all labels that there are; None where the rule says as much.

    The view `samples` must be there.
    """
    if problem != OUTSIDE or may_be_without_classes(config) or label_domain(config) is not None:
        return None
    query = "SELECT label FROM samples WHERE label IS NOT NULL GROUP BY label ORDER BY count(*) DESC, label"
    labels = [label for (label,) in connection.execute(query).fetchall()]
    if len(labels) == 2:
        both = sorted(labels, key=lambda label: label.casefold() in AFFIRMATIVE)
        return f"list both in data.classes, the one to detect as the second: classes = {json.dumps(both)}"
    shown = ", ".join(map(repr, labels[:NUM_SHOWN]))
    more = f" and {len(labels) - NUM_SHOWN:,} more" if len(labels) > NUM_SHOWN else ""
    described = "".join(f"{sentence} If they are classes: " for sentence in describe_form(find_form(labels)))
    return described + (
        f'set data.kind = "multiclass", since the column has {len(labels):,} different labels ({shown}{more}); or, if '
        "two are meant, correct the others and list both in data.classes"
    )
