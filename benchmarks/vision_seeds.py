"""The chapter on vision with other seeds, and the models that it quotes: two files.

    python -m benchmarks.vision_seeds --framework jax
    python -m benchmarks.vision_seeds --framework torch --seeds 0 1

A seed makes the split of the digits, the initial weights, the batches and the
augmentation. The cells of the page run as they are, without figures and text; then come
the other models, made of the classes and functions of the page.
"""

import os
from dataclasses import replace

import numpy as np

from benchmarks import seeds

SHUFFLED = "patches shuffled"


def names_of_page(framework, seed):
    """What the cells of the page define, with another seed."""

    def change(source):
        return source.replace("Pictures()", f"Pictures(seed={seed})")

    return seeds.names_of_page(f"vision_{framework}", change=change)


def figures(page, seed):
    """Sections of accuracies and other shares, each by name."""
    s, longer = page["settings"], page["longer"]

    def vit(settings, *more):
        model = page["build"](page["VisionTransformer"], seed=seed, **settings.model)
        return page["trained"](model, settings, *more)

    def conv(settings, *more):
        model = page["build"](page["ConvNet"], 1, s.n_classes, seed=seed)
        return page["trained"](model, settings, *more)

    models = page["rivals"] | {
        "ViT, mean": vit(replace(s, pool="mean")),
        "ViT, as long": vit(longer, page["to_move"]),
        "convolutions": conv(s),
        "convolutions, augmented": conv(
            longer, page["to_move"], page["turn_and_shift"]
        ),
    }

    def on(test):
        return {name: page["accuracy"](model, *test) for name, model in models.items()}

    return {
        "test digits": on((page["x_test"], page["y_test"])),
        "shifted by one pixel": on(page["moved_test"]),
        "positions": dict(of_positions(page, vit)),
        "probability lost": page["lost"],
        "two new classes": dict(of_few(page)),
    }


def of_positions(page, vit):
    """Accuracy by the kind of positions, on whole and on shuffled digits."""
    for kind in ("none", "sinusoidal"):
        model = vit(replace(page["settings"], positions=kind))
        yield kind, page["accuracy"](model, page["x_test"], page["y_test"])
    shuffled = page["x_shuffled"], page["y_test"]
    yield f"learned, {SHUFFLED}", page["accuracy"](page["vit"], *shuffled)
    yield f"sinusoidal, {SHUFFLED}", page["accuracy"](model, *shuffled)
    near, far = page["alike"]["learned"]
    yield "cosine of learned positions, neighbours", float(near)
    yield "cosine of learned positions, others", float(far)


def of_few(page, draws=3):
    """Accuracy on two new classes by the way and the number of pictures of each."""
    for k in (4, 16):
        for way in page["ways"]:
            found = [page["learned"](way, page["few"](k, n), n) for n in range(draws)]
            yield f"{way}, {k} of each", float(np.mean(found))


def main():
    """Run the page for each seed, and write both files."""
    given = seeds.parser(__doc__).parse_args()
    os.environ.pop("PHOTOS", None)
    found = [figures(names_of_page(given.framework, n), n) for n in given.seeds]
    seeds.write(given, "vision-seeds", seeds.together(found))


if __name__ == "__main__":
    main()
