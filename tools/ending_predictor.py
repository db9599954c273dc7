"""A Transformer that predicts something about sequences of your own, in one file.

    python predictor_SIDE.py my.txt --target labels     one for each symbol
    python predictor_SIDE.py my.txt --target number     for each sequence; or: label
    python predictor_SIDE.py new.txt --predict          after any of these

A line of the file is a sequence: targets, a tab, symbols, with spaces between them; in
``new.txt``, symbols only. A tenth of the lines chooses the best epoch.
"""

import argparse
from pathlib import Path


def main():
    """Train on the file, or predict what its lines have."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", help="in UTF-8; a line: targets, a tab, symbols")
    parser.add_argument("--target", choices=["labels", "label", "number"])
    parser.add_argument("--predict", action="store_true", help="lines have symbols")
    parser.add_argument("--folder", type=Path, default="run", help="of the model")
    for name, usual in {"epochs": 20, "batch-size": 32, "learning-rate": 1e-3}.items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    given = vars(parser.parse_args())
    file, kind, predicts, folder = (given.pop(name) for name in [*given][:4])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if kind:
            model, kept, scores = learn(file, kind, **given)
            save(folder / "model", model, kept)
            print("validation:", *(f"{name} {x:.3f}" for name, x in scores.items()))
        if predicts:
            lines = map(str.split, Path(file).read_text("utf-8-sig").splitlines())
            print(*predict(*load(folder / "model"), [*lines]), sep="\n")
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
