"""Published checkpoints from a server on localhost that speaks the hub's protocol.

The client is the real ``huggingface_hub``, in a process of its own, because it reads
its variables once. It must say nothing: what a page writes to stderr fails the build.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.data.checkpoints import CONFIG, INDEX, TINY, TOKENIZER, WEIGHTS

ROOT = Path(__file__).parents[2]
NAME, COMMIT = "some-owner/tiny-model_1.0", "5ea" * 13 + "0"
OTHERS = {"README.md": b"# Read me", "onnx/model.onnx": b"0", "model.msgpack": b"1"}
CALL = """
import json, sys
from helpers.data import checkpoints
try:
    found = {"folder": str(checkpoints.find_folder(sys.argv[1]))}
except (OSError, ValueError) as error:
    found = {"error": str(error)}
print(json.dumps(found))
"""


def files_of(model):
    """The files of a tiny checkpoint, among others that no one needs: bytes by name."""
    paths = (path for path in (TINY / model).iterdir() if "expected" not in path.name)
    return {path.name: path.read_bytes() for path in paths} | OTHERS


def is_large(name):
    """Kept in LFS, as all weights on the hub."""
    return name.endswith((".safetensors", ".bin", ".onnx", ".msgpack"))


def checksum(name, content):
    """SHA-256 of a file in LFS; of another one git's, which counts a header, too."""
    if is_large(name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(ThreadingHTTPServer):
    """Serves one repository. ``faults`` by name of a file, or "" for the listing.

    A fault is a pair: ``("cut", n)``, no connection lasts longer than to byte n;
    ``("flip", n)``, byte n is another one; ``("short", n)``, n bytes are all there is;
    ``("status", (n, code))``, this answer; ``("html", 0)``, a page for people.
    """

    daemon_threads = True

    def __init__(self, files, faults):
        self.files, self.faults, self.asked = files, faults, []
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request, client_address):
        """A client that has hung up is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, content=b"", length=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", length or len(content))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        _, is_file, name = path.partition("/resolve/")
        name, cdn = name.partition("/")[2], path.removeprefix("/cdn/")
        kind, n = self.server.faults.get(cdn if cdn != path else name, ("", 0))
        if kind == "status":
            return self.answer(n[0], b"{}", X_Error_Code=n[1], X_Error_Message=n[1])
        if cdn != path:
            return self.content(self.server.files[cdn], kind, n)
        if not is_file and path == f"/api/models/{NAME}":
            return self.answer(200, self.listing(), Content_Type="application/json")
        if not path.startswith(f"/{NAME}/") or name not in self.server.files:
            code = "EntryNotFound" if path.startswith(f"/{NAME}/") else "RepoNotFound"
            return self.answer(404, X_Error_Code=code, X_Error_Message=code)
        content = self.server.files[name]
        etag, headers = f'"{checksum(name, content)}"', {"X_Repo_Commit": COMMIT}
        if not is_large(name):
            return self.content(content, kind, n, ETag=etag, **headers)
        place = f"http://localhost:{self.server.server_port}/cdn/{name}"
        headers |= {"X_Linked_Size": len(content), "X_Linked_Etag": etag}
        return self.answer(302, Location=place, **headers)

    def listing(self):
        """What the hub says of the repository."""
        if self.server.faults.get("", ("", 0))[0] == "html":
            return b"<html>Log in to the wireless network</html>"
        siblings = []
        for name, content in self.server.files.items():
            one = {"rfilename": name, "size": len(content), "blobId": 40 * "b"}
            if is_large(name):
                lfs = {"sha256": checksum(name, content), "size": len(content)}
                one["lfs"] = lfs | {"pointerSize": 134}
            else:
                one["blobId"] = checksum(name, content)
            siblings.append(one)
        found = {"id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": siblings}
        return json.dumps(found | {"private": False, "gated": False}).encode()

    def content(self, content, kind, n, **headers):
        """A file, or its rest."""
        start, status = 0, 200
        if wanted := self.headers.get("Range"):
            start, status = int(wanted.removeprefix("bytes=").split("-")[0]), 206
            all_bytes = len(content)
            headers["Content_Range"] = f"bytes {start}-{all_bytes - 1}/{all_bytes}"
        if kind == "flip":
            content = content[:n] + bytes([content[n] ^ 1]) + content[n + 1 :]
        length = n if kind == "short" else len(content) - start
        if kind in ("cut", "short") and self.command == "GET":
            content, self.close_connection = content[:n], kind == "cut"
        self.answer(status, content[start:], length, **headers)


@contextmanager
def serving(files, faults=()):
    """A running hub."""
    with Hub(files, dict(faults)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def run(tmp_path):
    """Run Python as a reader who has a cache of his own: what it printed."""

    def run(server, *command, **variables):
        own = "HF_", "HUGGINGFACE_", "TQDM_", "MODEL", "PHOTOS"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        kept |= {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*",
            "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(ROOT / "notebooks"),
            "TQDM_POSITION": "-1",  # bars also where no terminal is
        }  # fmt: skip
        if path := os.environ.get("PYTHONPATH"):  # another version of the client
            kept["PYTHONPATH"] += os.pathsep + path
        found = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=kept | variables, text=True,
            capture_output=True, timeout=600, encoding="utf-8",
        )  # fmt: skip
        out, err = found.stdout.strip(), found.stderr.strip()
        return SimpleNamespace(code=found.returncode, out=out, err=err)

    return run


@pytest.fixture
def find(run):
    """Call ``find_folder`` silently: the folder, or the text of the error."""

    def find(server, name=NAME, **variables):
        found = run(server, "-c", CALL, name, **variables)
        assert (found.code, found.err) == (0, "")
        found = json.loads(found.out)
        return Path(found["folder"]) if "folder" in found else found["error"]

    return find


def assert_same_weights(folder, model):
    """The folder has the files of a tiny model, byte by byte, and no other."""
    expected = files_of(model).keys() - OTHERS
    assert {path.name for path in folder.iterdir()} == expected
    for name in expected:
        assert (folder / name).read_bytes() == (TINY / model / name).read_bytes(), name


@pytest.mark.parametrize("model", ["llama", "mixtral"])
def test_a_checkpoint_is_downloaded_once(find, model):
    """One file or shards; afterwards the hub may be gone, or have another version."""
    with serving(files_of(model)) as server:
        folder = find(server)
        assert_same_weights(folder, model)
        assert not [path for path in server.asked if path.endswith((*OTHERS,))]
        asked = len(server.asked)
        server.files = files_of("qwen3")
        assert find(server) == folder
        assert len(server.asked) == asked
    assert find(server) == folder == find(server, HF_HUB_OFFLINE="1")
    assert_same_weights(folder, model)


SHARD = "model-00002-of-00003.safetensors"
GATED, GONE = (403, "GatedRepo"), (404, "EntryNotFound")
FAULTS = {  # model, file, fault, what the sentence says
    "a download that breaks off": ("mixtral", SHARD, ("cut", 9_000), "Error"),
    "a file that is too short": ("gpt2", WEIGHTS, ("short", 9_000), "9000"),
    "a wrong byte of weights": ("gpt2", WEIGHTS, ("flip", 9_000), "expected checksum"),
    "a wrong byte of tokens": ("llama", TOKENIZER, ("flip", 90), "expected checksum"),
    "a file that is gone": ("llama", CONFIG, ("status", GONE), "EntryNotFound"),
    "a gated model": ("llama", WEIGHTS, ("status", GATED), "gated: accept its terms"),
    "a hub out of order": ("llama", "", ("status", (500, "")), "500"),
    "a login page instead": ("llama", "", ("html", 0), "JSON"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAULTS)
def test_a_spoilt_download_is_one_sentence_and_never_used(find, case):
    """The next call, without the fault, has the right files."""
    model, name, fault, text = FAULTS[case]
    with serving(files_of(model), {name: fault}) as server:
        assert_sentence(find(server), text)
        server.faults = {}
        assert_same_weights(find(server), model)


def assert_sentence(found, text):
    """An error, in one line, that says this."""

    assert isinstance(found, str) and text in found, found
    assert found.count("\n") == 0 and "Traceback" not in found, found


def without(model, name):
    """A tiny checkpoint that lacks a file."""
    return {k: v for k, v in files_of(model).items() if k != name}


INCOMPLETE = {  # files, what the sentence says
    "no tokenizer": (without("llama", TOKENIZER), f"expected {TOKENIZER} in the hub's"),
    "no configuration": (without("llama", CONFIG), f"expected {CONFIG} in the hub's"),
    "no index": (without("mixtral", INDEX), f"expected {INDEX} in the hub's"),
    "no weights": (without("llama", WEIGHTS), f"expected {WEIGHTS} in the hub's"),
    "pickled weights only": (
        without("llama", WEIGHTS) | {"pytorch_model.bin": b"0"},
        f"expected {WEIGHTS} in the hub's {NAME}, got pickled pytorch_model.bin",
    ),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_an_incomplete_repository_is_refused_before_any_download(find, case):
    files, text = INCOMPLETE[case]
    with serving(files) as server:
        assert_sentence(find(server), text)
        assert [path for path in server.asked if "/resolve/" in path] == []


def test_an_absent_shard_is_one_sentence(run):
    """The index names it, the hub has it not."""
    with serving(without("mixtral", SHARD)) as server:
        found = run(server, ROOT / "tools" / "data.py", MODEL=NAME)
        assert found.code == 1
        assert_sentence(found.err.splitlines()[-1], f"expected {SHARD} in ")


def test_without_a_hub_the_sentence_says_what_to_do(find):
    with serving(files_of("llama")) as server:
        assert_sentence(find(server, HF_HUB_OFFLINE="1"), f"`make data MODEL={NAME}`")
        assert server.asked == []
    assert_sentence(find(server), f"`make data MODEL={NAME}` does it")


def test_make_data_downloads_with_a_bar_and_says_where(run):
    tool = ROOT / "tools" / "data.py"
    with serving(files_of("gpt2")) as server:
        first, again = (run(server, tool, MODEL=NAME) for _ in range(2))
        assert (first.code, again.code) == (0, 0), first.err + again.err
        assert WEIGHTS in first.err and again.err == ""
        place, size = first.out.split(": ")
        assert size == "0.1 MB of weights" and again.out == first.out
        assert_same_weights(Path(place), "gpt2")
        unknown = run(server, tool, MODEL="no-one/nothing")
        assert (unknown.code, unknown.out) == (1, "")
        assert_sentence(unknown.err, "no-one/nothing is not prepared: ")
        assert_sentence(unknown.err, "the hub has no such model")
