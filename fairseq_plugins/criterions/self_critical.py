"""The criterion ``self_critical``: train on the reward of the model's own captions.

Rennie et al., "Self-critical Sequence Training for Image Captioning" (CVPR 2017); the mean of the
other samples as the baseline is Luo's, "A Better Variant of Self-Critical Sequence Training"
(2020).
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from captioning import ciderd  # the module: it may be half imported, by way of this package
from fairseq_plugins.errors import UserError

LOGGED = ("reward", "baseline", "advantage", "length", "no_end")  # means over samples


@dataclass
class SelfCriticalConfig(FairseqDataclass):
    """Options of the criterion."""

    samples: int = field(default=5, metadata={"help": "captions sampled a picture (default: 5)"})
    baseline: ChoiceEnum(["samples", "greedy"]) = field(
        default="samples",
        metadata={
            "help": "what a sample's reward is compared with: samples, the mean reward of the "
            "picture's other samples; greedy, the reward of its greedy caption (default: samples)"
        },
    )
    bleu_weight: float = field(
        default=0.0,
        metadata={"help": "BLEU-4 (0 to 1) in the reward, beside CIDEr-D (0 to 10) (default: 0)"},
    )
    max_sample_length: int = field(
        default=20, metadata={"help": "tokens of a sample, at most (default: 20)"}
    )


@register_criterion("self_critical", dataclass=SelfCriticalConfig)
class SelfCriticalCriterion(FairseqCriterion):
    """Minus the advantage of the samples, times their log-probability, a token.

    In validation the loss is minus the reward of the greedy captions.
    """

    def __init__(self, task, samples, baseline, bleu_weight, max_sample_length):
        super().__init__(task)
        if samples < 2 and baseline == "samples":
            raise UserError(
                f"--samples {samples} --baseline samples: one sample has no others to be compared "
                "with; use --samples 2 or more, or --baseline greedy"
            )
        self.samples, self.baseline, self.bleu_weight = samples, baseline, bleu_weight
        self.max_length = max_sample_length

    def forward(self, model, sample, reduce=True):
        """Return (loss, sample size, logging output); the sample size is the number of tokens."""
        images = sample["image_id"]
        source = {
            name: value
            for name, value in sample["net_input"].items()
            if name not in ("prev_output_tokens", "image_of_caption")
        }
        training = model.training
        if not training:
            tokens = draw(model, source, 1, self.max_length, self._forbidden(), greedy=True)
            reward = self.reward(sample["split"], images, tokens)
            log = self._log(tokens, reward, reward, reward * 0)
            loss = -reward.sum()
            return loss, len(images), log | {"loss": loss.item(), "sample_size": len(images)}

        model.eval()  # the policy itself, without dropout
        tokens = draw(model, source, self.samples, self.max_length, self._forbidden())
        reward = self.reward(sample["split"], images.repeat(self.samples), tokens)
        if self.baseline == "greedy":
            greedy = draw(model, source, 1, self.max_length, self._forbidden(), greedy=True)
            baseline = self.reward(sample["split"], images, greedy).repeat(self.samples)
        else:
            by_image = reward.view(self.samples, -1)
            baseline = ((by_image.sum(0) - by_image) / (self.samples - 1)).view(-1)
        model.train(training)

        advantage = reward - baseline
        log_probabilities = self.log_probabilities(model, source, tokens)
        mask = caption_mask(tokens, self.task.target_dictionary)
        loss = -(advantage[:, None] * log_probabilities * mask).sum()
        size = int(mask.sum())
        log = self._log(tokens, reward, baseline, advantage)
        return loss, size, log | {"loss": loss.item(), "sample_size": size}

    def log_probabilities(self, model, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        """Return log p of each token, (captions, length), with gradients, by one pass."""
        words = self.task.target_dictionary
        images = source["src_tokens"].shape[0]
        previous = torch.cat([torch.full_like(tokens[:, :1], words.eos()), tokens[:, :-1]], dim=1)
        of_caption = torch.arange(images, device=tokens.device).repeat(len(tokens) // images)
        logits, _ = model(**source, prev_output_tokens=previous, image_of_caption=of_caption)
        logits = logits.float()
        logits[..., self._forbidden()] = -torch.inf
        chosen = tokens.masked_fill(tokens.eq(words.pad()), words.eos())
        return logits.log_softmax(-1).gather(-1, chosen[..., None])[..., 0]

    def reward(self, split: str, images: Tensor, tokens: Tensor) -> Tensor:
        """Return the reward of each caption, (captions,).

        Args:
            split: whose references count.
            images: (captions,) image ids.
            tokens: (captions, length), see :func:`draw`.
        """
        words = self.task.target_dictionary
        ended = tokens.eq(words.eos()).any(1).tolist()
        captions = [self.task.caption(ids) for ids in tokens]
        references = self.task.references(split)
        scores = references.score(images.tolist(), captions, ended)
        if self.bleu_weight:
            known = [references.references(image) for image in images.tolist()]
            if references.end:
                ends = [f" {ciderd.END}" if end else "" for end in ended]
                captions = [caption + end for caption, end in zip(captions, ends, strict=True)]
            scores = scores + self.bleu_weight * bleu4(captions, known)
        return torch.as_tensor(scores, dtype=torch.float32, device=tokens.device)

    def _forbidden(self) -> list[int]:
        words = self.task.target_dictionary
        return [words.pad(), words.bos(), words.unk()]

    def _log(self, tokens: Tensor, reward: Tensor, baseline: Tensor, advantage: Tensor) -> dict:
        words = self.task.target_dictionary
        values = {
            "reward": reward,
            "baseline": baseline,
            "advantage": advantage.abs(),
            "length": caption_mask(tokens, words).sum(1),
            "no_end": ~tokens.eq(words.eos()).any(1),
        }
        sums = {name: value.double().sum().item() for name, value in values.items()}
        return sums | {"samples": len(tokens), "nsentences": len(tokens), "ntokens": len(tokens)}

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        size = sum(log["sample_size"] for log in logging_outputs)
        samples = sum(log["samples"] for log in logging_outputs)
        loss = sum(log.get("loss", 0) for log in logging_outputs)
        metrics.log_scalar("loss", loss / max(size, 1), size, round=4)
        for name in LOGGED:
            total = sum(log[name] for log in logging_outputs)
            metrics.log_scalar(name, total / max(samples, 1), samples, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def caption_mask(tokens: Tensor, words) -> Tensor:
    """Return 1 up to and including the first end token of each caption, then 0."""
    ends = tokens.eq(words.eos()).int()
    return ((ends.cumsum(1) - ends) == 0) & tokens.ne(words.pad())


@torch.no_grad()
def draw(
    model, source: dict[str, Tensor], count: int, length: int, forbidden: list[int], greedy=False
) -> Tensor:
    """Return *count* captions a picture, (count * pictures, at most *length*) ids.

    Row c * pictures + i is picture i's. Pictures are encoded once; the decoder goes step by step.
    After its end token a caption has pads.

    Args:
        source: the encoder's input.
        forbidden: ids that are never drawn.
        greedy: the likeliest token instead of a random one.
    """
    words = model.decoder.dictionary
    with model.encoder.lending(), model.decoder.lending():
        encoder_out = model.encoder(**source)
        images = source["src_tokens"].shape[0]
        order = torch.arange(images, device=source["src_tokens"].device).repeat(count)
        encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
        tokens = torch.full((len(order), 1), words.eos(), device=order.device)
        done = torch.zeros(len(order), dtype=torch.bool, device=order.device)
        state: dict = {}
        for _ in range(length):
            logits, _ = model.decoder(tokens, encoder_out=encoder_out, incremental_state=state)
            logits = logits[:, -1].float()
            logits[:, forbidden] = -torch.inf
            chosen = logits.argmax(-1) if greedy else logits.softmax(-1).multinomial(1)[:, 0]
            chosen = chosen.masked_fill(done, words.pad())
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)
            done |= chosen.eq(words.eos())
            if done.all():
                break
    return tokens[:, 1:]


def bleu4(captions: list[str], references: list[list[str]]) -> np.ndarray:
    """Return BLEU-4 (0 to 1) of each caption, as pycocoevalcap counts it."""
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    scorer = BleuScorer(n=4)
    for caption, reference in zip(captions, references, strict=True):
        scorer += (caption, reference)
    return np.array(scorer.compute_score(option="closest", verbose=0)[1][3])
