"""No tensor is made on the CPU where the model is on a GPU; needs no GPU.

Fake tensors have a shape, a dtype and a device, but no numbers. An operation on tensors
of two devices raises the error that a GPU would raise.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from helpers import torch as models
from helpers.data.text import PRETRAINED
from helpers.torch import decoder, training, translation

B, S, M, C = 3, 7, 12, 5
SIZES = {"n_blocks": 2, "n_heads": 2, "f": 13}
TEXTS = {**SIZES, "max_length": 17}

in_all_positions = pytest.mark.parametrize("positions", models.POSITIONS)
tied_or_not = pytest.mark.parametrize("tied", [True, False])


@pytest.fixture(autouse=True)
def _fake():
    with FakeTensorMode(), torch.no_grad():
        yield


def on_gpu(kind, *sizes, **options):
    """A model with its parameters and buffers on a GPU, and nothing else of it."""
    model = kind(*sizes, **options)
    for part in model.modules():
        for name, x in part.named_parameters(recurse=False):
            part.register_parameter(name, nn.Parameter(ones(*x.shape)))
        for name, x in part.named_buffers(recurse=False):
            part.register_buffer(name, ones(*x.shape, dtype=x.dtype))
    return model


def ones(*shape, dtype=torch.float32):
    """A tensor on the GPU."""
    return torch.ones(shape, dtype=dtype, device="cuda")


whole = partial(ones, dtype=torch.int64)
mask = partial(ones, dtype=torch.bool)


def assert_on_gpu(*tensors):
    assert {x.device.type for x in tensors} == {"cuda"}


def test_a_layer_is_built_on_a_device():
    with unset_fake_temporarily():
        layer = models.build(nn.Linear, M, C, device="meta")
    assert layer.weight.is_meta and layer.bias.is_meta


def test_a_language_model_from_a_file_is_built_on_the_device_asked_for(monkeypatch):
    """On the CPU unless asked: its tokens would be on the GPU, where there is one."""
    made, own = [], decoder.build

    def watched(*given, device, **options):
        made.append(device)
        return own(*given, **options)

    monkeypatch.setattr(decoder, "build", watched)
    with unset_fake_temporarily():
        models.load_language_model(PRETRAINED)
        models.load_language_model(PRETRAINED, device="cuda")
    assert made == ["cpu", "cuda"]


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_text_classifier_with_adapters(positions):
    options = {"max_length": 17, "positions": positions}
    trunk = models.ModernLM(11, M, n_blocks=2, n_heads=3, f=13, **options)
    model = on_gpu(models.TextClassifier, trunk, C)
    models.add_lora(model.trunk, 2, 4)
    added = [x for name, x in model.named_parameters() if "lora" in name]
    assert len(added) == 8  # two layers of two blocks, two arrays each
    assert_on_gpu(*added, model(whole(B, S)))


def test_data_go_to_the_device_of_the_model():
    model, pair = on_gpu(nn.Linear, M, C), (np.ones((B, M)), np.ones(B, np.int16))
    assert_on_gpu(*training.on_device(pair, model))


def test_two_devices_raise_an_error():
    """What the other tests rely on."""
    with pytest.raises(RuntimeError, match=r"same device|two different devices"):
        ones(B, S) + torch.ones(B, S)


@in_all_positions
def test_predictor(positions):
    model = on_gpu(models.Predictor, M, M, C, positions=positions, **SIZES)
    x = ones(B, S, M)
    for given in (None, mask(S, S), mask(B, 1, S, S)):
        assert_on_gpu(model(x, given), *model(x, given, return_maps=True))
    loss, metrics = training.cross_entropy(model, x, whole(B, S))
    assert_on_gpu(loss, metrics["accuracy"])
    judge = on_gpu(models.Predictor, M, M, 1, positions=positions, **SIZES)
    loss, metrics = training.odd_one_out(judge, x)
    assert_on_gpu(loss, metrics["accuracy"])


@in_all_positions
@pytest.mark.parametrize("pool", ["token", "mean"])
def test_vision_transformer(positions, pool):
    options = {**SIZES, "patch": 2, "pool": pool, "positions": positions}
    model = on_gpu(models.VisionTransformer, 8, 3, M, C, **options)
    images, labels = ones(B, 8, 8, 3, dtype=torch.uint8), whole(B)
    assert_on_gpu(*model(images, return_maps=True))
    moved = models.augment(ones(B, 8), images, labels, degrees=9, pixels=1, flip=True)
    loss, metrics = training.cross_entropy(model, *moved)
    assert_on_gpu(*moved, loss, metrics["accuracy"])


@in_all_positions
@tied_or_not
@pytest.mark.parametrize("norm_first", [True, False])
def test_language_model(positions, tied, norm_first, monkeypatch):
    options = {**TEXTS, "positions": positions, "tied": tied, "norm_first": norm_first}
    model, tokens = on_gpu(models.LanguageModel, C, M, **options), whole(B, S)
    for given in (None, mask(B, 1, S, S)):
        assert_on_gpu(model(tokens, given), *model(tokens, given, return_maps=True))
    loss, metrics = training.next_token(model, tokens)
    assert_on_gpu(loss, metrics["accuracy"], training.next_token.weigh(tokens))
    unseeded = SimpleNamespace(manual_seed=lambda seed: None)
    monkeypatch.setattr(torch, "Generator", lambda device: unseeded)  # wants a GPU
    for chosen in ({"top_k": 1}, {}, {"top_k": 2, "top_p": 0.5, "end": 3}):
        assert_on_gpu(models.generate(model, [[1, 2], [3]], 4, **chosen))


@in_all_positions
@tied_or_not
@pytest.mark.parametrize("shared", [True, False])
def test_translator(positions, tied, shared):
    options = {**TEXTS, "positions": positions, "tied": tied, "shared": shared}
    model = on_gpu(models.Translator, C, C, M, **options)
    source, target = whole(B, S), whole(B, S + 2)
    loss, metrics = training.next_token(model, source, target)
    assert_on_gpu(loss, metrics["accuracy"], model(source, target))
    logits, maps = model(source, target, return_maps=True)
    assert_on_gpu(logits, *maps)
    found = translation.search_beams(model, source, 0, 1, length=4, width=2)
    assert_on_gpu(*found)
