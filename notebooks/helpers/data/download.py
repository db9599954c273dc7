"""Download a file from a mirror or its home: resumable, with a checked hash.

``pooch`` checks the hash and moves the complete file into place; the downloader that it
is given here resumes, and gives up an address that is too slow.
"""

import errno
import os
import time
from functools import partial
from pathlib import Path

import pooch
import requests
import urllib3
from tqdm import tqdm

TIMEOUT = 60  # seconds without a byte before a connection counts as lost
WINDOW = 60  # seconds over which the speed is measured
MIN_SPEED = 10_000  # bytes per second below which an address is given up
PAUSE = 1  # seconds before a lost connection is taken up again

LOST = requests.ConnectionError, requests.Timeout, urllib3.exceptions.HTTPError


def fetch(url, known_hash, folder):
    """Path of the file in ``folder``; downloaded if it is not there.

    Parameters
    ----------
    url : str
        Its home, tried after the same file name at each address in ``$DATA_MIRRORS``.
    known_hash : str
        ``"md5:…"`` or ``"sha256:…"``.
    folder : path
        An unfinished download stays there as ``….part`` and is resumed by the next call.

    Raises
    ------
    ValueError
        If another file stands at the path; it is left alone.
    OSError
        If no address gives the file, with the reason for each; if the disk is full.
    """
    path = Path(folder) / url.rsplit("/", 1)[-1]
    if path.exists():
        found = pooch.file_hash(path, known_hash.split(":")[0])
        if found != known_hash.split(":")[1]:
            raise ValueError(
                f"{path} is another file: expected {known_hash}, got {found}: "
                "move it away and try again"
            )
        return path
    failures = []
    for address in addresses(url):
        try:
            return download(address, known_hash, path)
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise
            failures.append(f"{address} failed ({reason(error)})")
    raise OSError(
        f"could not download {path.name}: {'; '.join(failures)}: try again, name a mirror "
        f"in DATA_MIRRORS, or put the file ({known_hash}) into {path.parent}"
    )


def addresses(url):
    """Where to look for a file: on the mirrors, then at its home."""
    name = url.rsplit("/", 1)[-1]
    mirrors = os.environ.get("DATA_MIRRORS", "").split()
    return [*(f"{mirror.rstrip('/')}/{name}" for mirror in mirrors), url]


def reason(error):
    """The innermost cause of an error, in one line."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def download(address, known_hash, path):
    """The file from one address, checked by pooch."""
    part = path.with_name(f"{path.name}.part")
    resumed = part.exists()
    get = partial(
        pooch.retrieve, address, known_hash, path.name, path.parent,
        downloader=partial(resume, part=part),
    )  # fmt: skip
    try:
        get()
    except ValueError:
        if not resumed:
            raise
        get()  # the part may have been of another file: once more, from its beginning
    return path


def resume(address, output_file, _, *, part):
    """Downloader for pooch: as long as something new arrives, go on."""
    most = -1
    while True:
        try:
            receive(address, part)
            break
        except LOST:
            size = size_of(part)
            if size <= most:
                raise
            most = size
            time.sleep(PAUSE)
    os.replace(part, output_file)


def size_of(part):
    """Bytes that have come so far."""
    return part.stat().st_size if part.exists() else 0


def receive(address, part):
    """Append the rest of a file to its part; start again if the server has no ranges."""
    done = size_of(part)
    headers = {"Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={done}-"} if done else {}
    options = {"headers": headers, "stream": True, "timeout": TIMEOUT}
    with requests.get(address, **options) as answer:
        if answer.status_code == 416:  # nothing beyond the part: the hash decides
            return
        if answer.status_code not in (200, 206):
            raise OSError(f"{answer.status_code} {answer.reason}")
        done = done if answer.status_code == 206 else 0
        size = done + int(answer.headers.get("Content-Length", 0))
        bar = {"desc": part.stem, "total": size or None, "initial": done}
        bar |= {"unit": "B", "unit_scale": True, "leave": False}
        with part.open("ab" if done else "wb") as file, tqdm(**bar) as shown:
            for block in blocks(answer.raw):
                file.write(block)
                shown.update(len(block))


def blocks(raw):
    """Bytes as they come, or TimeoutError when they come too slowly."""
    began, arrived = time.monotonic(), 0
    while block := raw.read1(1 << 16, decode_content=False):
        yield block
        arrived += len(block)
        seconds = time.monotonic() - began
        if seconds > WINDOW:
            if arrived < MIN_SPEED * seconds:
                raise TimeoutError(
                    f"{arrived / seconds:.0f} bytes per second, expected {MIN_SPEED}"
                )
            began, arrived = time.monotonic(), 0
