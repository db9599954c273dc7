/* The trained models, a third time: in JavaScript, without a library. They read the weights
that the pages wrote, work on one sequence at a time, and keep matrices as lists of rows. What
only training needs is left out: gradients, dropout, initial weights. */
"use strict";

/* The first 8 bytes of a safetensors file are the length of its header, in JSON. */
function readHeader(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  const { __metadata__: metadata = {}, ...arrays } = header;
  return { metadata, arrays, start: 8 + size };
}

/* Half precision: a sign, 5 bits of exponent, 10 bits of fraction. */
function fromHalf(bits) {
  const [exponent, fraction] = [(bits >> 10) & 31, (bits & 1023) / 1024];
  const size = exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction;
  return bits >> 15 ? -size : size;
}

/* All arrays of a safetensors file, by name; matrices as lists of rows. */
function readSafetensors(buffer) {
  const { arrays, start } = readHeader(buffer);
  const read = {
    F32: (bytes) => Array.from(new Float32Array(bytes)),
    F16: (bytes) => Array.from(new Uint16Array(bytes), fromHalf),
  };
  const params = {};
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(arrays)) {
    if (!(dtype in read)) throw new Error(`${name}: expected F32 or F16, got ${dtype}`);
    const numbers = read[dtype](buffer.slice(...offsets.map((offset) => start + offset)));
    const row = (_, i) => numbers.slice(i * shape[1], (i + 1) * shape[1]);
    params[name] = shape.length === 2 ? Array.from({ length: shape[0] }, row) : numbers;
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
const mean = (row) => row.reduce((sum, value) => sum + value, 0) / row.length;
const relu = (x) => x.map((row) => row.map((value) => Math.max(0, value)));

/* Error function, by its series of positive terms: 2/√π e^(-x²) (x + 2x³/3 + 4x⁵/15 + …). */
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x); // 1 - erf(6) is below the precision
  let [sum, term] = [x, x];
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

/* x times the normal distribution function of x. */
function gelu(x) {
  return x.map((row) => row.map((value) => (value * (1 + erf(value / Math.SQRT2))) / 2));
}

/* Linear layer, with or without a bias: s n_in -> s n_out. */
function dense(params, name) {
  const [weight, bias] = [params[`${name}.weight`], params[`${name}.bias`]];
  const shifted = (row) => (bias ? row.map((value, j) => value + bias[j]) : row);
  return (x) => matmul(x, weight).map(shifted);
}

/* Layer norm: every row to mean 0 and variance 1, then a learned scale and shift. */
function layerNorm(params, name) {
  const [scale, shift] = [params[`${name}.weight`], params[`${name}.bias`]];
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

/* Heads of d features each: n hd -> h n d. */
function splitHeads(x, d) {
  const head = (_, h) => x.map((row) => row.slice(h * d, (h + 1) * d));
  return Array.from({ length: x[0].length / d }, head);
}

/* Attention in heads of d features: n hd, s gd, s gd -> n hd, h n s. Where there are fewer
heads of keys and values, g, several query heads share one. */
function attendInHeads(q, k, v, d, mask, sharpness) {
  const [qs, ks, vs] = [q, k, v].map((x) => splitHeads(x, d)); // h n d, g s d, g s d
  const group = (h) => Math.floor((h * ks.length) / qs.length);
  const heads = qs.map((q, h) => attention(q, ks[group(h)], vs[group(h)], mask, sharpness));
  const joined = q.map((_, i) => heads.flatMap(([values]) => values[i])); // n hd
  return [joined, heads.map(([, weights]) => weights)];
}

/* Self-attention in several heads: s m -> s m, h s s. */
/* The parts of rows that lie side by side: s nm -> n times s m. */
function split(rows, n) {
  const m = rows[0].length / n;
  return Array.from({ length: n }, (_, i) => rows.map((row) => row.slice(i * m, (i + 1) * m)));
}

class MultiHeadAttention {
  constructor(params, name, nHeads) {
    this.nHeads = nHeads;
    this.qkv = dense(params, `${name}.qkv`);
    this.out = dense(params, `${name}.out`);
  }
  /* Queries, keys and values of all heads, side by side: s m -> three times s m. */
  project(x) {
    return split(this.qkv(x), 3);
  }
  /* Queries attend to keys: q m, k m, k m -> q m, h q k. */
  attend(q, k, v, mask, sharpness) {
    const [joined, weights] = attendInHeads(q, k, v, q[0].length / this.nHeads, mask, sharpness);
    return [this.out(joined), weights];
  }
  call(x, mask, sharpness) {
    return this.attend(...this.project(x), mask, sharpness);
  }
}

/* Two linear layers, the same for every position: s m -> s m. */
class FeedForward {
  constructor(params, name, { activation = relu } = {}) {
    this.activation = activation;
    this.linear1 = dense(params, `${name}.linear1`);
    this.linear2 = dense(params, `${name}.linear2`);
  }
  call(x) {
    return this.linear2(this.activation(this.linear1(x)));
  }
}

/* Attention, then feed-forward, each with residual and norm: s m -> s m, h s s. */
class EncoderBlock {
  constructor(params, name, { nHeads, normFirst = false, ...options }) {
    this.normFirst = normFirst;
    this.attention = new MultiHeadAttention(params, `${name}.attention`, nHeads);
    this.ffn = new FeedForward(params, `${name}.ffn`, options);
    this.norm1 = layerNorm(params, `${name}.norm1`);
    this.norm2 = layerNorm(params, `${name}.norm2`);
  }
  /* Residual and norm around a branch; also what the branch returns besides. */
  add(x, branch, norm) {
    const [values, rest] = branch(this.normFirst ? norm(x) : x);
    x = add(x, values);
    return [this.normFirst ? x : norm(x), rest];
  }
  call(x, mask, sharpness) {
    const [seen, weights] = this.add(x, (x) => this.attention.call(x, mask, sharpness), this.norm1);
    const [out] = this.add(seen, (x) => [this.ffn.call(x)], this.norm2);
    return [out, weights];
  }
}

/* Blocks of a kind, as many as there are. */
function makeBlocks(Block, params, name, sizes) {
  return Array.from({ length: sizes.nBlocks }, (_, i) => new Block(params, `${name}.${i}`, sizes));
}

/* One block after the other, `act(block, x, i)` -> x, weights: x, weights of all. */
function runBlocks(blocks, x, act) {
  const maps = blocks.map((block, i) => {
    const [out, weights] = act(block, x, i);
    x = out;
    return weights;
  });
  return [x, maps];
}

/* A stack of blocks, with pre-norm one more norm: s m -> s m, l h s s. */
class Encoder {
  constructor(params, name, sizes) {
    this.blocks = makeBlocks(EncoderBlock, params, `${name}.blocks`, sizes);
    this.norm = sizes.normFirst ? layerNorm(params, `${name}.norm`) : (x) => x;
  }
  call(x, mask, sharpness) {
    const [out, maps] = runBlocks(this.blocks, x, (block, x) => block.call(x, mask, sharpness));
    return [this.norm(out), maps];
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
  constructor(params, sizes) {
    this.embed = dense(params, "embed");
    this.encoder = new Encoder(params, "encoder", sizes);
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

/* Attention to all positions so far: n m -> n m, h n s. The cache gets the new ones. */
function attendAndKeep(layer, x, cache) {
  const start = cache.k.length;
  const [q, k, v] = layer.project(x, start); // n m
  cache.k.push(...k);
  cache.v.push(...v);
  const mask = q.map((_, i) => cache.k.map((_, j) => j <= start + i)); // n s
  return layer.attend(q, cache.k, cache.v, mask);
}

/* Attention to keys and values of a context: n m -> n m, h n k. */
class CrossAttention {
  constructor(params, name, nHeads) {
    this.nHeads = nHeads;
    for (const part of ["q", "kv", "out"]) this[part] = dense(params, `${name}.${part}`);
  }
  call(x, { k, v }) {
    const q = this.q(x);
    const [joined, weights] = attendInHeads(q, k, v, q[0].length / this.nHeads);
    return [this.out(joined), weights];
  }
}

/* Encoder block that looks only back, and at a context: n m -> n m, h n k. */
class DecoderBlock extends EncoderBlock {
  constructor(params, name, sizes) {
    super(params, name, sizes);
    this.cross = new CrossAttention(params, `${name}.cross`, sizes.nHeads);
    this.crossNorm = layerNorm(params, `${name}.cross_norm`);
  }
  newCache(context) {
    const [k, v] = split(this.cross.kv(context), 2); // once for all steps
    return { k: [], v: [], context: { k, v } };
  }
  call(x, cache) {
    const [seen] = this.add(x, (x) => attendAndKeep(this.attention, x, cache), this.norm1);
    const look = (x) => this.cross.call(x, cache.context);
    const [looked, weights] = this.add(seen, look, this.crossNorm);
    const [out] = this.add(looked, (x) => [this.ffn.call(x)], this.norm2);
    return [out, weights];
  }
}

/* A stack of decoder blocks: n m -> n m, l h n k. */
class Decoder {
  constructor(params, name, sizes) {
    this.blocks = makeBlocks(DecoderBlock, params, `${name}.blocks`, sizes);
    this.norm = sizes.normFirst ? layerNorm(params, `${name}.norm`) : (x) => x;
  }
  call(x, cache) {
    const [out, maps] = runBlocks(this.blocks, x, (block, x, i) => block.call(x, cache[i]));
    return [this.norm(out), maps];
  }
}

/* The half of a translator that writes: logits of the next token n -> n t, maps l h n k. */
class LanguageModel {
  constructor(params, sizes, name) {
    this.embed = params[`${name}embed.weight`]; // t m
    this.positions = sinusoidalPositions(sizes.maxLength, this.embed[0].length); // s m
    this.decoder = new Decoder(params, `${name}decoder`, sizes);
    this.output = transpose(this.embed); // tied
  }
  /* Keys and values of each block: of positions so far, and of the context. */
  newCache(context) {
    return this.decoder.blocks.map((block) => block.newCache(context));
  }
  /* With a new cache it is one pass over the text; else only new tokens are computed. */
  call(tokens, cache) {
    const start = cache[0].k.length;
    const table = this.positions.slice(start, start + tokens.length);
    const x = tokens.map((token) => this.embed[token]); // n m
    const [out, maps] = this.decoder.call(add(x, table), cache);
    return [matmul(out, this.output), maps];
  }
}

/* Reads a source, writes a target. Both share one vocabulary. */
class Translator {
  constructor(params, sizes) {
    this.target = new LanguageModel(params, sizes, "target.");
    this.embed = this.target.embed;
    this.positions = this.target.positions;
    this.encoder = new Encoder(params, "encoder", sizes);
  }
  /* The encoded source: k -> k m. */
  read(source) {
    const x = source.map((token) => this.embed[token]);
    const [out] = this.encoder.call(add(x, this.positions));
    return out;
  }
  call(source, target) {
    return this.target.call(target, this.target.newCache(this.read(source)));
  }
}

/* RMSNorm: every row to mean square 1, then a learned scale. */
function rmsNorm(params, name) {
  const scale = params[`${name}.weight`];
  return (x) =>
    x.map((row) => {
      const root = Math.sqrt(mean(row.map((value) => value * value)) + 1e-6);
      return row.map((value, j) => (value / root) * scale[j]);
    });
}

/* Rotate feature i of each head together with i + d/2, by position: n hd -> n hd. */
function rotaryHalves(x, d, start, base = 10000) {
  const half = d / 2;
  return x.map((row, n) =>
    row.map((value, j) => {
      const i = j % d; // in its head
      const angle = (start + n) / base ** ((i % half) / half);
      const other = i < half ? -row[j + half] : row[j - half];
      return value * Math.cos(angle) + other * Math.sin(angle);
    }),
  );
}

/* Attention whose query heads share keys and values: n m -> n m, h n s. */
class GroupedAttention {
  constructor(params, name, { nHeads }) {
    for (const part of ["q", "k", "v", "out"]) this[part] = dense(params, `${name}.${part}`);
    this.d = params[`${name}.q.weight`][0].length / nHeads;
  }
  /* Queries n hd, keys and values n gd; the first position is `start`. */
  project(x, start) {
    const rotate = (x) => rotaryHalves(x, this.d, start);
    return [rotate(this.q(x)), rotate(this.k(x)), this.v(x)];
  }
  attend(q, k, v, mask) {
    const [joined, weights] = attendInHeads(q, k, v, this.d, mask);
    return [this.out(joined), weights];
  }
}

const silu = (value) => value / (1 + Math.exp(-value));

/* Gated feed-forward net: n m -> n m. */
class SwiGLU {
  constructor(params, name) {
    for (const part of ["gate", "up", "down"]) this[part] = dense(params, `${name}.${part}`);
  }
  call(x) {
    const [gate, up] = [this.gate(x), this.up(x)]; // n f
    return this.down(gate.map((row, i) => row.map((value, j) => silu(value) * up[i][j])));
  }
}

/* Attention, then a feed-forward net, each after a norm: n m -> n m, h n s. */
class ModernBlock {
  constructor(params, name, sizes) {
    this.norm1 = rmsNorm(params, `${name}.norm1`);
    this.attention = new GroupedAttention(params, `${name}.attention`, sizes);
    this.norm2 = rmsNorm(params, `${name}.norm2`);
    this.ffn = new SwiGLU(params, `${name}.ffn`);
  }
  call(x, cache) {
    const [values, weights] = attendAndKeep(this.attention, this.norm1(x), cache);
    const seen = add(x, values);
    return [add(seen, this.ffn.call(this.norm2(seen))), weights];
  }
}

/* Logits of the next token at every position: n -> n t, l h n s. */
class ModernLM {
  constructor(params, sizes) {
    this.embed = params["embed.weight"]; // t m
    this.blocks = makeBlocks(ModernBlock, params, "blocks", sizes);
    this.norm = rmsNorm(params, "norm");
    this.output = transpose(this.embed); // tied
  }
  /* Keys, already rotated, and values of each block. */
  newCache() {
    return this.blocks.map(() => ({ k: [], v: [] }));
  }
  call(tokens, cache = this.newCache()) {
    const x = tokens.map((token) => this.embed[token]); // n m
    const [out, maps] = runBlocks(this.blocks, x, (block, x, i) => block.call(x, cache[i]));
    return [matmul(this.norm(out), this.output), maps];
  }
}

/* Patches of a picture, row by row: y x i -> n (p p i). */
function cutPatches(image, patch) {
  const starts = (pixels) => Array.from({ length: pixels.length / patch }, (_, n) => n * patch);
  const cut = (y, x) => image.slice(y, y + patch).map((row) => row.slice(x, x + patch)).flat(2);
  return starts(image).flatMap((y) => starts(image[0]).map((x) => cut(y, x)));
}

/* One output vector for a picture, that of its class token: y x i -> c, l h s s. */
class VisionTransformer {
  constructor(params, sizes) {
    this.patch = sizes.patch;
    this.embed = dense(params, "embed");
    this.token = params.token; // m
    this.positions = params["positions.table"]; // s m
    this.encoder = new Encoder(params, "encoder", { activation: gelu, ...sizes });
    this.output = dense(params, "output");
  }
  call(image) {
    const x = [this.token, ...this.embed(cutPatches(image, this.patch))]; // s m
    const [out, maps] = this.encoder.call(add(x, this.positions));
    return [this.output([out[0]])[0], maps];
  }
}

/* Probabilities that the next token is drawn with: t -> t. */
function nextTokenProbabilities(logits, { temperature = 1, topK, topP } = {}) {
  const highest = Math.max(...logits);
  let [p] = maskedSoftmax([logits.map((logit) => (logit - highest) / temperature)]);
  const order = p.map((_, i) => i).sort((i, j) => p[j] - p[i]); // most probable first
  const keep = (tokens) => {
    const kept = new Set(tokens);
    const sum = tokens.reduce((total, i) => total + p[i], 0);
    p = p.map((value, i) => (kept.has(i) ? value / sum : 0));
  };
  if (topK) keep(order.slice(0, topK));
  if (topP) {
    let before = 0; // what the more probable ones have
    keep(order.filter((i) => (before += p[i]) - p[i] < topP));
  }
  return p;
}

/* A token for a number from 0 to 1, as often as its probability says. */
function drawToken(p, chance) {
  let sum = 0;
  const found = p.findIndex((value) => (sum += value) > chance);
  return found < 0 ? p.indexOf(Math.max(...p)) : found; // rounding: the sum is below 1
}

/* A vocabulary of characters and frequent strings: byte-pair encoding. */
class BytePairs {
  constructor({ alphabet, merges = "[]" }) {
    this.tokens = Array.from(alphabet);
    this.numbers = new Map(this.tokens.map((character, n) => [character, n]));
    this.merges = new Map(); // "left right" -> the new token; the earlier comes first
    for (const [left, right] of JSON.parse(merges)) {
      this.merges.set(`${left} ${right}`, this.tokens.length);
      this.tokens.push(this.tokens[left] + this.tokens[right]);
    }
  }
  encode(text) {
    const piece = /\n *| ?[\p{L}\p{N}_]+| ?[^\p{L}\p{N}_\s]+|\s/gu;
    return (text.match(piece) ?? []).flatMap((piece) => this.encodePiece(piece));
  }
  /* Apply the merges to a piece, the earliest first. */
  encodePiece(piece) {
    let word = Array.from(piece, (character) => this.numbers.get(character));
    for (;;) {
      const found = word.slice(1).map((right, i) => this.merges.get(`${word[i]} ${right}`) ?? Infinity);
      const first = Math.min(...found);
      if (first === Infinity) return word;
      const merged = [];
      for (let i = 0; i < word.length; i++) {
        const joined = found[i] === first;
        merged.push(joined ? first : word[i]);
        if (joined) i++;
      }
      word = merged;
    }
  }
  decode(tokens) {
    return tokens.map((token) => this.tokens[token]).join("");
  }
}
