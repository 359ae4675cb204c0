"""Files are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_plugins.errors import UserError


@contextmanager
def atomic(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside *path* to write to; rename it to *path* at the end.

    On an error or an interrupt the temporary file is removed and *path* is as it was.

    Raises:
        UserError: the folder cannot be written, or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.errno is None or (error.filename and error.filename != str(temporary)):
            raise
        raise UserError(
            f"{path.resolve()}: not written: {error.strerror}; free space or choose another place"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
