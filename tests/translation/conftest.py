import pytest
import torch

from recipes.config import HERE
from tests.helpers import USER_DIR, fairseq
from translation.prepare import prepare

COUNTS = {"train": 120, "valid": 13, "test": 13}
SIZES = ["--encoder-layers=1", "--decoder-layers=1", "--encoder-embed-dim=16"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The first sentences of the demo's corpus; the test set by length, 1 to 13 words."""
    folder = tmp_path_factory.mktemp("corpus")
    for lang in ("en", "vi"):
        for name, count in COUNTS.items():
            lines = (HERE / "demo_data" / f"{name}.{lang}").read_text().splitlines()[:count]
            if name == "test":
                lines = [" ".join(lines[0].split() * 5).split(" ") for _ in lines]
                lines = [" ".join(words[: i + 1]) for i, words in enumerate(lines)]
            (folder / f"{name}.{lang}").write_text("".join(line + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def prepared(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared")
    prepare("en", "vi", corpus / "train", corpus / "valid", [corpus / "test"], 300, out)
    return out


def train(prepared, folder, arch, *more):
    line = [prepared / "bin", f"--arch={arch}", *SIZES, "--max-update=2", f"--save-dir={folder}"]
    line += ["--optimizer=adam", "--max-tokens=500", "--cpu", "--required-batch-size-multiple=1"]
    fairseq("train", *line, "--decoder-embed-dim=16", "--max-source-positions=60", *more)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def checkpoint(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    return train(prepared, folder, "share_transformer", f"--user-dir={USER_DIR}")


@pytest.fixture(scope="session")
def plain_checkpoint(prepared, tmp_path_factory):
    """A checkpoint of fairseq's own transformer."""
    return train(prepared, tmp_path_factory.mktemp("plain"), "transformer", "--seed=2")


def telling_copy(checkpoint, path, seed):
    """Copy a checkpoint with large random weights, so that each source gets its own output."""
    state = torch.load(checkpoint, weights_only=True)
    generator = torch.Generator().manual_seed(seed)
    done = set()  # tied tensors are the same storage, and stay tied
    for name, tensor in state["model"].items():
        if tensor.dim() == 2 and tensor.data_ptr() not in done:
            done.add(tensor.data_ptr())
            scale = 1.0 if "embed" in name else 0.8
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    torch.save(state, path)
    return path


@pytest.fixture(scope="session")
def telling(checkpoint, tmp_path_factory):
    """After 2 updates every source has the same output, which would hide a wrong order."""
    return telling_copy(checkpoint, tmp_path_factory.mktemp("telling") / "a.pt", 3)


@pytest.fixture(scope="session")
def telling_too(checkpoint, tmp_path_factory):
    return telling_copy(checkpoint, tmp_path_factory.mktemp("telling") / "b.pt", 4)
