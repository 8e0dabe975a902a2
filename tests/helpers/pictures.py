"""What is written in a picture that a page has."""

import xml.etree.ElementTree as ElementTree


def svg_text(svg: str) -> str:
    """The texts of an SVG, in their order."""
    return " | ".join(
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter() if "text" in element.tag
    )
