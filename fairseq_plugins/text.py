"""Raw text in: strict UTF-8, one sentence a line, NFC."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from fairseq_plugins.errors import UserError

# control characters and Unicode's line and paragraph separators: a space stands for them
SEPARATORS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# soft hyphen, zero-width space, direction marks, byte-order mark, ...; the joiners U+200C and
# U+200D are kept, since they change how words are written
INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")


def clean(line: str) -> str:
    """Return *line* in NFC, without characters that end or hide in a line, spaces collapsed."""
    line = INVISIBLE.sub("", SEPARATORS.sub(" ", line))
    return " ".join(unicodedata.normalize("NFC", line).split())


def read_lines(path: Path) -> Iterator[str]:
    """Yield the cleaned lines of a text file; only a line feed ends a line.

    Raises:
        UserError: the file is missing or unreadable, or not UTF-8 (with its line number).
    """
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    yield clean(raw.decode("utf-8"))
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}:{number}: not UTF-8 (byte {error.start + 1} of the line): "
                        "convert the file, for example with iconv -t utf-8"
                    ) from error
    except OSError as error:
        raise UserError(f"{Path(path).resolve()}: {error.strerror}; check the path") from error


def read_parallel(paths: list[Path]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of several files side by side.

    Raises:
        UserError: as :func:`read_lines`; or the files have unequal numbers of lines.
    """
    counts = [0] * len(paths)
    for row in zip_longest(*map(read_lines, paths)):
        counts = [count + (line is not None) for count, line in zip(counts, row, strict=True)]
        if None not in row:
            yield row
    if len(set(counts)) > 1:
        numbers = ", ".join(f"{path} has {n}" for path, n in zip(paths, counts, strict=True))
        raise UserError(f"unequal numbers of lines: {numbers}: line i of one must translate line i")
