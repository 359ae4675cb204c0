"""Subword vocabularies: SentencePiece models, fairseq dictionaries, binary data."""

import io
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import sentencepiece
import torch
from fairseq.data import Dictionary, indexed_dataset

from fairseq_plugins.errors import UserError

CHUNK = 4096  # lines encoded at a time
SPECIAL = 3  # <unk>, <s> and </s> are SentencePiece's first ids; fairseq has its own


def learn_subwords(texts: list[Path], vocab_size: int, model_type: str = "bpe") -> bytes:
    """Return a SentencePiece model of *vocab_size* - 1 pieces that covers every character.

    fairseq's table then has *vocab_size* rows. Text is taken as it is (it is NFC already), so that
    decoding an encoded sentence gives it back. When the data has not enough pieces, the model is
    as large as it gets, with a warning.

    Raises:
        UserError: more different characters than room for them.
    """

    def learn(size: int, hard: bool) -> bytes:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            input=[str(text) for text in texts],
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=hard,
            model_type=model_type,
            character_coverage=1.0,
            normalization_rule_name="identity",
            minloglevel=2,
        )
        return model.getvalue()

    try:
        return learn(vocab_size - 1, hard=True)
    except (RuntimeError, ValueError) as error:
        if "too high" not in str(error):
            raise UserError(
                f"--vocab-size {vocab_size} --model-type {model_type} for {texts[0].parent}: "
                f"{_last_clause(error)}"
            ) from error
    model = learn(vocab_size - 1, hard=False)
    got = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() + 1
    warning = f"warning: vocabulary {vocab_size} -> {got}: the text has no more pieces"
    print(warning, file=sys.stderr)
    return model


def _last_clause(error: RuntimeError) -> str:
    """Return SentencePiece's message without its source position and condition."""
    return str(error).strip().rpartition("] ")[2] or str(error)


def load_subwords(folder: Path, lang: str = "") -> sentencepiece.SentencePieceProcessor:
    """Return the SentencePiece model of a prepared folder, for *lang* where each has its own.

    Raises:
        UserError: there is none.
    """
    for path in (folder / f"spm.{lang}.model", folder / "spm.model"):
        if path.is_file():
            return sentencepiece.SentencePieceProcessor(model_file=str(path))
    raise UserError(
        f"{folder.resolve()}: no spm.model{lang and f' and no spm.{lang}.model'}; "
        "name the folder that `prepare` wrote"
    )


def write_dictionary(model: sentencepiece.SentencePieceProcessor, path: Path) -> Dictionary:
    """Write fairseq's dictionary of *model*, "piece count" in the model's order; return it.

    Counts only fall with the order. A piece that fairseq's own entries already name gets a row of
    its own all the same.
    """
    size = model.get_piece_size()
    own = Dictionary()
    with open(path, "w") as file:
        for i in range(SPECIAL, size):
            piece = model.id_to_piece(i)
            overwrite = " #fairseq:overwrite" if piece in own else ""
            file.write(f"{piece} {size - i}{overwrite}\n")
    return Dictionary.load(str(path))


def binarise(
    lines: Iterable[str], model: sentencepiece.SentencePieceProcessor, rows: int, path: Path
) -> None:
    """Write *lines* as fairseq's memory-mapped data, ``path``.bin and .idx.

    The same as ``fairseq-preprocess`` makes of the pieces: the dictionary has the model's order,
    so a piece's row is its id and fairseq's four entries less SentencePiece's three.
    """
    own = Dictionary()
    builder = indexed_dataset.make_builder(f"{path}.bin", impl="mmap", vocab_size=rows)
    for chunk in _chunks(iter(lines)):
        for ids in model.encode(chunk):
            fairseq_ids = [own.unk() if i == 0 else i + own.nspecial - SPECIAL for i in ids]
            builder.add_item(torch.tensor([*fairseq_ids, own.eos()]))
    builder.finalize(f"{path}.idx")


def _chunks(lines: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(lines, CHUNK)):
        yield chunk
