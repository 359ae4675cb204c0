"""``fairseq-share translation``: prepare, translate, score."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    help="Text translation: prepare data, translate plain text, score.", no_args_is_help=True
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def paths(value: str) -> list[Path]:
    """Return the paths of a comma-separated list."""
    return [Path(part) for part in value.split(",") if part]


@app.command()
def prepare(
    source_lang: Annotated[str, typer.Option(help="Suffix of the source files, such as en.")],
    target_lang: Annotated[str, typer.Option(help="Suffix of the target files, such as vi.")],
    train: Annotated[Path, typer.Option(help="Prefix P: P.SOURCE_LANG and P.TARGET_LANG.")],
    valid: Annotated[Path, typer.Option(help="Prefix of the validation set.")],
    test: Annotated[str, typer.Option(help="Prefixes of test sets, separated by commas.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    vocab_size: Annotated[
        int,
        typer.Option(
            min=8,
            help="Rows of the embedding table: subword pieces and fairseq's four special entries.",
        ),
    ] = 8000,
    separate: Annotated[
        bool, typer.Option(help="A vocabulary a language, instead of a joined one.")
    ] = False,
    model_type: Annotated[
        Literal["bpe", "unigram"], typer.Option(help="Kind of SentencePiece model.")
    ] = "bpe",
    max_length: Annotated[
        int, typer.Option(min=0, help="Leave out training pairs of more words; 0: keep all.")
    ] = 0,
    max_ratio: Annotated[
        float,
        typer.Option(min=0, help="Leave out training pairs of more unlike length; 0: keep all."),
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Clean raw parallel text, learn SentencePiece, write fairseq's binary data."""
    from translation.prepare import prepare

    manifest = prepare(
        source_lang,
        target_lang,
        train,
        valid,
        paths(test),
        vocab_size,
        out,
        separate=separate,
        model_type=model_type,
        max_length=max_length,
        max_ratio=max_ratio,
    )
    if as_json:
        typer.echo(json.dumps(manifest))
        return
    for name, facts in manifest["sets"].items():
        typer.echo(f"{name:8} {facts['lines']:>9,} pairs")
    typer.echo(f"{'rows':8} {manifest['vocab_actual']:>9,} in an embedding table")


@app.command()
def translate(
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint, or several separated by commas for an ensemble.")
    ],
    output: Annotated[
        str,
        typer.Option(help="File to write, one line a line of the input; - for standard output."),
    ],
    input: Annotated[str, typer.Option(help="Text file, or - for standard input.")] = "-",
    data: Annotated[
        Path | None,
        typer.Option(help="Folder that `prepare` wrote; default: where the model was trained."),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam size.")] = 5,
    lenpen: Annotated[
        float, typer.Option(help="Length penalty: above 1 favours longer output.")
    ] = 1.0,
    max_len_a: Annotated[
        float, typer.Option(help="At most A * source length + B tokens: A.")
    ] = 0.0,
    max_len_b: Annotated[int, typer.Option(help="At most A * source length + B tokens: B.")] = 200,
    max_tokens: Annotated[int, typer.Option(min=1, help="Source tokens a batch.")] = 4096,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Sentences a batch; default: by --max-tokens.")
    ] = None,
    sampling: Annotated[bool, typer.Option(help="Sample instead of searching.")] = False,
    sampling_topk: Annotated[int, typer.Option(help="Sample from the K likeliest; -1: all.")] = -1,
    sampling_topp: Annotated[
        float, typer.Option(help="Sample from the likeliest of mass P; -1: all.")
    ] = -1.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 1,
    cpu: Annotated[bool, typer.Option(help="Use the CPU even where there is a GPU.")] = False,
    fp16: Annotated[bool, typer.Option(help="Half precision, on a GPU.")] = False,
) -> None:
    """Translate plain text: detokenised, in the order of the input, empty lines kept."""
    from fairseq_plugins.files import atomic
    from fairseq_plugins.text import read_lines
    from translation.translate import translate

    lines = list(read_lines(Path("/dev/stdin") if input == "-" else Path(input)))
    with atomic("/dev/stdout" if output == "-" else output) as temporary:
        results = translate(
            paths(checkpoint),
            lines,
            data=data,
            beam=beam,
            lenpen=lenpen,
            max_len_a=max_len_a,
            max_len_b=max_len_b,
            max_tokens=max_tokens,
            batch_size=batch_size,
            sampling=sampling,
            sampling_topk=sampling_topk,
            sampling_topp=sampling_topp,
            seed=seed,
            cpu=cpu,
            fp16=fp16,
        )
        text = "".join(line + "\n" for line in results)
        if output == "-":
            sys.stdout.write(text)
        else:
            temporary.write_text(text, encoding="utf-8")


@app.command()
def score(
    hypotheses: Annotated[Path, typer.Option(help="Detokenised output, one sentence a line.")],
    references: Annotated[
        str, typer.Option(help="Raw reference file, or several separated by commas.")
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(help="Output of another system, for a paired bootstrap (1,000 resamples)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """BLEU, chrF and TER of sacreBLEU, with their signatures."""
    from translation.score import score

    scores = score(hypotheses, paths(references), baseline)
    if as_json:
        typer.echo(json.dumps({"scores": scores}))
        return
    for row in scores:
        against = ""
        if baseline is not None:
            against = (
                f" ({row['mean']:.2f} ± {row['confidence']:.2f})"
                f" against {row['baseline']:.2f}, p = {row['p_value']:.4f}"
            )
        typer.echo(f"{row['name']:5} {row['score']:6.2f}{against}  {row['signature']}")
