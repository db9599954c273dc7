"""Masked language models: what is hidden, BERT and ALBERT, and reactions as text.

Witnesses: `transformers`, NumPy, and the other framework. The weights of RXNMapper are
tested where its wheel is in the data folder, or can be fetched.
"""

import hashlib
import json
import shutil
from functools import cache

import numpy as np
import pytest
import safetensors.numpy
import torch

from helpers.data import checkpoints, reactions
from helpers.data.checkpoints import TINY
from helpers.weights import as_numpy, from_arrays, to_arrays
from hugging_face import N_TOKENS, RIGHT, TOKENS, difference, whole
from sides import definitions, fill, jax_side, on_both_sides, torch_side

M, E, MASK = 42, 17, 607
SIZES = {"n_blocks": 3, "n_heads": 3, "f": 37, "max_length": 43, "n_segments": 3}
KINDS = {"bert": {}, "albert": {"n_embed": E, "shared": True}}
ON_KINDS = pytest.mark.parametrize("kind", KINDS)
SEGMENTS = np.random.default_rng(1).integers(3, size=TOKENS.shape, dtype=np.int32)
THEIRS = {
    "vocab_size": N_TOKENS, "hidden_size": M, "num_hidden_layers": 3,
    "num_attention_heads": 3, "intermediate_size": 37, "hidden_act": "gelu",
    "max_position_embeddings": 43, "type_vocab_size": 3, "layer_norm_eps": 2e-3,
    "initializer_range": 0.3, "embedding_size": E,
}  # fmt: skip


def page_of(side):
    """What stands on the page of the chapter."""
    return definitions(f"masked_{side.name}")


@cache
def built(side, kind):
    """A model, each of its parameters with a value of its own."""
    model = side.build(page_of(side).MaskedLM, N_TOKENS, M, **SIZES | KINDS[kind])
    fill(model)
    return model


def outputs(side, model, *given, **options):
    """Logits as NumPy, or logits and maps."""
    with torch.no_grad():
        out = model(*(side.tensor(np.ascontiguousarray(x)) for x in given), **options)
    return [as_numpy(x) for x in out] if options else as_numpy(out)


# What is hidden, and the loss


def test_the_share_is_asked_for_and_of_it_80_10_10():
    """Labels are the tokens there; nothing else changes; padding stays."""
    mask = 5  # of so few tokens, that a random one is the same is no rare chance
    tokens = np.random.default_rng(5).integers(mask, size=(997, 101), dtype=np.int32)
    tokens[:, 90:] = -1
    rng = np.random.default_rng(0)
    inputs, labels = page_of(torch_side).mask_tokens(tokens, mask, rng)
    asked, hidden, same = labels >= 0, inputs == mask, inputs == tokens
    free = tokens >= 0
    found = asked[free].mean(), hidden[asked].mean(), (asked & same).sum() / asked.sum()
    np.testing.assert_allclose(found, (0.15, 0.8, 0.12), atol=0.009)
    assert not asked[~free].any() and same[~asked].all()
    assert (labels[asked] == tokens[asked]).all() and (labels[~asked] == -1).all()
    assert inputs.dtype == labels.dtype == np.int32
    others = np.unique(inputs[asked & ~hidden & ~same])
    assert len(others) == mask


ROWS = np.array([[3, 9, 1, 4, -1], [9, 2, 6, 5, 3], [0, 1, 2, -1, -1]])
ASKED = np.array([[-1, 7, -1, 4, -1], [2, -1, -1, -1, -1], [-1, -1, -1, -1, -1]])


@on_both_sides
def test_the_loss_is_the_mean_of_minus_ln_p_where_asked(side):
    """And in ``evaluate``, whatever the size of a batch: a row may ask for nothing."""
    model, loss_fn = built(side, "bert"), page_of(side).masked_token
    logits = outputs(side, model, ROWS).astype(np.float64)  # b s c
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    places = [(0, 1), (0, 3), (1, 0)]
    wanted = -np.mean([log_p[at][ASKED[at]] for at in places])
    hits = np.mean([logits[at].argmax() == ASKED[at] for at in places])
    loss, metrics = loss_fn(model, side.tensor(ROWS), side.tensor(ASKED))
    np.testing.assert_allclose(as_numpy(loss), wanted, rtol=1e-5)
    np.testing.assert_allclose(as_numpy(metrics["accuracy"]), hits, rtol=1e-6)
    for size in (1, 2):
        found = side.models.evaluate(model, loss_fn, (ROWS, ASKED), batch_size=size)
        np.testing.assert_allclose([*found.values()], [wanted, hits], rtol=1e-5)


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
            options = {"token_type_ids": whole(SEGMENTS), "output_attentions": True}
            out = model(whole(TOKENS), attention_mask=whole(RIGHT), **options)
        model.save_pretrained(folder)
        shutil.copy(TINY / "qwen3" / "tokenizer.json", folder)
        return folder, out.prediction_logits.numpy(), torch.stack(out.attentions)

    return made


@on_both_sides
@ON_KINDS
def test_models_of_transformers_are_ours(side, kind, live):
    """Logits to 1e-5 of the largest, and the attention maps."""
    folder, logits, maps = live(kind)
    model, tokenizer = page_of(side).load_bert(folder)
    assert tokenizer.decode(tokenizer.encode("Who?").ids) == "Who?"
    found = outputs(side, model, TOKENS, RIGHT, SEGMENTS, return_maps=True)
    assert difference(found[0][RIGHT], logits[RIGHT]) < 1e-5
    rows = np.broadcast_to(RIGHT[None, :, None], maps.shape[:-1])
    assert difference(found[1][rows], maps.numpy()[rows]) < 1e-5


def test_old_names_of_norms_are_read(live):
    """Google's first files say gamma and beta."""
    tensors = safetensors.numpy.load_file(live("bert")[0] / "model.safetensors")
    old = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): x
        for name, x in tensors.items()
    }
    assert any("gamma" in name for name in old)
    ours, again = (
        checkpoints.our_names_of_bert(tensors),
        checkpoints.our_names_of_bert(old),
    )
    assert all((again[name] == x).all() for name, x in ours.items())


@on_both_sides
@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("albert", {"hidden_act": "gelu_new"}, "'gelu',.*'gelu_new'"),
        ("albert", {"hidden_act": None}, "'gelu',.*'gelu_new'"),  # what it assumes
        ("bert", {"num_hidden_layers": 4}, "encoder.blocks.3"),
        ("bert", "untied", "expected tied weights, got an output layer of its own"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    side, kind, changes, told, live, tmp_path
):
    folder = shutil.copytree(live(kind)[0], tmp_path / "spoiled")
    place, file = folder / "config.json", folder / "model.safetensors"
    config = json.loads(place.read_text("utf-8"))
    if changes == "untied":
        arrays, name = safetensors.numpy.load_file(file), "bert.embeddings."
        other = arrays[f"{name}word_embeddings.weight"] + 1
        arrays["cls.predictions.decoder.weight"] = other
        safetensors.numpy.save_file(arrays, file)
    else:
        place.write_text(json.dumps(config | changes), encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        page_of(side).load_bert(folder)


# What holds of every such model


@on_both_sides
@ON_KINDS
def test_padding_changes_nothing_and_gets_no_weight(side, kind):
    """Rows have the logits that they have alone, by -1 or by a mask of what is real."""
    model, padded = built(side, kind), np.where(RIGHT, TOKENS, -1)
    found, maps = outputs(side, model, padded, return_maps=True)
    masked = outputs(side, model, TOKENS, RIGHT)
    for row, real in enumerate(RIGHT):
        alone = outputs(side, model, TOKENS[row, real][None])[0]
        np.testing.assert_allclose(found[row, real], alone, atol=2e-5)
        np.testing.assert_allclose(masked[row, real], alone, atol=2e-5)
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    seen = np.broadcast_to(RIGHT[:, None, None], maps.shape)
    np.testing.assert_array_equal(maps > 0, seen)


@on_both_sides
@ON_KINDS
def test_segments_and_places_count(side, kind):
    """Without segments all are the first; another one, or another place, is seen."""
    model, real = built(side, kind), RIGHT | True
    plain = outputs(side, model, TOKENS)
    zeros = outputs(side, model, TOKENS, real, 0 * SEGMENTS)
    other = outputs(side, model, TOKENS, real, np.maximum(SEGMENTS, 1))
    turned = outputs(side, model, TOKENS[:, ::-1])[:, ::-1]
    np.testing.assert_allclose(plain, zeros, rtol=0, atol=1e-6)
    assert np.abs(plain - other).max(axis=-1).min() > 1e-3
    assert np.abs(plain - turned).max(axis=-1)[:, :5].min() > 1e-3


@ON_KINDS
def test_both_frameworks_give_the_same(kind):
    """From the same parameters; a shared block is stored once."""
    padded = np.where(RIGHT, TOKENS, -1)
    one, two = (
        outputs(side, built(side, kind), padded)[RIGHT]
        for side in (jax_side, torch_side)
    )
    assert difference(one, two) < 1e-5
    names = {n.split(".")[2] for n in to_arrays(built(jax_side, kind)) if "blocks" in n}
    assert names == ({"0"} if kind == "albert" else {"0", "1", "2"})


# Reactions as text


def test_tokens_and_elements_of_a_reaction():
    """Brackets that only held a number go; those of charges, and of [nH], stay."""
    tokens, numbers = reactions.read_reaction("[CH3:2]C[O-].[nH:4]1cc1>>ClC[Na+]")
    assert " ".join(tokens) == "C C [O-] . [nH] 1 c c 1 >> Cl C [Na+]"
    assert numbers.tolist() == [2, 0, 0, 0, 4] + [0] * 8
    kinds = ["C", "C", "O", "", "N", "", "C", "C", "", "", "Cl", "C", "Na"]
    assert reactions.elements(tokens).tolist() == kinds
    found = reactions.encode(["C", "O"], ["O", "[CLS]", "C", "[SEP]"], 6)
    assert found.tolist() == [1, 2, 0, 3, -1, -1]


def test_the_atom_that_gets_most_weight_is_found():
    """Of atoms before the arrow only; with ``both``, weights back to it are added."""
    tokens = ["C", "=", "O", ">>", "O", ".", "C"]  # atoms 0 2 → 4 6, in maps 1 3 → 5 7
    maps = np.zeros((2, 9, 9))
    maps[:, 5, [2, 4, 5]] = 9  # a bond, the arrow, itself
    maps[:, 5, 3], maps[:, 5, 1], maps[:, 7, 1] = 0.4, 0.3, 0.2
    maps[1, 1, 5], maps[1, 3, 7] = 0.2, 0.1
    found, new = reactions.atom_map(maps, tokens)
    assert (new.tolist(), found.tolist()) == ([4, 6], [[2, 0], [2, 0]])
    found, _ = reactions.atom_map(maps, tokens, both=True)
    assert found.tolist() == [[2, 0], [0, 0]]


def test_a_wheel_that_is_missing_or_another_is_refused(tmp_path, monkeypatch):
    """In one sentence, which the page shows; and the file does not stay."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path))
    with pytest.raises(ValueError, match=r"expected pip .* rxnmapper==0\.4\.3, got"):
        reactions.fetch_wheel()
    (tmp_path / reactions.WHEEL).write_bytes(b"half a wheel")
    found = hashlib.sha256(b"half a wheel").hexdigest()
    with pytest.raises(ValueError, match=f"is removed: .*{reactions.SHA256}.*{found}"):
        reactions.fetch_wheel()
    assert not [*tmp_path.iterdir()]


@on_both_sides
def test_one_head_of_rxnmapper_maps_atoms_as_the_tool(side):
    """The logits of the real weights are those of `transformers`, too."""
    transformers = pytest.importorskip("transformers")
    try:
        wheel = reactions.fetch_wheel()
    except ValueError as error:
        pytest.skip(str(error))
    config, vocabulary, tensors, mapped = reactions.read_wheel(wheel)
    model = side.build(page_of(side).MaskedLM, **checkpoints.arguments_of_bert(config))
    from_arrays(model, checkpoints.our_names_of_bert(tensors))
    read = [reactions.read_reaction(smiles) for smiles in mapped[:3]]
    ids = np.stack([reactions.encode(tokens, vocabulary, 104) for tokens, _ in read])
    logits, maps = outputs(side, model, ids, return_maps=True)
    right = []
    for i, (tokens, numbers) in enumerate(read):
        old, new = reactions.atom_map(maps[:, i], tokens)
        right.append(numbers[old] == numbers[new])  # l h p
    right = np.concatenate(right, axis=-1)
    assert right.shape == (12, 8, 59)
    assert right[10, 5].sum() >= 56  # 57; two atoms that a symmetry swaps
    theirs = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**config)).eval()
    theirs.load_state_dict(tensors, strict=False)
    with torch.no_grad():
        mask = whole(ids >= 0)
        expected = theirs(whole(ids.clip(0)), attention_mask=mask).logits.numpy()
    assert difference(logits[ids >= 0], expected[ids >= 0]) < 1e-5
