"""A file from the first address that has it: resumed, checked, whole or not at all."""

import errno
import hashlib
import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from helpers.weights import write_whole

SILENCE = 60  # seconds without a byte, after which a connection counts as lost
PATIENCE = 5  # tries in a row that bring nothing, before an address is given up
PAUSE = 1.0  # seconds before the second try; each further one doubles them


class Refused(Exception):
    """An address that is of no use; its text says why."""


def fetch(path, addresses, checksum, *, look_in=(), bar=True):
    """Have the right file at ``path``: the one there, a copy from nearby, a download.

    Parameters
    ----------
    path : path
        The file; what has come of it so far is ``path`` with ``.part`` at its end.
    addresses : list of str
        Where to download it, tried in this order.
    checksum : str
        ``"md5:…"`` or ``"sha256:…"``; the beginning of the hexadecimal digits is enough.
    look_in : list of path
        Folders that may hold the same file under whatever name with the same ending.
    bar : bool
        Show a progress bar.

    Returns
    -------
    path

    Raises
    ------
    ValueError
        If another file stands at ``path``; it is left there.
    OSError
        One sentence: why no address gave the file, or that there is no space left.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if not fits(path, checksum):
            raise ValueError(
                f"{path} is not the file it should be: its {describe(path, checksum)}, "
                f"expected {checksum}: move it away"
            )
        return path
    for other in (x for place in (path.parent, *look_in) for x in alike(place, path)):
        if fits(other, checksum):
            return copy(other, path)
    reasons = []
    for address in addresses:
        try:
            return download(address, path, checksum, bar)
        except Refused as reason:
            reasons.append(f"{address} {reason}")
    part = part_of(path)
    if part.exists() and not part.stat().st_size:
        part.unlink()
    kept = f" ({megabytes(part.stat().st_size)} are kept)" if part.exists() else ""
    raise OSError(
        f"could not get {path.name}{kept}: {'; '.join(reasons)}: try again, name a "
        f"mirror in DATA_MIRRORS, or put the file ({checksum}) into {path.parent}"
    )


def digest(path, kind):
    """Hexadecimal digits of the checksum of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def fits(path, checksum):
    """Has the file this checksum?"""
    kind, _, digits = checksum.partition(":")
    return digest(path, kind).startswith(digits)


def describe(path, checksum):
    """The file's own checksum, of the same kind."""
    kind, _, digits = checksum.partition(":")
    return f"{kind} is {digest(path, kind)[: len(digits)]}"


def alike(folder, path):
    """Complete files of a folder that end as ``path`` does."""
    found = sorted(Path(folder).glob(f"*{path.suffix}")) if path.suffix else []
    return [other for other in found if other.is_file()]


def copy(source, path):
    """Copy a file, whole or not at all."""
    with space(path.parent, source.stat().st_size):
        write_whole(path, source.read_bytes())
    return path


def part_of(path):
    """Where a download stands until it is complete and checked."""
    return path.with_name(f"{path.name}.part")


def download(address, path, checksum, bar):
    """One address: go on until the file is there, or raise ``Refused``."""
    import requests
    from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema

    part, idle = part_of(path), 0
    resumed = part.exists()
    most = part.stat().st_size if resumed else 0
    while True:
        try:
            receive(address, part, bar)
        except (InvalidSchema, InvalidURL, MissingSchema) as error:
            raise Refused("is no address") from error
        except requests.RequestException as error:
            size = part.stat().st_size if part.exists() else 0
            idle = 0 if size > most else idle + 1
            most = max(size, most)
            if idle == PATIENCE:
                raise Refused(f"broke off ({reason(error)})") from error
            time.sleep(PAUSE * 2**idle / 2)
            continue
        if fits(part, checksum):
            os.replace(part, path)
            return path
        found = describe(part, checksum)
        part.unlink()
        if not resumed:
            raise Refused(f"gave another file: its {found}, expected {checksum}")
        resumed = False  # what was there before may have been at fault: once more


def receive(address, part, bar):
    """Fetch the rest of a file; the part grows by what comes."""
    import requests

    done = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    headers |= {"Range": f"bytes={done}-"} if done else {}
    options = {"headers": headers, "stream": True, "timeout": (SILENCE, SILENCE)}
    with requests.get(address, **options) as answer:
        if answer.status_code == 416:  # nothing after that: complete, or too long
            return
        if answer.status_code not in (200, 206):
            raise Refused(f"answered {answer.status_code} {answer.reason}")
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise Refused("sends the file in another encoding than was asked for")
        start = f"bytes {done}-"
        goes_on = answer.headers.get("Content-Range", "").startswith(start)
        if answer.status_code == 206 and not goes_on:
            part.unlink(missing_ok=True)
            raise requests.ConnectionError("sent another range than was asked for")
        done = done if answer.status_code == 206 else 0
        size = int(answer.headers.get("Content-Length") or 0)
        total = done + size if size else None
        shown = {"unit": "B", "unit_scale": True, "leave": False}
        shown |= {} if bar else {"disable": True}
        shown |= {"desc": part.stem, "total": total, "initial": done}
        with space(part.parent, size), tqdm(**shown) as progress:
            try:
                with part.open("ab" if done else "wb") as file:
                    for block in answer.iter_content(1 << 12):
                        file.write(block)
                        progress.update(len(block))
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    part.unlink(missing_ok=True)
                raise
        if total is not None and part.stat().st_size < total:
            raise requests.ConnectionError(f"{megabytes(total)} were promised")


def reason(error):
    """The last cause of a connection's end, in a few words."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:120]


def megabytes(size):
    """A size in words."""
    return f"{size / 1e6:.1f} MB"


@contextmanager
def space(folder, size):
    """Refuse to begin what does not fit, and say it in a sentence if it happens.

    Raises
    ------
    OSError
        With ``errno.ENOSPC``: what is needed, what there is, and what to do.
    """
    free = shutil.disk_usage(folder).free

    def full():
        text = (
            f"no space left in {folder}: {megabytes(size)} are needed, "
            f"{megabytes(shutil.disk_usage(folder).free)} are free: make room there, or "
            "name another folder in DATA_FOLDER"
        )
        return OSError(errno.ENOSPC, text)

    if free < size:
        raise full()
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise full() from error
        raise
