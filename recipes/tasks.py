"""What a recipe's task adds to the stages that all recipes share: data, decoding, scoring."""

import json
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.files import atomic
from fairseq_plugins.stages import key
from fairseq_plugins.text import read_lines


class Translation:
    """Parallel text, decoded by beam search, scored by sacreBLEU.

    Args:
        cfg: of any of the recipe's systems.
        out: the recipe's folder.
    """

    metric = "BLEU"

    def __init__(self, cfg: DictConfig, out: Path):
        self.cfg, self.out = cfg, out
        self.tests = list(cfg.data.tests)
        # as `translation prepare` names them
        self.stored = {test: f"test{i or ''}" for i, test in enumerate(self.tests)}

    @property
    def data(self) -> Path:
        """What ``fairseq-train`` reads."""
        return self.out / "data" / "bin"

    def options(self) -> dict[str, Any]:
        """Return the options of ``fairseq-train`` that only this task has."""
        return {"source_lang": self.cfg.data.source_lang, "target_lang": self.cfg.data.target_lang}

    def prepare(self) -> str:
        """Make what is trained on; return the key of it."""
        from translation.prepare import prepare

        data = OmegaConf.to_container(self.cfg.data, resolve=True)
        tests = list(map(Path, data.pop("tests").values()))
        return prepare(**data, tests=tests, out=self.out / "data")["stages"]["binarise"]

    def decode(self, model: Path, folder: Path, cfg: DictConfig) -> dict[str, float]:
        """Write the output for each test set to *folder*; return sentences a second."""
        from translation.translate import translate

        decode = OmegaConf.to_container(cfg.decode, resolve=True)
        speeds = {}
        for test in self.tests:
            lines = list(read_lines(self._reference(test, cfg.data.source_lang)))
            start = time.perf_counter()
            cpu = cfg.device == "cpu"
            results = translate([model], lines, data=self.out / "data", cpu=cpu, **decode)
            speeds[test] = len(lines) / (time.perf_counter() - start)
            with atomic(folder / f"{test}.{cfg.data.target_lang}") as temporary:
                temporary.write_text("".join(line + "\n" for line in results), encoding="utf-8")
        return speeds

    def score(self, folder: Path) -> dict[str, list[dict[str, Any]]]:
        """Return test set -> rows of name, score, signature."""
        from translation.score import score

        lang = self.cfg.data.target_lang
        return {
            test: score(folder / f"{test}.{lang}", [self._reference(test, lang)])
            for test in self.tests
        }

    def samples(self, folders: dict[str, Path], count: int) -> list[dict[str, str]]:
        """Return sentences of the first test set: source, reference, and each system's output.

        Evenly spread ones, half of them from those that some system did not translate as the
        reference does.

        Args:
            folders: system -> where :meth:`decode` wrote.
        """
        test, target = self.tests[0], self.cfg.data.target_lang
        texts = {
            "source": self._reference(test, self.cfg.data.source_lang),
            "reference": self._reference(test, target),
            **{name: folder / f"{test}.{target}" for name, folder in folders.items()},
        }
        rows = list(zip(*map(read_lines, texts.values()), strict=True))
        unlike = [row for row in rows if len(set(row[1:])) > 1]
        chosen = dict.fromkeys(_spread(unlike, count // 2))
        chosen |= dict.fromkeys(_spread(rows, count - len(chosen)))
        return [dict(zip(texts, row, strict=True)) for row in chosen]

    def _reference(self, test: str, lang: str) -> Path:
        return self.out / "data" / "references" / f"{self.stored[test]}.{lang}"


class Captioning:
    """Pictures with captions, decoded by beam search, scored as COCO does; a gallery."""

    metric = "CIDEr-D"
    tests = ("test",)

    def __init__(self, cfg: DictConfig, out: Path):
        self.cfg, self.out = cfg, out

    @property
    def data(self) -> Path:
        return self.out / "data"

    def options(self) -> dict[str, Any]:
        backbone = self.cfg.backbone
        if backbone.stored:
            return {"features": (self.out / "features").resolve()}
        return {
            "images": self._images.resolve(),
            "backbone": backbone.name,
            "backbone_checkpoint": backbone.checkpoint,
            "backbone_image_size": backbone.image_size,
            "backbone_squash": backbone.squash,
            "finetune_backbone_after": backbone.finetune_after,
            "backbone_lr_scale": backbone.lr_scale,
        }

    @property
    def _images(self) -> Path:
        return self.out / "pictures" if "draw" in self.cfg else Path(self.cfg.images)

    def prepare(self) -> str:
        from captioning.backbones import Backbone
        from captioning.features import extract
        from captioning.prepare import pictures, prepare
        from captioning.score import available

        available()  # what cannot be scored here is said before any work
        data = OmegaConf.to_container(self.cfg.data, resolve=True)
        if "draw" in self.cfg:
            from recipes.demo_data.pictures import draw

            annotations = draw(self.out / "pictures", **self.cfg.draw)
        else:
            annotations = Path(data.pop("annotations"))
        manifest = prepare({"": annotations}, self.out / "data", **data)
        current = [manifest["stages"]["captions"]]
        if self.cfg.backbone.stored:
            backbone = self.cfg.backbone
            network = Backbone(
                backbone.name,
                backbone.checkpoint,
                image_size=backbone.image_size,
                squash=backbone.squash,
            )
            files = pictures(self.out / "data", self._images)
            device = "cuda" if use_gpu(self.cfg) else "cpu"
            extract(files, network, self.out / "features", device=device)
            current.append(network.describe())
        return key(*current)

    def decode(self, model: Path, folder: Path, cfg: DictConfig) -> dict[str, float]:
        from captioning.gallery import gallery
        from captioning.generate import generate, write

        decode = OmegaConf.to_container(cfg.decode, resolve=True)
        start = time.perf_counter()
        captions, grid = generate(
            [model], "test", data=self.out / "data", cpu=not use_gpu(cfg), **decode
        )
        seconds = time.perf_counter() - start
        write(captions, grid, folder / "test.json", folder / "attention.json")
        gallery(
            folder / "test.json",
            self._images,
            self.out / "data" / "references" / "test.json",
            folder / "gallery.html",
            attention=folder / "attention.json" if grid else None,
        )
        return {"test": len(captions) / seconds}

    def score(self, folder: Path) -> dict[str, list[dict[str, Any]]]:
        from captioning.score import rows, score

        result = score(folder / "test.json", self.out / "data" / "references" / "test.json")
        return {"test": [row for row in rows(result) if row["name"] != "CIDEr-D (fast)"]}

    def samples(self, folders: dict[str, Path], count: int) -> list[dict[str, str]]:
        path = self.out / "data" / "references" / "test.json"
        references = {r["image_id"]: r["caption"] for r in _json(path)["annotations"]}
        outputs = {
            name: {row["image_id"]: row["caption"] for row in _json(folder / "test.json")}
            for name, folder in folders.items()
        }
        return [
            {"reference": references[image]}
            | {name: captions[image] for name, captions in outputs.items()}
            for image in _spread(list(references), count)
        ]


TASKS = {"translation": Translation, "captioning": Captioning}


def use_gpu(cfg: DictConfig) -> bool:
    """Return whether a recipe runs on a GPU here."""
    import torch

    return cfg.device == "cuda" or (cfg.device == "auto" and torch.cuda.is_available())


def _spread(rows: list, count: int) -> list:
    return rows[:: max(1, len(rows) // count)][:count] if count else []


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
