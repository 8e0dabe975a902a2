"""The canvas of the report's pictures: one palette, one style, from a matplotlib figure to a self-contained SVG.

Invariant: the same drawing gives the same bytes: no date, no random ids, no dependence on the user's matplotlib style.
Text is never taken for mathematics: a class may be called "$x_". Colours are Okabe and Ito's, which everyone can
distinguish.
"""

import base64
import io
import logging
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1f2937", "#5b6472", "#e3e7ec", "#ffffff"
BLUE, SKY, GREEN, ORANGE, VERMILION = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
PURPLE, YELLOW, GREY = "#CC79A7", "#F0E442", "#8a94a3"
OUTCOME_COLOURS = {
    "completed": GREEN,
    "budget": SKY,
    "preempted": ORANGE,
    "lost": VERMILION,
    "failed": PURPLE,
    "diverged": INK,
}
POINTS_PER_INCH = 72
_PAGE_FONTS = "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif !important}"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # real text: sharp, small, in the reader's own font
    "svg.hashsalt": "holdfast",
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": ["DejaVu Sans"],  # only measured with; wider than what browsers use, so nothing collides
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
}
# rcParams belong to the whole process: two reports drawn at once would see each other's.
_RC_LOCK = threading.Lock()


def _make_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


@dataclass(frozen=True)
class Chart:
    """A picture, and the same in words for those who cannot see it."""

    svg: str
    alt: str

    @property
    def uri(self) -> str:
        """For an `<img>`: in there nothing of the SVG can run or leak into the page, whatever a class is called."""
        return _make_uri(self.svg)

    @property
    def uri_on_paper(self) -> str:
        """As `uri`, for a page whose colour is not known: its own is behind it."""
        return _make_uri(self.svg.replace("<svg ", f'<svg style="background: {PAPER}" ', 1))


def draw_svg(width: float, height: float, draw: Callable[[Figure], None]) -> str:
    """The SVG of a figure of `width` x `height` inches that `draw` fills."""
    buffer = io.StringIO()
    with _RC_LOCK, matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Glyphs that the measuring font lacks are drawn by the browser's fonts all the same.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph .* missing from font.*")
        _quiet_font_messages()
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        _settle_layout(figure)
        # No `metadata` at all would name the version of matplotlib and the moment.
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace("</style>", _PAGE_FONTS + "</style>", 1)


def add_grid(axes: Axes, axis: Literal["x", "y", "both"]) -> None:
    """Thin lines for the values of `axis` and no frame."""
    axes.grid(visible=True, axis=axis)
    axes.spines[:].set_visible(False)


def _settle_layout(figure: Figure) -> None:
    """Let the layout engine position the axes once, and round what it found.

    Its solver's last bits depend on memory addresses, and the SVG's ids are hashes over unrounded coordinates.
    """
    engine = figure.get_layout_engine()
    assert engine is not None  # the figure was made with one
    engine.execute(figure)
    positions = [(axes, axes.get_position(original=True).bounds) for axes in figure.axes]
    figure.set_layout_engine("none")
    for axes, (left, bottom, width, height) in positions:
        axes.set_position((round(left, 4), round(bottom, 4), round(width, 4), round(height, 4)))


def _quiet_font_messages() -> None:
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
