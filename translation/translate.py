"""Plain text in, plain text out, as many lines as went in."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from tqdm import tqdm

from fairseq_plugins import checkpoints as checkpoint_files
from fairseq_plugins.errors import UserError
from fairseq_plugins.subwords import load_subwords
from fairseq_plugins.text import clean


def translate(
    checkpoints: Sequence[Path],
    lines: Sequence[str],
    *,
    data: Path | None = None,
    max_tokens: int = 4096,
    batch_size: int | None = None,
    cpu: bool = False,
    fp16: bool = False,
    seed: int = 1,
    **generation: Any,
) -> list[str]:
    """Return the detokenised translation of each line; an empty line stays empty.

    Args:
        checkpoints: one, or several for an ensemble.
        data: the folder that :func:`translation.prepare.prepare` wrote; None: where the checkpoint
            was trained.
        max_tokens: source tokens a batch, padding included.
        batch_size: sentences a batch; None: as many as *max_tokens* allows.
        seed: of sampling.
        generation: options of fairseq's generation: ``beam``, ``lenpen``, ``max_len_b``, ...

    Raises:
        UserError: unreadable checkpoints or no SentencePiece model; half precision without a GPU.
    """
    use_cuda = torch.cuda.is_available() and not cpu
    if fp16 and not use_cuda:
        raise UserError("--fp16 with --cpu (or without a GPU): leave --fp16 out")
    overrides = {}
    if data is not None:
        overrides["data"] = str(Path(data).resolve() / "bin")
    models, cfg, task = checkpoint_files.load_models(checkpoints, overrides)
    folder = Path(cfg.task.data).parent
    source_model = load_subwords(folder, task.cfg.source_lang)
    target_model = load_subwords(folder, task.cfg.target_lang)
    for model in models:
        model.half() if fp16 else model.float()
        model.cuda() if use_cuda else model.cpu()
        model.prepare_for_inference_(cfg)
    random.seed(seed)
    np.random.seed(seed)
    utils.set_torch_seed(seed)
    if generation.get("sampling"):
        generation["nbest"] = generation.get("beam", 5)  # fairseq asks for it
    generator = task.build_generator(models, GenerationConfig(**generation))
    positions = utils.resolve_max_positions(
        task.max_positions(), *[model.max_positions() for model in models]
    )[0]

    cleaned = [clean(line) for line in lines]
    numbers = [number for number, line in enumerate(cleaned) if line]
    if not numbers:
        return cleaned
    source, target = task.source_dictionary, task.target_dictionary
    sentences = []
    for number in numbers:
        pieces = source_model.encode(cleaned[number], out_type=str)
        if len(pieces) >= positions:
            print(
                f"warning: line {number + 1} has {len(pieces)} pieces and the model takes "
                f"{positions - 1}: the rest of the line is left out",
                file=sys.stderr,
            )
        ids = [source.index(piece) for piece in pieces[: positions - 1]]
        sentences.append(torch.tensor([*ids, source.eos()]))
    lengths = [len(sentence) for sentence in sentences]
    batches = task.get_batch_iterator(
        task.build_dataset_for_inference(sentences, lengths),
        max_tokens=max(max_tokens, *lengths),
        max_sentences=batch_size,
        required_batch_size_multiple=1,  # with fairseq's 8, the longest sentences fall out
    ).next_epoch_itr(shuffle=False)

    ignored = {generator.eos, target.pad(), target.bos()}
    results = cleaned
    translated = 0
    with tqdm(total=len(numbers), desc="translate", unit=" sentences") as bar:
        for batch in batches:
            batch = utils.move_to_cuda(batch) if use_cuda else batch
            hypotheses = task.inference_step(generator, models, batch)
            for index, best in zip(batch["id"].tolist(), hypotheses, strict=True):
                pieces = [target[i] for i in best[0]["tokens"].tolist() if i not in ignored]
                results[numbers[index]] = clean(target_model.decode(pieces))
            translated += len(hypotheses)
            bar.update(len(hypotheses))
    if translated != len(numbers):
        raise UserError(f"{len(numbers)} sentences went in and {translated} came out: not written")
    return results
