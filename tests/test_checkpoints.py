"""Files of published checkpoints: found, read, and refused if they are damaged."""

import shutil

import numpy as np
import pytest
import transformers
from huggingface_hub import constants
from safetensors import SafetensorError

from helpers.data import checkpoints
from helpers.data.checkpoints import TINY

SHARD = "model-00002-of-00003.safetensors"


def test_what_a_configuration_does_not_say_is_what_transformers_assumes():
    for kind, assumed in checkpoints.ASSUMED.items():
        theirs = transformers.AutoConfig.for_model(kind).to_dict()
        theirs |= theirs.get("rope_parameters") or {}
        assert assumed == {name: theirs[name] for name in assumed}, kind


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_both_frameworks_read_the_same_tensors(kind):
    """One file in bfloat16, or shards in float32, which stay what they are."""
    torch, jax = (checkpoints.read_tensors(TINY / kind, f) for f in ("pt", "np"))
    assert torch.keys() == jax.keys()
    for name, x in torch.items():
        assert str(x.dtype) == f"torch.{jax[name].dtype}"
        np.testing.assert_array_equal(x.float().numpy(), jax[name].astype("float32"))
    dtype = "bfloat16" if kind == "llama" else "float32"
    assert {str(x.dtype) for x in jax.values()} == {dtype}


def test_the_model_is_chosen_by_a_variable(monkeypatch, tmp_path):
    """A folder, from here or from the top of the repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL", raising=False)
    assert checkpoints.find_folder(checkpoints.chosen("qwen3")) == TINY / "qwen3"
    monkeypatch.setenv("MODEL", "notebooks/helpers/data/tiny/gpt2")
    assert checkpoints.find_folder(checkpoints.chosen("qwen3")) == TINY / "gpt2"


def test_a_name_is_the_hubs_and_found_in_its_cache_without_internet(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    name, kept = "some-owner/tiny-model", tmp_path / "models--some-owner--tiny-model"
    with pytest.raises(OSError, match=r"snapshot folder|offline"):
        checkpoints.find_folder(name)
    commit = "5ea" * 13 + "0"
    shutil.copytree(TINY / "gpt2", kept / "snapshots" / commit)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(commit)
    folder = checkpoints.find_folder(name)
    assert folder == kept / "snapshots" / commit
    assert checkpoints.read_config(folder)["model_type"] == "gpt2"


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_a_truncated_shard_is_refused(framework, tmp_path):
    folder = shutil.copytree(TINY / "mixtral", tmp_path / "mixtral")
    (folder / SHARD).write_bytes((folder / SHARD).read_bytes()[:-1])
    with pytest.raises(SafetensorError):
        checkpoints.read_tensors(folder, framework)
