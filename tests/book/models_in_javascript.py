"""What tests of the models in JavaScript share: arrays on their way there and back."""

from base64 import b64decode, b64encode

import numpy as np
import safetensors.numpy

LIBRARY = """
const unpack = data => readSafetensors(readBase64(data));
const pack = list => {  // as bytes: a list of numbers takes seconds
    const letters = new Uint8Array(Float64Array.from(list.flat(Infinity)).buffer);
    return btoa(Array.from(letters, byte => String.fromCharCode(byte)).join(''));
};
const fold = (numbers, [n, ...rest]) => n === undefined ? numbers[0] : Array.from(
    {length: n}, (_, i) => fold(numbers.slice(
        i * numbers.length / n, (i + 1) * numbers.length / n), rest));
const inSteps = (model, cache, tokens, step) => {  // logits s t, maps l h s k
    const parts = [];
    for (let i = 0; i < tokens.length; i += step)
        parts.push(model.call(tokens.slice(i, i + step), cache));
    const maps = parts[0][1].map((heads, l) => heads.map(
        (_, h) => parts.flatMap(part => part[1][l][h])));
    const n = Math.max(...maps[0][0].map(row => row.length));
    const whole = row => [...row, ...Array(n - row.length).fill(0)];  // later keys: 0
    return [
        parts.flatMap(([logits]) => logits),
        maps.map(heads => heads.map(rows => rows.map(whole))),
    ];
};
"""


def packed(params, metadata=None):
    return b64encode(safetensors.numpy.save(params, metadata)).decode()


def unpacked(data, *shape):
    return np.frombuffer(b64decode(data)).reshape(shape)


def halved(params):
    return {name: array.astype(np.float16) for name, array in params.items()}
