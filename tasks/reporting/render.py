"""The HTML pages that people are given: their templates, and how these are filled in.

Invariant: every string from outside is escaped, and a name that a template does not know is an error.
`page.html.jinja` is the frame of every page, with the style; `page_parts.html.jinja` has what several pages draw.
"""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tasks.text import NOTHING, plain


def render_page(template: str, **values: Any) -> str:
    """The page as HTML."""
    return _environment().get_template(template).render(**values)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tasks", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plain"] = plain
    environment.globals["nothing"] = NOTHING
    return environment
