"""The masked language model: equal to BERTs and ALBERTs, padded, and strict."""

import json
import shutil
from functools import cache

import numpy as np
import pytest
import safetensors.numpy
import torch

from helpers.data import published_masked
from helpers.data.checkpoints import TINY
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import to_arrays
from hugging_face import (
    N_TOKENS,
    RIGHT,
    TOKENS,
    callable_of,
    difference,
    tokens_of,
    whole,
)
from sides import fill, jax_side, on_both_sides, torch_side

SIZES = {"n_blocks": 3, "n_heads": 3, "f": 37, "max_length": 43, "n_segments": 3}
M, E = 42, 17
KINDS = {"bert": {}, "albert": {"n_embed": E, "shared": True}}
ON_KINDS = pytest.mark.parametrize("kind", KINDS)
SEGMENTS = np.random.default_rng(1).integers(3, size=TOKENS.shape, dtype=np.int32)
THEIRS = {
    "vocab_size": N_TOKENS, "hidden_size": M, "num_hidden_layers": 3,
    "num_attention_heads": 3, "intermediate_size": 37, "hidden_act": "gelu",
    "max_position_embeddings": 43, "type_vocab_size": 3, "layer_norm_eps": 2e-3,
    "initializer_range": 0.3, "embedding_size": E,
}  # fmt: skip


@cache
def built(side, kind):
    """A model, each of its parameters with a value of its own; and as a function."""
    model = side.build("MaskedLM", N_TOKENS, M, **SIZES | KINDS[kind])
    fill(model)
    return model, callable_of(side, model)


def masks_of(side, real):
    """Boolean ``b s`` as a side takes it."""
    return side.mask(np.ascontiguousarray(real))


# Published models


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A folder with a model of `transformers`; its logits and its maps."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    @cache
    def made(kind):
        folder = tmp_path_factory.mktemp(kind)
        config = transformers.AutoConfig.for_model(kind, **THEIRS)
        torch.manual_seed(0)
        auto = transformers.AutoModelForPreTraining  # also with a pooler
        model = auto.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for name, x in model.named_parameters():
                if x.ndim == 1:  # else norms would have weights 1, and all biases 0
                    scale = "norm" in name.lower() and name.endswith("weight")
                    x.normal_(float(scale), 0.3)
            out = model(
                whole(TOKENS), attention_mask=whole(RIGHT),
                token_type_ids=whole(SEGMENTS), output_attentions=True,
            )  # fmt: skip
        model.save_pretrained(folder)
        shutil.copy(TINY / "qwen3" / "tokenizer.json", folder)
        maps = torch.stack(out.attentions)
        return folder, out.prediction_logits.numpy(), maps.numpy()

    return made


@on_both_sides
@ON_KINDS
def test_models_of_transformers_are_ours(side, kind, live):
    """Logits to 1e-5 of the largest, and the attention maps."""
    folder, logits, maps = live(kind)
    model, tokenizer = side.models.load_bert(folder)
    assert tokenizer.decode(tokenizer.encode("Who?").ids) == "Who?"
    given = tokens_of(side, TOKENS), masks_of(side, RIGHT), tokens_of(side, SEGMENTS)
    found = [as_numpy(x) for x in model(*given, return_maps=True)]
    assert found[0].shape == logits.shape
    assert difference(found[0][RIGHT], logits[RIGHT]) < 1e-5
    rows = np.broadcast_to(RIGHT[None, :, None], maps.shape[:-1])
    assert difference(found[1][rows], maps[rows]) < 1e-5


@on_both_sides
def test_old_names_of_norms_are_read(side, live, tmp_path):
    """Google's first files say gamma and beta."""
    folder, logits, _ = live("bert")
    old = shutil.copytree(folder, tmp_path / "old") / "model.safetensors"
    arrays = safetensors.numpy.load_file(old)
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, previous in names.items():
        arrays = {name.replace(new, previous): x for name, x in arrays.items()}
    assert any("gamma" in name for name in arrays)
    safetensors.numpy.save_file(arrays, old)
    model, _ = side.models.load_bert(old.parent)
    given = tokens_of(side, TOKENS), masks_of(side, RIGHT), tokens_of(side, SEGMENTS)
    assert difference(as_numpy(model(*given))[RIGHT], logits[RIGHT]) < 1e-5


BAD = {
    "activation": ("albert", {"hidden_act": "gelu_new"}, ["'gelu'", "'gelu_new'"]),
    "kind": ("bert", {"model_type": "roberta"}, ["'bert', 'albert'", "'roberta'"]),
    "groups": ("albert", {"num_hidden_groups": 2}, ["num_hidden_groups 1", "2"]),
    "heads": ("bert", {"num_attention_heads": 4}, ["42", "4"]),
    "positions": ("bert", {"max_position_embeddings": 41}, ["(43, 42)", "(41, 42)"]),
    "blocks": ("bert", {"num_hidden_layers": 4}, ["encoder.blocks.3"]),
    "setting": ("bert", {"hidden_size": None}, ["hidden_size", "config"]),
}


@on_both_sides
@pytest.mark.parametrize("name", BAD)
def test_a_checkpoint_that_does_not_fit_is_refused(side, name, live, tmp_path):
    """One sentence with what was expected and what came."""
    kind, changes, words = BAD[name]
    folder = shutil.copytree(live(kind)[0], tmp_path / "spoiled")
    place = folder / "config.json"
    found = json.loads(place.read_text("utf-8")) | changes
    found = {name: value for name, value in found.items() if value is not None}
    place.write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        side.models.load_bert(folder)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_weights_that_are_cut_short_are_named():
    """Queries without their keys stay as they are, so that loading names them."""
    found = published_masked.our_names({
        "bert.encoder.layer.0.attention.self.query.weight": np.ones((3, 2)),
        "cls.predictions.bias": np.ones(5),
    })  # fmt: skip
    assert {name: x.shape for name, x in found.items()} == {
        "encoder.blocks.0.attention.q.weight": (2, 3), "bias": (5,)
    }  # fmt: skip


# What holds of every such model


@on_both_sides
@ON_KINDS
def test_padding_changes_nothing(side, kind):
    """Rows have the logits that they have alone, by -1 or by a mask of what is real."""
    _, call = built(side, kind)
    padded = as_numpy(call(tokens_of(side, np.where(RIGHT, TOKENS, -1))))
    masked = as_numpy(call(tokens_of(side, TOKENS), masks_of(side, RIGHT)))
    assert np.isfinite(padded).all()
    for row, real in enumerate(RIGHT):
        alone = as_numpy(call(tokens_of(side, TOKENS[row, real][None])))[0]
        np.testing.assert_allclose(padded[row, real], alone, atol=2e-5)
        np.testing.assert_allclose(masked[row, real], alone, atol=2e-5)


@on_both_sides
@ON_KINDS
def test_every_position_sees_all_real_ones(side, kind):
    """Of every block and head; the rows of a map sum to 1, and padding gets nothing."""
    model, _ = built(side, kind)
    padded = tokens_of(side, np.where(RIGHT, TOKENS, -1))
    logits, maps = (as_numpy(x) for x in model(padded, return_maps=True))
    np.testing.assert_allclose(logits, as_numpy(model(padded)), atol=2e-5)
    b, s = TOKENS.shape
    assert maps.shape == (3, b, 3, s, s)
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    seen = np.broadcast_to(RIGHT[:, None, None], maps.shape[1:])
    np.testing.assert_array_equal(maps > 0, np.stack([seen] * 3))


@on_both_sides
@ON_KINDS
def test_segments_and_places_count(side, kind):
    """Without segments all are the first; another one, or another place, is seen."""
    _, call = built(side, kind)
    tokens, real = tokens_of(side, TOKENS), masks_of(side, RIGHT | True)
    plain = as_numpy(call(tokens, real))
    zeros = as_numpy(call(tokens, real, tokens_of(side, 0 * SEGMENTS)))
    other = as_numpy(call(tokens, real, tokens_of(side, SEGMENTS)))
    turned = as_numpy(call(tokens_of(side, TOKENS[:, ::-1].copy()), real))[:, ::-1]
    # Two programs, each compiled as a whole: JAX may round their sums otherwise.
    np.testing.assert_allclose(plain, zeros, rtol=0, atol=1e-6)
    assert np.abs(plain - other).max(axis=-1).min() > 1e-3
    assert np.abs(plain - turned).max(axis=-1)[:, :5].min() > 1e-3


@on_both_sides
def test_parameters_are_those_of_the_paper(side):
    """The output has only a bias of its own; a shared block is stored once."""
    (bert, _), (albert, _) = (built(side, kind) for kind in KINDS)
    names = {kind: to_arrays(model) for kind, model in {"b": bert, "a": albert}.items()}
    assert names["b"]["embed.weight"].shape == (N_TOKENS, M)
    assert names["a"]["embed.weight"].shape == (N_TOKENS, E)
    assert names["a"]["widen.weight"].shape == (E, M)
    assert [
        name for name in names["a"] if "blocks" in name and "blocks.0" not in name
    ] == []
    block = 4 * M * M + 4 * M + 2 * M * 37 + 37 + M + 4 * M
    tables = (N_TOKENS + 43 + 3 + 2) * M
    total = sum(x.size for x in names["b"].values())
    assert total == tables + 3 * block + M * M + 3 * M + N_TOKENS
    assert len(albert.encoder.blocks) == 3


@on_both_sides
def test_bad_input_is_refused(side):
    """With both values, before any work."""
    model, _ = built(side, "bert")
    tokens = tokens_of(side, TOKENS)
    with pytest.raises(ValueError, match="44 positions, but max_length = 43"):
        model(tokens_of(side, np.zeros((1, 44), np.int32)))
    with pytest.raises(ValueError, match=r"whole numbers, got .*float32"):
        model(side.tensor(TOKENS))
    with pytest.raises(ValueError, match=r"\(3, 11\), \(3, 10\), \(3, 11\)"):
        model(tokens, masks_of(side, RIGHT[:, 1:]))
    with pytest.raises(ValueError, match=r"\(3, 11\), \(3, 11\), \(11,\)"):
        model(tokens, masks_of(side, RIGHT), tokens_of(side, SEGMENTS[0]))
    with pytest.raises(TypeError, match=r"dtype .*bool"):
        model(tokens, tokens)
    with pytest.raises(ValueError, match="at least one block"):
        side.build("MaskedLM", N_TOKENS, M, **SIZES | {"n_blocks": 0})


@ON_KINDS
def test_both_frameworks_give_the_same(kind):
    """From the same parameters."""
    given = np.where(RIGHT, TOKENS, -1)
    sides = jax_side, torch_side
    one, two = (as_numpy(built(s, kind)[1](tokens_of(s, given))) for s in sides)
    assert difference(one[RIGHT], two[RIGHT]) < 1e-5
