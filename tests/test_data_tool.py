"""``make data``: photos from a folder, CIFAR and weights from a server on localhost."""

import functools
import hashlib
import io
import itertools
import json
import pickle
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torchvision import datasets, models

import data as tool

TINY = tool.pages.NOTEBOOKS / "helpers" / "data" / "tiny"
NAME, COMMIT = "some-owner/tiny-model", "5ea" * 13 + "0"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """``$DATA_FOLDER``."""
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    return tmp_path / "data"


class Hub(SimpleHTTPRequestHandler):
    """Files of a folder; and, as the hub does, a model's, and what there are."""

    def log_message(self, *_):
        pass

    def translate_path(self, path):
        return super().translate_path(path.rpartition("/")[2])

    def do_GET(self):
        if not self.path.startswith("/api/models/"):
            return super().do_GET()
        sizes = {p.name: p.stat().st_size for p in Path(self.directory).iterdir()}
        like = {"type": "file", "oid": "0"}
        tree = [like | {"path": name, "size": n} for name, n in sizes.items()]
        files = [{"rfilename": name} for name in sizes]
        listing = {"id": NAME, "sha": COMMIT, "siblings": files}
        content = json.dumps(tree if "/tree/" in self.path else listing).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return self.wfile.write(content)

    def end_headers(self):
        path = Path(self.translate_path(self.path))
        if path.is_file():
            self.send_header("ETag", hashlib.sha1(path.read_bytes()).hexdigest())
            self.send_header("X-Repo-Commit", COMMIT)
        super().end_headers()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server of a folder; ``server.folder``, ``server.url``."""
    monkeypatch.setenv("NO_PROXY", "*")
    (tmp_path / "served").mkdir()
    answer = functools.partial(Hub, directory=tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), answer) as serving:
        threading.Thread(target=serving.serve_forever, args=(0.05,)).start()
        serving.folder = tmp_path / "served"
        serving.url = f"http://127.0.0.1:{serving.server_port}"
        yield serving
        serving.shutdown()


def picture(path, colour):
    """A picture file, 48 × 36, of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (48, 36), colour).save(path)


def test_a_folder_of_photos_becomes_one_file(tmp_path, folder, capsys):
    """A fifth of each class is for the test; a bad file is named."""
    for n in range(20):
        picture(tmp_path / "birds" / "owl" / f"{n}.png", (6 * n, 0, 9))
        picture(tmp_path / "birds" / "Kea" / f"{n}.png", (6 * n + 120, 200, 9))
    (tmp_path / "birds" / "owl" / "bad.png").write_bytes(b"no picture")
    for name in ("__MACOSX/owl", "@eaDir", "$RECYCLE.BIN", ".thumbs", "owl/.trash"):
        picture(tmp_path / "birds" / name / "1.png", 0)  # archives and systems
    picture(tmp_path / "birds" / "owl" / "._1.png", 0)
    (tmp_path / "birds" / "empty").mkdir()
    floats = Image.fromarray(np.full((9, 9), 7, np.float32))
    floats.save(tmp_path / "birds" / "Kea" / "float.tif")
    tool.photos(str(tmp_path / "birds"), with_features=False)
    said = capsys.readouterr().err
    for name in ("bad.png: cannot identify", "float.tif: expected floats from 0 to 1"):
        assert name in said
    for name in ("__MACOSX", "@eaDir", "$RECYCLE.BIN", ".thumbs", "empty"):
        assert f"left out: {tmp_path / 'birds' / name}\n" in said
    assert Image.MAX_IMAGE_PIXELS is None, "scans may be large"
    found = np.load(folder / "birds.npz")
    assert found["classes"].tolist() == ["Kea", "owl"]
    for part, n in {"train": 16, "test": 4}.items():
        images, labels = found[f"{part}_images"], found[f"{part}_labels"]
        assert images.shape == (2 * n, 32, 32, 3) and images.dtype == np.uint8
        assert np.bincount(labels).tolist() == [n, n] and labels.dtype == np.int32
        np.testing.assert_array_equal(images[..., 1].mean(axis=(1, 2)) < 100, labels)
    both = np.concatenate([found["train_images"], found["test_images"]])
    assert sorted(both[:, 0, 0, 0] // 6) == [*range(40)], "each is in one part"


def test_folders_train_and_test_are_the_split(tmp_path, folder):
    for part, name in itertools.product(tool.PARTS, ["owl", "kea"]):
        picture(tmp_path / "birds" / part / name / "1.png", 0)
    picture(tmp_path / "birds" / "test" / "kea" / "2.png", 0)
    tool.photos(str(tmp_path / "birds"), with_features=False)
    found = np.load(folder / "birds.npz")
    assert [found[f"{p}_labels"].tolist() for p in tool.PARTS] == [[0, 1], [0, 0, 1]]
    (tmp_path / "birds" / "test" / "owl").rename(tmp_path / "birds" / "test" / "dodo")
    with pytest.raises(ValueError, match="expected the same two or more classes"):
        tool.photos(str(tmp_path / "birds"))


def test_cifar_and_its_features_are_made_once(server, folder, monkeypatch):
    """Labels and pixels as in the archive; features as torchvision computes them."""
    kind = datasets.CIFAR100
    pixels = np.random.default_rng(0).integers(256, size=(7, 3072), dtype=np.uint8)
    rows = {"train": slice(0, 4), "test": slice(4, 7)}
    files = {"meta": {"fine_label_names": ["ant", "bee"]}}
    for part, some in rows.items():
        labels = [0, 1, 1, 0][: some.stop - some.start]
        files[part] = {"data": pixels[some], "fine_labels": labels}
    with tarfile.open(server.folder / kind.filename, mode="w:gz") as tar:
        for name, value in files.items():
            info = tarfile.TarInfo(f"{kind.base_folder}/{name}")
            content = pickle.dumps(value)
            info.size, md5 = len(content), hashlib.md5(content).hexdigest()
            tar.addfile(info, io.BytesIO(content))
            if name == "meta":
                monkeypatch.setattr(kind, "meta", kind.meta | {"md5": md5})
            else:
                monkeypatch.setattr(kind, f"{name}_list", [[name, md5]])
    archive = (server.folder / kind.filename).read_bytes()
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive).hexdigest())
    monkeypatch.setattr(kind, "url", f"{server.url}/{kind.filename}")
    net = models.resnet34().eval()
    monkeypatch.setattr(models, "resnet34", lambda weights: net)
    monkeypatch.setattr(tool, "SIZE", 64)
    tool.photos("cifar100")
    found, made = np.load(folder / "cifar100.npz"), folder / "cifar100-resnet34.npz"
    assert found["classes"].tolist() == ["ant", "bee"]
    assert found["train_labels"].tolist() == [0, 1, 1, 0]
    images = pixels.reshape(-1, 3, 32, 32)
    usual = models.ResNet34_Weights.IMAGENET1K_V1.transforms()
    mean, std = (torch.tensor(x)[:, None, None] for x in (usual.mean, usual.std))
    options = {"mode": "bilinear", "antialias": True}
    larger = interpolate(torch.tensor(images) / 255, 64, **options)
    with torch.no_grad():
        expected = net((larger - mean) / std).numpy()
    for part, some in rows.items():
        same = found[f"{part}_images"].transpose(0, 3, 1, 2)
        np.testing.assert_array_equal(same, images[some])
        features = np.load(made)[part]
        np.testing.assert_allclose(features, expected[some], rtol=1e-3, atol=1e-4)
    (server.folder / kind.filename).unlink()
    monkeypatch.setattr(models, "resnet34", None)
    tool.photos("cifar100")  # nothing is downloaded or computed again


@pytest.fixture
def hub(server, tmp_path, monkeypatch):
    """The server in place of the hub, with a cache that is empty."""
    here = {"endpoint": server.url, "cache_dir": tmp_path / "hub"}
    download = functools.partial(tool.snapshot_download, **here)
    monkeypatch.setattr(tool, "snapshot_download", download)
    return server


@pytest.mark.parametrize("model", ["llama", "mixtral"])
def test_a_model_is_downloaded_with_its_shards_and_found_offline(hub, model, capsys):
    for path in (TINY / model).iterdir():
        (hub.folder / path.name).write_bytes(path.read_bytes())
    (hub.folder / "pytorch_model.bin").write_bytes(b"pickled")
    tool.model(NAME)
    said = capsys.readouterr().out
    place = Path(said.partition(": ")[0])
    wanted = {p.name for p in (TINY / model).iterdir() if "expected" not in p.name}
    assert {path.name for path in place.iterdir()} == wanted
    for name in wanted:
        assert (place / name).read_bytes() == (TINY / model / name).read_bytes()
    hub.shutdown()
    hub.server_close()
    tool.model(NAME)
    assert capsys.readouterr().out == said


def test_pickled_weights_are_refused(hub):
    for name in ("config.json", "tokenizer.json", "pytorch_model.bin"):
        (hub.folder / name).write_text("{}")
    with pytest.raises(ValueError, match=r"expected model\.safetensors in it"):
        tool.model(NAME)
