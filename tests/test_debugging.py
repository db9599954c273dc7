"""The chapter on failing trainings: what it says of layers, memory and checkpoints."""

import re
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch import nn

import pages
from helpers.torch import attention
from helpers.weights import as_numpy
from sides import assert_close, definitions, draw, fill, on_both_sides

REAL = np.arange(7) < np.array([[7], [4]])  # b s
NOT_EMBED = nnx.All(nnx.Param, nnx.Not(nnx.PathContains("embed")))
SIZES = {"n_blocks": 2, "n_heads": 3, "f": 17, "max_length": 11}


@on_both_sides
def test_padding_inside_a_ready_made_encoder_changes_nothing(side):
    """Its blocks have the choices of ours: the same outputs with the same weights."""
    page = definitions(f"debugging_{side.name}")
    ours = side.build("Encoder", 2, 12, 3, 29, norm_first=True, activation="gelu")
    fill(ours)
    own = side.build(page.ReadyMade, 2, 12, 3, 29, seed=1)
    weights = page.renamed(ours)
    if side.name == "torch":
        own.stack.load_state_dict(weights)
    else:
        for path, param in nnx.to_flat_state(nnx.state(own, nnx.Param)):
            param[...] = weights[path]
    x = draw(2, 7, 12)
    mask = side.mask(REAL[:, None, None])
    expected = as_numpy(ours(side.tensor(x), mask))
    for other in (x, np.where(REAL[..., None], x, 9)):
        found = own(side.tensor(other), side.mask(REAL))
        assert_close(as_numpy(found)[REAL], expected[REAL])


def updates(side, rate, wrt=nnx.Param):
    """A loop that has nothing of the page: an update for each batch."""

    def in_torch(model, loss_fn, batches):
        optimizer = torch.optim.Adam(model.parameters(), rate)
        for batch in batches:
            optimizer.zero_grad()
            loss_fn(model, *batch)[0].backward()
            optimizer.step()

    def in_jax(model, loss_fn, batches):
        @nnx.jit
        def update(model, optimizer, batch):
            gradient = nnx.grad(loss_fn, argnums=nnx.DiffState(0, wrt), has_aux=True)
            optimizer.update(model, gradient(model, *batch)[0])

        optimizer = nnx.Optimizer(model, optax.adam(rate), wrt=wrt)
        for batch in batches:
            update(model, optimizer, batch)

    return in_torch if side.name == "torch" else in_jax


@on_both_sides
def test_the_five_tests_need_nothing_of_their_page(side):
    """In an empty file, they pass a sound model, and each finds a mistake."""
    cells = pages.read_py(pages.NOTEBOOKS / f"debugging_{side.name}.py")
    wanted = re.compile(r"^def (mean_loss|gradients_and_steps|five_tests)\(", re.M)
    file = {}
    exec("\n".join(c.source for c in cells if wanted.search(c.source)), file)
    labels = np.random.default_rng(0).integers(3, size=352)
    x = draw(352, 7, 3) + 2 * np.eye(3, dtype=np.float32)[labels][:, None]
    real = np.tile(REAL, (176, 1))

    def loss_of(model, x, real, labels):
        return side.models.cross_entropy(lambda x: model(x, real), x, labels)

    def doubled(model, *batch):
        return 2 * loss_of(model, *batch)[0], {}

    def tests(loss_fn=loss_of, loop=None, mask=True, shift=0, frozen=False):
        arrays = x, real, np.concatenate([np.roll(labels[:320], shift), labels[320:]])
        rows = np.arange(352).reshape(-1, 32)
        parts = [[side.tensor(array[part]) for array in arrays] for part in rows]
        given = 10 * parts[:-1], parts[-1:], np.log(3)
        given += (lambda model, x, real, _: model(x, real | (not mask)),)
        given += (lambda x, real, labels: (x + 9 * ~real[..., None], real, labels),)
        model = side.build("SequenceClassifier", 3, 12, 3, **SIZES)
        wrt = [NOT_EMBED] if frozen and side.name == "jax" else []
        if frozen and side.name == "torch":
            model.embed.requires_grad_(False)
        loop = loop or updates(side, 1e-2, *wrt)
        found = file["five_tests"](model, loss_fn, loop, *given, *wrt)
        return [bool(passes) for _, passes in found]

    assert tests() == [True] * 5
    assert tests(frozen=True) == [True] * 5
    assert tests(doubled)[0] is False
    assert tests(mask=False)[:2] == [True, False]
    assert tests(loop=lambda *given: None)[:3] == [True, True, False]
    assert tests(loop=updates(side, 1e-6))[:4] == [True, True, True, False]
    assert tests(shift=1) == [True] * 4 + [False]


@on_both_sides
def test_recomputation_changes_no_output_and_no_gradient(side):
    page = definitions(f"debugging_{side.name}")
    batch = draw(2, 7, 5), REAL, np.array([1, 3])
    found = []
    for kind in ("SequenceClassifier", page.Recomputed):
        model = side.build(kind, 5, 12, 4, **SIZES)
        fill(model)
        grads = page.gradients(page.class_loss, model, batch)
        output = as_numpy(model(side.tensor(batch[0]), side.mask(REAL)))
        found.append(grads | {"output": output})
    assert {*found[0]} == {*found[1]}
    for name, expected in found[0].items():
        assert_close(found[1][name], expected, what=name)


@on_both_sides
@pytest.mark.parametrize("loss", ["class_loss", "half_loss"])
def test_each_call_of_a_loss_draws_a_new_dropout_mask(side, loss):
    """Also with recomputation, and with products in half precision."""
    page = definitions(f"debugging_{side.name}")
    model = side.build(page.Recomputed, 5, 12, 4, **SIZES, dropout=0.5)
    model.train()
    loss_fn = getattr(page, loss)
    loss_fn = nnx.jit(loss_fn) if side.name == "jax" else loss_fn
    batch = [side.tensor(x) for x in (draw(2, 7, 5), REAL, np.array([1, 3]))]
    losses = [loss_fn(model, *batch)[0].item() for _ in range(6)]
    assert len({*losses}) == 6, "the same masks in several calls"


def test_the_table_of_pytorch_s_defaults():
    default = nn.TransformerEncoderLayer(12, 3, 7)
    assert not default.norm_first and not default.self_attn.batch_first
    assert default.dropout.p == default.self_attn.dropout == 0.1
    assert default.activation is nn.functional.relu
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        post_norm = nn.TransformerEncoderLayer(12, 2, 7, batch_first=True)
        stack = nn.TransformerEncoder(post_norm, 2).eval()
        first, second = stack.layers
        assert torch.equal(first.linear1.weight, second.linear1.weight)
        with torch.no_grad():
            x = torch.from_numpy(draw(2, 7, 12))
            padded = stack(x, src_key_padding_mask=torch.from_numpy(~REAL))
    assert not padded[1, 4:].any() and padded[1, 0].any()
    x = torch.from_numpy(draw(3, 1, 12))
    assert nn.MultiheadAttention(12, 2)(x, x, x)[1].shape == (1, 3, 3)  # a mean
    q, keys = torch.from_numpy(draw(1, 1, 3, 4)), torch.tensor([[True, True, False]])
    theirs = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=keys)
    assert_close(theirs, attention(q, q, q, keys)[0])  # here True may look, as ours


def test_the_table_of_flax_s_defaults():
    assert nnx.LayerNorm(3, rngs=nnx.Rngs(0)).epsilon == 1e-6
    assert jax.nn.gelu(1.0) != jax.nn.gelu(1.0, approximate=False)
    kernel = nnx.Linear(1000, 64, rngs=nnx.Rngs(0)).kernel[...]
    assert float(kernel.std()) * 1000**0.5 == pytest.approx(1, rel=0.05)
    layer = nnx.MultiHeadAttention(2, 12, decode=False, rngs=nnx.Rngs(0))
    assert nnx.eval_shape(layer, jnp.zeros((2, 7, 12))).shape == (2, 7, 12)
    q = jnp.asarray(draw(1, 3, 1, 4))  # b s h d
    keys = jnp.array([[[[True, True, False]]]])
    theirs = jax.nn.dot_product_attention(q, q, q, mask=keys)
    q = torch.from_numpy(draw(1, 3, 1, 4)).swapaxes(1, 2)  # b h s d
    ours, _ = attention(q, q, q, torch.tensor([[[[True, True, False]]]]))
    assert_close(theirs.swapaxes(1, 2), ours)


ONNX = """
import sys
import numpy as np, onnxruntime, torch
sys.path.insert(0, {notebooks!r})
from helpers.torch import SequenceClassifier

def batch(n):
    x, real = torch.randn(n, 7, 5), torch.ones(n, 7, dtype=torch.bool)
    real[1, 3:] = False
    return x, real

sizes = {{"n_blocks": 2, "n_heads": 3, "f": 11, "max_length": 7}}
model = SequenceClassifier(5, 12, 4, **sizes).eval()
rows = {{0: torch.export.Dim("b")}}
shapes = {{"x": rows, "real": rows}}
program = torch.export.export(model, batch(2), dynamic_shapes=shapes)
{line}
x, real = batch(3)
session = onnxruntime.InferenceSession("reader.onnx")
(found,) = session.run(None, {{"x": x.numpy(), "real": real.numpy()}})
np.testing.assert_allclose(found, model(x, real).detach(), atol=1e-5)
"""


def test_the_line_for_onnx_writes_a_file_with_the_same_numbers(tmp_path):
    """On a padded batch of another size; Colab has no ONNX, so the page cannot."""
    cells = pages.read_py(pages.NOTEBOOKS / "debugging_torch.py")
    text = "\n".join(cell.source for cell in cells if cell.kind == "markdown")
    (line,) = re.findall(r"```python\n(.*onnx.*)\n```", text)
    source = ONNX.format(notebooks=str(pages.NOTEBOOKS), line=line)
    run = [sys.executable, "-I", "-c", source]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
