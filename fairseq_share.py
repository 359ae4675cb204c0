"""The command ``fairseq-share``: what fairseq has no command for.

Heavy imports happen inside the commands, so that ``--help`` answers at once.
"""

import importlib.util
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

import captioning.cli
import recipes.cli
import translation.cli

# what the installed fairseq says on every start, and nobody can act on
QUIET = (
    r"`?torch\.jit\.script",
    r"`?torch\.cuda\.amp\.(autocast|GradScaler)",
    "'pin_memory' argument is set as true but no accelerator is found",
)

app = typer.Typer(
    help="Tiny sequence models with shared and borrowed layer weights: what fairseq has no command "
    "for. Training and decoding are fairseq's own commands, with --user-dir.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(translation.cli.app, name="translation")
app.add_typer(captioning.cli.app, name="captioning")
app.add_typer(recipes.cli.app, name="recipe")


@app.command("user-dir")
def user_dir() -> None:
    """Print the path for --user-dir of fairseq's commands."""
    spec = importlib.util.find_spec("fairseq_plugins")  # does not import it
    assert spec is not None and spec.origin is not None
    typer.echo(Path(spec.origin).parent)


@app.command()
def average(
    inputs: Annotated[Path, typer.Option(help="Folder of a training's checkpoints.")],
    output: Annotated[Path, typer.Option(help="Checkpoint to write.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the newest to average.")] = 5,
) -> None:
    """Average the newest checkpoints of a training; shared tensors stay shared."""
    from fairseq_plugins.average import average, last_checkpoints

    checkpoints = last_checkpoints(inputs, last)
    average(checkpoints, output)
    names = ", ".join(path.name for path in checkpoints)
    typer.echo(f"{output}: the mean of {names}", err=True)


@app.command(context_settings={"ignore_unknown_options": True})
def sizes(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT | OPTIONS",
            help="A fairseq checkpoint; or, with --arch, the architecture's options as for "
            "fairseq-train, such as --encoder-layers 3.",
        ),
    ] = [],  # noqa: B006
    arch: Annotated[
        str | None, typer.Option(help="An architecture that fairseq-train knows.")
    ] = None,
    vocab_size: Annotated[
        int, typer.Option(min=5, help="Rows of the embedding tables, with --arch.")
    ] = 8000,
    picture: Annotated[
        Path | None, typer.Option(help="Write the column map to this file, as SVG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Parameters, bytes, FLOPs a token, and which columns hold which layer weight."""
    if arch is None and len(what) != 1:
        raise typer.BadParameter("give one checkpoint, or --arch NAME and its options")
    from fairseq_plugins import sizes
    from fairseq_plugins.files import atomic

    if arch is None:
        result = sizes.sizes_of_checkpoint(Path(what[0]))
    else:
        result = sizes.sizes_of_arch(arch, what, vocab_size)
    columns = result["columns"]
    if picture is not None:
        from fairseq_plugins.pictures import column_map

        with atomic(picture) as temporary:
            temporary.write_text(column_map(columns, result["width"]))
    if as_json:
        typer.echo(json.dumps(result))
        return
    for name, value in result.items():
        if name != "columns":
            typer.echo(f"{name.replace('_', ' '):28} {value:>15,}")
    if columns:
        typer.echo("\n" + sizes.column_map_text(columns))


def main() -> None:
    """Run the command; fairseq's own start-up messages are left out, its errors are not."""
    logging.basicConfig(level=logging.WARNING)
    for message in QUIET:
        warnings.filterwarnings("ignore", message)
    try:
        app()
    except OSError as error:  # a full disk, a folder that may not be written to, ...
        sys.exit(f"fairseq-share: {error.filename or 'a file'}: {error.strerror}")
