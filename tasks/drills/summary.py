"""A drill in Markdown, for the page of its flow run in Prefect.

Invariant: it has what the drill's own page has, in less.
"""

from typing import Any

from tasks.console.markdown import escape_markdown, markdown_table
from tasks.drills.page import findings_table
from tasks.drills.words import Finding


def summarise_drill(result: dict[str, Any]) -> str:
    """`result` is what `holdfast drill --json` prints."""
    verdict = result["verdict"]
    findings = [Finding(**finding) for finding in result["findings"]]
    parts = [
        f"# {verdict['badge']}",
        *map(escape_markdown, [verdict["headline"], *verdict["remarks"]]),
        markdown_table(findings_table(findings)),
        f"Page: `{result['page']}`",
        f"The same drill again: `{result['command']}`",
    ]
    return "\n\n".join(parts) + "\n"
