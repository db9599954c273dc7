"""Drawings show the models as they are: names, shapes and numbers; all is legible."""

import ast
import io
import re
from functools import cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch, Rectangle

from helpers import jax as model_jax
from helpers import torch as model_torch
from helpers.engine.shapes import as_numpy
from helpers.show import diagrams as drawings
from helpers.show import plots
from sides import on_both_sides

FILES = sorted(Path(drawings.__file__).parent.glob("[a-z]*.py"))
MODULES = [import_module(f"helpers.show.diagrams.{path.stem}") for path in FILES]
diagrams = SimpleNamespace(**{k: x for m in MODULES for k, x in vars(m).items()})

DRAWINGS = {
    "soft dictionary": lambda: diagrams.soft_dictionary(
        ["one", "two"], np.eye(2, 3), np.array([0, 4, 1]), ["near", "far", "up"]
    ),
    "attention": diagrams.attention,
    "heads": diagrams.heads,
    "post-norm": diagrams.encoder_block,
    "pre-norm": lambda: diagrams.encoder_block(norm_first=True),
    "predictor": diagrams.predictor,
    "vision Transformer": diagrams.vision_transformer,
    "mask": diagrams.mask,
    "training loop": diagrams.training_loop,
    "basic loop": lambda: diagrams.training_loop(basic=True),
    "set": diagrams.set_model,
    "walk": lambda: diagrams.walk_through(
        ["step", "by", "step"],
        [3, 1, 3],
        *np.random.default_rng(0).normal(size=(3, 3, 4)),
        np.random.default_rng(1).normal(size=(3, 2)),
    ),
    "clocks": lambda: diagrams.clocks(
        np.tile([1.0, 0.0, -0.6, 0.8], (6, 1)), {0: "fast", 2: "slow"}
    ),
    "paths": diagrams.paths,
    "chain rule": diagrams.chain_rule,
    "next token": diagrams.next_token,
    "language model": diagrams.language_model,
    "key-value cache": diagrams.key_value_cache,
    "cross-attention": diagrams.cross_attention,
    "translator": diagrams.translator,
    "shared vector": diagrams.shared_vector,
    "six operations": diagrams.six_operations,
    "three kinds of data": diagrams.three_kinds_of_data,
    "ways to share": diagrams.ways_to_share,
    "ring": diagrams.ring,
    "two blocks": diagrams.two_blocks,
    "grouped heads": diagrams.grouped_heads,
    "rotation": diagrams.rotation,
    "experts": diagrams.experts,
    "adapter": diagrams.lora,
    "two questions": diagrams.two_questions,
}
each_drawing = pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS.keys())
drawn_once = cache(lambda draw: draw())  # for tests that only look at a drawing
# All different, so that a shape says which letters it has; keys come from the queries.
SIZES = {"b": 2, "s": 5, "h": 3, "d": 4, "m": 12, "i": 7, "f": 13, "c": 17, "l": 1}


@pytest.fixture(autouse=True)
def style():
    """The book's theme, for the time of one test."""
    with matplotlib.rc_context():
        plots.use_style()
        yield


def words(fig, what=None):
    """The texts of a drawing, or those of a kind: ``name``, ``shape`` or ``note``."""
    texts = fig.axes[0].texts
    return [t.get_text() for t in texts if what is None or t.get_label() == what]


def shape_of(x):
    """The letters of an array's axes."""
    letters = {size: letter for letter, size in SIZES.items()} | {36: "3m"}
    return " ".join(letters[size] for size in x.shape)


def drawn_shape(text):
    """A shape on a drawing, with queries and keys from the same positions."""
    return re.sub("[qk]", "s", text)


def shapes_by_name(fig):
    """The shape that stands beside each name, where there is one."""
    found, name = {}, None
    for text in fig.axes[0].texts:
        if text.get_label() == "name":
            name = text.get_text()
        elif text.get_label() == "shape":
            found[name] = text.get_text()
    return found


@cache
def identifiers(room):
    """Every name that the code of a framework's helpers uses."""
    found = set()
    for path in Path(room.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            fields = (getattr(node, key, None) for key in ("id", "attr", "arg", "name"))
            found |= {name for name in fields if isinstance(name, str)}
    return found


@cache
def boxes_on_screen(fig):
    """The rectangles of the texts of a drawing, in pixels."""
    renderer = FigureCanvasAgg(fig).get_renderer()
    return {t: t.get_window_extent(renderer) for t in fig.axes[0].texts}


# Names and shapes


@each_drawing
def test_names_are_those_of_the_code_in_both_frameworks(draw):
    names = {
        n
        for text in words(drawn_once(draw), "name")
        for n in re.findall(r"[a-z]\w*", text)
    }
    for room in (model_jax, model_torch):
        missing = names - identifiers(room) - {*"wxy", "dy"}
        assert names and not missing, f"{missing} is not in {room.__name__}"


@on_both_sides
def test_every_part_of_a_model_is_drawn(side):
    """All that has parameters, under the name that it has in the built model."""
    block = side.build("EncoderBlock", 12, 3, 13)
    model = side.build("Predictor", 7, 12, 17, n_blocks=1, n_heads=3, f=13)
    heads = side.build("MultiHeadAttention", 12, 3)
    for drawn, built, parts in (
        (diagrams.encoder_block(), block, "attention norm1 ffn norm2"),
        (diagrams.encoder_block(True), block, "norm1 attention norm2 ffn"),
        (
            diagrams.predictor(),
            model,
            "embed positions encoder hidden hidden_norm output",
        ),
        (diagrams.set_model(), model, "embed encoder output"),
        (diagrams.heads(), heads, "qkv out"),
    ):
        assert all(hasattr(built, part) for part in parts.split())
        order = [name for name in words(drawn, "name") if name in parts.split()]
        assert order == parts.split(), "from top to bottom as in the code"


@on_both_sides
def test_shapes_of_attention(side):
    q, k, v = (side.tensor(np.ones((2, 3, n, 4))) for n in (5, 11, 11))
    out, weights = side.attend(q, k, v)
    letters = {2: "b", 3: "h", 5: "q", 11: "k", 4: "d"}
    arrays = {"k": k, "q": q, "scores": weights, "weights": weights}
    arrays |= {"v": v, "weights @ v": out}
    shapes = {n: " ".join(letters[size] for size in arrays[n].shape) for n in arrays}
    assert shapes_by_name(diagrams.attention()) == shapes


@on_both_sides
def test_shapes_of_heads(side):
    layer = side.build("MultiHeadAttention", 12, 3)
    x = side.tensor(np.ones((2, 5, 12)))
    q = layer.project(x)[0]
    out, _ = layer(x)
    head = q[:, 0]
    traced = [x, layer.qkv(x), out, *[head] * 2, out]
    drawn = [drawn_shape(text) for text in words(diagrams.heads(), "shape")]
    assert drawn == [shape_of(array) for array in traced]


def test_each_head_has_a_map_over_all_rows_of_the_input():
    patches = diagrams.heads().axes[0].patches
    heights = [p.get_y() for p in patches if isinstance(p, Rectangle)]
    rows = {y for y in heights if y < 60}
    cells = [y for y in heights if 210 < y < 270]
    assert len(rows) == 3 and len(cells) == 2 * len(rows) ** 2


@on_both_sides
@pytest.mark.parametrize("norm_first", [False, True])
def test_shapes_of_the_block(side, norm_first):
    block = side.build("EncoderBlock", 12, 3, 13, norm_first=norm_first)
    x = side.tensor(np.ones((2, 5, 12)))
    out, weights = block(x, return_weights=True)
    middle = x + block.attention(x)[0]
    inside = " → ".join(map(shape_of_last, (x, block.ffn.linear1(x), block.ffn(x))))
    traced = [shape_of(x), shape_of(weights), shape_of(middle), inside, shape_of(out)]
    drawn = words(diagrams.encoder_block(norm_first), "shape")
    assert [drawn_shape(text) for text in drawn] == traced


def shape_of_last(x):
    """The letter of the last axis."""
    return shape_of(x).split()[-1]


@on_both_sides
def test_shapes_of_the_predictor_and_the_set(side):
    model = side.build("Predictor", 7, 12, 17, n_blocks=1, n_heads=3, f=13)
    x = side.tensor(np.ones((2, 5, 7)))
    e = model.embed(x)
    p = model.positions(e)
    out, maps = model(x, return_maps=True)
    traced = [x, e, p, maps, model.encoder(p), out]
    shapes = words_from(0, diagrams.predictor(), "shape")
    drawn = [drawn_shape(text) for text in shapes]
    assert drawn == [shape_of(array) for array in traced]

    drawn = words(diagrams.set_model(), "shape")
    assert drawn[:3] == [shape_of(x), shape_of(e), shape_of(model.encoder(e))]
    assert drawn[3:] == ["b s 1", "b s"], "one logit each, without its axis"

    drawn = words(diagrams.training_loop(), "shape")
    assert drawn == [shape_of(x), shape_of(out), "b s"]
    drawn = words(diagrams.training_loop(basic=True), "shape")
    assert drawn == [shape_of(x[:, 0]), shape_of(out[:, 0]), "b"]


@on_both_sides
def test_shapes_and_parts_of_the_language_model(side):
    """From top to bottom as in the code, with tokens for the outputs."""
    sizes = {"n_blocks": 1, "n_heads": 3, "f": 13, "max_length": 5}
    model = side.build("LanguageModel", 17, 12, **sizes)
    tokens = side.tensor(np.ones((2, 5)), "int32")
    e = model.embed(tokens)
    p = model.positions(e)
    traced = [tokens, e, p, model.decoder(p), model(tokens)]
    drawn = [
        text.replace("t", "c") for text in words(diagrams.language_model(), "shape")
    ]
    assert drawn == [shape_of(array) for array in traced]
    *parts, first, last = words(diagrams.language_model(), "name")
    assert parts == ["embed", "positions", "decoder", "logits"]
    assert (first, last) == ("tokens", "labels")
    assert all(hasattr(model, part) for part in parts)


@on_both_sides
def test_shapes_and_parts_of_the_vision_transformer(side):
    """Of pictures of 4 patches, so that there are 5 positions."""
    sizes = {"patch": 2, "n_blocks": 1, "n_heads": 3, "f": 13}
    model = side.build("VisionTransformer", 4, 3, 12, 17, **sizes)
    images = side.tensor(np.ones((2, 4, 4, 3)))
    patches = side.models.cut_patches(images, 2)
    assert patches.shape == (2, 4, 2 * 2 * 3)  # b n (p p i)
    x = model.positions(side.tensor(np.ones((2, 5, 12))))
    out, encoded = model(images), model.encoder(x)
    traced = [shape_of(array) for array in (x, encoded, encoded[:, 0], out)]
    shapes = words_from(84, diagrams.vision_transformer(), "shape")
    assert shapes == ["b y x i", "b n (p p i)", *traced]
    parts = words_from(84, diagrams.vision_transformer(), "name")
    built = ["embed", "token", "positions", "encoder", "output"]
    assert [name for name in parts if hasattr(model, name)] == built
    assert parts[:2] == ["images", "cut_patches"]


def words_from(left, fig, what):
    """The texts of a kind on the right of a line, from top to bottom."""
    texts = [text for text in fig.axes[0].texts if text.get_position()[0] > left]
    texts.sort(key=lambda text: text.get_position()[1])
    return [text.get_text() for text in texts if text.get_label() == what]


def test_vision_transformer_stands_beside_the_predictor():
    """Parts that both have are at one height and joined by a dashed line."""
    fig = diagrams.vision_transformer()
    predictor = words(diagrams.predictor(), "name")
    names = [name for name in predictor if name not in ("mask", "maps")]
    assert words(fig, "name")[: len(names)] == names
    texts = {t.get_position()[1]: t.get_text() for t in fig.axes[0].texts}
    dashed = [line for line in fig.axes[0].lines if line.get_linestyle() == "--"]
    joined = [texts[line.get_ydata()[0]] for line in dashed]
    assert joined == ["embed", "positions", "encoder", "output"]
    assert set(joined) <= set(words_from(84, fig, "name"))


@on_both_sides
def test_drawn_masks_broadcast_to_the_scores(side):
    sizes = {"b": 2, "1": 1, "q": 5, "k": 7, "h": 3}
    scores, *drawn, mask, weights = (
        np.ones([sizes[letter] for letter in text.split()], bool)
        for text in words(diagrams.mask(), "shape")
    )
    padding, causal = drawn
    assert (padding & causal).shape == mask.shape
    given = side.models.masked_softmax(side.tensor(scores), side.mask(mask))
    assert given.shape == weights.shape == scores.shape


@on_both_sides
def test_numbers_of_attention_are_those_of_the_model(side):
    """The weights that are drawn; hidden keys are grey, and only they."""
    q, k, v, mask, scores, weights, out = diagrams.small_attention()
    model = side.attend(*map(side.tensor, (q, k, v)), side.mask(mask))
    for array, own in zip(model, (out, weights), strict=True):
        np.testing.assert_allclose(as_numpy(array), own, atol=1e-6)
    np.testing.assert_allclose(weights[mask.nonzero()].reshape(4, 4).sum(-1), 1)
    shown = diagrams.shades(np.where(mask, weights, np.nan), diagrams.PURPLE, 0, 1)
    grey = [[cell == diagrams.HIDDEN for cell in row] for row in shown]
    np.testing.assert_array_equal(grey, weights == 0)
    np.testing.assert_allclose(scores, q @ k.T)


def test_drawn_paths_have_their_lengths():
    """One orange arrow for each step that the drawing counts."""
    fig = diagrams.paths()
    counted = [int(n) for t in words(fig) for n in re.findall(r"(\d+) (?:step|lay)", t)]
    heads = [p for p in fig.axes[0].patches if to_hex(p.get_fc()) == diagrams.ORANGE]
    assert counted == [6, 3, 1] and len(heads) == sum(counted)


# Legibility


@each_drawing
def test_drawing_is_legible_on_a_phone(draw):
    """At its own size it fits a column of 350 pixels, with letters of 10 and more."""
    fig = drawn_once(draw)
    assert fig.get_figwidth() * 96 <= 350
    assert fig.get_figheight() * 96 <= 640
    assert min(text.get_size() for text in fig.axes[0].texts) * 96 / 72 >= 10


@each_drawing
def test_texts_stay_apart_and_on_the_paper(draw):
    fig = drawn_once(draw)
    boxes = boxes_on_screen(fig)
    for (one, here), (other, there) in combinations(boxes.items(), 2):
        assert not here.overlaps(there), f"{one.get_text()} and {other.get_text()}"
    for text, box in boxes.items():
        inside = fig.bbox.containsx(box.x0) and fig.bbox.containsx(box.x1)
        inside = inside and fig.bbox.containsy(box.y0) and fig.bbox.containsy(box.y1)
        assert inside, f"{text.get_text()} leaves the paper"


@each_drawing
def test_texts_stay_in_their_boxes_and_off_the_lines(draw):
    fig = drawn_once(draw)
    ax = fig.axes[0]
    frames = [p.get_window_extent() for p in ax.patches if type(p) is FancyBboxPatch]
    paths = [line.get_transform().transform_path(line.get_path()) for line in ax.lines]
    for text, box in boxes_on_screen(fig).items():
        for frame in frames:
            ends = frame.contains(box.x0, box.y0), frame.contains(box.x1, box.y1)
            crosses = frame.overlaps(box) and not all(ends)
            assert not crosses, f"{text.get_text()} crosses the edge of a box"
        for path in paths:
            crosses = len(path) > 1 and path.intersects_bbox(box, filled=False)
            assert not crosses, f"a line runs through {text.get_text()}"


@each_drawing
def test_same_drawing_gives_the_same_file(draw):
    first, second = io.BytesIO(), io.BytesIO()
    for file in (first, second):
        draw().savefig(file, format="svg", metadata={"Date": None})
    assert first.getvalue() == second.getvalue()
