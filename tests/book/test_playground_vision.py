"""The model that sees: the same numbers in JavaScript, and a page to draw on."""

import math
import re
from base64 import b64decode
from itertools import pairwise

import numpy as np
import pytest
import safetensors.numpy
from playwright.sync_api import expect

import pages
import playground
import reference_models
from browsing import (
    DRAWN,
    NARROW,
    WIDE,
    new_context,
    serious_in_both_colours,
    watch,
)
from helpers import reference
from helpers.data import pictures
from helpers.engine.settings import Pictures
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays
from models_in_javascript import halved, packed, unpacked
from sides import fill, jax_side, torch_side

PAGE = "book/playground.html"
SETTINGS = Pictures()
SIDES = {"jax": jax_side, "torch": torch_side}
B, L, H, D, P, F, C = 200, 2, 3, 7, 5, 13, 11
SIZE, N_CHANNELS, M = 3 * P, 2, H * D
by_side = pytest.mark.parametrize("side", pages.SIDES)

SEE = """([data, sizes, images]) => {
    const model = new VisionTransformer(unpack(data), sizes);
    const {images: numbers} = unpack(images), shape = sizes.shape;
    const found = fold(numbers, shape).map(image => model.call(image));
    return [0, 1].map(which => pack(found.map(pair => pair[which])));
}"""


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
    expected, its_maps = reference_models.vision_transformer(
        images, params, P, L, H, return_maps=True
    )
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


@pytest.mark.book
@by_side
def test_files_have_the_weights_that_the_pages_offer(executed, html, side):
    """The file to download and the script: what the page's link contained, ≤ 1 MiB."""
    page, name = f"notebooks/vision_{side}", f"vision_{side}.safetensors"
    outputs = [
        output.data.get("text/html", "")
        for cell in executed(page).cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    link = rf'download="{name}" href="data:[^,]*,([^"]*)"'
    (offered,) = re.findall(link, "".join(outputs))
    folder = html / "_static" / "weights"
    data = (folder / name).read_bytes()
    assert data == b64decode(offered) and len(data) <= 2**20
    assert (folder / f"{name}.js").read_text() == playground.script(name, offered)
    built = (html / f"{page}.html").read_text("utf-8")
    assert f'download="{name}" href="../_static/weights/{name}"' in built


def without_patch(counts, which):
    """Pictures ``b y x`` in which one patch of each is empty."""
    n, patch = SETTINGS.image_size, SETTINGS.patch
    cut = counts.reshape(-1, n // patch, patch, n // patch, patch).copy()
    y, x = np.divmod(which, n // patch)
    cut[np.arange(len(cut)), y, :, x] = 0
    return cut.reshape(counts.shape)


@pytest.mark.book
@by_side
def test_answers_about_the_vision_transformer_are_true(
    javascript, answered, unseen, side
):
    """In the order of the page: shifts, normalisation, empty paper, attention."""
    images, labels = unseen
    counts = np.rint(images[..., 0] * FULL).astype(int)

    def shift(down, right):
        moved = pictures.shifted(counts[..., None], down, right)[..., 0]
        found, p, _ = answered(side, moved)
        return (found == labels).mean(), p[found != labels].mean()

    ways = (-1, 0), (1, 0), (0, -1), (0, 1)  # up, down, left, right
    assert np.mean([shift(*way)[0] for way in ways]) > 0.85
    twice = [shift(2 * down, 2 * right) for down, right in ways]
    right, sure = np.transpose(twice)
    assert right.mean() < 0.5 and sure.mean() > 0.5
    assert right[:2].mean() < right[2:].mean() / 1.5

    small, truth = drawings(10, seed=1), np.repeat(np.arange(10), 10)
    small = [in_corner(each, (0.28, 0.28), 0.4) for each in small]
    found, _, _ = answered(side, pictures_of(javascript, small))
    assert (found == truth).mean() > 0.75
    found, p, _ = answered(side, pictures_of(javascript, small, False))
    assert (found == truth).mean() < 0.4
    assert p[found != truth].mean() > 3 / 10  # a guess has one tenth

    _, (p,), _ = answered(side, 0 * counts[:1])
    assert p > 0.5

    found, _, weights = answered(side, counts)
    n, patch = SETTINGS.image_size, SETTINGS.patch
    ink = counts.reshape(-1, n // patch, patch, n // patch, patch).sum(axis=(2, 4))
    ink = ink.reshape(len(ink), -1)
    first, last = weights[:, 0], weights[:, -1]
    together = [np.corrcoef(w.ravel(), ink.ravel())[0, 1] for w in (first, last)]
    assert together[0] < -0.1 and together[1] > 0.1
    read = found == labels
    still = [
        (answered(side, without_patch(counts[read], which[read]))[0] == labels[read])
        for which in (last.argmax(1), last.argmin(1), ink.argmax(1))
    ]
    most, least, _ = np.mean(still, axis=1)
    assert 0.5 < most < least - 0.05
    assert np.mean(still[0] & ~still[2]) > 0.1  # often the ink matters more


# What a reader does


def open_model(page, side="JAX"):
    page.get_by_role("button", name=side, exact=True).click()
    page.get_by_role("button", name="Open the model that sees").click()
    said = f"The model runs with the weights trained in {side}."
    expect(page.locator(".seeing .loading")).to_have_text(said)
    return page


@pytest.fixture
def reader(new_reader):
    """Opens the page, and the model on it."""

    def visit(side="JAX", **options):
        page = new_reader(**options)
        page.open(PAGE)
        return open_model(page, side)

    return visit


@pytest.fixture(scope="module")
def opened(browser, address):
    """The page with the model open."""
    page = watch(new_context(browser).new_page())
    page.goto(f"{address}/{PAGE}")
    yield open_model(page)
    page.context.close()


@pytest.fixture
def seeing(opened):
    """The same as if it was just opened: the model has a test digit before it."""
    opened.get_by_role("button", name="Test digit 0, number 1").click()
    opened.mouse.move(0, 0)
    expect(opened.locator(".seeing .verdict")).to_contain_text("The label says 0.")
    return opened


def counts_on(page):
    """What the model gets, as a screen reader hears it."""
    labels = page.locator(".seeing [role=gridcell]").evaluate_all(
        "all => all.map(n => n.ariaLabel)"
    )
    found = [re.fullmatch(r"row (\d), column (\d): (\d+) of 16", x) for x in labels]
    counts = np.zeros((8, 8), int)
    for match in found:
        y, x, count = map(int, match.groups())
        counts[y, x] = count
    return counts


def probabilities_on(page):
    return [float(x) for x in page.locator(".classes .number").all_inner_texts()]


def best_of(page):
    return int(page.locator(".classes .best .token").inner_text())


def place_on_paper(page):
    """``x, y`` from 0 to 1 on the paper, as pixels of the window."""
    paper = page.locator(".paper")
    paper.evaluate("n => n.scrollIntoView({block: 'center', behavior: 'instant'})")
    box = paper.bounding_box()
    return lambda x, y: (box["x"] + x * box["width"], box["y"] + y * box["height"])


def draw(page, strokes):
    """With the mouse."""
    at = place_on_paper(page)
    for first, *others in strokes:
        page.mouse.move(*at(*first))
        page.mouse.down()
        for point in others:
            page.mouse.move(*at(*point), steps=4)
        page.mouse.up()


@pytest.mark.book
def test_weights_are_loaded_only_when_the_model_is_opened(new_reader):
    page = new_reader()
    page.open(PAGE)
    page.get_by_role("button", name="JAX", exact=True).click()
    assert not [url for url in page.asked if "/weights/" in url]
    page.get_by_role(
        "button", name=re.compile(r"model that sees \(0\.\d MiB\)")
    ).click()
    expect(page.locator(".seeing .verdict")).to_contain_text("The model says 0")
    page.get_by_role("button", name="PyTorch", exact=True).click()
    expect(page.locator(".seeing .loading")).to_contain_text("trained in PyTorch")
    page.get_by_role("button", name="JAX", exact=True).click()
    expect(page.locator(".seeing .loading")).to_contain_text("trained in JAX")
    asked = [url.rpartition("/")[2] for url in page.asked if "/weights/" in url]
    assert asked == [f"vision_{side}.safetensors.js" for side in ("jax", "torch")]
    assert len({url.split("/")[2] for url in page.asked if "://" in url}) == 1
    assert page.complaints == []


@pytest.mark.book
@pytest.mark.parametrize(("side", "size"), [("jax", WIDE), ("torch", NARROW)])
def test_probabilities_follow_the_mouse_while_drawing(reader, javascript, side, size):
    page = reader(pages.NAMES[side], viewport=size)
    at, seen = place_on_paper(page), []
    verdict = page.locator(".seeing .verdict")
    for digit in (1, 7, 0):
        page.get_by_role("button", name="Clear").click()
        (points,) = STROKES[digit]
        page.mouse.move(*at(*points[0]))
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*at(*point), steps=3)
            seen.append(tuple(probabilities_on(page)))
            assert sum(seen[-1]) == pytest.approx(1, abs=0.05)
        expect(verdict).to_have_attribute("aria-busy", "true")
        before = page.locator(".paper").bounding_box()
        page.mouse.up()
        expect(verdict).to_have_attribute("aria-busy", "false")
        assert page.locator(".paper").bounding_box() == before  # nothing jumps
        assert best_of(page) == digit
        expect(verdict).to_contain_text(f"The model says {digit}, with a probability")
        page.mouse.move(*at(0.1, 0.9))  # with no button pressed
        (expected,) = pictures_of(javascript, [STROKES[digit]])
        assert np.abs(counts_on(page) - expected).mean() < 0.5
    assert len(set(seen)) > 10
    assert page.complaints == []


def touches(page, points, kind="touch"):
    """One finger, or a pen, from point to point of the window."""
    devtools = page.context.new_cdp_session(page)

    def send(name, x=None, y=None):
        if kind == "touch":
            at = [] if x is None else [{"x": x, "y": y}]
            event = {"type": f"touch{name}", "touchPoints": at}
            devtools.send("Input.dispatchTouchEvent", event)
        else:
            names = {
                "Start": "mousePressed",
                "Move": "mouseMoved",
                "End": "mouseReleased",
            }
            x, y = points[-1] if x is None else (x, y)
            event = {"type": names[name], "x": x, "y": y, "pointerType": "pen"}
            event |= {"button": "left", "buttons": int(name != "End"), "clickCount": 1}
            devtools.send("Input.dispatchMouseEvent", event)

    send("Start", *points[0])
    for start, end in pairwise(points):
        for part in np.linspace(0, 1, 5)[1:]:
            send("Move", *(np.array(start) + part * np.subtract(end, start)))
    send("End")
    page.evaluate(DRAWN)


PHONE = {"viewport": NARROW, "has_touch": True, "is_mobile": True}


@pytest.mark.book
@pytest.mark.parametrize("kind", ["touch", "pen"])
def test_fingers_and_pens_draw_and_the_page_stays(reader, kind):
    page = reader(**PHONE)
    at = place_on_paper(page)
    top = page.evaluate("scrollY")
    page.get_by_role("button", name="Clear").evaluate("n => n.click()")
    touches(page, [at(*point) for point in STROKES[1][0]], kind)
    expect(page.locator(".classes .best .token")).to_have_text("1")
    assert page.evaluate("scrollY") == top
    drawn, line = counts_on(page), page.locator(".paper path")
    touches(page, [at(*point) for point in STROKES[7][0]], kind)
    expect(line).to_have_attribute("d", re.compile("^M[^M]+M[^M]+$"))
    assert (counts_on(page) != drawn).any()  # two strokes, one drawing
    if kind == "touch":  # the same way beside the paper scrolls
        touches(page, [at(1.3, 0.9), at(1.3, 0.1)], kind)
        page.wait_for_function("top => scrollY > top", arg=top)
    assert page.complaints == []


@pytest.mark.book
def test_a_second_finger_and_the_right_button_draw_nothing(seeing):
    page = seeing
    at = place_on_paper(page)
    before = counts_on(page)
    page.mouse.move(*at(0.3, 0.3))
    page.mouse.down(button="right")
    page.mouse.move(*at(0.7, 0.7))
    page.mouse.up(button="right")
    np.testing.assert_array_equal(counts_on(page), before)
    page.locator(".paper").dispatch_event(
        "pointerdown", {"isPrimary": False, "button": 0, "pointerId": 7}
    )
    np.testing.assert_array_equal(counts_on(page), before)
    page.mouse.click(*at(0.5, 0.5))  # a dot
    assert (counts_on(page) != before).any()
    page.mouse.down()
    page.mouse.move(*at(2, 0.5))  # beyond the edge: the line ends there
    page.mouse.up()
    assert counts_on(page).sum() > 0
    assert page.complaints == []


@pytest.mark.book
@by_side
def test_colours_are_the_weights_of_the_class_token(reader, trained, side):
    """In each layer, for each head and their mean; the numbers are those of NumPy."""
    page = reader(pages.NAMES[side])
    draw(page, STROKES[2])
    images = counts_on(page)[None, :, :, None] / FULL
    _, maps = reference_models.vision_transformer(
        images, trained(side), SETTINGS.patch, SETTINGS.n_blocks, SETTINGS.n_heads,
        return_maps=True,
    )  # fmt: skip
    maps, n = maps[:, 0, :, 0], SETTINGS.image_size // SETTINGS.patch  # l h s
    chooser = page.get_by_label("Colours show")
    assert chooser.input_value() == f"{SETTINGS.n_blocks - 1}"  # the mean of the last
    for layer in range(SETTINGS.n_blocks):
        for head in (None, *range(SETTINGS.n_heads)):
            chooser.select_option(f"{layer}" if head is None else f"{layer} {head}")
            own, *expected = maps[layer].mean(0) if head is None else maps[layer, head]
            patches = page.locator(".patches li")
            said = [f"row {i // n}, column {i % n}: " for i in range(n**2)]
            heard = patches.evaluate_all("all => all.map(n => n.textContent)")
            assert [x[:-4] for x in heard] == said
            found = [float(x[-4:]) for x in heard]
            np.testing.assert_allclose(found, expected, atol=0.0051)
            colours = patches.evaluate_all(
                "all => all.map(n => +n.style.getPropertyValue('--chance'))"
            )
            np.testing.assert_allclose(
                colours, np.array(expected) / max(expected), atol=1e-3
            )
            first = f"at {said[int(np.argmax(expected))][:-2]} ({max(expected):.2f})"
            expect(page.locator(".seeing .readout")).to_contain_text(first)
            expect(page.locator(".seeing .readout")).to_contain_text(f"{own:.2f}")
    assert page.complaints == []


@pytest.mark.book
def test_test_digits_are_shifted_and_come_back(seeing, unseen):
    page = seeing
    digits = page.get_by_role("button", name="Test digit")
    expect(digits).to_have_count(20)
    names = digits.evaluate_all("all => all.map(n => n.ariaLabel)")
    assert names == [f"Test digit {n // 2}, number {n % 2 + 1}" for n in range(20)]
    known = {tuple(x) for x in np.rint(unseen[0] * FULL).reshape(-1, 64).astype(int)}
    for i in (0, 7, 19):
        digits.nth(i).click()
        expect(digits.nth(i)).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".test-digits [aria-pressed=true]")).to_have_count(1)
        whole = counts_on(page)
        assert tuple(whole.ravel()) in known
        verdict = page.locator(".seeing .verdict")
        expect(verdict).to_contain_text(f"The label says {i // 2}.")
    for word, by in {"down": (1, 0), "right": (0, 1)}.items():
        page.get_by_role("button", name=f"Shift {word} by one pixel").click()
        expected = pictures.shifted(whole[None, ..., None], *by)[0, ..., 0]
        whole, before = expected, whole
        np.testing.assert_array_equal(counts_on(page), expected)
    expect(verdict).to_contain_text("Shifted by 1 down and 1 right.")
    for word in ("up", "left"):  # what was outside comes in again
        page.get_by_role("button", name=f"Shift {word} by one pixel").click()
    assert tuple(counts_on(page).ravel()) in known and (whole != before).any()
    expect(verdict).not_to_contain_text("Shifted")
    for _ in range(10):
        page.get_by_role("button", name="Shift up by one pixel").click()
    expect(verdict).to_contain_text("Shifted by 8 up.")
    assert not counts_on(page).any()


@pytest.mark.book
def test_normalisation_can_be_switched_off(reader):
    page = reader()
    draw(page, in_corner(STROKES[7], (0.3, 0.3), 0.4))
    whole = counts_on(page)
    assert whole[[0, -1]].any(axis=1).all() and best_of(page) == 7
    page.get_by_label("normalise the drawing").uncheck()
    assert not counts_on(page)[5:].any() and not counts_on(page)[:, 5:].any()
    page.get_by_label("normalise the drawing").check()
    np.testing.assert_array_equal(counts_on(page), whole)
    page.get_by_role("button", name="PyTorch", exact=True).click()
    expect(page.locator(".seeing .loading")).to_contain_text("trained in PyTorch")
    np.testing.assert_array_equal(counts_on(page), whole)  # the drawing stays
    at = place_on_paper(page)
    page.mouse.move(*at(0.2, 0.2))
    page.mouse.down()
    page.get_by_role("button", name="Clear").press("Enter")
    page.mouse.move(*at(0.5, 0.5))  # the line has ended
    page.mouse.up()
    assert not counts_on(page).any() and page.complaints == []
    expect(page.locator(".paper path")).to_have_attribute("d", "")


@pytest.mark.book
def test_all_can_be_done_by_keyboard(new_reader):
    page = new_reader()
    page.open(PAGE)
    page.get_by_role("button", name="Open the model that sees").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".seeing .verdict")).to_contain_text("The model says")
    page.keyboard.press("Tab")  # from the place to its first control
    expect(page.get_by_role("button", name="Clear")).to_be_focused()
    page.keyboard.press("Enter")
    assert not counts_on(page).any()
    for _ in range(6):  # four ways to shift, the switch, then a pixel
        page.keyboard.press("Tab")
    focused = "document.activeElement.ariaLabel"
    assert page.evaluate(focused) == "row 0, column 0: 0 of 16"
    top = page.evaluate("scrollY")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "Space", "ArrowUp"):
        page.keyboard.press(key)
    for _ in range(8):  # ends at the edge
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
    assert page.evaluate("scrollY") == top
    assert page.evaluate(focused) == "row 7, column 3: 0 of 16"  # painted, and erased
    page.keyboard.press("Space")
    counts = counts_on(page)
    assert (counts[:, 3] == FULL).sum() == 8 == (counts > 0).sum()
    assert best_of(page) == 1
    page.keyboard.press("Tab")
    expect(page.get_by_label("Colours show")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.locator(".seeing .verdict")).to_contain_text("The label says 0.")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(focused).startswith("row 7, column 3")  # where it was left
    assert page.complaints == []


@pytest.mark.book
def test_a_pixel_is_painted_by_a_press(seeing):
    page = seeing
    page.get_by_role("button", name="Shift down by one pixel").click()
    before = counts_on(page)
    cell = page.locator(".seeing [role=gridcell]").nth(8 * 4 + 6)
    cell.click()
    after = counts_on(page)
    assert after[4, 6] == (0 if before[4, 6] else FULL)
    assert (after != before).sum() == 1  # and the shift is kept
    expect(page.locator(".seeing .verdict")).not_to_contain_text("label")
    cell.click()
    assert counts_on(page)[4, 6] == (0 if after[4, 6] else FULL)


@pytest.mark.book
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "phone"])
def test_the_opened_model_is_accessible_and_fits(reader, size):
    page = reader(viewport=size)
    draw(page, STROKES[3])
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    inside = """all => all.filter(n => n.getBoundingClientRect().right > innerWidth
        || n.scrollWidth > n.clientWidth + 1).map(n => n.outerHTML.slice(0, 99))"""
    boxes = ".seeing p, .sights, .sights > div, .sight, .classes li"
    assert page.locator(boxes).evaluate_all(inside) == []
    for sight in page.locator(".sight").all():
        box = sight.bounding_box()
        assert (
            box["width"] == pytest.approx(box["height"], abs=1) and box["width"] > 160
        )
    assert page.complaints == []
    if size == NARROW:
        assert serious_in_both_colours(page) == {"light": [], "dark": []}


@pytest.mark.book
def test_page_without_scripts_shows_a_test_digit(new_reader):
    page = new_reader(java_script_enabled=False)
    page.open(PAGE)
    text = page.locator(".seeing .without-scripts")
    expect(text).to_contain_text(
        re.compile(r"sees a 0, with a probability of [01]\.\d\d")
    )
    picture = text.get_by_role("img", name="The test digit, coloured")
    expect(picture).to_be_visible()
    expect(picture.locator(".patch")).to_have_count(16)
    assert picture.bounding_box()["width"] > 100
    assert not [url for url in page.asked if "/weights/" in url]
