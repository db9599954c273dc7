"""Prepare the photos of the anomaly chapter: download, convert, extract features.

    python tools/data.py [cifar100 | cifar10]

Where to: $DATA_FOLDER. Where from: $DATA_MIRRORS, then the data's own home. It may be
stopped at any point and called again.
"""

import argparse
import errno
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from helpers import photos


def main(arguments=None):
    """Prepare, and say where it is or in one sentence why not."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("name", nargs="?", default="cifar100", choices=photos.DATA)
    name, folder = parser.parse_args(arguments).name, photos.data_folder()
    print(f"preparing {name} in {folder}", flush=True)
    try:
        path = photos.prepare(name)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            error = (
                f"no space left in {folder}, which needs about 1 GB: make room there, "
                "or name another folder in DATA_FOLDER"
            )
        raise SystemExit(f"{name} is not prepared: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; call it again to go on") from None
    parts, names = photos.load(name)
    counts = ", ".join(f"{len(rows)} {part}" for part, (rows, *_) in parts.items())
    print(f"{path}: features of {counts} photos of {len(names)} classes")


if __name__ == "__main__":
    main()
