"""The chapter *Your own data* with other seeds, and its learning curve: two files.

    python -m benchmarks.data_seeds --framework jax
    python -m benchmarks.data_seeds --framework torch --seeds 0 1

A seed makes the initial weights, the batches, the gaps of training and of the test, and
which utterances are in a part of the training set. The models are made by the functions
of the page.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np

from benchmarks import seeds

OF_EACH = 2, 4, 8, 15  # utterances of each of the nine speakers


def figures(page, seed):
    """Sections of accuracies, each by name."""
    p = SimpleNamespace(**page)
    gaps = partial(p.draw_gaps, seed=seed)
    models = p.train(p.everyone, seed=seed), p.train(p.everyone, gaps, seed)
    models = dict(zip(p.models, models, strict=True))
    known = gaps(p.real[p.copies])
    filled = p.regression()
    filled.fit(p.resampled(p.x[p.copies], known), p.speakers[p.copies])
    methods = dict(zip(p.methods, (p.by_times, filled), strict=True))
    found = {
        f"{what} lost: {share}": dict(p.on_gaps(what, share, models, methods, seed))
        for what in ("frames", "channels")
        for share in p.SHARES
    }
    all_known = found["frames lost: 0.0"]
    ends = all_known["Transformer, trained whole"], p.scores[[*p.scores][-1]]
    curve = dict(learning_curve(p, seed))
    curve |= {"Transformer 270": ends[0], "regression 270": ends[1]}
    return {
        "whole utterances": {"Transformer": ends[0]},
        **found,
        "learning curve": curve,
        "lines": {"Transformer": of_lines(p, seed)},
    }


def learning_curve(p, seed):
    """Accuracy by the model and the number of utterances."""
    rng = np.random.default_rng(seed)
    by_speaker = [rng.permutation(np.flatnonzero(p.speakers == n)) for n in range(9)]
    for n in OF_EACH:
        rows = np.concatenate([few[:n] for few in by_speaker])
        model = p.train(rows, seed=seed)
        score = p.evaluate(model, p.class_loss, p.heard)["accuracy"]
        yield f"Transformer {len(rows)}", score
        method = p.regression()
        method.fit(p.resampled(p.x[rows], p.whole(p.real[rows])), p.speakers[rows])
        given = p.resampled(p.test_x, p.whole(p.test_real))
        yield f"regression {len(rows)}", method.score(given, p.test_speakers)


def of_lines(p, seed):
    """Accuracy on the lines of four languages, with the settings of the page."""
    sizes = {**p.small, "max_length": 40, "dropout": 0.2}
    model = p.build(p.SequenceClassifier, 128, 64, 4, **sizes, seed=seed)
    steps = replace(p.steps, seed=seed)
    data = *p.from_texts(p.texts, 40), p.labels
    p.fit(model, p.class_loss, data, steps, bar=False)
    return p.evaluate(model, p.class_loss, p.written)["accuracy"]


def main():
    """Run the page up to its extra, train for each seed, and write both files."""
    given = seeds.parser(__doc__).parse_args()
    page = seeds.names_of_page(f"data_{given.framework}", until="## Extra: ")
    found = [figures(page, seed) for seed in given.seeds]
    seeds.write(given, "data-seeds", seeds.together(found))


if __name__ == "__main__":
    main()
