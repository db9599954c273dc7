"""The chapter *Start from a trained model* with other seeds and numbers of labels.

    python -m benchmarks.finetune_seeds --framework torch
    python -m benchmarks.finetune_seeds --framework jax --seeds 0 1 --numbers 5 20
    python -m benchmarks.finetune_seeds --framework torch --rates

A seed draws the labelled lines, the initial weights of what is new, and the batches.
``--rates`` prints accuracies of rates of learning, and of the probe's C, on training
lines that were not used, with other seeds, and writes nothing: what the page takes was
chosen by them.
"""

from types import SimpleNamespace

import numpy as np

from benchmarks import seeds

TRIED = 3e-4, 1e-3, 3e-3, 1e-2, 3e-2
STRENGTHS = 0.01, 0.03, 0.1, 0.3, 1, 10


def names_of_page(framework):
    """What the cells of the page define, up to the comparison of all ways."""
    page = seeds.names_of_page(f"finetune_{framework}", until="models = {")
    return SimpleNamespace(**page)


def scores(page, n, seed):
    """Accuracy on the test lines by way."""
    rows = page.few(n, seed)
    yield "TF-IDF", page.baseline(rows).score(page.test_lines, page.test_labels)
    given = page.vectors(page.test[0]), page.test_labels
    yield "probe", page.probe(rows).score(*given)
    for way, rate in page.RATES.items():
        model = page.adapt(way, rows, rate, seed)
        yield way, page.evaluate(model, page.cross_entropy, page.test)["accuracy"]


def try_rates(page, numbers, others):
    """Accuracies on training lines that were not used, by way and rate."""
    every = page.as_tokens(page.lines)

    def score(way, rate, rows, seed):
        rest = np.setdiff1d(np.arange(len(page.labels)), rows)
        if way == "probe":
            vectors = page.vectors(every[rest])
            return page.probe(rows, C=rate).score(vectors, page.labels[rest])
        model = page.adapt(way, rows, rate, seed)
        given = every[rest], page.labels[rest]
        return page.evaluate(model, page.cross_entropy, given)["accuracy"]

    for n in numbers:
        for way in ("probe", *page.RATES):
            found = []
            for rate in STRENGTHS if way == "probe" else TRIED:
                of_rate = [score(way, rate, page.few(n, seed), seed) for seed in others]
                found.append(f"{rate:g}: {np.mean(of_rate):.3f}")
            print(n, way, *found, flush=True)


def main():
    """Run the page up to there, train for each number and seed, write both files."""
    parser = seeds.parser(__doc__)
    parser.add_argument("--numbers", type=int, nargs="+", default=[5, 20, 100, 300])
    parser.add_argument("--rates", action="store_true")
    given = parser.parse_args()
    page, figures = names_of_page(given.framework), {}
    if given.rates:
        try_rates(page, given.numbers, [seed + 100 for seed in given.seeds])
        return
    for n in given.numbers:
        for seed in given.seeds:
            for way, score in scores(page, n, seed):
                figures.setdefault(f"{way} {n}", []).append(float(score))
    first = "way, lines a language"
    seeds.write(given, "finetune-seeds", figures, first, numbers=given.numbers)


if __name__ == "__main__":
    main()
