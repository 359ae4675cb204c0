"""From COCO or Karpathy annotations to what ``fairseq-train --task captioning`` reads."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, indexed_dataset
from tqdm import tqdm

from captioning.ciderd import CiderD
from captioning.tokens import tokenize
from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic
from fairseq_plugins.stages import Stages, digest, key
from fairseq_plugins.subwords import binarise, learn_subwords, load_subwords, write_dictionary
from fairseq_plugins.text import clean

SPLITS = ("train", "valid", "test")
KARPATHY = {"train": "train", "restval": "train", "val": "valid", "test": "test"}
SPLIT_RULES = ("karpathy", "karpathy-without-restval", "files")


@dataclass
class Split:
    """File names of pictures by image id, and (caption id, image id, caption) in file order."""

    pictures: dict[int, str] = field(default_factory=dict)
    captions: list[tuple[int, int, str]] = field(default_factory=list)


def prepare(
    annotations: Mapping[str, Path],
    out: Path,
    *,
    split_rule: str = "karpathy",
    units: str = "words",
    min_count: int = 5,
    vocab_size: int = 8000,
) -> dict[str, Any]:
    """Split, tokenise, and binarise captions; return the manifest that is written to *out*.

    *out* gets ``dict.txt``, ``SPLIT.{bin,idx}`` (captions), ``SPLIT.image_ids.npy`` (the image of
    each), ``references/SPLIT.json`` (raw captions in COCO's form), ``ciderd/SPLIT.npz`` (references
    and document frequencies: of train for the reward, the end token counted as a word),
    ``spm.model`` with subwords, and ``manifest.json``. A finished *out* is left as it is when
    nothing that it depends on changed.

    Args:
        annotations: with Karpathy's rules, one file under any name, such as dataset_coco.json;
            with ``files``, split -> COCO annotation file, such as captions_train2017.json.
        split_rule: ``karpathy`` (restval is training data), ``karpathy-without-restval``, or
            ``files``.
        units: ``words`` (tokens as the evaluation has them), or subwords: ``bpe`` or ``unigram``.
        min_count: words that train has less often are unknown; with ``words``.
        vocab_size: rows of the embedding table; with subwords.

    Raises:
        UserError: unreadable annotations, a split that is missing or empty, an image in two splits.
    """
    out = Path(out)
    stages = Stages(out)
    if out.exists() and any(out.iterdir()) and not stages.path.is_file():
        raise UserError(f"{out.resolve()}: has files that are not ours: choose a new folder")
    hashes = {str(path): digest(path) for path in annotations.values()}
    settings = {"split_rule": split_rule, "units": units}
    settings |= {"min_count": min_count} if units == "words" else {"vocab_size": vocab_size}
    current = key(settings, list(annotations), list(hashes.values()))
    if not stages.needs("captions", current):
        return stages.manifest

    splits = read_splits(annotations, split_rule)
    tokens, tokenizer = {}, ""
    for name, split in splits.items():
        tokens[name], tokenizer = tokenize([caption for *_, caption in split.captions])
    counts = {
        name: {"images": len(split.pictures), "captions": len(split.captions)}
        for name, split in splits.items()
    }
    with atomic(out, folder=True) as folder:
        facts = _binarise(tokens, folder, units, min_count, vocab_size)
        (folder / "references").mkdir()
        (folder / "ciderd").mkdir()
        for name, split in splits.items():
            image_ids = np.array([image for _, image, _ in split.captions], dtype=np.int64)
            np.save(folder / f"{name}.image_ids.npy", image_ids)
            coco = {
                "images": [{"id": i, "file_name": file} for i, file in split.pictures.items()],
                "annotations": [
                    {"id": number, "image_id": image, "caption": caption}
                    for number, image, caption in split.captions
                ],
            }
            text = json.dumps(coco, ensure_ascii=False)
            (folder / "references" / f"{name}.json").write_text(text, encoding="utf-8")
            references: dict[int, list[str]] = {}
            for image, caption in zip(image_ids.tolist(), tokens[name], strict=True):
                references.setdefault(image, []).append(caption)
            CiderD(references, end=name == "train").save(folder / "ciderd" / f"{name}.npz")
        versions = {package: version(package) for package in ("torch", "numpy", "sentencepiece")}
        facts |= {"splits": counts, "tokenizer": tokenizer, "inputs": hashes, "versions": versions}
        Stages(folder).finish("captions", current, **settings, **facts)
    return Stages(out).manifest


def read_splits(annotations: Mapping[str, Path], split_rule: str) -> dict[str, Split]:
    """Return train, valid and test, disjoint by image id.

    Raises:
        UserError: as :func:`prepare`.
    """
    if split_rule not in SPLIT_RULES:
        raise UserError(f"--split-rule {split_rule}: choose from {', '.join(SPLIT_RULES)}")
    splits = {name: Split() for name in SPLITS}
    seen: dict[int, str] = {}
    for name, path in annotations.items():
        content = _json(path)
        try:
            if split_rule == "files":
                if name not in SPLITS:
                    raise UserError(f"{name}={path}: name the splits {', '.join(SPLITS)}")
                rows = _coco(content, name)
            else:
                rows = _karpathy(content, keep_restval=split_rule == "karpathy")
            for name, image, file, captions in rows:
                if seen.setdefault(image, name) != name:
                    raise UserError(
                        f"{path}: image {image} is in {seen[image]} and in {name}: splits must be "
                        "disjoint; remove it from one of them"
                    )
                splits[name].pictures[image] = file
                splits[name].captions += [(c, image, clean(text)) for c, text in captions]
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: not annotations of the form that --split-rule {split_rule} reads "
                f"({type(error).__name__}: {error}); karpathy reads dataset_coco.json, files reads "
                "captions_train2017.json and the like"
            ) from error
    for name, split in splits.items():
        if not split.captions:
            raise UserError(
                f"{', '.join(map(str, annotations.values()))}: no captions for {name}; "
                "check --annotations and --split-rule"
            )
        bare = split.pictures.keys() - {image for _, image, _ in split.captions}
        for image in bare:
            del split.pictures[image]
        if bare:
            print(f"{name}: {len(bare)} images without a caption left out", file=sys.stderr)
    return splits


def pictures(data: Path, images: Path) -> dict[int, Path]:
    """Return image id -> file, in the folder *images*, of all pictures that *data* names.

    Raises:
        UserError: *data* is not a prepared folder.
    """
    files = {}
    for split in SPLITS:
        path = Path(data) / "references" / f"{split}.json"
        if not path.is_file():
            raise UserError(f"{path.resolve()}: no such file: name the folder that `prepare` wrote")
        files |= {i["id"]: Path(images) / i["file_name"] for i in _json(path)["images"]}
    return files


def _json(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from error


def _karpathy(content, *, keep_restval: bool) -> Iterable[tuple[str, int, str, list]]:
    """Yield (split, image id, file name, captions) of Karpathy's JSON.

    Image ids are COCO's where the file has them.
    """
    number = count()
    for image in content["images"]:
        split = KARPATHY.get(image["split"])
        if split is None:
            raise UserError(
                f"image {image['imgid']} has split {image['split']!r}: use {', '.join(KARPATHY)}"
            )
        if image["split"] == "restval" and not keep_restval:
            continue
        file = "/".join(filter(None, [image.get("filepath"), image["filename"]]))
        captions = [(s.get("sentid", next(number)), s["raw"]) for s in image["sentences"]]
        yield split, image.get("cocoid", image["imgid"]), file, captions


def _coco(content, name: str) -> Iterable[tuple[str, int, str, list]]:
    captions: dict[int, list] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        if annotation["image_id"] not in captions:
            raise UserError(f"caption {annotation['id']}: its image is not in the same file")
        captions[annotation["image_id"]].append((annotation["id"], annotation["caption"]))
    for image in content["images"]:
        yield name, image["id"], image["file_name"], captions[image["id"]]


def _binarise(
    tokens: Mapping[str, list[str]], folder: Path, units: str, min_count: int, vocab_size: int
) -> dict[str, Any]:
    """Write dict.txt and SPLIT.{bin,idx}; return what the manifest says of them."""
    if units == "words":
        dictionary = Dictionary()
        for word, times in Counter(w for line in tokens["train"] for w in line.split()).items():
            dictionary.add_symbol(word, n=times)
        dictionary.finalize(threshold=min_count, padding_factor=1)
        dictionary.save(str(folder / "dict.txt"))
        unknown = {}
        for name, lines in tokens.items():
            builder = indexed_dataset.make_builder(
                str(folder / f"{name}.bin"), impl="mmap", vocab_size=len(dictionary)
            )
            total = missed = 0
            for line in tqdm(lines, f"binarise {name}", unit=" captions"):
                ids = [dictionary.index(word) for word in line.split()]
                total, missed = total + len(ids), missed + ids.count(dictionary.unk())
                builder.add_item(torch.tensor([*ids, dictionary.eos()]))
            builder.finalize(str(folder / f"{name}.idx"))
            unknown[name] = round(missed / max(total, 1), 5)
        return {"rows": len(dictionary), "unknown": unknown}
    text = folder / "train.txt"
    text.write_text("".join(line + "\n" for line in tokens["train"]), encoding="utf-8")
    (folder / "spm.model").write_bytes(learn_subwords([text], vocab_size, units))
    text.unlink()
    model = load_subwords(folder)
    dictionary = write_dictionary(model, folder / "dict.txt")
    for name, lines in tokens.items():
        rows = tqdm(lines, f"binarise {name}", unit=" captions")
        binarise(rows, model, len(dictionary), folder / name)
    return {"rows": len(dictionary)}
