"""Prepare the photos of the anomaly chapter: download, convert, extract features.

    python tools/data.py [cifar100 | cifar10]

Where to: $DATA_FOLDER. Where from: $DATA_MIRRORS, then the data's own home. It may be
stopped at any point and called again.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

from helpers import photos


def main():
    """Prepare, and say where it is or in one sentence why not."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("name", nargs="?", default="cifar100", choices=photos.DATA)
    name = parser.parse_args().name
    print(f"preparing {name} in {photos.data_folder()}", flush=True)
    try:
        path = photos.prepare(name)
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or error
        text = f"{text}: {error.filename}" if getattr(error, "filename", "") else text
        raise SystemExit(f"{name} is not prepared: {text}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; call it again to go on") from None
    parts, names = photos.load(name)
    counts = ", ".join(f"{len(rows)} {part}" for part, (rows, *_) in parts.items())
    print(f"{path}: features of {counts} pictures of {len(names)} classes")


if __name__ == "__main__":
    main()
