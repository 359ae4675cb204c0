"""Stages of work that are skipped when they are done, and done again when something changed."""

import hashlib
import json
from pathlib import Path
from typing import Any

from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic


def key(*parts: Any) -> str:
    """Return a short hash of JSON-like *parts*: of what a stage depends on."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def digest(path: Path) -> str:
    """Return a short hash of a file's content.

    Raises:
        UserError: it is missing or unreadable.
    """
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UserError(f"{Path(path).resolve()}: {error.strerror}; check the path") from error


class Stages:
    """Which stages of *folder* are done, with what key, and what they found: its manifest.json.

    A stage is done again when its key differs, and so are all behind it, whose keys hold its own.
    """

    def __init__(self, folder: Path):
        self.path = folder / "manifest.json"
        self.manifest: dict[str, Any] = {"stages": {}}
        if self.path.is_file():
            self.manifest = json.loads(self.path.read_text())

    def needs(self, stage: str, key: str) -> bool:
        """Return whether *stage* is still to do; if so, forget it and all that came behind it.

        Else an interrupt with new settings, and then the old ones again, would take what the new
        ones have left for theirs.
        """
        done = self.manifest["stages"]
        if done.get(stage) == key:
            return False
        if stage in done:
            names = list(done)
            for name in names[names.index(stage) :]:
                del done[name]
            self._write()
        return True

    def finish(self, stage: str, key: str, **facts: Any) -> None:
        """Record that *stage* is done, and *facts* beside it."""
        self.manifest |= facts
        self.manifest["stages"][stage] = key
        self._write()

    def _write(self) -> None:
        with atomic(self.path) as temporary:
            temporary.write_text(json.dumps(self.manifest, indent=1, ensure_ascii=False))
