"""The model in JavaScript computes what the other two do, and one can play with it."""

import json
import re
from base64 import b64decode, b64encode

import numpy as np
import pytest
import safetensors.numpy
from playwright.sync_api import expect

import pages
import reference_models
from browsing import NARROW, WIDE
from comparison import JAVASCRIPT, javascript
from helpers.data.sequences import one_hot, symbols
from helpers.engine.settings import Reverse
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays
from sides import fill, jax_side, torch_side

PAGE, CODE = "book/playground", "book/comparison"
SETTINGS = Reverse()
RUN = """([data, digits, options, nBlocks, nHeads]) => {
    const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
    const model = new Predictor(readSafetensors(bytes.buffer), {nBlocks, nHeads});
    const oneHot = digit => Array.from({length: 10}, (_, i) => Number(i === digit));
    const pairs = JSON.parse(digits).map(row => model.call(row.map(oneHot), options));
    return [0, 1].map(which => {  // as bytes: a list of numbers takes seconds
        const list = pairs.map(pair => pair[which]).flat(Infinity);
        const letters = new Uint8Array(Float64Array.from(list).buffer);
        return btoa(Array.from(letters, byte => String.fromCharCode(byte)).join(''));
    });
}"""


@pytest.fixture(scope="module")
def run_javascript(browser):
    """``(params, digits, …) -> logits b s c, maps b l h s s``, from JavaScript."""
    page = browser.new_page()
    page.add_script_tag(path=JAVASCRIPT)

    def run(
        params, digits, blocks=SETTINGS.n_blocks, heads=SETTINGS.n_heads, **options
    ):
        data = b64encode(safetensors.numpy.save(params)).decode()
        text = json.dumps(digits.tolist())
        found = page.evaluate(RUN, [data, text, options, blocks, heads])
        logits, maps = (np.frombuffer(b64decode(part)) for part in found)
        b, s = digits.shape
        return logits.reshape(b, s, -1), maps.reshape(b, blocks, heads, s, s)

    yield run
    page.close()


def in_both(params, digits, mask=None):
    """Logits ``b s c`` and maps ``b l h s s`` of both frameworks with these weights."""
    x = one_hot(digits, SETTINGS.n_symbols)
    for side in (jax_side, torch_side):
        model = side.build("Predictor", **SETTINGS.model)
        from_arrays(model, params)
        mask = None if mask is None else side.mask(mask)
        logits, maps = side.models.attention_maps(model, side.tensor(x), mask)
        yield as_numpy(logits), as_numpy(maps).swapaxes(0, 1)


def agrees(found, params, digits):
    """Within the bounds that the page states, with both frameworks."""
    logits, maps = found
    for other_logits, other_maps in in_both(params, digits):
        np.testing.assert_allclose(logits, other_logits, atol=1e-4, rtol=0)
        np.testing.assert_allclose(maps, other_maps, atol=1e-5, rtol=0)


def test_javascript_agrees_with_both_frameworks(run_javascript):
    """With random weights, biases and norms too, so that no term can be missing."""
    params = fill(jax_side.build("Predictor", **SETTINGS.model), seed=3)
    digits = symbols(100, SETTINGS.length, SETTINGS.n_symbols, seed=11)
    agrees(run_javascript(params, digits), params, digits)


@pytest.mark.parametrize("length", [1, 7, 16])
@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_javascript_agrees_with_the_reference(run_javascript, length, positions):
    """In double precision: more blocks and heads, masks, blind rows, no positions."""
    sizes = SETTINGS.model | {"n_blocks": 2, "n_heads": 4}
    params = fill(jax_side.build("Predictor", **sizes), seed=4)
    digits = symbols(5, length, SETTINGS.n_symbols, seed=12)
    mask = np.random.default_rng(13).random((length, length)) < 0.7
    mask[0] = False
    logits, maps = run_javascript(
        params, digits, 2, 4, mask=mask.tolist(), positions=positions != "none"
    )
    x = one_hot(digits, SETTINGS.n_symbols)
    expected, expected_maps = reference_models.predictor(
        x, params, 2, 4, positions=positions, mask=mask
    )
    np.testing.assert_allclose(logits, expected, atol=1e-9)
    np.testing.assert_allclose(maps, expected_maps.swapaxes(0, 1), atol=1e-12)


def test_sharpness_multiplies_the_scores(run_javascript):
    """As queries that are so many times as long would."""
    params = fill(jax_side.build("Predictor", **SETTINGS.model), seed=6)
    digits = symbols(3, 16, 10, seed=14)
    _, maps = run_javascript(params, digits, sharpness=2.5)
    longer = {name: array.copy() for name, array in params.items()}
    for kind in ("weight", "bias"):
        longer[f"encoder.blocks.0.attention.qkv.{kind}"][..., : SETTINGS.m] *= 2.5
    _, expected = run_javascript(longer, digits)
    np.testing.assert_allclose(maps, expected, atol=1e-6)


def test_weights_of_another_dtype_raise(run_javascript):
    params = {"embed.weight": np.ones((10, 32), np.float64)}
    with pytest.raises(Exception, match="expected F32 or F16, got F64"):
        run_javascript(params, symbols(1, 3, 10, seed=0))


def test_definitions_in_javascript_are_cut_whole():
    code = javascript(JAVASCRIPT, "masked_softmax")
    assert code.startswith("function maskedSoftmax(") and code.endswith("\n}")
    assert javascript(JAVASCRIPT, "Predictor").startswith("class Predictor {")
    with pytest.raises(LookupError, match=r"transformer\.js defines no nonsense"):
        javascript(JAVASCRIPT, "nonsense")


@pytest.fixture(scope="module")
def trained(html):
    """The weights on the page, by side: those that the chapters offer for download."""
    text = (html / f"{PAGE}.html").read_text("utf-8")
    found = {}
    for side in pages.SIDES:
        data = re.search(rf'data-weights="{side}">([^<]*)<', text)[1]
        chapter = (html / f"notebooks/reverse_{side}.html").read_text("utf-8")
        assert f"base64,{data}" in chapter, "these are not the weights of the chapter"
        found[side] = safetensors.numpy.load(b64decode(data))
    return found


by_side = pytest.mark.parametrize("side", pages.SIDES)


@pytest.mark.book
@by_side
def test_the_trained_weights_give_the_same_numbers(trained, run_javascript, side):
    digits = symbols(1000, SETTINGS.length, SETTINGS.n_symbols, seed=15)
    found = run_javascript(trained[side], digits)
    agrees(found, trained[side], digits)
    assert (found[0].argmax(-1) == digits[:, ::-1]).mean() > 0.999


@pytest.mark.book
@by_side
def test_answers_of_the_page_are_true(trained, run_javascript, side):
    """One assertion, or more, for each answer of the page, in its order."""

    def run(digits, **options):
        logits, maps = run_javascript(trained[side], digits, **options)
        return logits, maps[:, 0, 0]

    def right(digits, **options):
        return run(digits, **options)[0].argmax(-1) == digits[:, ::-1]

    n, length = 80, SETTINGS.length
    digits, sets = symbols(n, length, 10, seed=16), np.arange(n)
    logits, maps = run(digits)
    rng = np.random.default_rng(17)
    place, other = rng.integers(length, size=n), digits.copy()
    other[sets, place] = (other[sets, place] + rng.integers(1, 10, size=n)) % 10
    new_logits, new_maps = run(other)
    changed = new_logits.argmax(-1) != logits.argmax(-1)
    assert (changed.sum(1) == 1).mean() > 0.99
    assert changed[sets, length - 1 - place].mean() > 0.99
    assert np.abs(new_maps - maps).max(axis=(1, 2)).mean() < 0.1

    same = np.full((1, length), 3)
    assert right(same, positions=False).all()
    same[0, 5] = 7
    answer = run(same, positions=False)[0].argmax(-1)[0]
    assert len(set(np.delete(answer, 5))) == 1
    assert np.abs(run(digits, positions=False)[1] - 1 / length).mean() < 0.02

    assert right(digits, sharpness=32).mean() > 0.99
    assert run(digits, sharpness=32)[1].max(-1).mean() > 0.95
    assert right(digits, sharpness=0.5).mean() > 0.5
    looks = run(digits, sharpness=0.5)[1].argmax(-1)
    assert (looks == length - 1 - np.arange(length)).mean() > 0.95
    assert right(digits, sharpness=0.125).mean() < 0.5
    flat = run(digits, sharpness=0.125)[1]
    mirrors = length - 1 - np.arange(length)
    assert (flat.argmax(-1) == mirrors).mean() > 0.9
    assert flat.max(-1).mean() < 1 / 3

    for key in (0, 6, length - 1):
        mask = np.ones((length, length), bool)
        mask[:, key] = False
        logits = run(digits, mask=mask.tolist())[0]
        answers, mirror = logits.argmax(-1), length - 1 - key
        good = answers == digits[:, ::-1]
        assert np.delete(good, mirror, axis=1).mean() > 0.99
        beside = [k for k in (key - 1, key + 1) if 0 <= k < length]
        from_beside = (answers[:, mirror, None] == digits[:, beside]).any(axis=1)
        assert from_beside.mean() > 0.9
        assert (sure(logits[:, mirror])[~good[:, mirror]] > 0.5).mean() > 0.9

    nothing = np.zeros((length, length), bool).tolist()
    logits, maps = run(digits, mask=nothing)
    assert (maps == 0).all() and right(digits, mask=nothing).mean() < 0.3
    assert sure(logits).mean() > 0.5

    short = digits[:, :-1]
    answers = run(short)[0].argmax(-1)
    assert (answers[:, 0] == short[:, -1]).mean() > 0.8
    assert (answers[:, 1:] == short[:, :0:-1]).mean() > 0.8
    assert right(short)[:, 1:].mean() < 0.3


def sure(logits):
    """The largest probability of each output."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)).max(-1)


def outputs(page):
    """What the model puts out, as the page shows it."""
    return "".join(page.locator("table.digits tr.out td").all_inner_texts())


def at(page, shown=16):
    expect(page.locator("table.digits tr.out td:visible")).to_have_count(shown)
    return page


@pytest.fixture(params=[(WIDE, "light"), (NARROW, "dark")], ids=["wide", "phone"])
def playground(visit, request):
    size, scheme = request.param
    return visit(PAGE, size=size, scheme=scheme, fresh=True)


@pytest.mark.book
def test_typing_updates_outputs_probabilities_and_map(playground):
    """At each keystroke: what comes out, the probabilities, the map."""
    field = playground.get_by_label("Digits")
    field.fill("")
    expect(playground.locator(".verdict")).to_have_text("Type a digit.")
    expect(playground.locator("attention-viewer")).to_be_hidden()
    expect(playground.locator("table.digits").first).to_be_hidden()
    field.press_sequentially("1234567890123456")
    assert outputs(at(playground)) == "6543210987654321"
    expect(playground.locator(".verdict")).to_contain_text("16 of 16 places are right")
    expect(playground.get_by_role("gridcell")).to_have_count(256)
    chosen = playground.locator("tr.chance td.chosen")
    expect(chosen).to_have_count(16)
    for label in chosen.evaluate_all("all => all.map(n => n.ariaLabel)"):
        assert float(label) > 0.5
    said = playground.locator("tr.sure td").all_inner_texts()
    assert all(50 <= int(number) <= 99 for number in said) and len(said) == 16
    for table in playground.locator(".playground .wide").all():
        assert table.evaluate("n => n.scrollWidth - n.clientWidth") <= 1  # all is seen
    field.press("End")
    field.press("Backspace")
    at(playground, 15)
    expect(playground.get_by_role("gridcell")).to_have_count(225)
    expect(playground.locator(".verdict")).to_contain_text("of 15 places are right")
    assert playground.complaints == []


@pytest.mark.book
@pytest.mark.parametrize(
    ("typed", "kept", "said"),
    [
        ("12a4", "124", "“a”: left out, for the model knows only the digits 0 to 9"),
        ("1 2,3;4", "1234", ""),
        ("<img src=x onerror=alert(1)>", "1", "“<”"),
        ("٣3🙂", "3", "“٣”, “🙂”: left out"),
        ("abcdefgh", "", "and others"),
        ("12345678901234567", "1234567890123456", "only the first 16 digits are kept"),
    ],
)
def test_other_characters_are_left_out_with_a_message(visit, typed, kept, said):
    page = visit(PAGE)
    field = page.get_by_label("Digits")
    field.fill(typed)
    assert field.input_value() == kept
    expect(page.locator("#refused")).to_contain_text(said)
    if not said:
        expect(page.locator("#refused")).to_have_text("")
    at(page, len(kept))
    assert page.complaints == []


@pytest.mark.book
@pytest.mark.parametrize(
    ("there", "caret", "typed", "then", "said"),
    [
        ("123456", 2, "9", "1293456", ""),
        (
            "123456", 2, "9x", "1293456",
            "“x”: left out, for the model knows only the digits 0 to 9.",
        ),
        ("1234567890123456", 2, "99", "1299567890123456", ""),  # full: typed over
        (
            "1234567890123456", 16, "1", "1234567890123456",
            "The model has learned 16 places: only the first 16 digits are kept.",
        ),
    ],
)  # fmt: skip
def test_typing_inserts_at_the_caret(visit, there, caret, typed, then, said):
    page = visit(PAGE)
    field = page.get_by_label("Digits")
    field.fill(there)
    field.evaluate("(n, caret) => n.setSelectionRange(caret, caret)", caret)
    page.keyboard.type(typed)
    assert field.input_value() == then
    shown = page.locator("tr.in button").all_inner_texts()
    assert "".join(shown) == then
    expect(page.locator("#refused")).to_have_text(said)
    caret += len(typed.strip("x")) if there != then else 0
    assert field.evaluate("n => n.selectionStart") == caret


@pytest.mark.book
def test_controls_match_the_model_after_going_back(new_reader):
    """The controls say what the model was given, whatever the browser remembers."""
    page = new_reader()
    page.open(f"{PAGE}.html")
    page.get_by_label("positions").uncheck()
    page.get_by_label("sharpness of the softmax").press("Home")
    page.open("book/notation.html")
    page.go_back()
    expect(page.locator("table.digits").first).to_be_visible()
    said = page.locator("output").inner_text()
    value = page.get_by_label("sharpness of the softmax").input_value()
    assert (said == "× 1") == (value == "0")
    whole = "16 of 16" in page.locator(".verdict").inner_text()
    assert whole == page.get_by_label("positions").is_checked()


@pytest.mark.book
def test_digits_can_be_pasted_and_shuffled(visit):
    page = visit(PAGE)
    field = page.get_by_label("Digits")
    field.fill("")
    page.evaluate("document.querySelector('#digits').focus()")
    page.keyboard.insert_text("0011223344556677")  # as pasting does, all at once
    assert outputs(at(page)) == "7766554433221100"
    page.get_by_role("button", name="Shuffle").click()
    assert sorted(field.input_value()) == sorted("0011223344556677")
    assert outputs(page) == field.input_value()[::-1]
    page.get_by_role("button", name="Draw new ones").click()
    assert re.fullmatch(r"[0-9]{16}", field.input_value())
    assert outputs(page) == field.input_value()[::-1]


@pytest.mark.book
def test_switches_change_the_output(visit):
    page = visit(PAGE)
    page.get_by_label("Digits").fill("1234567890123456")
    page.get_by_label("positions").uncheck()
    expect(page.locator(".verdict")).not_to_contain_text("16 of 16")
    page.get_by_role("button", name="As trained").click()
    expect(page.locator(".verdict")).to_contain_text("16 of 16")
    slider = page.get_by_label("sharpness of the softmax")
    slider.focus()
    slider.press("Home")
    expect(page.locator("output")).to_have_text("× 1/32")
    expect(slider).to_have_attribute("aria-valuetext", "× 1/32")
    expect(page.locator(".verdict")).not_to_contain_text("16 of 16")
    slider.press("End")
    expect(page.locator("output")).to_have_text("× 32")
    expect(page.locator(".verdict")).to_contain_text("16 of 16")
    page.get_by_role("button", name="As trained").click()
    key = page.get_by_role("button", name="silence key 2, digit 3")
    key.focus()
    key.press("Space")
    expect(key).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".verdict")).to_contain_text("15 of 16")
    expect(page.locator("attention-viewer .label.silent")).to_have_count(1)
    right = page.locator("tr.right td").evaluate_all("all => all.map(n => n.ariaLabel)")
    assert [place for place, word in enumerate(right) if word == "wrong"] == [13]
    column = page.locator("[role=gridcell][data-key='2']")
    assert {cell.get_attribute("aria-label") for cell in column.all()} == {"0.00"}
    key.press("Space")
    expect(page.locator(".verdict")).to_contain_text("16 of 16")
    page.get_by_role("button", name="Silence all keys").click()
    silent = page.locator("tr.in button[aria-pressed=true]")
    expect(silent).to_have_count(16)
    expect(page.locator("attention-viewer .readout")).to_contain_text("at nothing")
    page.get_by_role("button", name="As trained").click()
    expect(silent).to_have_count(0)


@pytest.mark.book
def test_the_switch_of_the_book_changes_the_weights(visit):
    page = visit(PAGE, fresh=True)
    weights = {}
    for name in ("JAX", "PyTorch"):
        page.get_by_role("button", name=name, exact=True).click()
        expect(page.locator(".verdict")).to_contain_text(f"weights trained in {name}")
        view = page.locator("attention-viewer").evaluate("n => n.view.maps[0].weights")
        weights[name] = np.array(view)
    assert 0 < np.abs(weights["JAX"] - weights["PyTorch"]).max() < 1


@pytest.mark.book
def test_touch_works_on_a_phone(new_reader):
    page = new_reader(viewport=NARROW, has_touch=True, is_mobile=True)
    page.open(f"{PAGE}.html")
    page.get_by_role("button", name="silence key 0,").tap()
    expect(page.locator("tr.in button").first).to_have_attribute("aria-pressed", "true")
    page.locator("[role=row][data-query='3'] [data-key='5']").tap()
    expect(page.locator("attention-viewer .readout")).to_contain_text("Query 3,")
    assert page.complaints == []


@pytest.mark.book
def test_page_without_scripts_shows_an_example(new_reader):
    """What the model answers to one sequence, and its map as a picture."""
    page = new_reader(java_script_enabled=False)
    page.open(f"{PAGE}.html")
    text = page.locator(".without-scripts").first.inner_text()
    asked, answered = re.findall(r"(?:\d ){15}\d", text)
    assert asked == answered[::-1]
    picture = page.locator("attention-viewer figure img")
    expect(picture).to_be_visible()
    assert picture.evaluate("n => n.clientWidth") > 200


@pytest.mark.book
def test_javascript_tab_changes_no_framework(new_reader):
    """All boxes show JavaScript, and the links stay with the framework chosen last."""
    page = new_reader()
    page.open(f"{CODE}.html")
    page.get_by_role("button", name="PyTorch", exact=True).click()
    page.locator(".sd-tab-label", has_text="JavaScript").first.click()
    tabs = ".sd-tab-set:not(.twin-code) .sd-tab-content"
    boxes = page.locator(tabs, has_text="function ").all()
    assert len(boxes) >= 3 and all(box.is_visible() for box in boxes)
    assert page.evaluate("document.documentElement.dataset.framework") == "torch"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.framework") == "torch"


@pytest.mark.book
def test_page_shows_the_code_that_runs(html):
    """All but the readers of files, byte pairs and the small helpers is in the tabs."""
    text = (html / f"{CODE}.html").read_text("utf-8")
    source = JAVASCRIPT.read_text("utf-8")
    own = set(re.findall(r"^(?:function|class) (\w+)", source, re.MULTILINE))
    assert len(own) > 10
    small = {"matmul", "layerNorm", "stack", "positionTable", "attendToKnown"}
    small |= {"erf", "gelu"}
    files = {"readHeader", "readSafetensors", "fromHalf", "BytePairs", "drawToken"}
    assert small | files < own
    for name in own - small - files:
        assert re.search(rf">{name}</span>", text), f"{name} is not shown"
