"""The models that write and translate: the same numbers in JavaScript, and a page.

Their weights are halved, and are files of their own, which are loaded when a reader
opens a model.
"""

import json
import re
from base64 import b64decode, b64encode
from datetime import date
from functools import cache

import numpy as np
import pytest
import safetensors.numpy
from playwright.sync_api import expect

import pages
import playground
import reference_models
from browsing import NARROW, WIDE, new_context, serious_in_both_colours, watch
from helpers import reference
from helpers.data import dates, text
from helpers.data.byte_pairs import BytePairs
from helpers.engine.settings import Dates
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays
from models_in_javascript import halved, packed, unpacked
from sides import fill, jax_side, torch_side

PAGE = "book/playground.html"
PAUSE = 40  # milliseconds between two tokens of a run
STILL = {"reduced_motion": "reduce"}
DATES = Dates()
PUBLISHED = text.PRETRAINED.read_bytes()
PAIRS = BytePairs.from_metadata(playground.metadata(PUBLISHED))
MODEL = json.loads(playground.metadata(PUBLISHED)["model"])
SIZES, LENGTH = playground.published_sizes(PUBLISHED), MODEL["max_length"]
SIDES = {"jax": jax_side, "torch": torch_side}
B, L, H, D, S, K, F, T, N = 200, 2, 3, 7, 11, 17, 13, 23, 29  # N: max_length
by_side = pytest.mark.parametrize("side", pages.SIDES)
PLACES = pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])

WRITE = """([data, sizes, rows, step]) => {
    const model = new ModernLM(unpack(data), sizes);
    const found = rows.map(row => inSteps(model, model.newCache(), row, step));
    return [0, 1].map(which => pack(found.map(parts => parts[which])));
}"""
TRANSLATE = """([data, sizes, sources, targets, step]) => {
    const model = new Translator(unpack(data), sizes);
    const found = sources.map((source, i) => {
        if (step >= targets[i].length) return model.call(source, targets[i]);
        const cache = model.target.newCache(model.read(source));
        return inSteps(model.target, cache, targets[i], step);
    });
    return [0, 1].map(which => pack(found.map(pair => pair[which])));
}"""


SMALL = {"nBlocks": L, "nHeads": H, "m": H * D, "maxLength": N}
TRAINED_DATES = playground.sizes(DATES, DATES.max_length)
# Six query heads, three for each head of keys; of ten features, not of m / 6.
GROUPED = {"m": 19, "n_blocks": L, "n_heads": 6, "n_kv_heads": 2, "d": 10, "f": F}
GROUPED |= {"n_tokens": T, "max_length": N}


def draw_tokens(*shape, n=T, seed=0):
    return np.random.default_rng(seed).integers(n, size=shape)


def write(javascript, params, sizes, rows, step):
    """Logits ``b s t``, maps ``b l h s s`` in JavaScript, ``step`` tokens at a time."""
    found = javascript.evaluate(WRITE, [packed(params), sizes, rows.tolist(), step])
    (b, s), heads = rows.shape, (sizes["nBlocks"], sizes["nHeads"])
    return unpacked(found[0], b, s, -1), unpacked(found[1], b, *heads, s, s)


def translate(javascript, params, sizes, sources, targets, step):
    """Logits ``b s t`` and cross-attention ``b l h s k`` in JavaScript."""
    rows = [[int(x) for x in row] for row in sources], targets.tolist()
    found = javascript.evaluate(TRANSLATE, [packed(params), sizes, *rows, step])
    (b, s), k = targets.shape, len(sources[0])
    shapes = (b, s, -1), (b, sizes["nBlocks"], sizes["nHeads"], s, k)
    return [unpacked(x, *shape) for x, shape in zip(found, shapes, strict=True)]


def filled(kind, **sizes):
    """Sizes of a model, and its halved weights, biases and norms too."""
    return sizes, halved(fill(torch_side.build(kind, **sizes), seed=3))


def small_translator(**options):
    """A translator of prime sizes, with one vocabulary."""
    sizes = {"n_source": T, "n_target": T, "m": H * D, "n_blocks": L, "n_heads": H}
    sizes |= {"f": F, "max_length": N, "shared": True}
    return filled("Translator", **sizes, **options)


def in_both(kind, params, sizes):
    """The model with these weights in each framework."""
    for side in SIDES.values():
        model = side.build(kind, **sizes)
        from_arrays(model, params)
        yield side, model


def logits_and_maps(side, model, rows):
    """Of a language model in a framework: ``b s t``, ``b l h s s``."""
    tokens, maps = side.tensor(rows, "int32"), []
    places = side.tensor(np.arange(rows.shape[1])[None], "int32")
    x, past = model.embed(tokens), np.tri(rows.shape[1], dtype=bool)
    for block in model.blocks:
        q, k, _ = map(as_numpy, block.attention.project(block.norm1(x), places))
        k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)  # b h s d
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        maps.append(reference.softmax(np.where(past, scores, -np.inf)))
        x, _ = block(x, places)
    return as_numpy(model(tokens)), np.stack(maps, axis=1)


def test_the_language_model_agrees_with_both_frameworks(javascript):
    """Logits and attention maps, in one pass, token by token, and four at a time."""
    sizes, params = filled("ModernLM", **GROUPED)
    given, rows = {"nBlocks": L, "nHeads": 6}, draw_tokens(B, S)
    found = [write(javascript, params, given, rows, step) for step in (S, 1, 4)]
    for side, model in in_both("ModernLM", params, sizes):
        logits, maps = logits_and_maps(side, model, rows)
        for ours, its in found:
            np.testing.assert_allclose(ours, logits, atol=1e-4, rtol=0)
            np.testing.assert_allclose(its, maps, atol=1e-5, rtol=0)


@PLACES
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_the_translator_agrees_with_both_frameworks(javascript, norm_first, positions):
    """Logits and cross-attention, in one pass and with the cache."""
    options = {"norm_first": norm_first, "positions": positions}
    sizes, params = small_translator(**options)
    pair = draw_tokens(B, K, seed=1), draw_tokens(B, S)
    given = params, SMALL | {"normFirst": norm_first}
    found = [translate(javascript, *given, *pair, step) for step in (S, 1, 4)]
    for side, model in in_both("Translator", params, sizes):
        tokens = [side.tensor(x, "int32") for x in pair]
        logits, maps = model(*tokens, return_maps=True)
        cross = as_numpy(maps[2]).swapaxes(0, 1)  # b l h s k
        for ours, its in found:
            np.testing.assert_allclose(ours, as_numpy(logits), atol=1e-4, rtol=0)
            np.testing.assert_allclose(its, cross, atol=1e-5, rtol=0)


@PLACES
def test_the_translator_agrees_with_the_reference(javascript, norm_first):
    """In double precision, where nothing but rounding may differ."""
    sizes = SMALL | {"normFirst": norm_first}
    sources, targets = draw_tokens(9, K, seed=1), draw_tokens(9, S)
    _, params = small_translator(norm_first=norm_first, positions="sinusoidal")
    expected, _, cross = reference_models.translator(
        sources, targets, params, L, H, norm_first
    )
    found = translate(javascript, params, sizes, sources, targets, 1)
    np.testing.assert_allclose(found[0], expected, atol=1e-9)
    np.testing.assert_allclose(found[1], cross.swapaxes(0, 1), atol=1e-12)


def test_the_language_model_agrees_with_the_reference(javascript):
    """In double precision, too; keys in the cache are not rotated again."""
    (_, params), rows = filled("ModernLM", **GROUPED), draw_tokens(9, S)
    expected, maps = reference_models.modern_lm(rows, params, L, 6)
    found = write(javascript, params, {"nBlocks": L, "nHeads": 6}, rows, 1)
    np.testing.assert_allclose(found[0], expected, atol=1e-9)
    np.testing.assert_allclose(found[1], maps.swapaxes(0, 1), atol=1e-12)


def test_every_half_is_read_as_numpy_reads_it(javascript):
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    data = packed({"x": halves})
    found = javascript.evaluate("data => pack(unpack(data).x)", data)
    np.testing.assert_array_equal(unpacked(found, -1), halves.astype(np.float64))


# Tokens and probabilities


def test_the_tokens_of_a_text_are_those_of_python(javascript):
    """Source code cut anywhere, any characters of ASCII, and white space in runs."""
    rng, source = np.random.default_rng(5), text.load()["test"]
    texts = ["", " ", "\n", "\n    \n\t x", "if x is ", "___a1 b"]
    for _ in range(300):
        start, n = rng.integers(len(source) - 200), rng.integers(1, 200)
        texts.append(source[start : start + n])
        texts.append("".join(rng.choice([*text.ASCII], size=n)))
        texts.append("".join(rng.choice([*" \n\tab_.("], size=n)))
    code = """([metadata, texts]) => {
        const pairs = new BytePairs(metadata);
        return texts.map(text => {
            const tokens = pairs.encode(text);
            return [tokens, pairs.decode(tokens)];
        });
    }"""
    found = javascript.evaluate(code, [PAIRS.metadata, texts])
    for each, (tokens, again) in zip(texts, found, strict=True):
        assert tokens == PAIRS.encode(each).tolist() and again == each, repr(each)
    assert BytePairs.from_metadata(PAIRS.metadata).merges == PAIRS.merges


KNOBS = [
    {}, {"temperature": 0.1}, {"temperature": 2.0}, {"top_k": 1}, {"top_k": 5},
    {"top_p": 0.05}, {"top_p": 0.7}, {"top_p": 1.0},
    {"temperature": 0.5, "top_k": 7, "top_p": 0.8}, {"temperature": 1e-30},
]  # fmt: skip


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
def test_probabilities_equal_those_of_both_frameworks(javascript, knobs):
    logits = np.random.default_rng(6).normal(scale=3, size=(50, 61)).astype("float32")
    logits[:, 7] = logits[:, 3]  # equals: the lower number comes first
    names = {"temperature": "temperature", "top_k": "topK", "top_p": "topP"}
    options = {names[name]: value for name, value in knobs.items()}
    code = """([rows, options]) =>
        pack(rows.map(row => nextTokenProbabilities(row, options)))"""
    found = javascript.evaluate(code, [logits.tolist(), options])
    found = unpacked(found, *logits.shape)
    np.testing.assert_allclose(found.sum(-1), 1)
    for side in SIDES.values():
        tensor = side.tensor(logits)
        expected = as_numpy(side.models.next_token_probabilities(tensor, **knobs))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_tokens_are_drawn_as_often_as_they_are_probable(javascript):
    """By chances that the seed and the place decide, evenly from 0 to 1."""
    code = """p => {
        const places = Array.from({length: 20000}, (_, i) => i);
        const chances = places.map(i => chance(i % 100, i));
        const again = places.map(i => chance(i % 100, i));
        return [pack(chances), pack(again), chances.map(u => drawToken(p, u))];
    }"""
    p = [0.1, 0, 0.6, 0.3]
    chances, again, drawn = javascript.evaluate(code, p)
    u = np.sort(unpacked(chances, -1))
    assert chances == again and u[0] >= 0 and u[-1] < 1
    assert np.abs(u - (np.arange(len(u)) + 0.5) / len(u)).max() < 0.02
    np.testing.assert_allclose(np.bincount(drawn) / len(drawn), p, atol=0.02)
    assert javascript.evaluate("drawToken([0, 0.4, 0.5999], 0.99999)") == 2


# The weights of the built book

by_chapter = pytest.mark.parametrize("chapter", ["decoder", "translation"])


@pytest.fixture(scope="module")
def trained(html):
    """``(chapter, side) -> bytes`` of a file of weights."""
    folder = html / "_static" / "weights"
    return lambda chapter, side: (folder / f"{chapter}_{side}.safetensors").read_bytes()


@pytest.mark.book
@by_side
@by_chapter
def test_files_have_the_weights_that_the_pages_offer(executed, html, chapter, side):
    """The file to download, and the script of a model that the playground runs."""
    page, name = f"notebooks/{chapter}_{side}", f"{chapter}_{side}.safetensors"
    outputs = [
        output.data.get("text/html", "")
        for cell in executed(page).cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    (offered,) = re.findall(
        r'download="[^"]*" href="data:[^,]*,([^"]*)"', "".join(outputs)
    )
    folder = html / "_static" / "weights"
    data = (folder / name).read_bytes()
    assert data == b64decode(offered) and len(data) <= 2**20
    path = folder / f"{name}.js"
    assert path.exists() == (chapter in playground.KINDS)
    if path.exists():
        assert path.read_text() == playground.script(name, offered)
    built = (html / f"{page}.html").read_text("utf-8")
    assert f'download="{name}" href="../_static/weights/{name}"' in built
    assert offered[:80] not in built
    arrays = safetensors.numpy.load(data)
    assert {array.dtype for array in arrays.values()} == {np.dtype("float16")}


@pytest.mark.book
def test_the_published_weights_come_as_they_are(html):
    """As a script of at most 2.7 MB, in half precision."""
    name = "pretrained.safetensors"
    script = (html / "_static" / "weights" / f"{name}.js").read_text()
    assert script == playground.script(name, b64encode(PUBLISHED).decode())
    assert len(script) <= 2.7e6
    arrays = safetensors.numpy.load(PUBLISHED)
    assert {array.dtype for array in arrays.values()} == {np.dtype("float16")}


def is_greedy(logits, tokens):
    """Is each token the most probable one, but for the rounding that is allowed?"""
    chosen = np.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    return (chosen >= logits.max(axis=-1) - 2e-4).all()


def test_the_published_model_gives_the_same_numbers(javascript):
    """Logits and maps, on windows of the held-out text, with and without the cache."""
    params = safetensors.numpy.load(PUBLISHED)
    tokens = PAIRS.encode(text.load()["test"][:60_000])
    starts = np.random.default_rng(7).integers(len(tokens) - LENGTH, size=104)
    for length, some in ((15, starts[:100]), (LENGTH, starts[100:])):
        rows = np.array([tokens[start : start + length] for start in some])
        whole = write(javascript, params, SIZES, rows, length)
        steps = write(javascript, params, SIZES, rows, 1)
        for side in SIDES.values():
            model, pairs = side.models.load_language_model(text.PRETRAINED)
            assert pairs.metadata == PAIRS.metadata
            logits, maps = logits_and_maps(side, model, rows)
            for ours, its in (whole, steps):
                np.testing.assert_allclose(ours, logits, atol=1e-4, rtol=0)
                np.testing.assert_allclose(its, maps, atol=1e-5, rtol=0)


def source_rows(texts):
    """Rows of tokens without padding, and the same padded."""
    padded = dates.encode(texts)
    return [row[row >= 0] for row in padded], padded


@pytest.fixture(scope="module")
def written(javascript, trained):
    """``(side, texts) -> texts, probabilities, maps q k, tokens``, in JavaScript."""

    @cache
    def run(side, *texts):
        return write_dates(javascript, trained("translation", side), texts)

    return run


def write_dates(javascript, data, texts):
    code = """([data, sizes, sources, [begin, end, longest]]) => {
        const model = new Translator(unpack(data), sizes);
        return sources.map(source => {
            const cache = model.target.newCache(model.read(source));
            const [tokens, chances, rows] = [[], [], []];
            for (let token = begin; token !== end && tokens.length < longest;) {
                const [[logits], maps] = model.target.call([token], cache);
                const p = nextTokenProbabilities(logits);
                token = p.indexOf(Math.max(...p));
                tokens.push(token);
                chances.push(p[token]);
                rows.push(maps.at(-1).map(([row]) => row));
            }
            return [tokens, chances, rows];
        });
    }"""
    params = packed(safetensors.numpy.load(data))
    sources = [row.tolist() for row in source_rows(texts)[0]]
    ends = dates.BEGIN, dates.END, 11
    given = [params, TRAINED_DATES, sources, ends]
    tokens, chances, rows = zip(*javascript.evaluate(code, given), strict=True)
    texts = [dates.decode([row])[0] for row in tokens]
    return texts, chances, [np.array(row).mean(1) for row in rows], tokens


@pytest.fixture(scope="module")
def examples():
    """Days that no training has seen, each in one of the seven forms."""
    days = dates.split(DATES)["test"][:210]
    forms = [[*dates.FORMS][n % 7] for n in range(len(days))]
    return days, forms, [dates.write(*pair) for pair in zip(days, forms, strict=True)]


@pytest.mark.book
@by_side
def test_the_trained_translator_gives_the_same_numbers(
    javascript, trained, written, examples, side
):
    """Without padding in JavaScript, with padding in the frameworks."""
    data, (days, _, texts) = trained("translation", side), examples
    params, sizes = safetensors.numpy.load(data), TRAINED_DATES
    sources, padded = source_rows(texts)
    targets = dates.encode([day.isoformat() for day in days], target=True)[:, :-1]
    rows = [row.tolist() for row in sources], targets.tolist()
    found = javascript.evaluate(TRANSLATE, [packed(params), sizes, *rows, 1])
    found = [unpacked(part, -1) for part in found]
    longest = targets.shape[1]
    tokens = [
        (*row, *[dates.END] * longest)[:longest] for row in written(side, *texts)[3]
    ]
    before = np.array([(dates.BEGIN, *row[:-1]) for row in tokens])
    for side_of, model in in_both("Translator", params, DATES.model):
        given = [side_of.tensor(x, "int32") for x in (padded, targets)]
        logits, maps = model(*given, return_maps=True)
        cross = as_numpy(maps[2]).swapaxes(0, 1)  # b l h s k
        cut = [
            x[..., : len(row)].ravel() for x, row in zip(cross, sources, strict=True)
        ]
        expected = as_numpy(logits).ravel()
        np.testing.assert_allclose(found[0], expected, atol=1e-4, rtol=0)
        np.testing.assert_allclose(found[1], np.concatenate(cut), atol=1e-5, rtol=0)
        given[1] = side_of.tensor(before, "int32")
        logits, until = as_numpy(model(*given)), np.array(tokens) == dates.END
        own = until.cumsum(axis=1) - until == 0  # up to the end, and with it
        assert is_greedy(logits[own], np.array(tokens)[own])


def month_of(day, form, source):
    """Where the month stands in a written date."""
    month = dates.MONTHS[day.month - 1]
    if form == "dots":
        return slice(source.index(".") + 1, source.rindex("."))
    if form == "slashes":
        return slice(source.index("/"))
    start = source.index(month[:3])
    return slice(start, start + (len(month) if month in source else 3))


@pytest.mark.book
@by_side
def test_answers_about_the_translator_are_true(written, examples, side):
    """In the order of the page: the month, the 30th of February, years before 1950."""
    days, forms, texts = examples
    found, _, maps, _ = written(side, *texts)
    hits = [day.isoformat() == each for day, each in zip(days, found, strict=True)]
    assert np.mean(hits) > 0.98
    on_month, even = [], []  # weights, and what equal weights would give
    for weights, *example in zip(maps, days, forms, texts, strict=True):
        on_month.append(weights[6, month_of(*example)].sum())
        even.append(len(weights[6, month_of(*example)]) / weights.shape[1])
    assert np.mean(on_month) > 1.3 * np.mean(even)

    years = range(1950, 2050)
    no_days = [f"the 30th of February {year}" for year in years]
    found, chances, *_ = written(side, *no_days)
    copied = [each == f"{y}-02-30" for each, y in zip(found, years, strict=True)]
    assert np.mean(copied) > 0.9 and copied[1997 - 1950]
    assert np.mean([np.prod(p) for p in chances]) > 0.9

    early = [date(1900 + n % 50, 1 + n % 12, 1 + n % 28) for n in range(200)]
    sources = [dates.write(day, "of") for day in early]
    found, chances, *_ = written(side, *sources)
    third = [
        each[2] == day.isoformat()[2] for each, day in zip(found, early, strict=True)
    ]
    assert np.mean(third) < 0.5
    assert np.median([p[2] for p in chances]) > 0.9


@pytest.fixture(scope="module")
def continued(javascript):
    """``text -> tokens, p of the next token, maps l h s s``, in JavaScript."""
    params = safetensors.numpy.load(PUBLISHED)

    def run(beginning):
        tokens = PAIRS.encode(beginning)
        logits, maps = write(javascript, params, SIZES, tokens[None], len(tokens))
        return tokens, reference.softmax(logits[0, -1]), maps[0]

    return run


def numbers_without_spaces(*words):
    """Tokens that are one of these words."""
    return [n for n, token in enumerate(PAIRS.tokens) if token in words]


@pytest.mark.parametrize(
    ("beginning", "word", "least"),
    [("namespace at", " {", 0.8), ("import numpy as", " np", 0.6)],
)
def test_it_has_read_several_languages(continued, beginning, word, least):
    """The first answer about the model that writes."""
    _, p, _ = continued(beginning)
    assert PAIRS.tokens[p.argmax()] == word and p.max() > least


def test_underlines_are_as_long_as_headings(continued):
    for heading in ("See Also", "Returns", "Parameters"):
        _, p, _ = continued(f"{heading}\n")
        assert PAIRS.tokens[p.argmax()] == "-" * len(heading), heading
        assert p.max() > 0.5


def test_a_space_at_the_end_changes_the_next_tokens(continued):
    """The second answer."""
    tokens, p, _ = continued("if x is")
    words = [PAIRS.tokens.index(word) for word in (" not", " None")]
    assert sorted(words) == sorted(np.argsort(-p)[:2]) and p[words].sum() > 0.35
    longer, p, _ = continued("if x is ")
    assert longer[:-1].tolist() == tokens.tolist() and p[words].sum() < 0.1
    assert p[numbers_without_spaces("not", "None")].sum() < 0.1


def test_a_head_finds_what_followed_earlier(continued):
    """The example of the fifth answer."""
    tokens, p, maps = continued("x = gamma(delta) + gamma(")
    shown = [PAIRS.tokens[n] for n in tokens]
    n, first = len(shown) - 1, shown.index("(")
    assert shown[first] == shown[n] and shown[n - 1] == shown[first - 1]
    assert maps[2, 0, n].argmax() == n - 1 and maps[2, 0, n].max() > 0.7
    assert maps[3, 0, n].argmax() == first + 1 and maps[3, 0, n].max() > 0.7
    assert shown[first + 1] == "de" == PAIRS.tokens[p.argmax()]


@pytest.fixture(scope="module")
def held_out():
    """Tokens ``b s`` that no training has seen, and where each looks: ``l h b s s``."""
    tokens = PAIRS.encode(text.load()["test"][:60_000])
    rows = np.array(tokens[: 50 * LENGTH]).reshape(50, LENGTH)
    counts = MODEL["n_blocks"], MODEL["n_heads"]
    params = safetensors.numpy.load(PUBLISHED)
    _, maps = reference_models.modern_lm(rows, params, *counts)
    return rows, maps.swapaxes(1, 2)


def test_answer_about_the_layers_of_the_language_model_is_true(held_out):
    """Layer 0 looks far back, almost evenly; layer 2 least; a head sees line breaks."""
    (rows, maps), half = held_out, LENGTH // 2
    back = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    distance = (maps * np.tril(back)).sum(axis=-1)[..., half:].mean(axis=(1, 2, 3))
    assert distance.argmax() == 0 and distance.argmin() == 2
    even = np.arange(half, LENGTH).mean() / 2
    assert distance[0] > 0.8 * even and distance[2] < 5 < 10 < distance[3]
    breaks = np.char.startswith(np.array(PAIRS.tokens), "\n")[rows]  # b s
    share = breaks.cumsum(axis=-1) / np.arange(1, LENGTH + 1)  # of the tokens so far
    on_breaks = (maps * breaks[:, None]).sum(axis=-1).mean(axis=(2, 3))  # l h
    assert on_breaks[1, 3] > 2.5 * share.mean()
    assert on_breaks[1].argmax() == 3


def test_answer_about_induction_is_true(held_out):
    """Heads of layer 2 look one token back, heads of layer 3 behind the same token."""
    (rows, maps), half = held_out, LENGTH // 2
    one_back = maps.diagonal(offset=-1, axis1=-2, axis2=-1)[..., half:].mean((2, 3))
    assert (one_back[2, [0, 3]] > 0.7).all()
    same = (rows[:, :, None] == rows[:, None]) & np.tri(LENGTH, k=-1, dtype=bool)
    behind = np.zeros_like(same)
    behind[:, :, 1:] = same[:, :, :-1]  # b s s
    found = (maps * behind).sum(axis=-1)[..., half:].mean(axis=(2, 3))  # l h
    even = (behind.sum(axis=-1) / np.arange(1, LENGTH + 1))[:, half:].mean()
    assert (found[3, :2] > 0.2).all() and (found[3, :2] > 10 * even).all()
    assert np.sort(found[:3].ravel())[-1] < 3 * even


# What a reader does


def open_models(page, models, side="JAX"):
    page.get_by_role("button", name=side, exact=True).click()
    told = {"writes": "published weights", "translates": f"weights trained in {side}"}
    for what in models:
        page.get_by_role("button", name=f"Open the model that {what}").click()
        place = {"writes": ".writing", "translates": ".translating"}[what]
        said = f"The model runs with the {told[what]}."
        expect(page.locator(f"{place} .loading")).to_have_text(said)
    return page


@pytest.fixture
def reader(new_reader):
    """Opens the page, and a model on it."""

    def visit(*models, side="JAX", **options):
        page = new_reader(**options)
        page.open(PAGE)
        return open_models(page, models, side)

    return visit


@pytest.fixture(scope="module")
def opened(browser, address):
    """The page with both models open, for tests that type something new."""
    context = new_context(browser, **STILL)
    page = watch(context.new_page())
    page.goto(f"{address}/{PAGE}")
    yield open_models(page, ("writes", "translates"))
    context.close()


def texts_of(page, selector):
    return page.locator(selector).all_inner_texts()


def tokens_of(page):
    """The tokens of the text, white space made visible."""
    return texts_of(page, ".seen span")


def numbers_of(shown):
    """Tokens as numbers, from what the page shows of them."""
    signs = str.maketrans(" \n\t", "␣⏎⇥")
    numbers = {token.translate(signs): n for n, token in enumerate(PAIRS.tokens)}
    return [numbers[token] for token in shown]


def stop_the_clock(page):
    """From now on a run goes on when the test says so, in all tabs of the window."""
    page.clock.install(time=0)
    page.clock.pause_at(1)


def write_to_the_end(page):
    page.get_by_role("button", name="Run").click()
    page.clock.run_for(PAUSE * LENGTH)
    expect(page.locator(".state")).to_contain_text("here the model ends")
    expect(page.get_by_role("button", name="Run")).to_be_disabled()


def prompt_and_more(page):
    """The text, and what of it the model has written."""
    whole = page.locator("#writing").input_value()
    return whole, texts_of(page, ".seen span.new")


@pytest.mark.book
def test_weights_are_loaded_only_when_a_model_is_opened(reader):
    """The published ones once: they are the same for both frameworks."""
    page = reader()

    def asked():
        return [url.rpartition("/")[2] for url in page.asked if "/weights/" in url]

    assert asked() == []
    size = re.compile(r"^Open the model that writes \(\d\.\d MiB\)$")
    page.get_by_role("button", name=size).click()
    expect(page.locator(".writing .state")).to_contain_text("tokens")
    page.get_by_role("button", name="Open the model that translates").click()
    said = page.locator(".translating .loading")
    for side in ("JAX", "PyTorch", "JAX"):
        page.get_by_role("button", name=side, exact=True).click()
        expect(said).to_contain_text(f"trained in {side}")
        expect(page.locator(".writing .loading")).to_contain_text("published weights")
    dates_too = [f"translation_{side}.safetensors.js" for side in ("jax", "torch")]
    assert asked() == ["pretrained.safetensors.js", *dates_too]
    assert len({url.split("/")[2] for url in page.asked if "://" in url}) == 1
    assert page.complaints == []


@pytest.mark.book
def test_weights_that_are_missing_are_reported_and_asked_for_again(reader):
    page = reader()
    page.route("**/weights/*", lambda route: route.abort())
    page.get_by_role("button", name="Open the model that translates").click()
    said = page.locator(".translating .loading")
    expect(said).to_contain_text("translation_jax.safetensors could not be loaded")
    page.unroute("**/weights/*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".target .letter").first).to_be_visible()
    expect(said).to_have_text("The model runs with the weights trained in JAX.")


@pytest.mark.book
def test_the_page_works_without_a_server(html, browser):
    page = new_context(browser).new_page()
    page.goto((html / PAGE).as_uri())
    page.get_by_role("button", name="Open the model that writes").click()
    expect(page.locator(".writing .state")).to_contain_text("tokens")
    page.context.close()


@pytest.mark.book
def test_greedy_text_is_that_of_python(reader):
    """Token for token, until all positions are in use; then it goes in circles."""
    page = reader("writes", own=True)
    stop_the_clock(page)
    page.get_by_label("greedy").check()
    expect(page.get_by_label("temperature")).to_be_disabled()
    write_to_the_end(page)
    whole, new = prompt_and_more(page)
    prompt = PAIRS.encode(playground.PROMPT)
    assert len(prompt) + len(new) == LENGTH
    its = numbers_of(new)
    assert playground.PROMPT + PAIRS.decode(its) == whole
    tokens = np.array([[*prompt, *its]])
    for side in SIDES.values():
        model, _ = side.models.load_language_model(text.PRETRAINED)
        logits = as_numpy(model(side.tensor(tokens[:, :-1], "int32")))
        assert is_greedy(logits[:, len(prompt) - 1 :], tokens[:, len(prompt) :])
    half = LENGTH // 2
    in_circles, drawn = len(set(its[-half:])), []
    page.get_by_label("greedy").uncheck()
    for seed in range(3):
        page.get_by_label("seed").fill(str(seed))
        page.get_by_role("button", name="Start again").click()
        write_to_the_end(page)
        drawn.append(len(set(prompt_and_more(page)[1][-half:])))
    assert min(drawn) > in_circles
    assert page.complaints == []


@pytest.mark.book
def test_a_token_is_appended_by_pressing_it(reader):
    page = reader("writes")
    page.get_by_label("Beginning of a text").fill("if x is")
    rows = page.locator("ol.next button")
    expect(rows).to_have_count(10)
    numbers = [float(x) for x in texts_of(page, "ol.next .number")]
    assert numbers == sorted(numbers, reverse=True) and 0.5 < sum(numbers) <= 1.01
    expected = [PAIRS.tokens[n].replace(" ", "␣") for n in PAIRS.encode("if x is")]
    assert tokens_of(page) == expected
    n, second = len(expected) + 1, rows.nth(1)
    name = second.locator(".token").inner_text()
    assert name in ("␣not", "␣None")
    second.focus()
    second.press("Enter")
    text_now = f"if x is{name.replace('␣', ' ')}"
    expect(page.locator("#writing")).to_have_value(text_now)
    said = page.locator(".writing .said")
    expect(said).to_contain_text(f"Appended: space {name[1:]}, probability 0.")
    assert tokens_of(page)[-1] == name and texts_of(page, ".seen .new") == [name]
    expect(page.locator(".state")).to_contain_text(
        f"{n} of {LENGTH} tokens; 1 position computed"
    )
    page.get_by_role("button", name="One token").click()
    expect(page.locator(".state")).to_contain_text(
        f"{n + 1} of {LENGTH} tokens; 1 position computed"
    )
    page.get_by_role("button", name="Start again").click()
    expect(page.locator("#writing")).to_have_value("if x is")
    expect(said).to_have_text("")
    expect(page.locator(".seen .new")).to_have_count(0)
    assert page.complaints == []


def looked_at(page):
    """The chosen token, and the shares of the strongest colour that its keys have."""
    chosen, colours = page.locator(".seen label").evaluate_all("""all => [
        all.findIndex(n => n.firstChild.checked),
        all.map(n => +n.lastChild.style.getPropertyValue('--chance'))]""")
    return chosen, np.array(colours)


def radios_of(page):
    """The tokens of the text, one of which is chosen."""
    return page.get_by_role("radiogroup", name="The text as").get_by_role("radio")


def says_where(page, shown, row, weights):
    """The sentence has the largest weight, as its token has, and how far back it is."""
    said = page.locator(".writing .readout").inner_text()
    pattern = r"(.*?) \(([\d.]+)\); .* looks ([\d.]+) tokens back\."
    who, largest, back = re.fullmatch(pattern, said).groups()
    best = int(weights.argmax())
    assert who == f"“{shown[row]}” at {row} looks most at “{shown[best]}” at {best}"
    assert float(largest) == pytest.approx(weights[best], abs=0.0051)
    mean = weights @ (row - np.arange(len(shown)))
    assert float(back) == pytest.approx(mean, abs=0.051)
    label = radios_of(page).nth(best).get_attribute("aria-label")
    assert label.endswith(f", weight {largest}")


def maps_by_option(shown):
    """Maps ``s s`` of PyTorch's model for shown tokens, by what is chosen."""
    model, _ = torch_side.models.load_language_model(text.PRETRAINED)
    rows = np.array([numbers_of(shown)])
    (maps,) = logits_and_maps(torch_side, model, rows)[1]  # l h s s
    found = {
        f"layer {n}, mean of heads": maps[n].mean(axis=0) for n in range(len(maps))
    }
    heads = {f"layer {n}, head {h}": maps[n, h] for n, h in np.ndindex(maps.shape[:2])}
    return found | heads


@pytest.mark.book
def test_colours_are_the_weights_of_the_chosen_token(reader):
    """Of each layer and head: the last token, one chosen by keys, one by a press."""
    page = reader("writes")
    for _ in range(3):
        page.get_by_role("button", name="One token").click()
    shown = tokens_of(page)
    last, maps = len(shown) - 1, maps_by_option(shown)
    radios = radios_of(page)
    choose = {
        last: lambda: radios.nth(last).focus(),
        last - 1: lambda: page.keyboard.press("ArrowLeft"),  # as in all such groups
        5: lambda: page.locator(".seen span").nth(5).click(),
    }
    for row, act in choose.items():
        act()
        for option, weights in maps.items():
            page.get_by_label("Attention of").select_option(option)
            chosen, colours = looked_at(page)
            assert chosen == row
            weights = weights[row]
            np.testing.assert_allclose(colours, weights / weights.max(), atol=1e-3)
            says_where(page, shown, row, weights)
    expect(radios.nth(last)).to_have_accessible_name(re.compile("not visible"))
    assert page.complaints == []


@pytest.mark.book
def test_the_newest_token_is_chosen_unless_another_one_is(reader):
    page = reader("writes")
    one = page.get_by_role("button", name="One token")
    n = len(tokens_of(page))
    one.click()
    assert looked_at(page)[0] == n
    page.locator(".seen span").nth(4).click()
    one.click()
    chosen, colours = looked_at(page)
    assert chosen == 4 and len(colours) == n + 2 and (colours[5:] == 0).all()
    page.locator(".seen span").last.click()
    one.click()
    assert looked_at(page)[0] == n + 2
    page.locator(".seen span").nth(4).click()
    page.get_by_label("Beginning of a text").fill("if x is")
    chosen, colours = looked_at(page)
    assert chosen == len(colours) - 1 == len(tokens_of(page)) - 1
    page.get_by_label("Beginning of a text").fill("")
    page.get_by_label("Attention of").select_option(
        "0 1"
    )  # of no token: nothing to see
    expect(page.locator(".seen")).to_be_hidden()
    assert page.complaints == []


@pytest.mark.book
def test_a_run_can_be_stopped_and_repeated(reader):
    """The same seed draws the same tokens; the cache changes the work only."""
    page = reader("writes", own=True)
    stop_the_clock(page)
    page.get_by_role("button", name="Run").click()
    page.clock.run_for(2 * PAUSE)
    expect(page.locator(".seen .new")).to_have_count(3)
    page.get_by_role("button", name="Stop").click()
    page.clock.run_for(PAUSE)
    expect(page.locator(".writing .said")).to_have_text("3 tokens written.")
    page.clock.run_for(9 * PAUSE)
    expect(page.locator(".seen .new")).to_have_count(3)
    write_to_the_end(page)
    whole = page.locator("#writing").input_value()
    expect(page.locator("ol.next button:enabled")).to_have_count(0)
    expect(page.locator(".state")).to_contain_text("1 position computed")
    page.get_by_label("key–value cache").uncheck()
    page.get_by_role("button", name="Start again").click()
    expect(page.locator("#writing")).to_have_value(playground.PROMPT)
    write_to_the_end(page)
    expect(page.locator("#writing")).to_have_value(whole)
    expect(page.locator(".state")).to_contain_text(f"{LENGTH} positions computed")
    page.get_by_label("key–value cache").check()
    page.get_by_label("seed").fill("1")
    page.get_by_role("button", name="Start again").click()
    write_to_the_end(page)
    assert page.locator("#writing").input_value() != whole
    assert page.complaints == []


@pytest.mark.book
def test_knobs_change_the_probabilities(reader):
    page = reader("writes")
    page.get_by_label("Beginning of a text").fill("    def __init__(")
    number = page.locator("ol.next .number").first
    before = float(number.inner_text())
    page.get_by_label("temperature").press("Home")
    expect(page.locator("output[for=temperature]")).to_have_text("0.1")
    assert float(number.inner_text()) > before
    page.get_by_label("temperature").press("End")
    expect(page.locator("output[for=temperature]")).to_have_text("2.0")
    assert float(number.inner_text()) < before
    page.get_by_label("top-k").press("Home")
    for _ in range(2):
        page.get_by_label("top-k").press("ArrowRight")
    expect(page.locator("output[for=top-k]")).to_have_text("3")
    shown = texts_of(page, "ol.next .number")
    assert shown.count("–") == 7 and "–" not in shown[:3]
    page.get_by_label("temperature").press("Home")  # of these three tokens, too
    expect(page.locator("output[for=temperature]")).to_have_text("0.1")
    assert float(number.inner_text()) > float(shown[0])
    page.get_by_label("top-k").press("End")
    page.get_by_label("top-p").press("Home")
    expect(page.locator("output[for=top-p]")).to_have_text("0.05")
    assert texts_of(page, "ol.next .number") == ["1.00", *9 * ["–"]]


@pytest.mark.book
@pytest.mark.parametrize(
    ("typed", "kept", "said"),
    [
        ("x = 1\t# ok\n", "x = 1\t# ok\n", ""),
        ("größe = π", "gre = ", "“ö”, “ß”, “π”: left out"),
        ("a🙂b", "ab", "“🙂”: left out, for the model knows only the 97 characters"),
        ("", "", ""),
    ],
)
def test_unknown_characters_are_left_out_with_a_message(opened, typed, kept, said):
    page = opened
    page.get_by_label("Beginning of a text").fill(typed)
    expect(page.locator("#writing")).to_have_value(kept)
    expect(page.locator("#writing-refused")).to_contain_text(said)
    if not kept:
        expect(page.locator(".state")).to_have_text("Type a beginning.")
        expect(page.get_by_role("button", name="One token")).to_be_disabled()
        expect(page.locator("ol.next")).to_be_hidden()
    assert page.complaints == []


@pytest.mark.book
def test_a_text_that_is_too_long_is_cut(opened):
    page = opened
    field = page.get_by_label("Beginning of a text")
    field.fill(69 * "?!\n")
    said = page.locator("#writing-refused")
    expect(said).to_contain_text(f"only the first {LENGTH} tokens are kept")
    assert len(tokens_of(page)) == LENGTH
    expect(page.locator(".state")).to_contain_text("here the model ends")
    field.fill("def f(x):\n    return x")
    field.evaluate("n => n.setSelectionRange(4, 5)")
    page.keyboard.type("ä")  # in the middle: the caret stays there
    assert field.evaluate("n => n.selectionStart") == 4
    page.keyboard.type("g")
    expect(field).to_have_value("def g(x):\n    return x")


def translation(page):
    """What stands in the lower row."""
    return "".join(texts_of(page, ".target button:not(.unused) .letter"))


@pytest.mark.book
@by_side
def test_a_date_is_translated_and_lines_follow(reader, side):
    page = reader("translates", side=pages.NAMES[side], **STILL)
    day = dates.split(DATES)["test"][0]
    buttons = page.locator(".examples button")
    assert buttons.all_inner_texts() == [dates.write(day, form) for form in dates.FORMS]
    for i in range(7):
        buttons.nth(i).click()
        expect(page.locator(".translating .verdict")).to_contain_text(day.isoformat())
        assert translation(page) == f"{day.isoformat()}end"
    page.get_by_label("Date").fill("3.4.97")
    expect(page.locator(".translating .verdict")).to_contain_text("writes 1997-04-03")
    lines = page.locator(".translation line")
    month = page.locator(".target button").nth(6)
    for act in (month.hover, month.focus, month.click):
        page.locator(".target button").first.click()
        act()
        expect(month).to_have_attribute("aria-pressed", "true")
        ends = lines.evaluate_all("all => all.map(n => +n.getAttribute('x2'))")
        np.testing.assert_allclose(ends, 6.5 / 11)
    widths = lines.evaluate_all("all => all.map(n => [n, 'x1', 'stroke-width']"
        ".slice(1).map(name => +n.getAttribute(name)))")  # fmt: skip
    at, weight = zip(*[(x, w / 12) for x, w in widths], strict=True)
    assert np.sum(weight) == pytest.approx(1, abs=0.1)
    widest = at[int(np.argmax(weight))] * len("3.4.97") - 0.5
    place = round(widest)
    assert widest == pytest.approx(place)
    said = page.locator(".translating p.readout").inner_text()
    start = f"To write “4”, it looks most at “{'3.4.97'[place]}” at {place} ("
    assert said.startswith(start)
    shown = float(said.removeprefix(start).split(")")[0])
    assert shown == pytest.approx(max(weight), abs=0.011)  # both are rounded
    found = {said}
    for head in range(DATES.n_heads):
        page.get_by_label("lines show").select_option(f"layer 0, head {head}")
        found.add(page.locator(".translating p.readout").inner_text())
    assert len(found) == 1 + DATES.n_heads  # each head looks in its own way
    assert page.complaints == []


WATCH = """() => {
    window.seen = [];
    const row = document.querySelector('.target');
    const look = () => {
        const shown = row.querySelectorAll('button:not(.unused)');
        const now = [shown.length, [...shown].findIndex(n => n.ariaPressed === 'true')];
        if (shown.length && seen.at(-1)?.[0] !== now[0]) seen.push(now);
    };
    new MutationObserver(look).observe(row, {subtree: true, attributes: true});
}"""


@pytest.mark.book
def test_lines_follow_as_the_output_is_written(reader):
    """Without reduced motion, a character comes after the other."""
    page = reader("translates")
    shown = page.locator(".target button:not(.unused)")
    expect(page.locator(".translating .verdict")).to_contain_text("writes")
    page.mouse.move(0, 0)  # a mouse that lies over a character chooses it
    page.evaluate(WATCH)  # from here on
    page.get_by_role("button", name="Write it again").press("Enter")
    ends = "all => all.map(n => +n.getAttribute('x2'))"
    expect(page.locator(".translating .verdict")).to_contain_text("writes")
    expect(shown).to_have_count(11)
    seen = page.evaluate("seen")  # how many characters, which one is chosen
    assert seen == [[n + 1, n] for n in range(11)]
    assert set(page.locator(".translation line").evaluate_all(ends)) == {10.5 / 11}


@pytest.mark.book
@pytest.mark.parametrize(
    ("typed", "kept", "said"),
    [
        ("3.$3€.97", "3.3.97", "“$”, “€”: left out"),
        ("", "", ""),
        (40 * "1", 32 * "1", "only the first 32 characters are kept"),
    ],
)
def test_what_no_date_has_is_left_out(opened, typed, kept, said):
    page = opened
    page.get_by_label("Date").fill(typed)
    expect(page.get_by_label("Date")).to_have_value(kept)
    expect(page.locator("#date-refused")).to_contain_text(said)
    verdict = page.locator(".translating .verdict")
    expect(verdict).to_contain_text("The model writes" if kept else "Type a date.")
    assert page.complaints == []


@pytest.mark.book
def test_all_can_be_done_by_keyboard(reader):
    page = reader()
    page.get_by_role("button", name="Open the model that translates").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".translating .verdict")).to_contain_text("writes")
    page.keyboard.press("Tab")  # from the place to its first control
    assert page.evaluate("document.activeElement.id") == "date"
    for _ in range(8):
        page.keyboard.press("Tab")
    expect(page.locator(".target button").first).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".target button").nth(1)).to_have_attribute(
        "aria-pressed", "true"
    )
    page.get_by_role("button", name="Open the model that writes").focus()
    page.keyboard.press("Space")
    expect(page.locator(".writing .state")).to_contain_text("tokens")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "writing"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".seen .new")).to_have_count(1)


@pytest.mark.book
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "phone"])
def test_opened_models_are_accessible_and_fit(reader, size):
    page = reader("writes", "translates", viewport=size, **STILL)
    expect(page.locator(".translating .verdict")).to_contain_text("writes")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    inside = """all => all.filter(n => n.getBoundingClientRect().right > innerWidth
        || n.scrollWidth > n.clientWidth + 1).map(n => n.outerHTML.slice(0, 99))"""
    boxes = ".opens p, .translation, .opens ol, .letters button, .opens textarea"
    boxes += ", .seen"
    assert page.locator(boxes).evaluate_all(inside) == []
    assert page.complaints == []
    if size == NARROW:
        assert serious_in_both_colours(page) == {"light": [], "dark": []}


@pytest.mark.book
def test_page_without_scripts_says_what_the_models_write(new_reader):
    page = new_reader(java_script_enabled=False)
    page.open(PAGE)
    writes, translates, _ = page.locator(".opens .without-scripts").all()
    expect(writes).to_be_visible()
    assert re.search(r"After self\. the model finds \S+ with \d+%", writes.inner_text())
    day = dates.split(DATES)["test"][0]
    said = f"“{dates.write(day, 'of')}” the model that was trained in JAX writes {day}."
    expect(translates).to_contain_text(said)
    assert not [url for url in page.asked if "/weights/" in url]
