import errno
import os

import pytest

from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic
from fairseq_plugins.stages import Stages


def test_written_whole(tmp_path):
    with atomic(tmp_path / "new" / "file") as temporary:
        temporary.write_text("all")
    assert (tmp_path / "new" / "file").read_text() == "all"
    assert os.listdir(tmp_path / "new") == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("folder", [False, True])
def test_or_not_at_all(tmp_path, error, folder):
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(error), atomic(path, folder=folder) as temporary:
        (temporary / "part" if folder else temporary).write_text("half")
        raise error
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_replaces_a_folder(tmp_path):
    path = tmp_path / "out"
    for content in ("old", "new"):
        with atomic(path, folder=True) as temporary:
            (temporary / content).touch()
    assert os.listdir(path) == ["new"]


def test_full_disk_is_one_line(tmp_path):
    with (
        pytest.raises(UserError, match=r"out: not written: No space left.*free space"),
        atomic(tmp_path / "out") as temporary,
    ):
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert os.listdir(tmp_path) == []


def test_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not written"), atomic(tmp_path / "file" / "out"):
        pass


def test_stages_are_remembered_by_key(tmp_path):
    stages = Stages(tmp_path)
    assert stages.needs("train", "a")
    stages.finish("train", "a", seconds=3)
    again = Stages(tmp_path)
    assert not again.needs("train", "a")
    assert again.manifest["seconds"] == 3
    again.finish("average", "a")
    assert again.needs("train", "b")
    # an interrupt here, and the old settings again: what they had done may be half replaced
    later = Stages(tmp_path)
    assert later.needs("train", "a") and later.needs("average", "a")


def test_a_device_is_written_to_and_a_link_stays_a_link(tmp_path):
    with atomic("/dev/null") as path:
        path.write_text("nowhere")
    assert os.path.exists("/dev/null") and not os.path.isfile("/dev/null")
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with atomic(tmp_path / "link") as path:
        path.write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"


def test_a_folder_is_never_replaced_by_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "work").write_text("of years")
    with (
        pytest.raises(UserError, match="folder: not written: it is a folder"),
        atomic(tmp_path / "folder") as temporary,
    ):
        temporary.write_text("new")
    assert (tmp_path / "folder" / "work").read_text() == "of years"
    assert os.listdir(tmp_path) == ["folder"]
