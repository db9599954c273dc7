"""Wrong inputs: one table, ``wrong_inputs.txt``, to which both give the same answer.

A row calls something, then says what the error tells, in both in the same line.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from helpers import exercises, show
from helpers.data import checkpoints, reactions, text
from helpers.data.byte_pairs import BytePairs
from helpers.data.checkpoints import TINY
from helpers.settings import Settings, warmup_constant
from helpers.show import viewer
from helpers.weights import load_weights, save_weights
from sides import definitions, draw, jax_side, torch_side

SIZES = {"n_inputs": 5, "m": 6, "n_outputs": 3, "n_blocks": 1, "n_heads": 2, "f": 7}
WRITER = {"m": 12, "n_blocks": 1, "n_heads": 2, "f": 7, "max_length": 11}
X, Y = draw(13, 2, 5), np.arange(26).reshape(13, 2) % 3
TOKENS = np.arange(65).reshape(13, 5) % 19
BRIEF = Settings(
    n_train=13, batch_size=5, epochs=1, learning_rate=0.1, schedule=warmup_constant
)


class Calls:
    """What a row can call, on one side."""

    def __init__(self, side, folder):
        self.side, self.folder, self.models = side, folder, side.models

    def page(self, name):
        return definitions(f"{name}_{self.side.name}")

    def build(self, kind, *sizes, **options):
        return self.side.build(kind, *sizes, **options)

    def call(self, model, *arrays):
        return model(*map(self.side.tensor, arrays))

    def attention(self, q, k, mask=None, name="attention", **options):
        mask, attend = self.side.mask(mask), getattr(self.models, name)
        q, k = (self.side.tensor(draw(2, 3, n, 4)) for n in (q, k))
        return attend(q, k, k, mask, **options)

    def rotary(self, *shape):
        return self.models.rotary(self.side.tensor(draw(*shape)))

    def fit(self, x=X, y=Y, validation=None, loss=None, **settings):
        given = self.build("Predictor", **SIZES), loss or self.models.cross_entropy
        settings = replace(BRIEF, **settings)
        return self.models.fit(*given, (x, y), settings, validation=validation)

    def evaluate(self, x=X, y=Y):
        model = self.build("Predictor", **SIZES)
        return self.models.evaluate(model, self.models.cross_entropy, (x, y))

    def padded(self, y):
        given = self.page("reverse").padded_loss, (X, np.ones((13, 2), bool), y)
        return self.models.evaluate(self.build("Predictor", **SIZES), *given)

    def classes(self, real, fit=True, x=X, y=Y[:, 0]):
        model = self.build("SequenceClassifier", max_length=2, **SIZES)
        given = model, self.page("data").class_loss, (x, real, y)
        return self.models.fit(*given, BRIEF) if fit else self.models.evaluate(*given)

    def loss(self, labels):
        labels = self.side.tensor(labels)
        return self.models.cross_entropy(lambda x: x, self.side.tensor(X), labels)

    def writer(self, kind="LanguageModel", **options):
        return self.build(kind, 19, **WRITER | options)

    def learn(self, tokens, kind="LanguageModel"):
        given = self.writer(kind), self.models.next_token, (tokens,)
        return self.models.fit(*given, BRIEF)

    def generate(self, prompts=((1, 2), (3,)), length=4, model=None, **knobs):
        model = model or self.writer()
        return self.models.generate(model, prompts, length, **knobs)

    def cached(self, columns, *pieces, kind="LanguageModel"):
        model, first = self.writer(kind), self.side.tensor([0, 0])
        cache = self.models.new_cache(model, first, columns)
        for n in pieces:
            tokens = self.side.tensor(np.ones((2, n), int))
            _, cache = self.models.advance(model, tokens, cache)

    def translate(self, *arrays):
        model = self.build(self.page("translation").Translator, 19, **WRITER)
        return self.call(model, *arrays)

    def load(self, kind, change=lambda arrays: None, **settings):
        shutil.rmtree(folder := self.folder / kind, ignore_errors=True)
        shutil.copytree(TINY / kind, folder)
        place, file = folder / "config.json", folder / "model.safetensors"
        place.write_text(json.dumps(json.loads(place.read_text("utf-8")) | settings))
        if file.exists():
            arrays = safetensors.numpy.load_file(file)
            change(arrays)
            safetensors.numpy.save_file(arrays, file)
        return self.models.load_pretrained(folder)

    def adapter(self, rank, alpha, layers=("up",)):
        """Of this rank and alpha, into a model whose adapters have 2 and 5."""
        page, nets = self.page("finetune"), [self.build("SwiGLU", 7, 5) for _ in "ab"]
        saved = self.build(page.add_lora, nets[0], rank, alpha, ("up",))
        page.save_adapter(saved, self.folder)
        page.load_adapter(self.build(page.add_lora, nets[1], 2, 5, layers), self.folder)

    def table(self, lines, encoding="utf-8"):
        """The numbers of a CSV file with these lines, by the functions of *data*."""
        file, page = self.folder / "own.csv", self.page("data")
        file.write_bytes(lines.encode(encoding, "replace"))
        return page.numeric(page.read_csv(file))

    def cell(self, x):
        return self.table(f"id\tash\n1\t2.5\n2\t{x}\n")

    def settings(self, **changes):
        return replace(BRIEF, **{"n_train": 50, "batch_size": 8, "epochs": 5} | changes)

    def labels(self, *values):
        return self.page("data").class_numbers(values)

    def weights(self, change):
        model, file = self.build("Predictor", **SIZES), self.folder / "weights"
        save_weights(model, file)
        file.write_bytes(change(file.read_bytes()))
        load_weights(model, file)


UP = "model.layers.1.mlp.up_proj.weight"


def shorten(arrays):
    """Take tokens from the embedding, and the copy that is the output."""
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        arrays[name] = arrays[name][:89].copy()


def of_shape(*shapes):
    """Arrays of zeros by name, without those whose shape is None."""
    pairs = zip("abc", shapes, strict=False)
    return {name: np.zeros(shape) for name, shape in pairs if shape is not None}


def with_mask(x):
    """The array, of which NumPy's mask hides the first row."""
    return np.ma.masked_array(x, with_one(np.zeros(x.shape, bool), True, row=0))


def with_one(x, value, row=7):
    """The array, with another value in all of a row."""
    x = x.copy()
    x[row] = value
    return x


TABLE = Path(__file__).with_name("wrong_inputs.txt").read_text("utf-8")
ROWS = [row.split("\n    => ") for row in re.split(r"\n(?! )", TABLE.strip())[1:]]
KNOWN = {
    "text": text.load, "windows": text.windows, "random": text.random_windows,
    "learn_pairs": BytePairs.learn, "encode": lambda *x: BytePairs(x[0]).encode(x[1]),
    "maps": lambda maps, **options: viewer.attention(maps, about="maps", **options),
    "check_tensors": checkpoints.check_tensors, "table_of": show.table,
    "tokenizer": lambda n: checkpoints.read_tokenizer(TINY / "gpt2", n),
    "drawing": show.drawing, "check": exercises.check,
    "reaction": reactions.read_reaction, "bert": checkpoints.our_names_of_bert,
}  # fmt: skip


def sizes_of(shape):
    """A shape in order of size: PyTorch keeps matrices transposed."""
    return f"({', '.join(sorted(shape.groups(), key=int))})"


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[row[0] for row in ROWS])
def test_both_frameworks_say_the_same(call, said, tmp_path, monkeypatch):
    """One sentence of the same kind, and no checkpoint that is loaded before."""
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", None)
    errors = []
    for side in (jax_side, torch_side):
        calls = Calls(side, tmp_path)
        names = {name: getattr(calls, name) for name in dir(calls)}
        with pytest.raises(Exception) as caught:
            eval(call, globals() | KNOWN, names)
        said_here = re.sub(r"\((\d+), (\d+)\)", sizes_of, str(caught.value))
        errors.append((caught.type.__name__, said_here))
    assert errors[0] == errors[1]
    assert said in errors[0][1]
    assert len(errors[0][1].splitlines()) == 1
