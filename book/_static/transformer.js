/* The trained model of the reverse task, a third time: in JavaScript, without a library.

It reads the weights that the pages wrote, works on one sequence at a time and keeps
matrices as lists of rows. Layers have the names and the order of the other two; what is
left out is what only training needs: gradients, dropout, initial weights. */
"use strict";

/* All arrays of a safetensors file, by name; matrices as lists of rows. */
function readSafetensors(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  const params = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (dtype !== "F32") throw new Error(`${name}: expected F32, got ${dtype}`);
    const numbers = Array.from(new Float32Array(buffer.slice(8 + size + start, 8 + size + end)));
    const rows = (width) => numbers.flatMap((_, i) => (i % width ? [] : [numbers.slice(i, i + width)]));
    params[name] = shape.length === 2 ? rows(shape[1]) : numbers;
  }
  return params;
}

/* Product of two matrices: a b, b c -> a c. */
function matmul(x, y) {
  return x.map((row) => {
    const out = new Array(y[0].length).fill(0);
    row.forEach((value, i) => {
      for (let j = 0; j < out.length; j++) out[j] += value * y[i][j];
    });
    return out;
  });
}

const transpose = (x) => x[0].map((_, j) => x.map((row) => row[j]));
const add = (x, y) => x.map((row, i) => row.map((value, j) => value + y[i][j]));
const relu = (x) => x.map((row) => row.map((value) => Math.max(0, value)));

/* Linear layer: s n_in -> s n_out. */
function dense(params, name) {
  const [weight, bias] = [params[`${name}.weight`], params[`${name}.bias`]];
  return (x) => matmul(x, weight).map((row) => row.map((value, j) => value + bias[j]));
}

/* Layer norm: every row to mean 0 and variance 1, then a learned scale and shift. */
function layerNorm(params, name) {
  const [scale, shift] = [params[`${name}.weight`], params[`${name}.bias`]];
  const mean = (row) => row.reduce((sum, value) => sum + value, 0) / row.length;
  return (x) =>
    x.map((row) => {
      const middle = mean(row);
      const centred = row.map((value) => value - middle);
      const variance = mean(centred.map((value) => value * value));
      return centred.map((value, j) => (value / Math.sqrt(variance + 1e-5)) * scale[j] + shift[j]);
    });
}

/* Softmax over the visible keys: q k -> q k; blind rows are zero. */
function maskedSoftmax(scores, mask = null) {
  return scores.map((row, q) => {
    const seen = (k) => mask === null || mask[q][k];
    const highest = Math.max(...row.filter((_, k) => seen(k)));
    const exp = row.map((score, k) => (seen(k) ? Math.exp(score - highest) : 0));
    const sum = exp.reduce((total, value) => total + value, 0);
    return exp.map((value) => (sum > 0 ? value / sum : 0));
  });
}

/* Weighted mean of values: q d, k d, k e -> q e, q k. A factor above 1 sharpens. */
function attention(q, k, v, mask = null, sharpness = 1) {
  const factor = sharpness / Math.sqrt(q[0].length);
  const scores = matmul(q, transpose(k)).map((row) => row.map((score) => factor * score));
  const weights = maskedSoftmax(scores, mask); // q k
  return [matmul(weights, v), weights];
}

/* Self-attention in several heads: s m -> s m, h s s. */
class MultiHeadAttention {
  constructor(params, name, nHeads) {
    this.nHeads = nHeads;
    this.qkv = dense(params, `${name}.qkv`);
    this.out = dense(params, `${name}.out`);
  }

  call(x, mask, sharpness) {
    const [m, d] = [x[0].length, x[0].length / this.nHeads];
    const stacked = this.qkv(x); // s 3m
    const part = (n, h) => stacked.map((row) => row.slice(n * m + h * d, n * m + (h + 1) * d));
    const heads = Array.from({ length: this.nHeads }, (_, h) =>
      attention(part(0, h), part(1, h), part(2, h), mask, sharpness),
    );
    const joined = x.map((_, i) => heads.flatMap(([values]) => values[i])); // s m
    return [this.out(joined), heads.map(([, weights]) => weights)];
  }
}

/* Two linear layers, the same for every position: s m -> s m. */
class FeedForward {
  constructor(params, name) {
    this.linear1 = dense(params, `${name}.linear1`);
    this.linear2 = dense(params, `${name}.linear2`);
  }

  call(x) {
    return this.linear2(relu(this.linear1(x)));
  }
}

/* Attention, then feed-forward, each with residual and norm: s m -> s m. */
class EncoderBlock {
  constructor(params, name, nHeads) {
    this.attention = new MultiHeadAttention(params, `${name}.attention`, nHeads);
    this.ffn = new FeedForward(params, `${name}.ffn`);
    this.norm1 = layerNorm(params, `${name}.norm1`);
    this.norm2 = layerNorm(params, `${name}.norm2`);
  }

  call(x, mask, sharpness) {
    const [values, weights] = this.attention.call(x, mask, sharpness);
    x = this.norm1(add(x, values));
    return [this.norm2(add(x, this.ffn.call(x))), weights];
  }
}

/* A stack of blocks: s m -> s m, l h s s. */
class Encoder {
  constructor(params, name, nBlocks, nHeads) {
    const numbers = Array.from({ length: nBlocks }, (_, i) => i);
    this.blocks = numbers.map((i) => new EncoderBlock(params, `${name}.blocks.${i}`, nHeads));
  }

  call(x, mask, sharpness) {
    const maps = [];
    for (const block of this.blocks) {
      const [out, weights] = block.call(x, mask, sharpness);
      x = out;
      maps.push(weights);
    }
    return [x, maps];
  }
}

/* Sine on the even features, cosine on the odd ones: s m. */
function sinusoidalPositions(length, m) {
  const wave = (place, i) => {
    const angle = place / 10000 ** ((i - (i % 2)) / m);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  };
  return Array.from({ length }, (_, place) => Array.from({ length: m }, (_, i) => wave(place, i)));
}

/* One output vector per element: s i -> s c, l h s s. */
class Predictor {
  constructor(params, { nBlocks, nHeads }) {
    this.embed = dense(params, "embed");
    this.encoder = new Encoder(params, "encoder", nBlocks, nHeads);
    this.hidden = dense(params, "hidden");
    this.hiddenNorm = layerNorm(params, "hidden_norm");
    this.output = dense(params, "output");
  }

  call(x, { mask = null, sharpness = 1, positions = true } = {}) {
    x = this.embed(x); // s m
    x = positions ? add(x, sinusoidalPositions(x.length, x[0].length)) : x;
    const [out, maps] = this.encoder.call(x, mask, sharpness);
    return [this.output(relu(this.hiddenNorm(this.hidden(out)))), maps]; // s c
  }
}
