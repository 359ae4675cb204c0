"""One page of pictures with their captions, references, scores and attention."""

import base64
import io
import sys
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from tqdm import tqdm

from captioning.pictures import open_picture
from captioning.score import read, read_json, score
from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic


def gallery(
    results: Path,
    images: Path,
    annotations: Path,
    output: Path,
    *,
    attention: Path | None = None,
    limit: int | None = None,
    thumbnail: int = 320,
) -> None:
    """Write a self-contained page: sortable, searchable, with a card for each picture.

    Args:
        results: COCO's results.
        images: folder of the pictures that *annotations* names.
        annotations: COCO's annotations, with ``images`` (id, file_name).
        attention: what ``captioning generate --attention`` wrote.
        limit: show only the first so many pictures; scores are of all.
        thumbnail: longest side of an embedded picture, in pixels.

    Raises:
        UserError: no such folder, or as :func:`captioning.score.read`.
    """
    if not Path(images).is_dir():
        raise UserError(f"{Path(images).resolve()}: no such folder; check --images")
    references, outputs = read(results, annotations)
    captions = dict(zip(references, outputs, strict=True))
    files = {image["id"]: image.get("file_name", "") for image in read_json(annotations)["images"]}
    maps = read_json(attention) if attention else {"grid": None, "images": {}}
    scores = score(results, annotations, metrics=["CIDEr-D"])["per_image"]
    missing = 0
    cards = []
    for image in tqdm(list(captions)[:limit], "gallery", unit=" images"):
        picture = _embed(Path(images) / files.get(image, ""), thumbnail)
        missing += picture is None
        seen = maps["images"].get(str(image), {})
        cards.append(
            {
                "id": image,
                "file": files.get(image, ""),
                "picture": picture,
                "caption": captions[image],
                "references": references[image],
                "score": round(scores[image], 1),
                "words": seen.get("words"),
                "maps": seen.get("maps"),
            }
        )
    if missing:
        print(f"warning: {missing} pictures cannot be read; their cards say so", file=sys.stderr)
    environment = Environment(
        loader=PackageLoader("captioning"), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("gallery.html.jinja").render(
        title=f"{Path(results).name}: {len(cards)} captions",
        mean=sum(scores.values()) / len(scores),
        data={"grid": maps["grid"], "cards": cards},
    )
    with atomic(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _embed(path: Path, side: int) -> str | None:
    """Return the picture as a JPEG data URI, or None where it cannot be read."""
    try:
        image = open_picture(path)
    except UserError:
        return None
    image.thumbnail((side, side))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
