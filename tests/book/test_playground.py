"""The models in the browser: the same numbers as NumPy, and a reader's run."""

import json
from base64 import b64decode

import numpy as np
import pytest
import safetensors.numpy
from browsing import HTML, NARROW, list_all, serious_in_both_colours
from playwright.sync_api import expect

import pages
import playground
import reference_models
from helpers.data.byte_pairs import BytePairs

pytestmark = pytest.mark.book
PAGE = "book/playground.html"
SETTINGS = playground.SETTINGS
STATIC = pages.ROOT / "book" / "_static"
LIBRARY = """
const models = {};
const oneHot = digit => Array.from({length: 10}, (_, i) => Number(i === digit));
const inSteps = (model, tokens, cache) =>
    tokens.map(token => model.call([token], cache)[0][0]);
const KINDS = {  // a model, a call, and the same token by token, with its cache
    reverse: [Predictor, (model, x) => model.call(x.map(oneHot))],
    vision: [VisionTransformer,
        (model, x) => model.call(x.map(row => transpose([row])))],
    pretrained: [ModernLM, (model, x) => model.call(x),
        (model, x) => inSteps(model, x, model.newCache())],
    translation: [Translator, (model, [source, target]) => model.call(source, target),
        (model, [source, target]) => inSteps(
            model.target, target, model.target.newCache(model.read(source)))],
};
const run = ([key, chapter, data, settings, inputs]) => {
    const [Model, call, steps] = KINDS[chapter];
    models[key] ??= new Model(readSafetensors(readBase64(data)), settings);
    const model = models[key];
    return inputs.map(x => [...call(model, x), steps?.(model, x) ?? null]);
};
"""


@pytest.fixture(scope="module")
def javascript(windows):
    """A page with the models in JavaScript and nothing else."""
    page = windows().new_page()
    for name in ("transformer", "playground", "seeing"):
        page.add_script_tag(path=STATIC / f"{name}.js")
    page.add_script_tag(content=LIBRARY)
    yield page
    page.close()


def weights(chapter, side):
    """The file of weights of the built book, in base64."""
    name = chapter if chapter == "pretrained" else f"{chapter}_{side}"
    text = (HTML / "_static" / "weights" / f"{name}.safetensors.js").read_text("ascii")
    return text.split('"')[-2]


def run(javascript, chapter, side, inputs):
    """Logits and maps of each input in JavaScript; logits token by token, if any."""
    inputs = [x.tolist() if isinstance(x, np.ndarray) else x for x in inputs]
    given = [chapter + side, chapter, weights(chapter, side), SETTINGS[chapter], inputs]
    return [*zip(*javascript.evaluate("run", given), strict=True)]


def in_numpy(chapter, side, inputs):
    """Logits and maps by the reference in float64."""
    params = safetensors.numpy.load(b64decode(weights(chapter, side)))
    s = SETTINGS[chapter]
    counts, x = (s["nBlocks"], s["nHeads"]), np.array(inputs, dtype=object)
    if chapter == "reverse":
        return reference_models.predictor(np.eye(10)[x.astype(int)], params, *counts)
    if chapter == "pretrained":
        return reference_models.modern_lm(x.astype(int), params, *counts)
    if chapter == "vision":
        images = x[..., None].astype(float)
        return reference_models.vision_transformer(images, params, 2, *counts)
    pair = [np.array(each) for each in zip(*inputs, strict=True)]
    logits, _, maps = reference_models.translator(*pair, params, *counts, True)
    return logits, maps


CASES = [(name, side) for name in SETTINGS for side in pages.SIDES]
CASES.remove(("pretrained", "torch"))  # its one file serves both


@pytest.mark.parametrize(("chapter", "side"), CASES)
def test_numbers_are_those_of_numpy(javascript, chapter, side):
    """Logits and attention maps; with a cache, token by token, the logits again."""
    rng = np.random.default_rng(5)
    sizes = {"reverse": (10, 16), "pretrained": (900, 31), "translation": (40, 28)}
    if chapter == "vision":
        inputs = [*(rng.integers(17, size=(3, 8, 8)) / 16)]
    else:
        n, length = sizes[chapter]
        inputs = [*rng.integers(n, size=(3, length))]
    if chapter == "translation":
        inputs = [[row[:17].tolist(), row[17:].tolist()] for row in inputs]
    logits, maps, steps = run(javascript, chapter, side, inputs)
    expected, expected_maps = in_numpy(chapter, side, inputs)
    np.testing.assert_allclose(logits, expected, atol=1e-8)
    np.testing.assert_allclose(maps, np.moveaxis(expected_maps, 1, 0), atol=1e-10)
    if chapter in ("pretrained", "translation"):
        np.testing.assert_allclose(steps, expected, atol=1e-8)


def test_tokens_are_those_of_python(javascript):
    """Of source code cut anywhere, and white space in runs."""
    data, rng = b64decode(weights("pretrained", "jax")), np.random.default_rng(5)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    pairs = BytePairs.from_metadata(header["__metadata__"])
    source = pages.sources()[0].read_text("utf-8").encode("ascii", "ignore").decode()
    texts = ["", "\n    \n\t x", "if x is ", "___a1 b"]
    texts += ["".join(rng.choice([*" \n\tab_.("], size=50)) for _ in range(50)]
    texts += [source[start : start + 100] for start in range(0, 9_000, 90)]
    code = """([metadata, texts]) => {
        const pairs = new BytePairs(metadata);
        const both = tokens => [tokens, pairs.decode(tokens)];
        return texts.map(text => both(pairs.encode(text)));
    }"""
    found = javascript.evaluate(code, [pairs.metadata, texts])
    assert found == [[pairs.encode(text).tolist(), text] for text in texts]


STROKES = [[0.28, 0.15], [0.72, 0.15], [0.45, 0.85]]  # a 7, from 0 to 1


def open_model(page, what):
    page.get_by_role("button", name=f"Open the model that {what}").press("Enter")


def test_a_run_by_mouse(visit):
    """Each model answers at once; weights come when a model is opened, or switched."""
    page = visit(PAGE, reduced_motion="reduce")
    asked = lambda: [url for url in page.asked if "/weights/" in url]  # noqa: E731
    field = page.get_by_label("Digits")
    field.fill("1234567890123456")
    verdict = page.locator(".reversing .verdict")
    expect(verdict).to_have_text("16 of 16 places are right.")
    page.get_by_role("button", name="silence key 2, digit 3").click()
    expect(verdict).to_contain_text("15 of 16")
    page.get_by_label("positions").uncheck()
    expect(verdict).not_to_contain_text("15 of 16")
    page.get_by_role("button", name="As trained").click()
    expect(page.get_by_role("gridcell")).to_have_count(256)
    page.get_by_role("button", name="JAX", exact=True).click()
    expect(page.locator(".reversing .loading")).to_contain_text("trained in JAX")
    expect(verdict).to_contain_text("16 of 16")
    assert [url.split("/")[-1] for url in asked()] == [
        f"reverse_{side}.safetensors.js" for side in ("torch", "jax")
    ]
    for what in ("writes", "translates", "sees"):
        page.get_by_role("button", name=f"Open the model that {what}").click()
    expect(page.locator(".writing .state")).to_contain_text("tokens")
    page.get_by_label("greedy").check()
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".writing .state")).to_contain_text("here the model ends")
    text = page.locator("#writing").input_value()
    assert text.startswith(SETTINGS["pretrained"]["prompt"])
    page.locator(".seen span").nth(4).click()
    expect(page.locator(".writing .readout")).to_contain_text("at 4 looks most at")
    page.get_by_role("button", name="August 26th, 1952").click()
    verdict = page.locator(".translating .verdict")
    expect(verdict).to_contain_text("The model writes 1952-08-26")
    page.locator(".target button").nth(6).hover()
    expect(page.locator(".translating .readout")).to_contain_text("To write “8”")
    paper = page.locator(".paper")
    paper.scroll_into_view_if_needed()
    box = paper.bounding_box()
    at = [
        (box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in STROKES
    ]
    page.mouse.move(*at[0])
    page.mouse.down()
    for point in at[1:]:
        page.mouse.move(*point, steps=4)
    page.mouse.up()
    expect(page.locator(".seeing .verdict")).to_contain_text("The model says 7")
    page.get_by_role("button", name="Test digit 3, number 1").click()
    expect(page.locator(".seeing .verdict")).to_contain_text("The label says 3.")
    assert page.complaints == []
    assert len({url.split("/")[2] for url in page.asked if "://" in url}) == 1


def test_a_run_by_keyboard(visit):
    page = visit(PAGE, reduced_motion="reduce")
    page.get_by_label("Digits").focus()
    page.keyboard.press("Home")
    page.keyboard.type("99")  # full: typed over
    assert page.get_by_label("Digits").input_value()[:2] == "99"
    page.get_by_label("sharpness of the softmax").press("Home")
    expect(page.locator("output[for=sharpness]")).to_have_text("× 1/32")
    page.get_by_role("button", name="silence key 0,").press("Space")
    expect(page.locator("attention-viewer .label.silent")).to_have_count(1)
    open_model(page, "writes")
    expect(page.locator(".writing .state")).to_contain_text("tokens")
    page.keyboard.press("Tab")
    expect(page.locator("#writing")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".seen .new")).to_have_count(1)
    number = page.locator("ol.next .number").first
    before = float(number.inner_text())
    page.get_by_label("temperature").press("Home")
    assert float(number.inner_text()) > before
    page.get_by_role("radiogroup").get_by_role("radio").last.press("ArrowLeft")
    expect(page.locator(".seen .later")).to_have_count(1)
    open_model(page, "translates")
    verdict = page.locator(".translating .verdict")
    expect(verdict).to_contain_text("The model writes")  # it has come
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("3.4.97")
    expect(verdict).to_contain_text("The model writes 1997-04-03")
    page.locator(".target button").first.focus()
    page.keyboard.press("Tab")
    expect(page.locator(".target button").nth(1)).to_have_attribute(
        "aria-pressed", "true"
    )
    open_model(page, "sees")
    page.get_by_role("button", name="Clear").press("Enter")
    page.locator(".seeing [role=gridcell]").nth(3).focus()
    for _ in range(8):
        page.keyboard.press("Space")
        page.keyboard.press("ArrowDown")
    cells = page.locator(".seeing [role=gridcell]")
    labels = cells.evaluate_all("all => all.map(n => n.ariaLabel)")
    assert sum(label.endswith("16 of 16") for label in labels) in (7, 8)
    assert page.complaints == []


def test_unknown_characters_are_left_out_with_a_message(visit):
    page = visit(PAGE, reduced_motion="reduce")
    for what in ("writes", "translates"):
        open_model(page, what)
    cases = [
        ("digits", "12a4", "124", "“a”: left out, for the model knows only the digits"),
        ("digits", "<img src=x onerror=alert(1)>", "1", "and others"),
        ("digits", "12345678901234567", "1234567890123456", "only the first 16 digits"),
        ("writing", "a🙂b", "ab", "“🙂”: left out, for the model knows only the 97"),
        ("writing", 69 * "?!\n", None, "only the first 128 tokens are kept"),
        ("date", "3.$3€.97", "3.3.97", "“$”, “€”: left out"),
        ("date", 40 * "1", 32 * "1", "only the first 32 characters are kept"),
    ]
    for field, typed, kept, said in cases:
        page.locator(f"#{field}").fill(typed)
        expect(page.locator(f"#{field}-refused")).to_contain_text(said)
        if kept is not None:
            assert page.locator(f"#{field}").input_value() == kept
    assert page.complaints == []


def test_opened_models_are_accessible_and_fit_a_phone(visit):
    page = visit(PAGE, viewport=NARROW, reduced_motion="reduce")
    for what in ("writes", "translates", "sees"):
        open_model(page, what)
    expect(page.locator(".translating .verdict")).to_contain_text("writes")
    expect(page.locator(".seeing .verdict")).to_contain_text("says")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    inside = """all => all.filter(n => n.getBoundingClientRect().right > innerWidth
        || n.scrollWidth > n.clientWidth + 1).map(n => n.outerHTML.slice(0, 99))"""
    boxes = ".playground :is(p, ol, .translation, .letters button, textarea, .sights)"
    list_all(page.locator(boxes).evaluate_all(inside))
    list_all(serious_in_both_colours(page))
