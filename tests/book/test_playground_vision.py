"""The model that sees: the same numbers in JavaScript, and a page to draw on."""

import math
import re

import numpy as np
import pytest
import safetensors.numpy
from playwright.sync_api import expect

import pages
import playground
from browsing import NARROW, WIDE, serious_in_both_colours
from comparison import JAVASCRIPT
from helpers import pictures, reference
from helpers.settings import Pictures
from helpers.shapes import as_numpy
from helpers.weights import from_arrays
from sides import fill, jax_side, torch_side
from test_playground_decoders import LIBRARY, halved, packed, unpacked

PAGE = "book/playground.html"
SETTINGS = Pictures()
SIDES = {"jax": jax_side, "torch": torch_side}
B, L, H, D, P, F, C = 200, 2, 3, 7, 5, 13, 11
SIZE, N_CHANNELS, M = 3 * P, 2, H * D
by_side = pytest.mark.parametrize("side", pages.SIDES)

FOLD = """
const fold = (numbers, [n, ...rest]) => n === undefined ? numbers[0] : Array.from(
    {length: n}, (_, i) => fold(numbers.slice(
        i * numbers.length / n, (i + 1) * numbers.length / n), rest));
"""
SEE = """([data, sizes, images]) => {
    const model = new VisionTransformer(unpack(data), sizes);
    const {images: numbers} = unpack(images), shape = sizes.shape;
    const found = fold(numbers, shape).map(image => model.call(image));
    return [0, 1].map(which => pack(found.map(pair => pair[which])));
}"""


@pytest.fixture(scope="module")
def javascript(browser):
    """A page with the models in JavaScript and nothing else."""
    page = browser.new_page()
    for name in playground.SCRIPTS:
        page.add_script_tag(path=JAVASCRIPT.with_name(name))
    page.add_script_tag(content=LIBRARY + FOLD)
    yield page
    page.close()


def see(javascript, params, sizes, images):
    """Logits ``b c`` and maps ``b l h s s`` in JavaScript."""
    given = packed({"images": images.astype(np.float32)})
    sizes = sizes | {"shape": images.shape}
    found = javascript.evaluate(SEE, [packed(params), sizes, given])
    s = (images.shape[1] // sizes["patch"]) ** 2 + ("token" in params)
    b, heads = len(images), (sizes["nBlocks"], sizes["nHeads"])
    return unpacked(found[0], b, -1), unpacked(found[1], b, *heads, s, s)


def in_both(params, images, sizes):
    """Logits and maps of both frameworks with these weights."""
    for side in SIDES.values():
        model = side.build("VisionTransformer", **sizes)
        from_arrays(model, params)
        logits, maps = model(side.tensor(images), return_maps=True)
        yield as_numpy(logits), as_numpy(maps).swapaxes(0, 1)


def agrees(found, params, images, sizes):
    """Within the bounds that the page states, with both frameworks."""
    for logits, maps in in_both(params, images, sizes):
        np.testing.assert_allclose(found[0], logits, atol=1e-4, rtol=0)
        np.testing.assert_allclose(found[1], maps, atol=1e-5, rtol=0)


def small(**options):
    """Sizes, all different primes, and halved weights, biases and norms too."""
    sizes = {
        "image_size": SIZE, "n_channels": N_CHANNELS, "m": M, "n_outputs": C,
        "patch": P, "n_blocks": L, "n_heads": H, "f": F, **options,
    }  # fmt: skip
    return sizes, halved(fill(torch_side.build("VisionTransformer", **sizes), seed=3))


IMAGES = np.random.default_rng(4).random((B, SIZE, SIZE, N_CHANNELS), np.float32)
SMALL = {"nBlocks": L, "nHeads": H, "patch": P}


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("pool", ["token", "mean"])
def test_the_vision_transformer_agrees_with_both_frameworks(
    javascript, norm_first, positions, pool
):
    sizes, params = small(norm_first=norm_first, positions=positions, pool=pool)
    found = see(javascript, params, SMALL | {"normFirst": norm_first}, IMAGES)
    agrees(found, params, IMAGES, sizes)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_the_vision_transformer_agrees_with_the_reference(javascript, pool, positions):
    """In double precision, where nothing but rounding may differ."""
    _, params = small(pool=pool, positions=positions)
    images = IMAGES[:9]
    logits, maps = see(javascript, params, SMALL | {"normFirst": True}, images)
    expected, its_maps = reference.vision_transformer(images, params, L, H, P)
    np.testing.assert_allclose(logits, expected, atol=1e-9)
    np.testing.assert_allclose(maps, its_maps.swapaxes(0, 1), atol=1e-12)


def test_gelu_is_exact_to_rounding(javascript):
    """Not the approximation by tanh, which is off by up to 5e-4."""
    x = np.concatenate([np.linspace(-12, 12, 4801), [0, 1e-300, -1e-9, 40, -40]])
    found = unpacked(javascript.evaluate("x => pack(gelu([x]))", x.tolist()), -1)
    np.testing.assert_allclose(found, reference.gelu(x), rtol=1e-12, atol=1e-14)
    far = javascript.evaluate("[NaN, Infinity, -Infinity].map(erf)")
    assert math.isnan(far[0]) and far[1:] == [1, -1]


@pytest.mark.parametrize("patch", [1, 3, 5, 15])
def test_patches_are_cut_as_in_both_frameworks(javascript, patch):
    code = "([images, patch]) => pack(images.map(image => cutPatches(image, patch)))"
    images = IMAGES[:3]
    found = unpacked(javascript.evaluate(code, [images.tolist(), patch]), -1)
    for side in SIDES.values():
        expected = as_numpy(side.models.cut_patches(side.tensor(images), patch))
        np.testing.assert_array_equal(found, expected.ravel())


# From a drawing to a picture

FIT = playground.digits(SETTINGS) | {"imageSize": SETTINGS.image_size}
FULL = playground.BLOCK**2
SIDE = SETTINGS.image_size * playground.BLOCK


def arc(x, y, width, height, start, end, n=24):
    """Points of an ellipse; angles in degrees from the right, downwards positive."""
    t = np.radians(np.linspace(start, end, n))
    return np.stack([x + width * np.cos(t), y + height * np.sin(t)], axis=1).tolist()


STROKES = [
    [arc(0.5, 0.5, 0.22, 0.35, -90, 270)],
    [[[0.5, 0.15], [0.5, 0.85]]],
    [[*arc(0.5, 0.33, 0.2, 0.18, -180, 30), [0.3, 0.85], [0.72, 0.85]]],
    [[*arc(0.48, 0.32, 0.2, 0.17, -160, 80), *arc(0.48, 0.67, 0.22, 0.18, -80, 160)]],
    [[[0.45, 0.15], [0.28, 0.6], [0.75, 0.6]], [[0.62, 0.4], [0.6, 0.88]]],
    [[[0.7, 0.15], [0.35, 0.15], *arc(0.48, 0.63, 0.22, 0.22, -120, 140)]],
    [[[0.62, 0.13], [0.42, 0.35], [0.3, 0.6], *arc(0.5, 0.66, 0.2, 0.19, 180, -180)]],
    [[[0.28, 0.15], [0.72, 0.15], [0.45, 0.85]]],
    [[*arc(0.5, 0.32, 0.17, 0.17, 90, -270), *arc(0.5, 0.68, 0.2, 0.19, -90, 270)]],
    [[*arc(0.48, 0.34, 0.2, 0.19, 0, -360), [0.68, 0.34], [0.64, 0.85]]],
]


def drawings(n, seed=0):
    """Each digit ``n`` times, by a hand that is never quite the same."""
    rng, found = np.random.default_rng(seed), []
    for strokes in STROKES:
        for _ in range(n):
            turn = np.eye(2) + rng.normal(0, 0.06, (2, 2))
            hand = [
                (np.array(points) - 0.5) @ turn + rng.normal(0, 0.006, (len(points), 2))
                for points in strokes
            ]
            found.append([np.clip(points + 0.5, 0, 1).tolist() for points in hand])
    return found


def in_corner(drawing, corner, size=0.5):
    """The drawing, smaller, with its middle somewhere else."""
    return [(size * (np.array(x) - 0.5) + corner).tolist() for x in drawing]


def pictures_of(javascript, drawings, normalised=True):
    """Counts ``b y x`` of drawings in JavaScript."""
    code = """([drawings, normalised, settings]) =>
        drawings.map(strokes => pictureOf(strokes, normalised, settings))"""
    return np.array(javascript.evaluate(code, [drawings, normalised, FIT]))


def test_drawings_become_pictures_like_those_of_the_data(javascript):
    """Of the same height, width, place and ink; measured on the pictures themselves."""
    parts, _ = pictures.load("digits", SETTINGS.seed)
    real = np.rint(parts["train"][0][..., 0] * FULL)
    drawn = pictures_of(javascript, drawings(20))
    assert drawn.min() == 0 and drawn.max() == FULL == real.max()

    def measures(counts):
        ink = counts.sum(axis=(1, 2))
        columns = counts.sum(axis=1) / ink[:, None]
        middle = (columns * np.arange(SETTINGS.image_size)).sum(axis=1)
        return ink, middle, columns[:, [0, -1]].sum(axis=1)

    for counts in (real, drawn):
        used = (counts > 0).any(axis=2)
        assert used[:, [0, -1]].all()  # from the upper edge to the lower one
    for its, ours in zip(measures(real), measures(drawn), strict=True):
        assert abs(its.mean() - ours.mean()) < its.std()
    assert np.abs(measures(drawn)[0] - FIT["ink"]).mean() < 0.05 * FIT["ink"]


def test_place_and_size_of_a_drawing_do_not_matter(javascript):
    """Unless it is not normalised."""
    whole = drawings(3)
    corner = [in_corner(each, (0.3, 0.7)) for each in whole]
    pair = [pictures_of(javascript, each) for each in (whole, corner)]
    upright = np.arange(len(whole)) // 3 != 1  # not the 1: narrower than the pen
    assert np.abs(pair[0] - pair[1])[upright].mean() < 0.02 * FULL
    pair = [pictures_of(javascript, each, False) for each in (whole, corner)]
    assert np.abs(pair[0] - pair[1]).mean() > 0.05 * FULL


@pytest.mark.parametrize("drawing", [[], [[[0.2, 0.9]]], [[[0, 0], [1, 0]]]], ids=len)
def test_nothing_a_dot_and_a_line_are_pictures_too(javascript, drawing):
    for normalised in (True, False):
        (counts,) = pictures_of(javascript, [drawing], normalised)
        assert counts.shape == (SETTINGS.image_size,) * 2
        assert counts.min() >= 0 and (counts.sum() > 0) == bool(drawing)


def test_strokes_have_the_width_of_the_pen(javascript):
    """A bitmap is on where a pixel's centre is within half a width of the stroke."""
    strokes = [[[5, 7], [25, 20]], [[16, 28]]]
    found = javascript.evaluate("([s, n]) => bitmap(s, n, 5)", [strokes, SIDE])
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    near = np.full((SIDE, SIDE), np.inf)
    for points in strokes:
        for t in np.linspace(0, 1, 2001):
            at = (1 - t) * np.array(points[0]) + t * np.array(points[-1])
            near = np.minimum(near, np.hypot(x - at[0], y - at[1]))
    sure = np.abs(near - 2.5) > 1e-3
    np.testing.assert_array_equal(np.array(found)[sure], (near <= 2.5)[sure])


@pytest.mark.parametrize("slope", [-0.4, 0, 0.3])
def test_slanted_digits_are_put_upright(javascript, slope):
    """Each row is shifted as a whole: the left edge gets vertical, no pixel is lost."""
    rows = np.zeros((SIDE, SIDE), int)
    for y in range(2, SIDE - 1):
        start = 14 + round(slope * (y - SIDE / 2))
        rows[y, start : start + 4] = 1
    found = np.array(javascript.evaluate("rows => upright(rows)", rows.tolist()))
    np.testing.assert_array_equal(found.sum(1), rows.sum(1))
    edge = found[2:-1].argmax(axis=1)
    assert np.abs(edge - 14).max() <= 1


def test_counts_are_those_of_blocks(javascript):
    rows = np.random.default_rng(8).integers(2, size=(SIDE, SIDE))
    code = "([rows, block]) => countBlocks(rows, block)"
    found = javascript.evaluate(code, [rows.tolist(), playground.BLOCK])
    n = SETTINGS.image_size
    expected = rows.reshape(n, playground.BLOCK, n, -1).sum(axis=(1, 3))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("by", [(0, 0), (1, 0), (-2, 3), (0, -1), (8, 0)], ids=str)
def test_pictures_are_shifted_as_on_the_pages(javascript, by):
    images = np.random.default_rng(9).integers(FULL + 1, size=(4, 8, 8, 1))
    code = "([images, by]) => images.map(image => moved(image, ...by))"
    found = javascript.evaluate(code, [images[..., 0].tolist(), by])
    expected = images * 0 if 8 in by else pictures.shifted(images, *by)
    np.testing.assert_array_equal(found, expected[..., 0])


# The weights of the built book

SIZES = playground.sizes(SETTINGS, 0) | {"patch": SETTINGS.patch}


@pytest.fixture(scope="module")
def trained(html):
    """``side -> params``: the weights in the files of the book."""
    folder = html / "_static" / "weights"
    return lambda side: safetensors.numpy.load_file(
        folder / f"vision_{side}.safetensors"
    )


@pytest.fixture(scope="module")
def unseen():
    """Pictures that no training has seen, and their labels."""
    return pictures.load("digits", SETTINGS.seed)[0]["test"]


@pytest.mark.book
@by_side
def test_the_trained_vision_transformer_gives_the_same_numbers(
    javascript, trained, unseen, side
):
    """On all test digits, and on random pictures."""
    noise = np.random.default_rng(10).random((200, *unseen[0].shape[1:]), np.float32)
    images = np.concatenate([unseen[0].astype(np.float32), noise])
    found = see(javascript, trained(side), SIZES, images)
    agrees(found, trained(side), images, SETTINGS.model)
    answers = found[0][: len(unseen[1])].argmax(-1)
    assert (answers == unseen[1]).mean() > 0.93


@pytest.fixture(scope="module")
def answered(javascript, trained):
    """``(side, counts b y x) -> classes, probabilities, weights b l n``."""

    def run(side, counts):
        images = np.array(counts)[..., None] / FULL
        logits, maps = see(javascript, trained(side), SIZES, images)
        p = reference.softmax(logits)
        return p.argmax(-1), p.max(-1), maps.mean(axis=2)[:, :, 0, 1:]

    return run


@pytest.mark.book
@by_side
def test_drawn_digits_are_recognised(javascript, answered, side):
    """Written by no hand of the training, they need the same normalisation."""
    found, _, _ = answered(side, pictures_of(javascript, drawings(10)))
    assert (found == np.repeat(np.arange(10), 10)).mean() > 0.8
