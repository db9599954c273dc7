"""Wrong inputs: one table, to which both frameworks give the same answer.

A row calls something on one side, then says what the error tells: what was
expected, and what came. Its kind and its text are the same in both, in one line.
"""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
import torch

from helpers.data import text
from helpers.data.checkpoints import TINY
from helpers.settings import Settings, warmup_constant
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

    def fit(self, x=X, y=Y, validation=None, loss="cross_entropy", **settings):
        model, loss = self.build("Predictor", **SIZES), getattr(self.models, loss)
        options = {"validation": validation}
        return self.models.fit(
            model, loss, (x, y), replace(BRIEF, **settings), **options
        )

    def evaluate(self, x=X, y=Y):
        model = self.build("Predictor", **SIZES)
        return self.models.evaluate(model, self.models.cross_entropy, (x, y))

    def classes(self, real, fit=True, x=X, y=Y[:, 0]):
        sizes = SIZES | {"max_length": 2}
        model, loss = (
            self.build("SequenceClassifier", **sizes),
            self.page("data").class_loss,
        )
        if fit:
            return self.models.fit(model, loss, (x, real, y), BRIEF)
        return self.models.evaluate(model, loss, (x, real, y))

    def loss(self, labels):
        labels = self.side.tensor(labels)
        return self.models.cross_entropy(lambda x: x, self.side.tensor(X), labels)

    def writer(self, kind="LanguageModel", **options):
        return self.build(kind, 19, **WRITER | options)

    def learn(self, tokens, kind="LanguageModel"):
        return self.models.fit(
            self.writer(kind), self.models.next_token, (tokens,), BRIEF
        )

    def generate(
        self, prompts=((1, 2), (3,)), length=4, kind="LanguageModel", **options
    ):
        causal = {"causal": options.pop("causal")} if "causal" in options else {}
        return self.models.generate(
            self.writer(kind, **causal), prompts, length, **options
        )

    def cached(self, columns, *pieces, kind="LanguageModel"):
        model = self.writer(kind)
        cache = self.models.new_cache(
            model, self.side.tensor(np.zeros(2, int)), columns
        )
        for n in pieces:
            tokens = self.side.tensor(np.ones((2, n), int))
            _, cache = self.models.advance(model, tokens, cache)

    def modern(self, **options):
        return self.call(self.writer("ModernLM", **options), TOKENS)

    def translate(self, *arrays):
        model = self.build(self.page("translation").Translator, 19, **WRITER)
        return self.call(model, *arrays)

    def load(self, kind, change=lambda arrays: None, **settings):
        folder = shutil.copytree(TINY / kind, self.folder / self.side.name)
        place, file = folder / "config.json", folder / "model.safetensors"
        place.write_text(json.dumps(json.loads(place.read_text("utf-8")) | settings))
        if file.exists():
            arrays = safetensors.numpy.load_file(file)
            change(arrays)
            safetensors.numpy.save_file(arrays, file)
        return self.models.load_pretrained(folder)

    def adapter(self, rank, alpha, layers=("up",)):
        """Of this rank and alpha, into a model whose adapters have 2 and 5."""
        page = self.page("finetune")
        net, other = (self.build("SwiGLU", 7, 5) for _ in range(2))
        page.save_adapter(
            self.build(page.add_lora, net, rank, alpha, ("up",)), self.folder
        )
        page.load_adapter(self.build(page.add_lora, other, 2, 5, layers), self.folder)

    def table(self, lines, encoding="utf-8"):
        """The numbers of a CSV file with these lines, by the functions of *data*."""
        file, page = self.folder / "own.csv", self.page("data")
        file.write_bytes(lines.encode(encoding, "replace"))
        return page.numeric(page.read_csv(file))

    def cell(self, x):
        return self.table(f"id\tash\n1\t2.5\n2\t{x}\n")

    def load_text(self, name):
        return text.load(name)

    def labels(self, *values):
        return self.page("data").class_numbers(values)

    def weights(self, change):
        model, file = self.build("Predictor", **SIZES), self.folder / "weights"
        save_weights(model, file)
        file.write_bytes(change(file.read_bytes()))
        load_weights(model, file)


UP = "model.layers.1.mlp.up_proj.weight"


def with_mask(x):
    """The array, of which NumPy's mask hides the first row."""
    hidden = np.zeros(x.shape, bool)
    hidden[0] = True
    return np.ma.masked_array(x, hidden)


def with_one(x, value, row=7):
    """The array, with another value in all of a row."""
    x = x.copy()
    x[row] = value
    return x


TABLE = """
attention(3, 5, is_causal=True)
    => expected as many queries as keys under a causal mask, got 3 and 5
attention(3, 5, name="fused_attention", is_causal=True)
    => expected as many queries as keys under a causal mask, got 3 and 5
attention(3, 5, np.ones((3, 5), bool), name="fused_attention", is_causal=True)
    => expected as many queries as keys under a causal mask, got 3 and 5
attention(3, 5, np.ones((3, 5)))
    => expected a boolean mask
attention(3, 5, np.ones((3, 5), int))
    => expected a boolean mask
attention(3, 5, np.ones((2, 3, 5), bool))
    => 2 or 4 axes, got (2, 3, 5)
attention(3, 5, np.ones((2, 3, 5), bool), name="fused_attention")
    => 2 or 4 axes, got (2, 3, 5)
build("MultiHeadAttention", 12, 5)
    => 12 is not divisible by n_heads = 5
call(build("LearnedPositions", 8, 5), draw(1, 6, 8))
    => 6 positions, but the table has max_length = 5
call(build("SinusoidalPositions", 8, 5), draw(1, 6, 8))
    => 6 positions, but the table has max_length = 5
rotary(5, 7)
    => pairs of features, got d = 7
fit(y=Y + 1)
    => expected labels below 3, got 3 in row 1
fit(y=with_one(Y, 40))
    => expected labels below 3, got 40 in row 7
fit(y=with_one(Y, -9))
    => expected labels below 3, got -9 in row 7
fit(y=2 * (Y > 0) - 1)
    => do labels count from 0?
fit(y=Y.astype(float))
    => expected whole numbers as labels, got float32
fit(y=Y > 0)
    => expected whole numbers as labels, got bool
fit(y=Y.astype(str))
    => expected arrays of numbers
fit(y=np.where(Y > 0, None, 1))
    => expected arrays of numbers
fit(y=with_mask(Y))
    => got ndarray float32 (13, 2, 5), MaskedArray
fit(x=with_mask(X))
    => got MaskedArray float32 (13, 2, 5)
fit(y=Y[:12])
    => with as many rows
fit(x=X[:0], y=Y[:0])
    => with as many rows
fit(x=np.array("2026-11-29", "M8[D]") + np.zeros((13, 2, 5), int))
    => expected arrays of numbers
fit(x=with_one(X, np.nan))
    => row 7 of array 0 is not finite
fit(x=with_one(X, np.inf))
    => row 7 of array 0 is not finite
fit(learning_rate=1e30, epochs=3)
    => A lower rate, a longer warm-up or clipping help
fit(n_train=50)
    => expected rows below 13, got
fit(validation=(with_one(X, np.nan), Y))
    => row 7 of array 0 is not finite
fit(validation=(X, Y + 1))
    => expected labels below 3, got 3 in row 1
fit(validation=(X, with_mask(Y)))
    => MaskedArray
evaluate(y=Y + 1)
    => expected labels below 3, got 3 in row 1
evaluate(y=2 * (Y > 0) - 1)
    => do labels count from 0?
evaluate(x=with_one(X, np.nan))
    => row 7 of array 0 is not finite
evaluate(y=with_mask(Y))
    => MaskedArray
evaluate(x=X[:0], y=Y[:0])
    => with as many rows
classes(with_one(np.ones((13, 2), bool), False))
    => row 7 of array 1 has nothing that is real
classes(with_one(np.ones((13, 2), bool), False), fit=False)
    => row 7 of array 1 has nothing that is real
classes(np.ones((13, 4), bool), x=np.tile(X, (1, 2, 1)))
    => 4 positions, but the table has max_length = 2
classes(np.ones((13, 2)))
    => expected a boolean mask
classes(np.ones((13, 2), bool), y=Y[:, 0] + 1)
    => expected labels below 3, got 3 in row 1
loss(Y.astype(float))
    => expected whole numbers as labels, got float32
call(writer(), np.ones((3, 11, 1), int))
    => expected tokens b s of whole numbers, got (3, 11, 1) of whole ones
call(writer(), np.ones((3, 11)))
    => expected tokens b s of whole numbers, got (3, 11) of other ones
call(writer(), np.ones((3, 12), int))
    => 12 positions, but max_length = 11
call(writer("ModernLM"), np.ones((3, 11)))
    => expected tokens b s of whole numbers, got (3, 11) of other ones
translate(draw(3, 5), TOKENS[:3])
    => expected tokens b s of whole numbers, got (3, 5) of other ones
translate(TOKENS[:3], draw(3, 5))
    => expected tokens b s of whole numbers, got (3, 5) of other ones
translate(np.ones((3, 12), int), TOKENS[:3])
    => 12 positions, but max_length = 11
learn(TOKENS + 1)
    => expected labels below 19, got 19 in row 3
learn(TOKENS + 1, kind="ModernLM")
    => expected labels below 19, got 19 in row 3
learn(with_one(TOKENS, -2))
    => expected labels below 19, got -2 in row 7
learn(TOKENS.astype(float))
    => tokens b s of whole numbers
learn(np.tile(TOKENS, 3))
    => 14 positions, but max_length = 11
generate(prompts=[[1], []])
    => expected prompts of 1 to 7 tokens
generate(length=10)
    => max_length = 11 and length = 10, got [2, 1]
generate(length=0)
    => length = 0
generate(prompts=[[1, 19]])
    => expected tokens from 0 to 18, got [[1, 19]]
generate(prompts=[[1, -1]])
    => expected tokens from 0 to 18, got [[1, -1]]
generate(causal=False)
    => expected a causal model
generate(temperature=0)
    => expected a temperature of 1e-6 or more
generate(temperature=1e-38)
    => expected a temperature of 1e-6 or more
generate(temperature=float("nan"))
    => expected a temperature of 1e-6 or more
generate(top_k=2.5)
    => a whole top_k of 1 or more
generate(top_k=0)
    => a whole top_k of 1 or more
generate(top_p=0)
    => 0 < top_p <= 1
generate(top_p=1.5)
    => 0 < top_p <= 1
generate(kind="ModernLM", prompts=[[1] * 8])
    => expected prompts of 1 to 7 tokens
generate(kind="ModernLM", prompts=[[19]])
    => expected tokens from 0 to 18
cached(12)
    => 12 positions, but max_length = 11
cached(12, kind="ModernLM")
    => 12 positions, but max_length = 11
cached(5, 3, 3)
    => expected a cache of 6 columns, got 5
cached(5, 3, 3, kind="ModernLM")
    => expected a cache of 6 columns, got 5
modern(positions="none")
    => 'none'
modern(positions="sinusoidal")
    => 'sinusoidal'
modern(norm="batch")
    => 'batch'
modern(ffn="relu")
    => 'relu'
modern(m=9)
    => 9 does not split into 2
modern(n_heads=6, n_kv_heads=4, d=2)
    => 6 does not split into 4
modern(d=7)
    => 7 does not split into 2
modern(ffn="experts", n_experts=4, n_active=5)
    => 5 of 4 experts cannot be active
modern(max_length=4)
    => 5 positions, but max_length = 4
load("qwen3", lambda x: x.update({UP: x[UP].astype(np.int8)}))
    => blocks.1.ffn.up.weight: expected floats, got int8
load("qwen3", lambda x: x.update({"lm_head.weight": x["lm_head.weight"] + 1}))
    => expected tied weights, got an output layer of its own
load("qwen3", model_type="gemma3")
    => got 'gemma3'
load("gpt2", activation_function="relu")
    => got 'relu'
load("gpt2", scale_attn_weights=False)
    => expected scale_attn_weights of (True,), got False
load("gpt2", scale_attn_by_inverse_layer_idx=True)
    => expected layer scaling of (None, False), got True
load("llama", rope_scaling={"rope_type": "llama3"})
    => got 'llama3'
load("llama", rope_scaling={"type": "linear"})
    => got 'linear'
load("mixtral", sliding_window=7)
    => expected sliding_window of (None,), got 7
adapter(3, 5)
    => expected r = 2, got 3
adapter(2, 7)
    => expected lora_alpha = 5, got 7
adapter(2, 5, layers=())
    => expected adapters of one rank and one alpha, got []
table("a,b\\n1,2\\n1,2,3\\n")
    => Expected 2 fields in line 3, saw 3
table("a,b\\n1,2,3\\n4,5,6\\n")
    => expected a name for each column
labels("a", None)
    => row 1: expected a label, got none
labels("a", "b", "")
    => row 2: expected a label, got none
labels(1.0, np.nan)
    => row 1: expected a label, got none
labels(2, 2)
    => expected two classes or more, got [2]
load_text("no.txt")
    => expected no.txt in
weights(lambda file: file[:-1])
    => incomplete metadata, file not fully covered
"""
ROWS = [row.split("\n    => ") for row in re.split(r"\n(?! )", TABLE.strip())]
CELLS = "12 %|1,5|$3|€ 5|1.234,56 EUR|1,000|1 000|2024-01-05|05.01.2024|Jan 5, 2024|"
CELLS += "5-Mar-24|12:30|5 kg|(5.00)|−5|<0.5|1/2|1e999|inf|３|0x1F|2024-01-05T10:30Z"
for x in CELLS.split("|"):
    ROWS.append([f"cell({x!r})", f"row 3, column 'ash': expected a number, got {x!r}"])
for x in ("latin-1", "cp1251", "shift_jis", "gbk", "utf-16"):
    ROWS.append([f"table('é ы', {x!r})", "expected UTF-8"])


@pytest.mark.parametrize(("call", "said"), ROWS, ids=[row[0] for row in ROWS])
def test_both_frameworks_say_the_same(call, said, tmp_path, monkeypatch):
    """One sentence of the same kind, and no checkpoint that is loaded before."""
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", None)
    errors = []
    for side in (jax_side, torch_side):
        calls = Calls(side, tmp_path)
        names = {name: getattr(calls, name) for name in dir(calls)}
        with pytest.raises(Exception) as caught:
            eval(call, globals(), names)
        errors.append((caught.type.__name__, str(caught.value)))
    assert errors[0] == errors[1]
    assert said in errors[0][1]
    assert len(errors[0][1].splitlines()) == 1
