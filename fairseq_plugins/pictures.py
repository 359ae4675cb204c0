"""Pictures as SVG, readable on a light and on a dark page."""

import io

from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure

GREY = "#888888"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fairseq_plugins",  # the same picture for the same figures
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **{f"{name}.color": GREY for name in ("text", "xtick", "ytick", "grid")},
    **{f"axes.{name}color": GREY for name in ("edge", "label")},
}
COLOURS = colormaps["tab10"].colors


def svg(figure: Figure) -> str:
    """Return *figure* as an ``<svg>`` element with a transparent ground."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def column_map(columns: dict[str, tuple[int, int]], width: int) -> str:
    """Return a picture of which columns of a *width* wide matrix hold which weight.

    Args:
        columns: ``SIDE.STORED.WEIGHT`` -> first and last column.
    """
    sides = sorted({name.partition(".")[0] for name in columns}, reverse=True)
    kinds = list(dict.fromkeys(name.split(".", 2)[2] for name in columns))
    colours = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    with rc_context(STYLE):
        figure = Figure(figsize=(8.5, 1.1 + 0.45 * len(sides)), layout="constrained")
        axes = figure.subplots()
        for row, side in enumerate(sides):
            axes.broken_barh([(0, width)], (row - 0.35, 0.7), facecolor="#8883")
            for name, (first, last) in columns.items():
                if name.startswith(f"{side}."):
                    colour = colours[name.split(".", 2)[2]]
                    span = [(first, last - first + 1)]
                    axes.broken_barh(span, (row - 0.35, 0.7), facecolor=colour, edgecolor="white")
        axes.set_yticks(range(len(sides)), sides)
        axes.set(xlim=(0, width), xlabel=f"column of {width} (grey: lends this side no weight)")
        handles = [axes.plot([], [], "s", color=c, label=kind)[0] for kind, c in colours.items()]
        figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
        return svg(figure)
