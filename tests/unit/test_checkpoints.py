"""Files of published checkpoints: the tiny ones, and damaged ones that are refused."""

import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers.data import checkpoints
from helpers.data.checkpoints import CONFIG, INDEX, TINY, TOKENIZER, WEIGHTS

MODELS = "gpt2", "llama", "qwen3", "mixtral"
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def copy(tmp_path):
    """A copy of a tiny checkpoint that may be damaged."""
    return lambda model: shutil.copytree(TINY / model, tmp_path / model)


def raises(text, kind=ValueError):
    """An error of one line that says this."""
    return pytest.raises(kind, match=rf"^.*{re.escape(text)}.*$(?!\n)")


def test_the_tiny_checkpoints_are_small_and_for_all_four_architectures():
    sizes = [path.stat().st_size for path in TINY.rglob("*") if path.is_file()]
    assert sum(sizes) <= 400_000
    assert {path.name for path in TINY.iterdir()} == {*MODELS}
    for model in MODELS:
        assert checkpoints.read_config(TINY / model)["model_type"] == model


@pytest.mark.parametrize("model", MODELS)
def test_both_frameworks_read_the_same_tensors(model):
    """One file or shards, float32 or bfloat16, which stays what it is."""
    torch, jax = (checkpoints.read_tensors(TINY / model, f) for f in ("pt", "flax"))
    assert torch.keys() == jax.keys()
    for name, x in torch.items():
        assert str(x.dtype) == f"torch.{jax[name].dtype}"
        np.testing.assert_array_equal(x.float().numpy(), jax[name].astype("float32"))
    assert {str(x.dtype) for x in jax.values()} == (
        {"bfloat16"} if model == "llama" else {"float32"}
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_logits_are_those_of_transformers(model):
    """And they differ from token to token, so that a mistake shows."""
    transformers, torch = map(pytest.importorskip, ("transformers", "torch"))
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        TINY / model, dtype=torch.float32
    )
    expected = load_file(TINY / model / "expected.safetensors")
    with torch.inference_mode():
        logits = theirs(torch.as_tensor(expected["tokens"])).logits.numpy()
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-5)
    assert expected["logits"].std(axis=-1).min() > 0.5


def test_a_text_is_encoded_and_decoded():
    text = "".join(map(chr, range(32, 127))) + "\n"
    for model in MODELS:
        tokenizer = checkpoints.read_tokenizer(TINY / model, n_tokens=97)
        tokens = tokenizer.encode(text).ids
        assert len(tokens) == len(text) and tokenizer.decode(tokens) == text


def test_the_model_is_chosen_by_a_variable(monkeypatch):
    monkeypatch.delenv("MODEL", raising=False)
    assert checkpoints.find_folder(checkpoints.chosen("qwen3")) == TINY / "qwen3"
    monkeypatch.setenv("MODEL", str(TINY / "gpt2"))
    assert checkpoints.find_folder(checkpoints.chosen("qwen3")) == TINY / "gpt2"


@pytest.mark.parametrize(
    "name", ["llama", "../llama", "a/b/c", "/no/folder", "http://a/b", "a/b c", "a/"]
)
def test_what_is_no_folder_and_no_name_is_refused(name):
    with raises(f"expected a folder, or owner/name on the hub, got {name!r}"):
        checkpoints.find_folder(name)


@pytest.mark.parametrize(
    ("model", "file"),
    [("gpt2", CONFIG), ("gpt2", WEIGHTS), ("gpt2", TOKENIZER), ("mixtral", SHARD)],
)
def test_a_missing_file_is_named(copy, model, file):
    folder = copy(model)
    (folder / file).unlink()
    with raises(f"expected {file} in {folder}, got ", FileNotFoundError):
        checkpoints.find_folder(folder)


def test_pickled_weights_are_never_read(copy):
    folder = copy("gpt2")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with raises(f"expected {WEIGHTS} in {folder}, got pickled", FileNotFoundError):
        checkpoints.find_folder(folder)


@pytest.mark.parametrize("framework", ["pt", "flax"])
@pytest.mark.parametrize(
    ("model", "file", "n"), [("llama", WEIGHTS, -1), ("mixtral", SHARD, 99)]
)
def test_a_truncated_file_is_damaged(copy, model, file, n, framework):
    folder = copy(model)
    (folder / file).write_bytes((folder / file).read_bytes()[:n])
    with raises(f"{folder / file} is damaged: "):
        checkpoints.read_tensors(folder, framework)


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_an_index_that_does_not_fit_its_shards_is_refused(copy, change):
    folder = copy("mixtral")
    index = json.loads((folder / INDEX).read_text("utf-8"))
    places = index["weight_map"]
    if change == "unknown":
        places["model.other.weight"] = places["model.norm.weight"]
    else:
        del places["model.norm.weight"]
    (folder / INDEX).write_text(json.dumps(index), "utf-8")
    name = "model.other.weight" if change == "unknown" else "model.norm.weight"
    with raises(f"{INDEX} and the shards in {folder} differ: {name}"):
        checkpoints.read_tensors(folder, "pt")


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "\0"])
def test_a_configuration_or_index_that_is_none_is_refused(copy, text):
    folder = copy("mixtral")
    (folder / CONFIG).write_text(text, "utf-8")
    with raises(f"expected a dictionary in {folder / CONFIG}: "):
        checkpoints.read_config(folder)
    (folder / INDEX).write_text(text, "utf-8")
    with raises(f"expected a dictionary in {folder / INDEX}: "):
        checkpoints.read_tensors(folder, "pt")


def test_a_tokenizer_that_is_damaged_or_too_large_is_refused(copy):
    folder = copy("llama")
    with raises(f"expected at most 96 tokens in {folder}, got 97"):
        checkpoints.read_tokenizer(folder, n_tokens=96)
    (folder / TOKENIZER).write_text("{}", "utf-8")
    with raises(f"cannot read {folder / TOKENIZER}: "):
        checkpoints.read_tokenizer(folder)


def test_tensors_that_do_not_fit_are_named_with_both_shapes():
    expected = {"a": np.zeros((3, 5)), "b": np.zeros(()), "c": np.zeros(7)}
    checkpoints.check_tensors(dict(expected), expected)
    for change, text in {
        "a": "a: expected (3, 5), got (5, 3)", "b": "b: expected (), got (5, 3)",
        "d": "d: expected no such tensor, got (5, 3)",
    }.items():  # fmt: skip
        with raises(text):
            changed = {change: np.zeros((5, 3))}
            checkpoints.check_tensors(expected | changed, expected)
    with raises("b: expected (), got no such tensor"):
        checkpoints.check_tensors({n: expected[n] for n in "ac"}, expected)
