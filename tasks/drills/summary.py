"""A drill in Markdown, for the page of its flow run in Prefect.

Invariant: it has what the drill's own page has, in less.
"""

from typing import Any

from storage.lazy_imports import lazy_imports
from tasks.console.markdown import as_code, escape_markdown, markdown_table
from tasks.drills.words import Finding

with lazy_imports():
    import tasks.drills.page as drill_page  # and Matplotlib, which no other deployment loads for this


def summarise_drill(result: dict[str, Any]) -> str:
    """`result` is what `holdfast drill --json` prints."""
    verdict = result["verdict"]
    findings = [Finding(**finding) for finding in result["findings"]]
    parts = [
        f"# {verdict['badge']}",
        *map(escape_markdown, [verdict["headline"], *verdict["remarks"]]),
        markdown_table(drill_page.findings_table(findings)),
        f"Page: {as_code(result['page'])}",
        f"The same drill again: {as_code(result['command'])}",
    ]
    return "\n\n".join(parts) + "\n"
