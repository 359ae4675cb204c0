"""``fairseq-share recipe``: list, show, run."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Recipes: from raw data to a scored, sized model, resumable.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="Such as translation/demo; `recipe list` has them all.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, as `show` has them.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command("list")
def list_recipes(as_json: Json = False) -> None:
    """The recipes, with what they do."""
    from recipes import config

    recipes = [
        {"name": name, "task": cfg.task, "summary": cfg.summary}
        for name in config.names()
        for cfg in [config.load(name)]
    ]
    if as_json:
        typer.echo(json.dumps({"recipes": recipes}))
        return
    for recipe in recipes:
        typer.echo(f"{recipe['name']:20} {recipe['summary']}")


@app.command()
def show(name: Name, overrides: Overrides = None) -> None:
    """The recipe's settings, and the exact fairseq-train line of each system."""
    from omegaconf import OmegaConf

    from recipes import config, training
    from recipes.runner import folder_of
    from recipes.tasks import TASKS

    systems = config.systems(name, overrides or [])
    first = next(iter(systems.values()))
    typer.echo(OmegaConf.to_yaml(first, resolve=True, sort_keys=False))
    out = Path(first.out)
    task = TASKS[first.task](first, out)
    for system, cfg in systems.items():
        for phase, train in training.phases(cfg).items():
            folder = folder_of(out, system, phase)
            start = folder.parent / "model.pt" if phase else None
            line = training.arguments(cfg, task, folder / "checkpoints", train, start)
            typer.echo(f"# {system} {phase}\n{training.shell_line(line, cfg.threads)}\n")


@app.command()
def run(name: Name, overrides: Overrides = None, as_json: Json = False) -> None:
    """Prepare, train, average, decode, score, report; finished stages are skipped."""
    from recipes import config, runner

    systems = config.systems(name, overrides or [])
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    results = runner.run(name, systems, command)
    if as_json:
        typer.echo(json.dumps(results))
        return
    width = max(len(system["name"]) for system in results["systems"])
    for system in results["systems"]:
        scores = "  ".join(
            f"{test} {row['name']} {row['score']:.2f}"
            for test, rows in system["scores"].items()
            for row in rows
            if row["name"] != "TER"
        )
        typer.echo(
            f"{system['name']:{width}} {system['sizes']['parameters']:>10,} parameters  {scores}"
        )
    rows = next(iter(results["systems"][0]["scores"].values()))
    for signature in dict.fromkeys(row["signature"] for row in rows):
        names = ", ".join(row["name"] for row in rows if row["signature"] == signature)
        typer.echo(f"{names}: {signature}")
