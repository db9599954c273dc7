"""``make data``: photos and weights from a server on localhost, checked, resumed."""

import errno
import hashlib
import io
import json
import os
import pickle
import re
import tarfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest

import data as tool
from helpers.data import photos

CONTENT = os.urandom(300_000)
HASH = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves ``files``, by name; each of ``faults`` spoils one answer.

    A fault is ``("cut", n)``: the connection ends after n bytes; ``("stall", n)``:
    nothing comes after n bytes, until the client hangs up; ``("flip", n)``: byte n is
    another one; ``("status", n)``: this answer.
    """

    daemon_threads = True

    def __init__(self, files):
        self.files, self.faults, self.asked = files, [], []
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that has hung up is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        name = self.path.rsplit("/", 1)[-1]
        self.server.asked.append(name)
        kind, n = self.server.faults.pop(0) if self.server.faults else ("", 0)
        content = self.server.files.get(name)
        if kind == "status" or content is None:
            return self.send_error(n if kind == "status" else 404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if kind == "flip":
            content = content[:n] + bytes([content[n] ^ 1]) + content[n + 1 :]
        broken = kind in ("cut", "stall")
        self.wfile.write(content[:n] if broken else content)
        self.wfile.flush()
        if kind == "stall":
            self.connection.recv(1)
        self.close_connection = broken
        return None


@contextmanager
def serving(files):
    """A running server."""
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(tool, "RETRIES", 1)
    monkeypatch.delenv("DATA_MIRRORS", raising=False)
    monkeypatch.setenv("TQDM_DISABLE", "1")


def give_up_soon(monkeypatch, faults):
    """Where nothing comes; everywhere else an answer has a minute."""
    if "stall" in dict(faults):
        monkeypatch.setattr(tool, "TIMEOUT", 5)


@pytest.fixture
def home():
    """Where the file lives."""
    with serving({"file.bin": CONTENT}) as server:
        yield server


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """``$DATA_FOLDER``."""
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def fetch(server):
    return tool.fetch(f"{server.url}/file.bin", HASH)


def contents(folder):
    return {path.name for path in folder.iterdir()}


# One file


@pytest.mark.parametrize("fault", [("cut", 9_000), ("stall", 9_000), ("flip", 9)])
def test_a_file_is_downloaded_once_and_a_spoilt_answer_asked_for_again(
    home, folder, fault, monkeypatch
):
    home.faults = [fault]
    give_up_soon(monkeypatch, home.faults)
    for _ in range(2):
        assert fetch(home).read_bytes() == CONTENT
    assert contents(folder) == {"file.bin"}
    assert len(home.asked) == 2


BAD_MIRRORS = {
    "has another file": 2 * [("flip", 9)],
    "breaks off": 2 * [("cut", 0)],
    "does not answer": 2 * [("stall", 0)],
    "answers 403": 2 * [("status", 403)],
}


@pytest.mark.parametrize("case", BAD_MIRRORS)
def test_a_bad_mirror_is_skipped(home, folder, monkeypatch, case):
    """Mirrors come first, in order; one may hold the file in any folder."""
    with serving(home.files) as bad, serving(home.files) as good:
        bad.faults = list(BAD_MIRRORS[case])
        give_up_soon(monkeypatch, bad.faults)
        monkeypatch.setenv("DATA_MIRRORS", f"{bad.url} {good.url}/some/folder/")
        assert fetch(home).read_bytes() == CONTENT
        assert bad.asked and good.asked and not home.asked


def test_impossible_mirrors_are_skipped(home, folder, monkeypatch):
    monkeypatch.setattr(tool, "RETRIES", 0)
    mirrors = "http://127.0.0.1:9 http://no.invalid http://a..b http://[ ftp://x x"
    monkeypatch.setenv("DATA_MIRRORS", mirrors)
    assert fetch(home).read_bytes() == CONTENT


def test_a_wrong_file_is_never_used_nor_overwritten(home, folder):
    home.faults = 2 * [("flip", 150_000)]
    with pytest.raises(OSError, match=rf"file\.bin failed .*{HASH[4:]}"):
        fetch(home)
    assert contents(folder) == set()
    (folder / "file.bin").write_bytes(b"precious")
    with pytest.raises(
        ValueError, match=rf"file\.bin is another file: expected {HASH}"
    ):
        fetch(home)
    assert (folder / "file.bin").read_bytes() == b"precious"
    assert len(home.asked) == 2


def test_no_network_raises_an_error_that_says_what_to_do(folder):
    with pytest.raises(OSError, match="could not") as caught:
        tool.fetch("http://127.0.0.1:9/x.gz", "md5:0")
    assert re.fullmatch(
        r"could not download x\.gz: http\S+ failed \(.*refused.*\): try again, name a "
        r"mirror in DATA_MIRRORS, or put the file \(md5:0\) into \S+",
        str(caught.value),
    )
    assert contents(folder) == set()


# A data set

IMAGES = np.random.default_rng(0).integers(256, size=(30, 3072), dtype=np.uint8)
LABELS = np.arange(30) % 4
N_TRAIN = 20


def archive(kind, monkeypatch):
    """A small archive in CIFAR-100's format, whose hashes torchvision now expects."""
    pieces = {"train": slice(N_TRAIN), "test": slice(N_TRAIN, None)}
    files = {
        name: {"data": IMAGES[rows], "fine_labels": LABELS[rows].tolist()}
        for name, rows in pieces.items()
    } | {"meta": {"fine_label_names": ["apple", "bear", "cup", "é"]}}
    files = {name: pickle.dumps(value) for name, value in files.items()}
    md5 = {name: hashlib.md5(value).hexdigest() for name, value in files.items()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, value in files.items():
            info = tarfile.TarInfo(f"{kind.base_folder}/{name}")
            info.size = len(value)
            tar.addfile(info, io.BytesIO(value))
    for name in pieces:
        monkeypatch.setattr(kind, f"{name}_list", [[name, md5[name]]])
    monkeypatch.setattr(kind, "meta", kind.meta | {"md5": md5["meta"]})
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(packed.getvalue()).hexdigest())
    return packed.getvalue()


@pytest.fixture(scope="module")
def untrained():
    """The weights of an untrained ResNet34 as a file."""
    import torch

    resnet34 = pytest.importorskip("torchvision").models.resnet34
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = resnet34()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    return file.getvalue()


@pytest.fixture
def cifar(untrained, folder, monkeypatch):
    """A server with a small CIFAR-100 and weights, which the helpers take for real."""
    from torchvision.datasets import CIFAR100

    files = {CIFAR100.filename: archive(CIFAR100, monkeypatch), "net.pth": untrained}
    with serving(files) as server:
        monkeypatch.setattr(CIFAR100, "url", f"{server.url}/{CIFAR100.filename}")
        known = f"sha256:{hashlib.sha256(untrained).hexdigest()}"
        monkeypatch.setattr(tool, "WEIGHTS", (f"{server.url}/net.pth", known))
        monkeypatch.setattr(tool, "SIZE", 32)
        monkeypatch.setattr(tool, "BATCH", 8)
        yield server


def usual_features(weights, images):
    """As one computes them with torchvision alone."""
    import torch
    from torchvision.models import ResNet34_Weights, resnet34
    from torchvision.transforms import v2

    net = resnet34()
    net.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
    net.fc = torch.nn.Identity()
    usual = ResNet34_Weights.IMAGENET1K_V1.transforms()
    prepare = v2.Compose([
        v2.Resize((32, 32), antialias=True), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(usual.mean, usual.std),
    ])  # fmt: skip
    with torch.inference_mode():
        return net.eval()(prepare(torch.as_tensor(images))).numpy()


@pytest.mark.parametrize("side", ["jax", "torch"])
def test_the_extraction_shown_on_the_page_gives_the_same_features(
    untrained, tmp_path, monkeypatch, side
):
    """The function of ten lines, with other weights so that none are downloaded."""
    import torch
    import torchvision

    def net(weights):
        made = torchvision.models.ResNet(
            torchvision.models.resnet.BasicBlock, [3, 4, 6, 3]
        )
        made.load_state_dict(torch.load(io.BytesIO(untrained), weights_only=True))
        return made

    page = Path(__file__).parents[2] / "notebooks" / f"anomaly_{side}.ipynb"
    cells = json.loads(page.read_text("utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    (source,) = [source for source in sources if "def extract(" in source]
    (tmp_path / "net.pth").write_bytes(untrained)
    images = IMAGES.reshape(-1, 32, 32, 3)[:2]
    expected = tool.network(tmp_path / "net.pth")(images)
    monkeypatch.setattr(torchvision.models, "resnet34", net)
    names = {}
    exec(source.partition("\n\n\n")[0], names)  # the function alone
    np.testing.assert_allclose(names["extract"](images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_command_can_be_interrupted_and_leaves_other_files_alone(
    cifar, untrained, folder, monkeypatch, capsys
):
    """Interrupted in the third of five batches; none is computed twice."""
    (folder / "unpacked-mine").mkdir()
    (folder / "other.tar.gz").write_bytes(b"mine")
    make_network, sizes = tool.network, []

    def network(path):
        run = make_network(path)

        def counted(images):
            sizes.append(len(images))
            if len(sizes) == 3:
                raise KeyboardInterrupt
            return run(images)

        return counted

    monkeypatch.setattr(tool, "network", network)
    with pytest.raises(SystemExit, match="stopped; call it again to go on"):
        tool.main([])
    assert not photos.prepared("cifar100")
    tool.main([])
    assert sizes == [8, 8, 4, 4, 8, 2]
    assert "20 train, 10 test photos of 4 classes" in capsys.readouterr().out
    asked = len(cifar.asked)
    tool.main([])
    assert (len(cifar.asked), len(sizes)) == (asked, 6), "everything was there"
    assert contents(folder) == {
        "cifar100.npz", "cifar100-resnet34.npz", "cifar-100-python.tar.gz", "net.pth",
        "cifar-100-python", "other.tar.gz", "unpacked-mine",
    }  # fmt: skip
    assert (folder / "other.tar.gz").read_bytes() == b"mine"
    parts, classes = photos.load_images("cifar100")
    found = photos.load_features("cifar100", parts)
    assert classes == ["apple", "bear", "cup", "é"]
    pieces = IMAGES.reshape(-1, 3, 32, 32)
    expected = usual_features(untrained, pieces)
    for part, rows in {"train": slice(N_TRAIN), "test": slice(N_TRAIN, None)}.items():
        images, labels = parts[part]
        np.testing.assert_array_equal(images, pieces[rows].transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(labels, LABELS[rows])
        np.testing.assert_allclose(found[part], expected[rows], rtol=1e-3, atol=1e-4)


def test_a_full_disk_raises_an_error_that_says_what_to_do(cifar, folder, monkeypatch):
    """Not a failure of the mirror."""

    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", write)
    with pytest.raises(SystemExit) as caught:
        tool.main([])
    assert str(caught.value) == (
        f"cifar100 is not prepared: no space left in {folder}, which needs about 1 GB: "
        "make room there, or name another folder in DATA_FOLDER"
    )
