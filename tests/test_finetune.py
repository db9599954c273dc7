"""Starting from a trained model: adapters of low rank, and a classifier of texts.

Witnesses: PEFT, Hu et al.'s formula in NumPy, and the other framework.
"""

import json

import jax
import numpy as np
import pytest
import safetensors
import torch
from flax import nnx

from helpers.data import text
from helpers.data.byte_pairs import BytePairs
from helpers.data.checkpoints import TINY
from helpers.settings import Settings
from helpers.weights import as_numpy, from_arrays, load_weights, to_arrays
from sides import definitions, draw, fill, jax_side, on_both_sides, torch_side

N_TOKENS, M, LENGTH, C = 29, 14, 11, 3
SIZES = {"n_blocks": 2, "n_heads": 2, "d": 6, "f": 17, "max_length": LENGTH}
SMALL = Settings(n_train=8, batch_size=4, epochs=2, learning_rate=0.02, warmup=1)
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(N_TOKENS, size=(8, LENGTH), dtype=np.int32)
LENGTHS = np.array([11, 1, 7, 5, 2, 10, 3, 8])
TEXTS = np.where(np.arange(LENGTH) < LENGTHS[:, None], TOKENS, -1)
LABELS = np.arange(8) % C
HEAD = ("lora_a", "lora_b", "output")  # what a classifier trains


def page(side):
    return definitions(f"finetune_{side.name}")


def build(side, **sizes):
    """A language model with the weights that it has in both frameworks."""
    model = side.build("ModernLM", N_TOKENS, M, **SIZES | sizes)
    fill(model)
    return model


def adapted(side, model, rank=2, alpha=5, names=("q", "v")):
    return side.build(page(side).add_lora, model, rank, alpha, names, seed=1)


def randomise(model, seed=1):
    """Give A and B random values, so that both count."""
    arrays = to_arrays(model)
    for n, name in enumerate(sorted(name for name in arrays if "lora" in name)):
        arrays[name] = draw(*arrays[name].shape, seed=seed + n, scale=0.2)
    from_arrays(model, arrays)
    return model


def classifier(side, blocks=slice(None)):
    """A classifier on a language model with adapters; all its values are its own."""
    trunk = build(side)
    for block in trunk.blocks[blocks]:
        adapted(side, block)
    model = side.build(page(side).TextClassifier, trunk, C, seed=2)
    head = {"trunk.output.weight": draw(M, C), "trunk.output.bias": draw(C, seed=1)}
    from_arrays(model, to_arrays(model) | head)
    return model


def logits(side, model, tokens=TOKENS):
    return as_numpy(page(side).forward(model, side.tensor(tokens)))


def train(side, model, names):
    options = page(side).train_only(model, *names)
    loss, data = side.models.cross_entropy, (TEXTS, LABELS)
    return side.models.fit(model, loss, data, SMALL, **options)


@on_both_sides
def test_before_training_an_adapter_changes_no_output(side):
    """To the last bit, since B = 0; and A is not."""
    model = build(side)
    before, arrays = logits(side, model), to_arrays(model)
    adapted(side, model)
    np.testing.assert_array_equal(logits(side, model), before)
    after = to_arrays(model)
    found = {name: x for name, x in after.items() if "lora" in name}
    assert len(found) == 8  # A and B of q and v, in two blocks
    for name, x in found.items():
        assert x.shape == ((M, 2) if name.endswith("a") else (2, 12))
        assert x.any() == name.endswith("a") and np.abs(x).max() <= M**-0.5
    rest = {name.replace(".base", ""): x for name, x in after.items()}
    assert all((rest[name] == x).all() for name, x in arrays.items())


@on_both_sides
def test_a_layer_is_the_formula_of_the_paper(side):
    """``x W + b + α/r · x A B``, in float64; sizes are different primes."""
    base = side.build("projection", 13, 7, True)
    w = fill(base)
    layer = randomise(side.build(page(side).LoRALinear, base, 3, 5))
    a, b = (to_arrays(layer)[name].astype(np.float64) for name in HEAD[:2])
    x = draw(2, 5, 13)
    expected = x @ w["weight"] + 5 / 3 * x @ a @ b + w["bias"]
    np.testing.assert_allclose(as_numpy(layer(side.tensor(x))), expected, atol=1e-5)
    merged = as_numpy(layer.merge()(side.tensor(x)))
    np.testing.assert_allclose(merged, expected, atol=1e-5)


@on_both_sides
@pytest.mark.parametrize("blocks", [slice(None), slice(1)], ids=["all", "the first"])
def test_peft_reads_the_file_and_computes_the_same(side, blocks, tmp_path):
    """Adapters of some blocks and a new last layer, on PyTorch's model; so do we."""
    peft = pytest.importorskip("peft")
    ours = randomise(classifier(side, blocks))
    head = {"trunk.output.weight": draw(M, C, seed=7)}
    from_arrays(ours, to_arrays(ours) | head)
    page(side).save_adapter(ours, tmp_path / "adapter", ["output"])
    bare = torch_side.build(page(torch_side).TextClassifier, build(torch_side), C)
    theirs = peft.PeftModel.from_pretrained(bare, tmp_path / "adapter")
    with torch.no_grad():
        found = as_numpy(theirs(torch_side.tensor(TEXTS)))
    expected = logits(side, ours, TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(logits(side, classifier(side), TEXTS) - expected).max() > 0.1
    other = randomise(classifier(side), seed=9)  # whose adapters are in all blocks
    page(side).load_adapter(other, tmp_path / "adapter")
    np.testing.assert_allclose(logits(side, other, TEXTS), expected, atol=1e-5)


@on_both_sides
def test_a_file_gives_equal_logits_in_the_other_framework(side, tmp_path):
    """Also after another adapter; the frozen weights stay as they were."""
    other = torch_side if side is jax_side else jax_side
    ours, theirs = randomise(classifier(side)), randomise(classifier(other), seed=9)
    before, arrays = logits(other, theirs, TEXTS), to_arrays(theirs)
    page(side).save_adapter(ours, tmp_path / "a", ["output"])
    page(other).save_adapter(theirs, tmp_path / "b", ["output"])
    page(other).load_adapter(theirs, tmp_path / "a")
    expected = logits(side, ours, TEXTS)
    np.testing.assert_allclose(logits(other, theirs, TEXTS), expected, atol=1e-5)
    assert np.abs(before - expected).max() > 0.1
    page(other).load_adapter(theirs, tmp_path / "b")
    assert all((x == arrays[name]).all() for name, x in to_arrays(theirs).items())


@on_both_sides
@pytest.mark.parametrize("kind", ["Translator", "LanguageModel", "ModernLM"])
def test_a_layer_with_an_adapter_can_be_read_and_merged(side, kind):
    """Also where keys of a context take a part of it: equal at first, and merged."""
    sizes = {"n_blocks": 1, "n_heads": 1, "f": 17, "max_length": 9}
    sizes |= {} if kind == "Translator" else {"tied": False}
    given = [side.tensor(TOKENS[:, :5])] * (2 if kind == "Translator" else 1)
    names = {"Translator": ("qkv", "out"), "ModernLM": ("q", "down", "output")}
    made = getattr(definitions(f"translation_{side.name}"), kind, kind)
    model = side.build(made, N_TOKENS, M, **sizes)
    old, first = fill(model).keys(), as_numpy(model(*given))
    adapted(side, model, names=names.get(kind, ("output",)))
    np.testing.assert_array_equal(as_numpy(model(*given)), first)
    expected = as_numpy(randomise(model)(*given))
    assert np.abs(expected - first).max() > 0.1
    merged = page(side).merge_lora(model)
    np.testing.assert_allclose(as_numpy(merged(*given)), expected, atol=1e-4)
    assert merged is model and to_arrays(model).keys() == old


@on_both_sides
def test_merging_twice_is_merging_once(side):
    """And a layer that stands in two places has one adapter."""
    model = build(side)
    net = model.blocks[0].ffn
    net.up = net.gate
    randomise(adapted(side, model, names=("gate", "up")))
    layer, expected = net.up, logits(side, model)
    assert layer is net.gate and page(side).merge_lora(model) is model
    np.testing.assert_allclose(logits(side, model), expected, atol=1e-5)
    layer.merge()
    np.testing.assert_allclose(logits(side, model), expected, atol=1e-5)


@on_both_sides
def test_adapters_train_beside_a_trunk_in_bfloat16(side):
    """It stays as it is; merged, a weight is the rounded sum, which is exact here."""
    dtype = {"torch": torch, "jax": jax.numpy}[side.name].bfloat16
    trunk, _ = side.models.load_pretrained(TINY / "llama", dtype)
    before = logits(side, trunk)
    model = side.build(page(side).TextClassifier, adapted(side, trunk), C)
    history = train(side, model, HEAD)
    assert history["loss"][-1] < history["loss"][0]
    np.testing.assert_array_equal(logits(side, trunk), before)
    layer = trunk.blocks[0].attention.q
    a, b = np.round(8 * draw(24, 2)) / 64, np.round(8 * draw(2, 24, seed=1)) / 64
    weight = to_arrays(layer)["base.weight"]
    from_arrays(layer, to_arrays(layer) | {"lora_a": a, "lora_b": b})
    (merged,) = to_arrays(layer.merge()).values()
    expected = (weight + 2.5 * a @ b).astype(jax.numpy.bfloat16)
    np.testing.assert_array_equal(merged, expected.astype(np.float32))
    assert (
        layer.base.weight if side is torch_side else layer.base.kernel
    ).dtype == dtype


@on_both_sides
def test_output_and_adapters_are_drawn_from_other_random_numbers(side, monkeypatch):
    monkeypatch.setattr(page(side), "SIZES", {"n_tokens": N_TOKENS, "m": M, **SIZES})
    arrays = to_arrays(page(side).classifier(lora=True))
    drawn = [x for name, x in arrays.items() if name.endswith("lora_a")]
    output = arrays["trunk.output.weight"]
    assert drawn and max(np.isin(x, output).mean() for x in drawn) < 0.05


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_published_models_take_adapters(kind, tmp_path):
    """The same in both frameworks, from one file."""
    found = {}
    for side in (torch_side, jax_side):
        model, _ = side.models.load_pretrained(TINY / kind)
        first = logits(side, adapted(side, model, names=["q", "v", "down"]))
        if side is torch_side:
            page(side).save_adapter(randomise(model), tmp_path / "adapter")
        page(side).load_adapter(model, tmp_path / "adapter")
        found[side.name] = logits(side, page(side).merge_lora(model))
        scale = np.abs(first).max()
        assert np.abs(found[side.name] - first).max() > 0.01 * scale
    np.testing.assert_allclose(found["jax"], found["torch"], atol=1e-4 * scale)


@on_both_sides
@pytest.mark.parametrize("names", [HEAD, ("output",), ("embed", "norm")], ids=len)
def test_only_what_is_named_is_trained(side, names):
    """The rest stays to the last bit; the loss falls; frozen parts can be trained."""
    model = classifier(side)
    train(side, model, ("lora_a",))
    before = to_arrays(model)
    history = train(side, model, names)
    changed = {n for n, x in to_arrays(model).items() if (x != before[n]).any()}
    assert changed == {n for n in before if {*names} & {*n.split(".")}}
    assert history["loss"][-1] < history["loss"][0]


@on_both_sides
def test_the_optimizer_has_averages_of_what_is_trained_alone(side):
    model = classifier(side)
    options = page(side).train_only(model, *HEAD)
    if side is jax_side:
        params = nnx.state(model, options["wrt"])
        kept = [x.size for x in jax.tree.leaves(params)]
    else:
        optimizer, _ = side.models.make_optimizer(model, SMALL)
        batch = side.tensor(TEXTS), side.tensor(LABELS)
        side.models.cross_entropy(model, *batch)[0].backward()
        optimizer.step()
        kept = [each["exp_avg"].numel() for each in optimizer.state.values()]
    arrays = to_arrays(model).items()
    chosen = [x.size for name, x in arrays if {*HEAD} & {*name.split(".")}]
    assert sorted(kept) == sorted(chosen)


@on_both_sides
def test_classes_are_read_at_the_last_token(side):
    """As by the language model, at that place; padding at the end changes nothing."""
    model = classifier(side)
    found = logits(side, model, TEXTS)
    everywhere = logits(side, model.trunk, TOKENS)  # b s c
    expected = everywhere[np.arange(8), LENGTHS - 1]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    cut = logits(side, model, TEXTS[LENGTHS <= 7, :7])
    np.testing.assert_allclose(cut, found[LENGTHS <= 7], atol=1e-5)
    alone = logits(side, model, TOKENS[1:2, :1])
    np.testing.assert_allclose(alone, found[1:2], atol=1e-5)


@on_both_sides
def test_layers_and_ranks_that_make_no_sense_are_refused(side):
    """With both values; the model stays as it was."""
    model = build(side)
    before, known = to_arrays(model), "['down', 'gate', 'k', 'out', 'q', 'up', 'v']"
    for told, options in {
        "a rank of at least 1, got 0": {"rank": 0},
        f"layers among {known}, got ['qkv']": {"names": ("q", "qkv")},
    }.items():
        with pytest.raises(ValueError) as caught:
            adapted(side, model, **options)
        assert str(caught.value) == f"expected {told}"
        assert to_arrays(model).keys() == before.keys()
    with pytest.raises(ValueError, match=r"among \[.*'v'.*\], got \['lora_a'\]$"):
        page(side).train_only(model, "q", "lora_a")


def test_the_pretrained_model_has_equal_logits_in_both_frameworks():
    """The file that the page starts from; and it has learned to predict."""
    with safetensors.safe_open(text.PRETRAINED, "numpy") as file:
        metadata = file.metadata()
    sizes, pairs = json.loads(metadata["model"]), BytePairs.from_metadata(metadata)
    tokens = text.windows(pairs.encode(text.load()["test"][:1000]), 53)[:3]
    found = {}
    for side in (jax_side, torch_side):
        model = side.build("ModernLM", **sizes)
        load_weights(model, text.PRETRAINED)
        found[side.name] = logits(side, model, tokens[:, :-1])
    np.testing.assert_allclose(found["jax"], found["torch"], atol=1e-4)
    assert text.nats(found["jax"], tokens).mean() < 0.7 * np.log(len(pairs))
