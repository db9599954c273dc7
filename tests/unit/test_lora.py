"""Adapters of low rank: equal at first, merged, frozen beside, one file for both.

Witnesses: ``nnx.LoRA``, PEFT, the formula of Hu et al. 2021 in NumPy, and the other
framework.
"""

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from flax import nnx
from torch import nn

from helpers.data import text
from helpers.data.byte_pairs import BytePairs
from helpers.data.checkpoints import TINY
from helpers.data.sequences import shuffled
from helpers.engine import adapters
from helpers.engine.settings import Settings
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays, to_arrays
from hugging_face import tokens_of
from sides import draw, fill, jax_side, on_both_sides, torch_side

N_TOKENS, M, LENGTH, C = 29, 14, 11, 3
SIZES = {"n_blocks": 2, "n_heads": 2, "d": 6, "f": 17, "max_length": LENGTH}
SMALL = Settings(n_train=8, batch_size=4, epochs=2, learning_rate=0.02, warmup=1)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(N_TOKENS, size=(8, LENGTH), dtype=np.int32)
LENGTHS = np.array([11, 1, 7, 5, 2, 10, 3, 8])
TEXTS = np.where(np.arange(LENGTH) < LENGTHS[:, None], TOKENS, -1)
LABELS = np.arange(8) % C
HEAD = ("lora_a", "lora_b", "output")  # what a classifier trains


def build(side, **sizes):
    """A language model with the weights that it has in both frameworks."""
    model = side.build("ModernLM", N_TOKENS, M, **SIZES | sizes)
    fill(model)
    return model


def adapted(side, model, *, lora, seed=1, rank=2, alpha=5, names=("q", "v")):
    """The model with adapters, by ``side.models`` or a module like it."""
    more = {"rngs": nnx.Rngs(seed)} if side is jax_side else {}
    return lora.add_lora(model, rank, alpha, names, **more)


def randomise(model, seed=1, scale=0.2):
    """Give A and B random values, so that both count."""
    arrays = to_arrays(model)
    for name in sorted(name for name in arrays if name.endswith(adapters.LORA)):
        seed += 1
        shape = arrays[name].shape
        arrays[name] = draw(*shape, seed=seed, scale=scale).astype(np.float32)
    from_arrays(model, arrays)
    return model


def classifier(side, lora=None, **sizes):
    """A classifier on a language model with adapters; all its values are its own."""
    lora, models = lora or side.models, side.models
    trunk = adapted(side, build(side, **sizes), lora=lora)
    model = models.build(lora.TextClassifier, trunk, C, seed=2)
    head = {"trunk.output.weight": draw(M, C), "trunk.output.bias": draw(C, seed=1)}
    from_arrays(model, to_arrays(model) | head)
    return model


compiled = nnx.jit(lambda model, tokens: model(tokens))


def logits(side, model, tokens=TOKENS):
    """As a NumPy array."""
    tokens = tokens_of(side, tokens)
    return as_numpy(compiled(model, tokens) if side is jax_side else model(tokens))


def changed(model, before):
    """Names of the parameters whose values are others than before."""
    after = to_arrays(model)
    assert after.keys() == before.keys()
    return {name for name in before if (before[name] != after[name]).any()}


def trained(side, model, names, lora=None, settings=SMALL, labels=LABELS):
    """The history of a small training of parts of a classifier."""
    options = (lora or side.models).train_only(model, *names)
    loss, data = side.models.cross_entropy, (TEXTS, labels)
    return side.models.fit(model, loss, data, settings, bar=False, **options)


def other(side):
    return torch_side if side is jax_side else jax_side


# One layer


@on_both_sides
def test_before_training_an_adapter_changes_no_output(side):
    """To the last bit, since B = 0; and A is not."""
    model = build(side)
    before, arrays = logits(side, model), to_arrays(model)
    adapted(side, model, lora=side.models)
    np.testing.assert_array_equal(logits(side, model), before)
    after = to_arrays(model)
    new = sorted(after.keys() - arrays.keys())
    assert len([n for n in new if n.endswith("lora_a")]) == 4  # q, v of two blocks
    for name in new:
        x = after[name]
        if name.endswith("lora_a"):
            assert x.shape == (M, 2) and 0 < np.abs(x).max() <= M**-0.5
        if name.endswith("lora_b"):
            assert x.shape == (2, 12) and not x.any()


@on_both_sides
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_the_formula_of_the_paper(side, bias):
    """``x W + b + α/r · x A B``, in float64; sizes are different primes."""
    base = side.build("projection", 13, 7, bias)
    w = fill(base)
    make = side.models.LoRALinear
    layer = side.models.build(make, base, 3, 5, seed=0)
    randomise(layer)
    a, b = (to_arrays(layer)[name].astype(np.float64) for name in adapters.LORA)
    x = draw(2, 5, 13)
    expected = x @ w["weight"] + 5 / 3 * x @ a @ b + w.get("bias", 0)
    np.testing.assert_allclose(as_numpy(layer(side.tensor(x))), expected, atol=1e-5)
    merged = as_numpy(layer.merge()(side.tensor(x)))
    np.testing.assert_allclose(merged, expected, atol=1e-5)
    assert layer.merge() is base


def test_equals_the_lora_of_flax():
    """``nnx.LoRA`` has no alpha: equal where ours is the rank."""
    base = jax_side.build("projection", 13, 7)
    layer = jax_side.build("LoRALinear", base, 3, 3)
    theirs = nnx.LoRA(13, 3, 7, base_module=base, rngs=nnx.Rngs(0))
    randomise(layer)
    theirs.lora_a[...], theirs.lora_b[...] = layer.lora_a[...], layer.lora_b[...]
    x = jax_side.tensor(draw(2, 5, 13))
    np.testing.assert_allclose(layer(x), theirs(x), atol=1e-6)
    assert np.abs(layer(x) - base(x)).max() > 0.1


def test_equals_the_adapters_of_peft():
    """Beside a stack of layers, and merged; matrices of ``peft`` are transposed."""
    peft = pytest.importorskip("peft")
    ours = nn.Sequential(nn.Linear(13, 7), nn.GELU(), nn.Linear(7, 5))
    theirs = nn.Sequential(nn.Linear(13, 7), nn.GELU(), nn.Linear(7, 5))
    theirs.load_state_dict(ours.state_dict())
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["0", "2"])
    theirs = peft.get_peft_model(theirs, config)
    torch_side.models.add_lora(ours, 3, 5, ("0", "2"))
    x, layers = torch_side.tensor(draw(2, 11, 13)), theirs.base_model.model
    base = ours(x)
    randomise(ours)
    for place in (0, 2):
        for name, of in (("lora_a", "lora_A"), ("lora_b", "lora_B")):
            weight = getattr(layers[place], of)["default"].weight
            weight.data.copy_(getattr(ours[place], name).T)
    expected = theirs(x)
    assert (expected - base).abs().max() > 0.1
    torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=0)
    merged = theirs.merge_and_unload()
    torch_side.models.merge_lora(ours)
    torch.testing.assert_close(ours(x), expected, atol=1e-5, rtol=0)
    for place in (0, 2):
        weight = merged[place].weight
        torch.testing.assert_close(ours[place].weight, weight, atol=1e-6, rtol=0)


# Models


def test_the_pretrained_model_has_equal_logits_in_both_frameworks():
    """The file that the page starts from; and it has learned to predict."""
    found = {}
    for side in (jax_side, torch_side):
        model, pairs = side.models.load_language_model(text.PRETRAINED)
        tokens = text.windows(pairs.encode(text.load()["test"][:1000]), 53)[:3]
        found[side.name] = logits(side, model, tokens[:, :-1])
    np.testing.assert_allclose(found["jax"], found["torch"], atol=1e-4)
    assert text.nats(found["jax"], tokens).mean() < 0.7 * np.log(len(pairs))


@on_both_sides
def test_merged_models_compute_the_same_and_have_the_old_names(side):
    model = build(side, tied=False)
    names, first = to_arrays(model).keys(), logits(side, model)
    randomise(adapted(side, model, lora=side.models, names=("q", "down", "output")))
    expected = logits(side, model)
    assert np.abs(expected - first).max() > 0.1
    assert side.models.merge_lora(model) is model
    np.testing.assert_allclose(logits(side, model), expected, atol=1e-5)
    assert to_arrays(model).keys() == names


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3", "mixtral"])
def test_published_models_take_adapters(kind, tmp_path):
    """The same at first, as PyTorch's file says in JAX, and merged."""
    found, expected = (
        safetensors.numpy.load_file(TINY / kind / "expected.safetensors")[name]
        for name in ("tokens", "logits")
    )
    tokens, close = found.astype(np.int32), {"atol": 1e-5 * np.abs(expected).max()}
    names = ["q", "v", "out", "down"] + ["router"] * (kind == "mixtral")
    for side in (torch_side, jax_side):
        model, _ = side.models.load_pretrained(TINY / kind)
        adapted(side, model, lora=side.models, names=names)
        np.testing.assert_allclose(logits(side, model, tokens), expected, **close)
        if side is torch_side:
            randomise(model, scale=0.1)
            side.models.save_adapter(model, tmp_path / "adapter")
            other = logits(side, model, tokens)
            assert np.abs(other - expected).max() > 100 * close["atol"]
        else:
            side.models.load_adapter(model, tmp_path / "adapter")
        side.models.merge_lora(model)
        np.testing.assert_allclose(logits(side, model, tokens), other, **close)


@on_both_sides
def test_one_file_gives_equal_logits_in_the_other_framework(side, tmp_path):
    """With the head that was trained, too."""
    ours, theirs = classifier(side), classifier(other(side))
    randomise(ours)
    head = {"trunk.output.weight": draw(M, C, seed=7)}
    from_arrays(ours, to_arrays(ours) | head)
    side.models.save_adapter(ours, tmp_path / "adapter", "output")
    before = logits(other(side), theirs, TEXTS)
    assert other(side).models.load_adapter(theirs, tmp_path / "adapter") is theirs
    found, expected = logits(other(side), theirs, TEXTS), logits(side, ours, TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - before).max() > 0.1


@on_both_sides
def test_adapters_are_switched_on_one_trunk(side, tmp_path):
    """Of other ranks and layers; the trunk stays, and comes back when B is zero."""
    kinds = {"a": {}, "b": {"rank": 3, "names": ("k", "up")}, "c": {"alpha": 1}}
    expected, trunk = {}, to_arrays(build(side))
    for name, options in kinds.items():
        model = adapted(side, build(side), lora=side.models, **options)
        randomise(model, seed=ord(name))
        side.models.save_adapter(model, tmp_path / name)
        expected[name] = logits(side, model)
    model = build(side)
    for name in "abcab":
        side.models.load_adapter(model, tmp_path / name)
        np.testing.assert_array_equal(logits(side, model), expected[name])
        _, rest = adapters.parts(model, adapters.LORA)
        assert rest.keys() == trunk.keys()
        assert all((rest[name] == trunk[name]).all() for name in trunk)
    assert np.abs(expected["a"] - expected["b"]).max() > 0.1


# Training


@on_both_sides
@pytest.mark.parametrize("names", [adapters.LORA, HEAD, ("output",)], ids=len)
def test_only_what_is_named_is_trained(side, names):
    """The rest stays to the last bit; the loss falls."""
    model = classifier(side)
    before = to_arrays(model)
    history = trained(side, model, names)
    expected = {n for n in before if not {*names}.isdisjoint(n.split("."))}
    assert changed(model, before) == expected
    assert len(expected) == {2: 8, 3: 10, 1: 2}[len(names)]
    assert history["loss"][-1] < history["loss"][0]


@on_both_sides
def test_the_optimiser_has_averages_of_what_is_trained_alone(side):
    """Two numbers for each number of the adapters and the head."""
    model = classifier(side)
    options = side.models.train_only(model, *HEAD)
    loss, data = side.models.cross_entropy, (TEXTS, LABELS)
    one = side.models.Trainer(model, loss, data, SMALL, None, None, **options)
    one.epoch(0, shuffled(SMALL)(0))
    if side is jax_side:
        kept = [x.size for x in jax.tree.leaves(one.carry[1]) if x.ndim]
    else:
        state = one.optimizer.state.values()
        kept = [each[k].numel() for each in state for k in ("exp_avg", "exp_avg_sq")]
    chosen, _ = adapters.parts(model, HEAD)
    assert sorted(kept) == sorted([x.size for x in chosen.values()] * 2)


@on_both_sides
def test_what_was_frozen_can_be_trained_again(side):
    model = classifier(side)
    trained(side, model, ("output",))
    before = to_arrays(model)
    trained(side, model, ("embed", "norm"))
    assert changed(model, before) == {"trunk.embed.weight", "trunk.norm.weight"}


# The classifier


@on_both_sides
@pytest.mark.parametrize("tied", [True, False])
def test_classes_are_read_at_the_last_token(side, tied):
    """As by the language model, at that place; padding at the end changes nothing."""
    model = classifier(side, tied=tied)
    found = logits(side, model, TEXTS)
    everywhere = logits(side, model.trunk, TOKENS)  # b s c
    assert found.shape == (8, C)
    expected = everywhere[np.arange(8), LENGTHS - 1]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    short = LENGTHS <= 7
    cut = logits(side, model, TEXTS[short, :7])
    np.testing.assert_allclose(cut, found[short], atol=1e-5)
    alone = logits(side, model, TOKENS[1:2, :1])
    np.testing.assert_allclose(alone, found[1:2], atol=1e-5)


@on_both_sides
def test_a_classifier_draws_its_head_and_keeps_the_trunk(side):
    trunk = build(side)
    before = to_arrays(trunk)
    model = side.build("TextClassifier", trunk, C)
    after = to_arrays(model)
    assert after.keys() - {f"trunk.{name}" for name in before} == {
        "trunk.output.weight", "trunk.output.bias",
    }  # fmt: skip
    assert all((after[f"trunk.{name}"] == x).all() for name, x in before.items())
    assert after["trunk.output.weight"].shape == (M, C)


@on_both_sides
def test_labels_of_one_class_only_are_no_mistake(side):
    """Part of the data may have one class; the numbers stay finite."""
    labels = np.full(8, 1)
    model = classifier(side)
    history = trained(side, model, HEAD, labels=labels)
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < history["loss"][0]


# Bad input


BATCHES = {
    "labels from 0 to 2 for 3 classes, got 0 to 3": (TEXTS, np.arange(8) % 4),
    "tokens from 0 to 28, or -1 for padding, got -1 to 29": (
        np.where(TEXTS < 28, TEXTS, 29), LABELS
    ),
    "one token or more and padding only at the end, got [-1, ": (
        TEXTS[:, ::-1].copy(), LABELS
    ),
    "at most 11 tokens for this model, got 22": (np.tile(TOKENS, 2), LABELS),
}  # fmt: skip


@on_both_sides
@pytest.mark.parametrize("told", BATCHES)
def test_texts_and_labels_that_do_not_fit_are_refused(side, told):
    """Before any update, in training and in evaluation."""
    model, loss = classifier(side), side.models.cross_entropy
    before = to_arrays(model)
    for call in (side.models.evaluate, side.models.fit):
        more = (SMALL,) if call is side.models.fit else ()
        with pytest.raises(ValueError) as caught:
            call(model, loss, BATCHES[told], *more)
        assert f"expected {told}" in str(caught.value)
    assert not changed(model, before)


def test_an_unknown_character_is_named():
    with pytest.raises(ValueError, match=r"unknown character '’' \(U\+2019\)"):
        BytePairs("abc").encode("ab’")


@on_both_sides
def test_layers_and_ranks_that_make_no_sense_are_refused(side):
    """With both values; the model stays as it was."""
    model, models = build(side), side.models
    before, known = to_arrays(model), "['down', 'gate', 'k', 'out', 'q', 'up', 'v']"
    for told, options in {
        "a rank of at least 1, got 0": {"rank": 0},
        f"layers among {known}, got ['qkv']": {"names": ("q", "qkv")},
    }.items():
        with pytest.raises(ValueError) as caught:
            adapted(side, model, lora=models, **options)
        assert str(caught.value) == f"expected {told}"
        assert to_arrays(model).keys() == before.keys()
    with pytest.raises(ValueError, match=r"among \[.*'v'.*\], got \['lora_a'\]$"):
        models.train_only(model, "q", "lora_a")
    adapted(side, model, lora=models)
    with pytest.raises(ValueError, match=r"among \['base', .*\], got \['q', 'v'\]"):
        adapted(side, model, lora=models)


@on_both_sides
def test_what_cannot_be_written_is_refused(side, tmp_path):
    """A model without adapters, or with several kinds; a head that is not there."""
    model, path = build(side), tmp_path / "adapter"
    with pytest.raises(ValueError, match="adapters of one rank and scale, got none"):
        side.models.save_adapter(model, path)
    adapted(side, model, lora=side.models)
    with pytest.raises(ValueError, match=r"expected names among .*, got output$"):
        side.models.save_adapter(model, path, "output")
    adapted(side, model, lora=side.models, rank=3, names=["k"])
    with pytest.raises(ValueError, match=r"got \[\(2, 2.5\), \(3, 1.66"):
        side.models.save_adapter(model, path)
    assert not path.exists()


def spoil(path, change):
    """Change the arrays or the notes of a file."""
    with safetensors.safe_open(path, "numpy") as file:
        notes = file.metadata()
    arrays = safetensors.numpy.load_file(path)
    change(arrays, notes)
    safetensors.numpy.save_file(arrays, path, notes)


FIRST = "blocks.0.attention.q.lora_a"
FILES = {  # the words of the error, and what is wrong with a file
    f"{FIRST} in PATH: (14, 2), got (14, 3)": lambda arrays, _: arrays.update(
        {FIRST: np.zeros((14, 3), np.float32)}
    ),
    f"{FIRST} in PATH: (14, 2), got none": lambda arrays, _: arrays.pop(FIRST),
    "more in PATH: no such array, got (1,)": lambda arrays, _: arrays.update(
        more=np.zeros(1)
    ),
    f"finite numbers in {FIRST} in PATH, got 1 that are not": (
        lambda arrays, _: arrays[FIRST].__setitem__((0, 0), np.nan)
    ),
    "PATH to be an adapter of save_adapter, got KeyError('adapter')": (
        lambda _, notes: notes.pop("adapter")
    ),
    "PATH to be an adapter of save_adapter, got KeyError('trunk')": (
        lambda _, notes: notes.pop("trunk")
    ),
    "PATH to be an adapter of save_adapter, got JSONDecodeError": (
        lambda _, notes: notes.update(adapter="[")
    ),
}


@on_both_sides
@pytest.mark.parametrize("told", FILES)
def test_a_file_that_does_not_fit_is_refused(side, told, tmp_path):
    """With both values, and the adapters that a model has stay."""
    model, path = adapted(side, build(side), lora=side.models), tmp_path / "adapter"
    side.models.save_adapter(model, path)
    spoil(path, FILES[told])
    assert_refused(side, randomise(model), path, told.replace("PATH", str(path)))


def assert_refused(side, model, path, told):
    """One sentence, and nothing has changed."""
    before = to_arrays(model)
    with pytest.raises(ValueError) as caught:
        side.models.load_adapter(model, path)
    assert str(caught.value).startswith(f"expected {told}"), caught.value
    assert "\n" not in str(caught.value)
    assert not changed(model, before)


@on_both_sides
@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_half_a_file_is_refused(side, size, tmp_path):
    model, path = adapted(side, build(side), lora=side.models), tmp_path / "adapter"
    side.models.save_adapter(model, path)
    path.write_bytes(path.read_bytes()[:size])
    told = f"{path} to be an adapter of save_adapter, got SafetensorError("
    assert_refused(side, model, path, told)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        side.models.load_adapter(model, tmp_path / "nowhere")


@on_both_sides
def test_an_adapter_of_another_trunk_is_refused(side, tmp_path):
    """Other weights, other sizes, or a head of another number of classes."""
    path, model = tmp_path / "adapter", adapted(side, build(side), lora=side.models)
    side.models.save_adapter(model, path)
    with safetensors.safe_open(path, "numpy") as file:
        trunk = file.metadata()["trunk"][:8]
    arrays = to_arrays(model)
    arrays["norm.weight"] += 1e-6
    from_arrays(model, arrays)
    told = f"a model with the weights {trunk} that {path} was trained on, got "
    for wrong in (model, build(side, f=19), classifier(side)):
        assert_refused(side, wrong, path, told)
    model = classifier(side)
    side.models.save_adapter(model, path, "output")
    wrong = side.models.build(side.models.TextClassifier, build(side), 5)
    told = f"trunk.output.bias in {path}: (5,), got (3,)"
    assert_refused(side, wrong, path, told)
