"""The task ``captioning``: pictures in, captions out."""

import json
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Optional

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask, register_task
from omegaconf import MISSING

# modules, not what is in them: they may be half imported, by way of this package
from captioning import ciderd, dataset, pictures, store, tokens
from fairseq_plugins.errors import UserError
from fairseq_plugins.models.visual import VisualSource
from fairseq_plugins.subwords import load_subwords


@dataclass
class CaptioningConfig(FairseqDataclass):
    """Options of the task."""

    data: str = field(default=MISSING, metadata={"help": "folder that `captioning prepare` wrote"})
    features: Optional[str] = field(
        default=None, metadata={"help": "feature store that `captioning features` wrote"}
    )
    images: Optional[str] = field(
        default=None,
        metadata={"help": "folder of the pictures, to train from them through --backbone"},
    )
    backbone: Optional[str] = field(
        default=None, metadata={"help": "timm model, with --images, such as resnet18"}
    )
    backbone_checkpoint: str = field(
        default="pretrained",
        metadata={
            "help": "the backbone's weights: pretrained (timm downloads them), random, or a file "
            "(default: pretrained)"
        },
    )
    backbone_image_size: Optional[int] = field(
        default=None, metadata={"help": "pixels a side (default: the backbone's own)"}
    )
    backbone_squash: bool = field(
        default=False,
        metadata={"help": "squash the whole picture in, instead of the backbone's own crop"},
    )
    finetune_backbone_after: int = field(
        default=-1,
        metadata={"help": "updates after which the backbone is trained; -1: never (default: -1)"},
    )
    backbone_lr_scale: float = field(
        default=0.1,
        metadata={"help": "the backbone's learning rate, as a share of --lr (default: 0.1)"},
    )
    captions_per_image: int = field(
        default=0,
        metadata={
            "help": "captions of a picture that an epoch trains on, drawn anew each; 0: all "
            "(default: 0)"
        },
    )
    max_target_positions: int = field(
        default=64, metadata={"help": "tokens of a caption, at most (default: 64)"}
    )
    eval_ciderd: bool = field(
        default=False,
        metadata={
            "help": "caption the validation pictures and report CIDEr-D (x100), for "
            "--best-checkpoint-metric ciderd --maximize-best-checkpoint-metric"
        },
    )
    eval_ciderd_args: str = field(
        default='{"beam": 1}',
        metadata={"help": 'generation options of --eval-ciderd, as JSON (default: {"beam": 1})'},
    )


@register_task("captioning", dataclass=CaptioningConfig)
class CaptioningTask(FairseqTask):
    """Pictures, by stored features or through a backbone, and their captions.

    Raises:
        UserError: a folder, a store or an option is missing, with what to do.
    """

    cfg: CaptioningConfig

    def __init__(self, cfg: CaptioningConfig, from_checkpoint: bool = False):
        super().__init__(cfg)
        self.folder = Path(cfg.data)
        path = self.folder / "dict.txt"
        if not path.is_file():
            raise UserError(
                f"{path.resolve()}: no such file: name the folder that "
                "`fairseq-share captioning prepare` wrote"
            )
        self.words = Dictionary.load(str(path))
        self.subwords = load_subwords(self.folder) if (self.folder / "spm.model").exists() else None
        self._references: dict[str, ciderd.CiderD] = {}
        self._generator = None

    @property
    def source_dictionary(self):
        return None

    @property
    def target_dictionary(self) -> Dictionary:
        return self.words

    @cached_property
    def store(self) -> "store.FeatureStore | None":
        if bool(self.cfg.features) == bool(self.cfg.images and self.cfg.backbone):
            raise UserError(
                "captioning reads pictures in one of two ways: --features STORE, or --images "
                "FOLDER and --backbone NAME"
            )
        return store.FeatureStore(self.cfg.features) if self.cfg.features else None

    @cached_property
    def backbone(self):
        from captioning.backbones import Backbone

        return Backbone(
            self.cfg.backbone,
            self.cfg.backbone_checkpoint,
            image_size=self.cfg.backbone_image_size,
            squash=self.cfg.backbone_squash,
        )

    @cached_property
    def visual_source(self) -> VisualSource:
        """What a model is built for."""
        if (features := self.store) is not None:
            return VisualSource(
                features.channels,
                features.grid,
                boxes=features.has_boxes,
                origin=features.describe(),
                manifest=features.manifest,
            )
        after = self.cfg.finetune_backbone_after
        return VisualSource(
            self.backbone.channels,
            self.backbone.grid,
            origin=self.backbone.describe(),
            manifest=self.backbone.manifest,
            backbone=self.backbone,
            finetune_after=None if after < 0 else after,
        )

    def captions(self, split: str) -> tuple[list[int], list[list[int]]]:
        """Return image ids, and of each image its captions' indices.

        Raises:
            UserError: no such split.
        """
        path = self.folder / f"{split}.image_ids.npy"
        if not path.is_file():
            raise UserError(f"{path.resolve()}: no such split; there are train, valid and test")
        groups: dict[int, list[int]] = {}
        for index, image in enumerate(np.load(path).tolist()):
            groups.setdefault(image, []).append(index)
        return list(groups), list(groups.values())

    def load_dataset(self, split: str, combine: bool = False, **kwargs) -> None:
        image_ids, captions = self.captions(split)
        if self.store is not None:
            kept = self._in_store(split, image_ids)
            captions = [c for image, c in zip(image_ids, captions, strict=True) if image in kept]
            image_ids = [image for image in image_ids if image in kept]
        texts = data_utils.load_indexed_dataset(str(self.folder / split), self.words)
        train = split == "train"
        view = self._view(split, image_ids)
        self.datasets[split] = dataset.CaptionDataset(
            image_ids,
            captions,
            texts,
            view,
            self.words,
            split=split,
            max_length=self.cfg.max_target_positions,
            cells=int(np.prod(self.visual_source.grid or 0)),
            captions_per_image=self.cfg.captions_per_image if train else 0,
            shuffle=train,
        )

    def _in_store(self, split: str, image_ids: list[int]) -> set[int]:
        """Return those of *image_ids* that the store has; says which were broken and skipped."""
        missing = [image for image in image_ids if image not in self.store]
        skipped = [image for image in missing if str(image) in self.store.manifest["skipped"]]
        where = Path(self.cfg.features).resolve()
        if len(skipped) < len(missing):
            one = next(image for image in missing if image not in skipped)
            raise UserError(
                f"{where}: {len(missing)} of the {len(image_ids)} pictures of {split} are not in "
                f"it, such as image {one}: run `fairseq-share captioning features` for this data"
            )
        if skipped:
            print(
                f"warning: {split} is without {len(skipped)} of its {len(image_ids)} pictures, "
                f"such as image {skipped[0]}, which were broken when {where} was made",
                file=sys.stderr,
            )
        return set(image_ids) - set(missing)

    def _view(self, split: str, image_ids: list[int]):
        if self.store is not None:
            return self.store.view
        content = json.loads((self.folder / "references" / f"{split}.json").read_text())
        files = {image["id"]: image["file_name"] for image in content["images"]}
        paths = {image: Path(self.cfg.images) / files[image] for image in image_ids}
        if missing := [path for path in paths.values() if not path.is_file()]:
            raise UserError(
                f"{missing[0].resolve()}: no such picture, and {len(missing) - 1} more of "
                f"{len(paths)} of {split}: check --images"
            )
        return pictures.PictureView(paths, self.backbone.transform)

    def max_positions(self) -> int:
        return 1_000_000  # captions are cut by the model's own limit, cells are not

    def filter_indices_by_size(self, indices, dataset, max_positions=None, ignore_invalid=False):
        return indices

    def references(self, split: str) -> "ciderd.CiderD":
        """Return a split's references; those of train count the end token, as a reward must."""
        if split not in self._references:
            self._references[split] = ciderd.CiderD.load(self.folder / "ciderd" / f"{split}.npz")
        return self._references[split]

    def caption(self, ids: torch.Tensor) -> str:
        """Return the words of token *ids*, as the evaluation's tokeniser has them.

        Special tokens are left out. Words are such tokens already; subwords are put together first.
        """
        special = {self.words.pad(), self.words.eos(), self.words.bos()}
        symbols = [self.words[i] for i in ids.tolist() if i not in special]
        if self.subwords is None:
            return " ".join(symbols)
        return tokens.simple_tokenize(self.subwords.decode(symbols))

    @staticmethod
    def whole(sample: dict) -> dict:
        """Return a batch.

        Raises:
            UserError: one of its pictures is broken.
        """
        if "broken" in sample:
            raise UserError(f"{sample['broken']}: mend it, or leave it out of the data")
        return sample

    def train_step(self, sample, *args, **kwargs):
        return super().train_step(self.whole(sample), *args, **kwargs)

    def inference_step(self, generator, models, sample, *args, **kwargs):
        return super().inference_step(generator, models, self.whole(sample), *args, **kwargs)

    def valid_step(self, sample, model, criterion):
        loss, sample_size, logging_output = super().valid_step(self.whole(sample), model, criterion)
        if self.cfg.eval_ciderd:
            if self._generator is None:
                arguments = json.loads(self.cfg.eval_ciderd_args)
                self._generator = self.build_generator([model], Namespace(**arguments))
            hypotheses = self.inference_step(self._generator, [model], sample)
            captions = [self.caption(best[0]["tokens"]) for best in hypotheses]
            scores = self.references(sample["split"]).score(sample["image_id"].tolist(), captions)
            logging_output |= {"_ciderd": 100 * float(scores.sum()), "_captions": len(scores)}
        return loss, sample_size, logging_output

    def build_generator(self, models, args, *rest, **kwargs):
        """As fairseq's, with at most ``max_target_positions`` tokens and no unknown word."""
        if not getattr(args, "unkpen", 0):
            args.unkpen = float("inf")
        args.max_len_b = min(getattr(args, "max_len_b", 200), self.cfg.max_target_positions - 1)
        return super().build_generator(models, args, *rest, **kwargs)

    def reduce_metrics(self, logging_outputs, criterion):
        super().reduce_metrics(logging_outputs, criterion)
        count = sum(log.get("_captions", 0) for log in logging_outputs)
        if count:
            total = sum(log.get("_ciderd", 0) for log in logging_outputs)
            metrics.log_scalar("ciderd", total / count, count, round=2)

    def optimizer_step(self, optimizer, model, update_num):
        """As fairseq's; the backbone goes only its own share of the way.

        For an optimiser whose step is proportional to its learning rate this is a learning rate of
        its own.
        """
        backbone = [] if self.store is not None else list(self.backbone.parameters())
        before = [parameter.detach().clone() for parameter in backbone if parameter.requires_grad]
        super().optimizer_step(optimizer, model, update_num)
        with torch.no_grad():
            for old, parameter in zip(before, backbone, strict=False):
                parameter.copy_(torch.lerp(old, parameter, self.cfg.backbone_lr_scale))
