"""A recipe's results as one self-contained page."""

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.figure import Figure

from fairseq_plugins.pictures import COLOURS, STYLE, column_map, svg

CURVES = (  # label of the axis, kinds of points with their style
    (
        "loss (bits a token, without smoothing)",
        {"train": {"alpha": 0.35}, "valid": {"marker": "."}},
    ),
    ("CIDEr-D in validation", {"ciderd": {"marker": "."}}),
)
SAMPLES = 12  # sentences or pictures of the first test set that the page shows


def render(results: dict[str, Any], task) -> str:
    """Return the page.

    Args:
        results: as :func:`recipes.runner.run` returns them.
        task: one of :mod:`recipes.tasks`, for samples.
    """
    systems = results["systems"]
    test = next(iter(systems[0]["scores"]))
    environment = Environment(
        loader=PackageLoader("recipes"), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("report.html.jinja").render(
        results=results,
        test=test,
        curves=learning_curves(systems),
        size=size_against_score(systems, test, task.metric),
        maps={
            system["name"]: column_map(system["sizes"]["columns"], system["sizes"]["width"])
            for system in systems
            if system["sizes"]["columns"]
        },
        samples=task.samples({s["name"]: task.out / s["folder"] for s in systems}, SAMPLES),
        galleries={
            system["name"]: f"{system['folder']}/gallery.html"
            for system in systems
            if (task.out / system["folder"] / "gallery.html").is_file()
        },
    )


def learning_curves(systems: Sequence[dict[str, Any]]) -> str:
    """Return loss, and CIDEr-D where it is there, against updates and against seconds.

    Training is faint, validation strong.
    """
    rows = [row for row in CURVES if any(s["learning"][kind] for s in systems for kind in row[1])]
    with rc_context(STYLE):
        figure = Figure(figsize=(8.5, 0.6 + 2.8 * len(rows)), layout="constrained")
        grid = figure.subplots(len(rows), 2, sharex="col", sharey="row", squeeze=False)
        for (label, kinds), panels in zip(rows, grid, strict=True):
            for column, panel in enumerate(panels):
                for system, colour in zip(systems, COLOURS * 9, strict=False):
                    for kind, style in kinds.items():
                        points = system["learning"][kind]
                        x, y = [p[column] for p in points], [p[2] for p in points]
                        panel.plot(x, y, color=colour, label=system["name"], **style)
                panel.grid(alpha=0.3)
            panels[0].set_ylabel(label)
        for panel, label in zip(grid[-1], ("updates", "seconds"), strict=True):
            panel.set_xlabel(label)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        legend = dict(zip(labels, handles, strict=True))  # the last of a name, the strong one
        figure.legend(
            legend.values(), legend.keys(), loc="outside upper center", ncols=4, frameon=False
        )
        return svg(figure)


def size_against_score(systems: Sequence[dict[str, Any]], test: str, metric: str) -> str:
    """Return *metric* on *test* against parameters, one point a system."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8.5, 2.8), layout="constrained")
        panel = figure.subplots()
        for system, colour in zip(systems, COLOURS * 9, strict=False):
            scores = {row["name"]: row["score"] for row in system["scores"][test]}
            point = (system["sizes"]["parameters"], scores[metric])
            panel.plot(*point, "o", color=colour, markersize=8)
            panel.annotate(system["name"], point, (6, 6), textcoords="offset points", color=colour)
        panel.margins(0.15)
        panel.set(xlabel="parameters", ylabel=f"{metric}, {test}", xlim=(0, None))
        panel.xaxis.set_major_formatter("{x:,.0f}")
        panel.grid(alpha=0.3)
        return svg(figure)
