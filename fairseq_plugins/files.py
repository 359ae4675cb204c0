"""Files and folders are written whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_plugins.errors import UserError


@contextmanager
def atomic(path: Path | str, *, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside *path* to write to; rename it to *path* at the end.

    A file that stood at *path* is replaced then; on an error or an interrupt the temporary one is
    removed and *path* is as it was. A device or a pipe is written to directly, and a link stays a
    link.

    Args:
        folder: yield a new folder, which replaces the folder at *path*. Without it a folder at
            *path* is never touched.

    Raises:
        UserError: the place cannot be written, a folder is there, or the disk is full.
    """
    path = Path(path)
    if path.is_relative_to("/dev") or path.is_fifo() or path.is_char_device():
        yield path
        return
    path = path.resolve()
    if path.is_dir() and not folder:
        raise UserError(f"{path}: not written: it is a folder; name a file in it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if folder:
            temporary.mkdir()
        yield temporary
        if folder and path.is_dir():
            shutil.rmtree(path)
        temporary.replace(path)
    except OSError as error:
        if error.errno is None:
            raise
        named = Path(error.filename) if error.filename else temporary
        if temporary not in (named, *named.parents) and named != path.parent:
            raise
        raise UserError(
            f"{path.resolve()}: not written: {error.strerror}; free space or choose another place"
        ) from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        elif temporary.exists():
            temporary.unlink()
