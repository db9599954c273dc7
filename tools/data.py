"""Prepare photos for the pages: download or read, convert, extract features.

    python tools/data.py [cifar100 | cifar10 | FOLDER]        `make data PHOTOS=…`

Without a name $PHOTOS counts, else cifar100. README.md tells the rest (*With photos*).
"""

import argparse
import errno
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from helpers.data import features, photos, sets


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
        found = f"{count(images)} photos of {len(names)} classes"
        print(f"{photos.images_file(name)}: {found}", flush=True)
        print(f"{features.prepare(name)}: their features")
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            error = (
                f"no space left in {folder}, which needs about 1 GB: make room there, "
                "or name another folder in DATA_FOLDER"
            )
        if images is None or name in sets.KNOWN:
            raise SystemExit(f"{name} is not prepared: {error}") from None
        print(
            "Their ResNet34 features are missing; the odd-one-out pages then take mean "
            f"colours, all else is ready: {error}",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        raise SystemExit("stopped; call it again to go on") from None


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
