"""Prepare photos for the pages: download or read, convert, extract features.

    python tools/data.py [cifar100 | cifar10 | FOLDER]

Without a name $PHOTOS counts, else cifar100. A FOLDER has one folder of pictures for
each class. Where to: $DATA_FOLDER. Where from: $DATA_MIRRORS, then the data's own home.
It may be stopped at any point and called again.
"""

import argparse
import errno
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from helpers import photos


def main(arguments=None):
    """Prepare, and say where it is or in one sentence why not."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    default = os.environ.get("PHOTOS") or "cifar100"
    parser.add_argument("name", nargs="?", default=default)
    name, folder = parser.parse_args(arguments).name, photos.data_folder()
    print(f"preparing {name} in {folder}", flush=True)
    images = None
    try:
        report(photos.prepare_images(name))
        images, names = photos.load_images(name)
        path = photos.prepare(name)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            error = (
                f"no space left in {folder}, which needs about 1 GB: make room there, "
                "or name another folder in DATA_FOLDER"
            )
        if images:
            counts = count(images)
            print(
                f"{photos.images_file(name)}: {counts} photos of {len(names)} classes"
            )
            name = f"{name} has no features, which only the odd-one-out pages need, and"
        raise SystemExit(f"{name} is not prepared: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; call it again to go on") from None
    parts, names = photos.load(name)
    print(f"{path}: features of {count(parts)} photos of {len(names)} classes")


def count(parts):
    """How many there are in each part, in words."""
    return ", ".join(f"{len(rows)} {part}" for part, (rows, *_) in parts.items())


def report(bad):
    """List the files that could not be read."""
    if bad:
        print(f"{len(bad)} files could not be read and are left out:", file=sys.stderr)
        print(*(f"  {line}" for line in bad), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
