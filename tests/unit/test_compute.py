"""How a training computes: precision, forms for a device, buffers that are reused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from helpers.data.sequences import reverse_data, shuffled
from helpers.engine.settings import Sequences
from helpers.engine.weights import to_arrays
from helpers.jax import compute as compute_jax
from helpers.jax import training as train_jax
from helpers.torch import compute as compute_torch
from helpers.torch import training as train_torch
from sides import jax_side, on_both_sides, torch_side

TRAIN = {"jax": train_jax, "torch": train_torch}
SMALL = Sequences(
    n_train=56, batch_size=8, epochs=3, learning_rate=0.01, warmup=4, n_symbols=5,
    length=3, n_validation=23, n_test=1, m=6, n_heads=2, f=10,
)  # fmt: skip
HALF = replace(SMALL, precision="bfloat16")
DATA = reverse_data(SMALL)
TEXTS = np.random.default_rng(3).integers(7, size=(16, 9), dtype=np.int32)
SIZES = {"n_blocks": 1, "n_heads": 2, "f": 11}
MODELS = {  # name: sizes, options, a loss, and a batch for it
    "Predictor": ((), SMALL.model, "cross_entropy", [x[:8] for x in DATA["train"]]),
    "LanguageModel": ((7, 6), SIZES | {"max_length": 9}, "next_token", (TEXTS,)),
    "untied LanguageModel": (
        (7, 6), SIZES | {"max_length": 9, "tied": False}, "next_token", (TEXTS,),
    ),
    "Translator": (
        (7, 7, 6), SIZES | {"max_length": 9}, "next_token", (TEXTS, TEXTS[:, ::-1]),
    ),
    "VisionTransformer": (
        (4, 3, 6, 5), SIZES | {"patch": 2}, "cross_entropy",
        (np.ones((8, 4, 4, 3), np.float32), np.arange(8) % 5),
    ),
}  # fmt: skip


def model_and_batch(side, name):
    sizes, options, loss, batch = MODELS[name]
    model = side.build(name.rpartition(" ")[2], *sizes, **options)
    train_of = TRAIN[side.name]
    return model, getattr(train_of, loss), train_of.on_device(batch, model)


def fit(side, settings=SMALL, **options):
    """Train a new predictor without a bar; return it and its history."""
    model, train_of = side.build("Predictor", **settings.model), TRAIN[side.name]
    options = {"validation": DATA["validation"], "bar": False, **options}
    args = model, train_of.cross_entropy, DATA["train"], settings
    return model, train_of.fit(*args, **options)


def trainer(side, settings=SMALL):
    """A trainer of a new predictor."""
    model, train_of = side.build("Predictor", **settings.model), TRAIN[side.name]
    more = {"wrt": nnx.Param} if side is jax_side else {}
    args = model, train_of.cross_entropy, DATA["train"], settings
    return train_of.Trainer(*args, DATA["validation"], None, **more)


# Half precision


@on_both_sides
def test_losses_in_bfloat16_stay_near_those_in_float32(side):
    """A factor of a product is off by 2⁻⁹ at most, or 0.2 %; and it is another loss."""
    full, half = (fit(side, settings)[1]["loss"] for settings in (SMALL, HALF))
    gap = np.abs(half - full)
    assert 1e-5 < gap[0] < 0.01 * full[0]
    assert gap.max() < 0.05 * full[0]  # loose: it grows with the updates


@on_both_sides
def test_weights_averages_losses_and_validation_are_in_float32(side):
    one = trainer(side, HALF)
    one.epoch(0, shuffled(HALF)(0))
    whole = ("int", "uint")  # counts and keys, and PyTorch's count of steps in float32
    for name, array in one.state().items():
        assert array.dtype == np.float32 or array.dtype.name.startswith(whole), name
    model, loss_fn, batch = (
        one.model,
        TRAIN[side.name].cross_entropy,
        DATA["validation"],
    )
    rows = {"batch_size": HALF.batch_size}
    expected = TRAIN[side.name].evaluate(model, loss_fn, batch, **rows)
    assert one.score() == expected
    assert str(model(side.tensor(batch[0])).dtype).endswith("float32")


def products(jaxpr):
    """Dtypes of the factors of all products in a jaxpr, and in what it calls."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is jax.lax.dot_general_p:
            yield tuple(x.aval.dtype.name for x in eqn.invars)
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)  # without the constants
            yield from products(inner) if hasattr(inner, "eqns") else ()


def dtypes_in_jax(name, precision):
    """Dtypes of products forward and backward; of the loss and the gradients."""
    model, loss_fn, batch = model_and_batch(jax_side, name)
    copy = compute_jax.for_training(model, precision)
    graph, params, rest = nnx.split(copy, nnx.Param, ...)

    def loss(params):
        return loss_fn(nnx.merge(graph, params, rest, copy=True), *batch)[0]

    value, grads = jax.eval_shape(jax.value_and_grad(loss), params)
    found = {value.dtype.name, *(x.dtype.name for x in jax.tree.leaves(grads))}
    return [*products(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)], found


@pytest.mark.parametrize("name", MODELS)
def test_jax_multiplies_in_bfloat16(name, monkeypatch):
    """All products but those of the last layer, or of a tied table of embeddings.

    Gradients of scores arrive in float32, as attention's softmax is computed in it. On
    a CPU attention computes in float32: XLA lacks some of its products in bfloat16.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    full, half, scores = ("float32",) * 2, ("bfloat16",) * 2, ("float32", "bfloat16")
    found, rest = dtypes_in_jax(name, "float32")
    assert {*found} == {full} and rest == {"float32"}
    found, rest = dtypes_in_jax(name, "bfloat16")
    assert found.count(full) == 3  # forward, and two gradients
    assert found.count(half) + found.count(scores) == len(found) - 3 > 10
    assert found.count(scores) < len(found) / 6
    assert rest == {"float32"}


@pytest.mark.parametrize("name", MODELS)
def test_jax_attends_in_float32_on_a_cpu(name, monkeypatch):
    """Beside the last layer's three products, those of attention; no scores in half."""
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    found, rest = dtypes_in_jax(name, "bfloat16")
    full, half = ("float32",) * 2, ("bfloat16",) * 2
    assert {*found} == {full, half}
    assert found.count(full) >= 3 + 6  # forward, and two gradients of each
    assert rest == {"float32"}


@pytest.mark.parametrize("name", MODELS)
def test_torch_multiplies_in_bfloat16(name):
    model, loss_fn, batch = model_and_batch(torch_side, name)
    seen = set()
    for part in model.modules():
        if isinstance(part, torch.nn.Linear):
            part.register_forward_hook(lambda *given: seen.add(given[-1].dtype))
    optimizer = train_torch.make_optimizer(model)
    losses = train_torch.update(
        model, optimizer, batch, 0.01, 1.0, max_grad_norm=1.0,
        loss_fn=torch.autocast("cpu", torch.bfloat16)(loss_fn),
    )  # fmt: skip
    assert seen == {torch.bfloat16}
    assert losses.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


# Products in a form for the device


@pytest.mark.parametrize("lead", [(5,), (2, 5), (2, 3, 5, 7), (0, 3)])
def test_a_flat_product_is_the_product(lead):
    """For any number of leading axes; ``preferred_element_type`` is kept."""
    x = np.random.default_rng(0).normal(size=(*lead, 11)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(11, 13)).astype(np.float32)
    how = ((len(lead),), (0,)), ((), ())
    found = compute_jax.flat_product(x, w, how, precision=None)
    np.testing.assert_allclose(found, x @ w, atol=1e-5)
    half = jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16)
    wide = compute_jax.flat_product(*half, how, preferred_element_type=jnp.float32)
    assert (wide.shape, wide.dtype) == ((*lead, 13), jnp.float32)


class OnGpu:
    """An array that says it lies on a GPU."""

    platform = "gpu"

    def devices(self):
        return {self}


@pytest.mark.parametrize("on_cpu", [True, False])
def test_flat_products_are_used_only_in_a_copy_on_a_cpu(on_cpu, monkeypatch):
    """The copy that is trained has them in every linear layer, the model in none."""
    model = jax_side.build("Predictor", **SMALL.model)
    if jax.devices()[0].platform != "cpu":
        on_cpu = False
    elif not on_cpu:
        monkeypatch.setattr(compute_jax.jnp, "asarray", lambda x: OnGpu())
    copy = compute_jax.for_training(model)
    flat = compute_jax.flat_product if on_cpu else jax.lax.dot_general
    for found, product in ((model, jax.lax.dot_general), (copy, flat)):
        parts = [part for _, part in nnx.iter_graph(found)]
        dense = [part for part in parts if isinstance(part, nnx.Linear)]
        assert len(dense) == 7 and all(x.dot_general is product for x in dense)


# Frozen weights


def test_jax_trains_what_a_filter_names_and_keeps_its_runs_apart(tmp_path):
    """The rest stays bit for bit; another filter is another run."""
    only = nnx.All(nnx.Param, nnx.PathContains("output"))
    before = to_arrays(jax_side.build("Predictor", **SMALL.model))
    for wrt in (only, nnx.All(nnx.Param, nnx.PathContains("embed")), nnx.Param):
        model, history = fit(jax_side, wrt=wrt, folder=tmp_path)
        moved = {k for k, x in to_arrays(model).items() if (x != before[k]).any()}
        part = {nnx.Param: "", only: "output"}.get(wrt, "embed")
        assert moved == {name for name in before if name.startswith(part)}
    assert len([*tmp_path.iterdir()]) == 3
    assert history["loss"][-1] < history["loss"][0]


# Buffers that are reused


def test_an_epoch_in_jax_overwrites_its_carry_and_nothing_of_others():
    """Arrays that a user got from the model before, between and after epochs live."""
    model = jax_side.build("Predictor", **SMALL.model)
    kept = jax.tree.leaves(nnx.state(model))

    def report(_):
        kept.extend(jax.tree.leaves(nnx.state(model)))
        assert np.isfinite(to_arrays(model)["output.weight"]).all()

    args = model, train_jax.cross_entropy, DATA["train"], SMALL
    train_jax.fit(*args, bar=False, report=report)
    assert len(kept) > 10 and not any(x.is_deleted() for x in kept)
    one = trainer(jax_side)
    carry, kept = jax.tree.leaves(one.carry[0]), jax.tree.leaves(nnx.state(one.model))
    one.epoch(0, shuffled(SMALL)(0))
    assert all(x.is_deleted() for x in carry), "nothing was donated"
    assert not any(x.is_deleted() for x in kept)


def test_a_state_outlives_the_epochs_that_follow():
    """What ``state`` returned, and what ``restore`` took, are no views of a carry."""
    one, rows = trainer(jax_side), shuffled(SMALL)(0)
    start = one.state()
    expected = {name: array.copy() for name, array in start.items()}
    first = one.epoch(0, rows)["loss"]
    one.restore(start)
    np.testing.assert_array_equal(one.epoch(0, rows)["loss"], first)
    for name, array in start.items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_model_can_be_used_after_an_interrupt():
    """The initial weights are back, and can be trained again."""

    def batches(epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        return shuffled(SMALL)(epoch)

    model = jax_side.build("Predictor", **SMALL.model)
    args = model, train_jax.cross_entropy, DATA["train"], SMALL
    with pytest.raises(KeyboardInterrupt):
        train_jax.fit(*args, batches=batches, bar=False)
    again = train_jax.fit(*args, bar=False)["loss"]
    np.testing.assert_array_equal(again, fit(jax_side)[1]["loss"])


# Compilation in PyTorch


def compiled(model):
    """Compiled as one graph, or an error: traced by Dynamo, then run as it is."""
    torch._dynamo.reset()
    return torch.compile(model, backend="eager", fullgraph=True)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_compiles_as_one_graph(name):
    model, loss_fn, batch = model_and_batch(torch_side, name)
    with torch.no_grad():
        found = loss_fn(compiled(model), *batch)
        expected = loss_fn(model, *batch)
    torch.testing.assert_close(found, expected)


MASKED = {  # sizes of a layer or model, its options, its input's shape, size of a mask
    "MultiHeadAttention": ((6, 2), {}, (3, 5, 6), 5),
    "EncoderBlock": ((6, 2, 11), {}, (3, 5, 6), 5),
    "Encoder": ((2, 6, 2, 11), {}, (3, 5, 6), 5),
    "Predictor": ((), SMALL.model, (3, 3, 5), 3),
    "LanguageModel": ((7, 6), SIZES | {"max_length": 9}, (3, 5), 5),
    "VisionTransformer": ((4, 3, 6, 5), SIZES | {"patch": 2}, (3, 4, 4, 3), 5),
}


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("shape", ["q k", "b h q k"])
def test_every_model_compiles_with_a_mask(name, shape):
    sizes, options, size, s = MASKED[name]
    model = torch_side.build(name, *sizes, **options)
    mask = torch.tensor(np.random.default_rng(1).random((3, 1, s, s)) < 0.7)
    mask = mask if shape == "b h q k" else mask[0, 0]
    x = torch.rand(size) if len(size) > 2 else torch.ones(size, dtype=torch.int64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x, mask), model(x, mask))


@pytest.mark.parametrize(
    ("device", "epochs", "pays"),
    [("cpu", 9999, False), ("cuda", 3, False), ("cuda", 9999, True)],
)
def test_long_trainings_on_a_gpu_are_compiled(device, epochs, pays):
    """The wrapper has the model's own weights, whose names stay."""
    model = torch_side.build("Predictor", **SMALL.model)
    settings = replace(SMALL, epochs=epochs)
    found = compute_torch.for_training(model, torch.device(device), settings)
    assert (found is not model) == pays and getattr(found, "_orig_mod", model) is model
    ours = {id(p) for p in model.parameters()}
    assert {id(p) for p in found.parameters()} == ours
