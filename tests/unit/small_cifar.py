"""Archives in CIFAR's format with few pictures, weights of an untrained ResNet34, and a
server on localhost that has them, and may be slow, break off or lie.

    python tests/unit/small_cifar.py FOLDER/stand-ins.json [arguments of tools/data.py]

runs the real ``tools/data.py`` with the addresses and checksums of such files.
"""

import hashlib
import io
import json
import os
import pickle
import runpy
import shutil
import signal
import sys
import tarfile
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FORMATS = {
    "cifar10": {
        "base_folder": "cifar-10-batches-py", "filename": "cifar-10-python.tar.gz",
        "train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"],
        "meta": "batches.meta", "labels": "labels", "names": "label_names",
    },
    "cifar100": {
        "base_folder": "cifar-100-python", "filename": "cifar-100-python.tar.gz",
        "train": ["train"], "test": ["test"],
        "meta": "meta", "labels": "fine_labels", "names": "fine_label_names",
    },
}  # fmt: skip


def md5(data):
    return hashlib.md5(data).hexdigest()


def make(folder, name="cifar100", *, n_classes=4, n_train=100, n_test=20, seed=0):
    """Write an archive; return torchvision's values for it, its arrays and names."""
    form, draw = FORMATS[name], np.random.default_rng(seed)
    names = [f"class <{place}> é" for place in range(n_classes)]
    arrays, files, lists = {}, {}, {"train": [], "test": []}
    for part, n in (("train", n_train), ("test", n_test)):
        images = draw.integers(256, size=(n, 3072), dtype=np.uint8)
        labels = draw.permutation(np.arange(n) % n_classes)
        arrays[part] = images.reshape(n, 3, 32, 32).transpose(0, 2, 3, 1), labels
        parts = [np.array_split(x, len(form[part])) for x in (images, labels)]
        for file, x, y in zip(form[part], *parts, strict=True):
            files[file] = pickle.dumps({"data": x, form["labels"]: y.tolist()})
            lists[part].append([file, md5(files[file])])
    files[form["meta"]] = pickle.dumps({form["names"]: names})
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for file, data in files.items():
            info = tarfile.TarInfo(f"{form['base_folder']}/{file}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    data = archive.getvalue()
    (folder / form["filename"]).write_bytes(data)
    meta = {"filename": form["meta"], "key": form["names"]}
    values = {"tgz_md5": md5(data), "filename": form["filename"]}
    values |= {"train_list": lists["train"], "test_list": lists["test"]}
    values["meta"] = meta | {"md5": md5(files[form["meta"]])}
    return values, arrays, names


def make_weights(folder, seed=0):
    """Write weights of an untrained ResNet34; return the name of the file."""
    import torch
    from torchvision.models import resnet34

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = resnet34()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    digits = hashlib.sha256(file.getvalue()).hexdigest()[:8]
    path = folder / f"resnet34-{digits}.pth"
    path.write_bytes(file.getvalue())
    return path.name


class Server(ThreadingHTTPServer):
    """Serves a folder; ``faults`` are used up one per request, then all goes well.

    A fault is ``("cut", n)``: the connection ends after n bytes; ``("stall", n)``:
    nothing comes after n bytes; ``("slow", n)``: n bytes at a time, with pauses;
    ``("lie", n)``: byte n is another one; ``("status", n)``: this answer; ``("whole",
    0)``: all of the file, whatever part was asked for; ``("shift", n)``: a part that
    begins n bytes later.
    """

    daemon_threads = True

    def __init__(self, folder):
        self.folder, self.faults, self.asked = Path(folder), [], []
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A client that has gone away is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range", "")
        server.asked.append((self.path, wanted))
        kind, n = server.faults.pop(0) if server.faults else ("", 0)
        path = server.folder / self.path.rsplit("/", 1)[-1]
        if kind == "status" or not path.is_file():
            self.send_error(n if kind == "status" else 404)
            return
        data = path.read_bytes()
        size, start = len(data), int(wanted[6:-1]) if wanted else 0
        if kind == "lie":
            data = data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :]
        if kind.startswith("whole"):
            start = 0
        if start >= size:
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            start += n if kind == "shift" else 0
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        data = data[start:]
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.send_body(kind, n, data)

    def send_body(self, kind, n, data):
        if kind in ("cut", "stall", "whole cut"):
            self.wfile.write(data[:n])
            self.wfile.flush()
            time.sleep(30 if kind == "stall" else 0)
            self.close_connection = True
            self.connection.close()
        elif kind == "slow":
            for start in range(0, len(data), n):
                self.wfile.write(data[start : start + n])
                time.sleep(0.01)
        else:
            self.wfile.write(data)


@contextmanager
def serving(folder):
    """A running server."""
    with Server(folder) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()


def stand_in(values, put=setattr):
    """Let torchvision and the helpers know the small files by their addresses."""
    import torchvision.datasets

    from helpers import download, photos

    for name, attributes in values["data"].items():
        kind = getattr(torchvision.datasets, photos.DATA[name])
        for attribute, value in attributes.items():
            put(kind, attribute, value)
    put(photos, "weights_url", lambda: values["weights"])
    for name in ("SILENCE", "PATIENCE", "PAUSE"):
        put(
            download,
            name,
            values.get(name, {"SILENCE": 1, "PATIENCE": 3}.get(name, 0.01)),
        )
    put(photos, "SIZE", values.get("SIZE", 64))
    put(photos, "BATCH", values.get("BATCH", 16))


def kill_at(values):
    """Have this process killed when the network is run for the given time."""
    from helpers import photos

    make_network, left = photos.network, values["kill"]

    def network(path):
        run = make_network(path)

        def counted(images):
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            print("batch", file=sys.stderr, flush=True)
            return run(images)

        return counted

    photos.network = network


def fill(folder, told):
    """Prepare CIFAR-100 on a small disk; what was said, and what is left there.

    ``told`` is False if the check before is lied to, so that the disk really runs full.
    """
    from helpers import photos

    honest = shutil.disk_usage
    os.environ["DATA_FOLDER"] = folder
    if not told:
        plenty = honest("/")._replace(free=10**15)
        shutil.disk_usage = lambda _: plenty
    try:
        photos.prepare("cifar100", bar=False)
        said = "it is prepared"
    except OSError as error:
        said = error.strerror
    finally:
        shutil.disk_usage = honest
    return said, sorted(path.name for path in Path(folder).iterdir())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "notebooks"))
    given = json.loads(Path(sys.argv.pop(1)).read_text())
    stand_in(given)
    if "disks" in given:
        print(json.dumps([fill(*disk) for disk in given["disks"]]))
        sys.exit()
    if "kill" in given:
        kill_at(given)
    sys.argv[0] = str(ROOT / "tools" / "data.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
