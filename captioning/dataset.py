"""Pictures with their captions, one item a picture, as fairseq's batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils

View = Callable[
    [int], dict[str, Any]
]  # image id -> {"cells": ..., ["boxes": ...]}, {"pixels": ...} or {"broken": why}


class CaptionDataset(FairseqDataset):
    """One item a picture; a batch has all of its captions, and the picture once.

    Args:
        image_ids: the pictures, in order.
        captions: of each picture, its captions' indices in *texts*; may be empty.
        texts: id tensors that end with the end token.
        view: what the model sees of a picture.
        cells: cells of a picture, where *view* gives pixels.
        words: the captions' dictionary.
        captions_per_image: at most so many, drawn anew each epoch; 0: all.
        shuffle: batches of pictures drawn at random (fairseq seeds it), in another order each
            epoch.
    """

    def __init__(
        self,
        image_ids: Sequence[int],
        captions: Sequence[Sequence[int]],
        texts,
        view: View,
        words: Dictionary,
        *,
        split: str = "",
        max_length: int = 1024,
        cells: int = 0,
        captions_per_image: int = 0,
        shuffle: bool = False,
    ):
        self.image_ids, self.captions, self.texts = image_ids, captions, texts
        self.view, self.words, self.cells, self.shuffle = view, words, cells, shuffle
        self.split, self.max_length = split, max_length
        self.captions_per_image = captions_per_image
        self.epoch = 1
        most = captions_per_image or max(map(len, captions), default=0)
        self.sizes = np.array(
            [
                max((min(texts.sizes[c], max_length) for c in chosen), default=1)
                * min(len(chosen) or 1, most or 1)
                for chosen in captions
            ]
        )

    def __len__(self) -> int:
        return len(self.image_ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        chosen = self.captions[index]
        if self.captions_per_image and len(chosen) > self.captions_per_image:
            draw = np.random.default_rng([self.epoch, index])
            chosen = draw.choice(chosen, self.captions_per_image, replace=False)
        return {
            "id": index,
            "image_id": self.image_ids[index],
            "captions": [self._text(int(caption)) for caption in chosen],
            **self.view(self.image_ids[index]),
        }

    def _text(self, caption: int) -> torch.Tensor:
        ids = self.texts[caption]
        if len(ids) > self.max_length:
            ids = torch.cat([ids[: self.max_length - 1], ids[-1:]])
        return ids

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch; of a broken picture only why.

        Captions come first of all pictures, then second of all pictures, ...: so row i of the first
        captions is picture i's, as fairseq's generation expects.
        """
        if not samples:
            return {}
        if broken := [sample["broken"] for sample in samples if "broken" in sample]:
            return {"broken": broken[0], "net_input": {}}
        net_input = self._source(samples)
        most = max(len(sample["captions"]) for sample in samples)
        rows = [
            (number, picture)
            for number in range(most)
            for picture, sample in enumerate(samples)
            if number < len(sample["captions"])
        ]
        batch = {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "image_id": torch.tensor([sample["image_id"] for sample in samples]),
            "split": self.split,
            "nsentences": len(rows) or len(samples),
            "ntokens": sum(len(text) for sample in samples for text in sample["captions"]),
            "net_input": net_input,
            "target": None,
        }
        if rows:
            texts = [samples[picture]["captions"][number] for number, picture in rows]
            pad, eos = self.words.pad(), self.words.eos()
            batch["target"] = data_utils.collate_tokens(texts, pad, eos)
            net_input["prev_output_tokens"] = data_utils.collate_tokens(
                texts, pad, eos, move_eos_to_beginning=True
            )
            net_input["image_of_caption"] = torch.tensor([picture for _, picture in rows])
        return batch

    def _source(self, samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        if "pixels" in samples[0]:
            pixels = torch.stack([sample["pixels"] for sample in samples])
            counts = [self.cells] * len(samples)
            source = {"pixels": pixels}
        else:
            counts = [len(sample["cells"]) for sample in samples]
            source = {}
            for name in ("cells", "boxes"):
                if samples[0].get(name) is not None:
                    parts = [torch.as_tensor(np.array(sample[name])).float() for sample in samples]
                    source[name] = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        tokens = torch.full((len(samples), max(counts)), self.words.unk())
        for row, count in enumerate(counts):
            tokens[row, count:] = self.words.pad()
        return {"src_tokens": tokens, "src_lengths": torch.tensor(counts), **source}

    def num_tokens(self, index: int) -> int:
        return int(self.sizes[index])

    def num_tokens_vec(self, indices):
        return self.sizes[indices]

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        return np.random.permutation(len(self)) if self.shuffle else np.arange(len(self))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
