/* Models whose weights are loaded only when a reader opens them: here those that write and
translate. The weights come as scripts, so that this works without a server, too. */
"use strict";

/* The bytes of a file of weights. */
function load({ address, name }) {
  return new Promise((resolve, reject) => {
    const script = make("script", { src: address });
    script.addEventListener("load", () => {
      resolve(readBase64(window.trainedWeights[name]));
      delete window.trainedWeights[name];
      script.remove();
    });
    script.addEventListener("error", () => {
      script.remove();
      reject(new Error(`${name} could not be loaded`));
    });
    document.head.append(script);
  });
}

/* A button that loads the weights; then the controls, and the model for them.

`read` makes a model of the bytes. `start` puts the controls into the place and returns a
function, which is called with the model, and again when another framework is chosen. */
function whenOpened(place, what, read, start) {
  const settings = JSON.parse(place.dataset.settings);
  const weights = () => settings.weights[side()]; // published ones are the same for both
  const models = {}; // by the name of their weights
  let use = null;
  const said = make("p", { role: "status", class: "loading" });
  const size = () => `${(weights().bytes / 2 ** 20).toFixed(1)} MiB`;
  const opener = button("", () => choose());
  const label = () => write(opener, `Open the model that ${what} (${size()})`);

  async function choose() {
    const { name, about } = weights();
    opener.disabled = true;
    try {
      if (!models[name]) {
        write(said, `Loading the ${about} …`);
        models[name] = read(await load(weights()), settings);
      }
    } catch (error) {
      write(said, `The ${about} are not there: ${error.message}.`);
      write(opener, "Try again");
      opener.disabled = opener.hidden = false;
      return;
    }
    if (name !== weights().name) return; // meanwhile the reader has chosen the other one
    const first = !use;
    if (first) use = start(place, settings);
    opener.hidden = true;
    place.classList.add("open");
    write(said, `The model runs with the ${about}.`);
    use(models[name]);
    if (first) place.focus({ preventScroll: true }); // what had the focus is gone
  }

  place.tabIndex = -1;
  place.prepend(opener, said);
  place.classList.add("ready");
  label();
  const names = Object.values(settings.weights).map(({ name }) => name);
  if (new Set(names).size > 1) onSwitch(() => (use || opener.disabled ? choose() : label()));
}

/* A choice of a layer, and in it of one head or the mean of all. */
function layersAndHeads(id, { nBlocks, nHeads }, act) {
  const select = make("select", { id, autocomplete: "off" });
  for (let layer = nBlocks - 1; layer >= 0; layer--) {
    select.append(make("option", { value: `${layer}` }, `layer ${layer}, mean of heads`));
    for (let head = 0; head < nHeads; head++)
      select.append(make("option", { value: `${layer} ${head}` }, `layer ${layer}, head ${head}`));
  }
  select.addEventListener("change", act);

  // Of the maps of one query, the chosen one: l h k -> k.
  function weights(maps) {
    const [layer, head] = select.value.split(" ").map(Number);
    return transpose(head === undefined ? maps[layer] : [maps[layer][head]]).map(mean);
  }
  return { select, weights };
}

/* Whose weights are the three largest, in words. */
function largest(weights, name) {
  const order = weights.map((_, i) => i).sort((i, j) => weights[j] - weights[i]).slice(0, 3);
  return order.map((i) => `${name(i)} (${weights[i].toFixed(2)})`).join("; ");
}

/* White space made visible. */
function visible(text) {
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

/* White space in words, for a screen reader. */
function aloud(text) {
  const words = { " ": "space", "\n": "line break", "\t": "tab" };
  return text.replace(/([ \n\t])\1*/g, (run, sign) =>
    ` ${run.length > 1 ? `${run.length} ${words[sign]}s` : words[sign]} `).trim();
}

/* A number from 0 to 1 for each seed and place: the same again in every run. */
function chance(seed, place) {
  let x = (Math.imul(seed, 0x9e3779b1) + Math.imul(place + 1, 0x85ebca6b)) | 0;
  for (const [shift, factor] of [[16, 0x7feb352d], [15, 0x846ca68b]])
    x = Math.imul(x ^ (x >>> shift), factor);
  return ((x ^ (x >>> 16)) >>> 0) / 2 ** 32;
}

/* A language model: what it writes, the most probable next tokens, and its attention. */
function writing(place) {
  const SHOWN = 10; // of the most probable tokens
  const PAUSE = 40; // milliseconds between two tokens of a run

  function read(buffer, settings) {
    const model = new ModernLM(readSafetensors(buffer), settings);
    return { model, pairs: new BytePairs(readHeader(buffer).metadata) };
  }

  function start(place, settings) {
    let model, pairs;
    let tokens = [];
    let typed = settings.prompt; // what "start again" goes back to
    let written = 0; // how many tokens at the end the model has written
    let cache = null;
    let known = []; // the tokens whose keys and values are in the cache
    let maps = []; // where each of them looks: l h k
    let picked = null; // the token whose weights are shown; null: the last one
    let p = [];
    let running = false;

    const field = make("textarea", {
      id: "writing", rows: 6, spellcheck: "false", autocapitalize: "off", autocomplete: "off",
      "aria-describedby": "writing-refused",
    });
    const refused = make("p", { id: "writing-refused", role: "status", class: "refused" });
    const state = make("p", { class: "state" });
    const said = make("p", { role: "status", class: "said" });
    const one = button("One token", () => append(choose(), "Written"));
    const run = button("Run", () => (running ? stop() : runOn()));
    const again = button("Start again", () => {
      running = false;
      field.value = typed;
      change();
      write(said, "");
    });
    const list = make("ol", { class: "next", "aria-label": "The most probable next tokens" });
    const rows = Array.from({ length: SHOWN }, (_, i) => {
      const [token, bar, number] = ["token", "bar", "number"].map((name) => make("span", { class: name }));
      const node = button("", () => append(rows[i].value, "Appended"));
      node.append(token, bar, number);
      list.append(make("li", {}, node));
      return { node, token, bar, number, value: 0 };
    });
    const seen = make("div", { role: "radiogroup", class: "seen", "aria-labelledby": "seen-about" });
    const looks = layersAndHeads("attends", settings, look);
    const readout = make("p", { class: "readout" });

    // A slider or a field for a number, with what it says behind it.
    const knob = (id, name, attributes) => {
      const input = make("input", { id, autocomplete: "off", ...attributes });
      const value = make("output", { for: id });
      input.addEventListener("input", show);
      const label = make("span", {}, make("label", { for: id }, name), input, value);
      return { input, value, label, number: () => Number(input.value) };
    };
    const range = (min, max, step, value) => ({ type: "range", min, max, step, value });
    const temperature = knob("temperature", "temperature", range(0.1, 2, 0.1, 1));
    const topK = knob("top-k", "top-k", range(1, 50, 1, 50));
    const topP = knob("top-p", "top-p", range(0.05, 1, 0.05, 1));
    const seed = knob("seed", "seed", { type: "number", min: 0, max: 999, value: 0 });
    const check = (id, name) => {
      const input = make("input", { id, type: "checkbox", autocomplete: "off" });
      input.addEventListener("change", show);
      return { input, label: make("label", {}, input, name) };
    };
    const greedy = check("greedy", "greedy");
    const cached = check("cache", "key–value cache");
    cached.input.checked = true;

    // The tokens of a text that the model can read, and a sentence about the others.
    function understood(text) {
      const letters = Array.from(text);
      const kept = letters.filter((letter) => pairs.numbers.has(letter));
      const others = letters.filter((letter) => !pairs.numbers.has(letter));
      const all = pairs.encode(kept.join(""));
      const notes = [leftOut(others, `the ${pairs.numbers.size} characters of its vocabulary`)];
      if (all.length > settings.maxLength)
        notes.push(`The model has ${settings.maxLength} positions: only the first ${settings.maxLength} tokens are kept.`);
      return { tokens: all.slice(0, settings.maxLength), notes: notes.join(" ").trim() };
    }

    function change() {
      const found = understood(field.value);
      const before = pairs.decode(understood(field.value.slice(0, field.selectionStart)).tokens);
      tokens = found.tokens;
      written = 0;
      picked = null;
      typed = pairs.decode(tokens);
      keep(field, typed, before.length);
      write(refused, found.notes);
      write(said, "");
      show();
    }

    // What is common with the text before needs no work: its keys and values are known.
    function logits() {
      let n = 0;
      while (cached.input.checked && n < tokens.length - 1 && tokens[n] === known[n]) n++;
      cache ??= model.newCache();
      for (const { k, v } of cache) k.length = v.length = n;
      const started = performance.now();
      const [found, weights] = model.call(tokens.slice(n), cache); // n t, l h n s
      const time = performance.now() - started;
      maps.length = n;
      found.forEach((_, i) => maps.push(weights.map((heads) => heads.map((rows) => rows[i]))));
      known = [...tokens];
      const computed = tokens.length - n;
      return { last: found.at(-1), computed, time };
    }

    function options() {
      if (greedy.input.checked) return {};
      const k = topK.number();
      return { temperature: temperature.number(), topK: k < 50 ? k : undefined, topP: topP.number() };
    }

    function choose() {
      if (greedy.input.checked) return p.indexOf(Math.max(...p));
      return drawToken(p, chance(seed.number(), tokens.length));
    }

    function full() {
      return tokens.length >= settings.maxLength;
    }

    function append(token, how) {
      const probability = p[token].toFixed(2);
      tokens.push(token);
      written += 1;
      field.value = pairs.decode(tokens);
      field.scrollTop = field.scrollHeight;
      write(refused, "");
      show();
      if (!running) write(said, `${how}: ${aloud(pairs.tokens[token])}, probability ${probability}.`);
    }

    async function runOn() {
      running = true;
      const before = tokens.length;
      write(said, "");
      while (running && !full() && tokens.length) {
        append(choose());
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
      }
      stop();
      if (tokens.length > before) write(said, `${tokens.length - before} tokens written.`);
    }

    function stop() {
      running = false;
      show();
    }

    const percent = (value) => value.toFixed(2);

    function show() {
      const none = !tokens.length;
      place.classList.toggle("empty", none);
      write(temperature.value, temperature.number().toFixed(1));
      write(topK.value, topK.number() < 50 ? String(topK.number()) : "all");
      write(topP.value, topP.number().toFixed(2));
      for (const { input } of [temperature, topK, topP, seed]) input.disabled = greedy.input.checked;
      one.disabled = none || full();
      run.disabled = one.disabled && !running;
      write(run, running ? "Stop" : "Run");
      if (none) {
        write(state, "Type a beginning.");
        return;
      }
      const { last, computed, time } = logits();
      p = nextTokenProbabilities(last, options());
      const order = last.map((_, i) => i).sort((i, j) => last[j] - last[i]).slice(0, SHOWN);
      order.forEach((token, i) => {
        const row = rows[i];
        row.value = token;
        write(row.token, visible(pairs.tokens[token]));
        write(row.number, p[token] ? percent(p[token]) : "–");
        row.bar.style.setProperty("--share", p[token]);
        row.node.setAttribute("aria-label", `${aloud(pairs.tokens[token])}, probability ${percent(p[token])}`);
        row.node.disabled = full();
      });
      const work = `${computed} ${computed === 1 ? "position" : "positions"} computed in ${time.toFixed(1)} ms`;
      write(state, `${tokens.length} of ${settings.maxLength} tokens; ${work}.${
        full() ? " The text is as long as those of the training, so here the model ends. Shorten it, or start again." : ""}`);
      look();
    }

    // The tokens, each a radio button, and how much the chosen one looks at each of them.
    function look() {
      if (!tokens.length) return;
      while (seen.childElementCount > tokens.length) seen.lastChild.remove();
      while (seen.childElementCount < tokens.length) seen.append(choice(seen.childElementCount));
      const chosen = picked ?? tokens.length - 1;
      const weights = looks.weights(maps[chosen]); // of the tokens up to the chosen one
      const highest = Math.max(...weights);
      const text = (i) => pairs.tokens[tokens[i]];
      Array.from(seen.children).forEach(({ firstChild: radio, lastChild: shown }, i) => {
        const later = i > chosen;
        const says = later ? "not visible to the chosen token" : `weight ${weights[i].toFixed(2)}`;
        radio.checked = i === chosen;
        radio.setAttribute("aria-label", `token ${i}, ${aloud(text(i))}, ${says}`);
        write(shown, visible(text(i)));
        shown.classList.toggle("new", i >= tokens.length - written);
        shown.classList.toggle("later", later);
        shown.style.setProperty("--chance", later ? 0 : (weights[i] / highest).toFixed(3));
      });
      const named = (i) => `“${visible(text(i))}” at ${i}`;
      const back = weights.reduce((sum, weight, i) => sum + weight * (chosen - i), 0);
      write(readout, `${named(chosen)} looks most at ${largest(weights, named)}. On average it looks ${back.toFixed(1)} tokens back.`);
    }

    function choice(i) {
      const radio = make("input", { type: "radio", name: "seen", class: "aloud", autocomplete: "off" });
      radio.addEventListener("change", () => {
        picked = i < tokens.length - 1 ? i : null;
        look();
      });
      return make("label", {}, radio, make("span"));
    }

    // Text of several lines comes as several events, and the first has dealt with all.
    field.addEventListener("input", (event) => {
      running = false;
      if (!event.isComposing && field.value !== pairs.decode(tokens)) change();
    });
    field.addEventListener("compositionend", change);
    place.append(
      make("p", {}, make("label", { for: "writing" }, "Beginning of a text (code or its documentation, as in the training)")),
      field,
      refused,
      make("p", {}, one, run, again, greedy.label, cached.label),
      make("p", { class: "switches" }, temperature.label, topK.label, topP.label, seed.label),
      state,
      said,
      make("p", {}, "The most probable next tokens. Press one to append it."),
      list,
      make("p", { id: "seen-about" }, "The text as the model sees it; what it has written is underlined. Press a token, and the colours show where it looks."),
      make("p", { class: "switches" }, make("label", { for: "attends" }, "Attention of"), looks.select),
      seen,
      readout,
    );
    field.value = typed;
    return (found) => {
      ({ model, pairs } = found);
      change();
    };
  }

  whenOpened(place, "writes", read, start);
}

/* A translator of dates: what it writes, and where in the date each character looks. */
function translating(place) {
  const PAUSE = 180; // milliseconds between two characters

  function read(buffer, settings) {
    return new Translator(readSafetensors(buffer), settings);
  }

  function start(place, settings) {
    const { alphabet, begin, end, longest } = settings;
    const letters = Array.from(alphabet);
    const first = Math.max(begin, end) + 1; // the number of the first character
    let model;
    let source = [];
    let writtenSoFar = []; // {token, p, maps l h k} of each character
    let chosen = 0;
    let followed = true; // the newest character is the chosen one
    let turn = 0; // of a translation; an older one stops

    const field = make("input", {
      id: "date", type: "text", autocomplete: "off", spellcheck: "false", "aria-describedby": "date-refused",
    });
    const refused = make("p", { id: "date-refused", role: "status", class: "refused" });
    const examples = settings.examples.map((text) => button(text, () => {
      field.value = text;
      change();
    }));
    const sourceRow = make("div", { class: "letters source" });
    const targetRow = make("div", { class: "letters target" });
    const lines = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" }))
      lines.setAttribute(name, value);
    const readout = make("p", { class: "readout" });
    const verdict = make("p", { role: "status", class: "verdict" });
    const looks = layersAndHeads("looks", settings, draw);
    const cells = Array.from({ length: longest }, (_, i) => {
      const [letter, number] = [make("span", { class: "letter" }), make("span", { class: "number" })];
      const node = button("", () => pick(i));
      node.append(letter, number);
      for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => pick(i));
      targetRow.append(node);
      return { node, letter, number };
    });

    const name = (token) => (token === end ? "end" : letters[token - first]);

    function pick(i) {
      [chosen, followed] = [i, false];
      draw();
    }

    function understood(text) {
      const typed = Array.from(text);
      const kept = typed.filter((letter) => letters.includes(letter));
      const notes = [leftOut(typed.filter((letter) => !letters.includes(letter)), "characters that occur in its dates")];
      if (kept.length > settings.maxLength)
        notes.push(`The model has ${settings.maxLength} positions: only the first ${settings.maxLength} characters are kept.`);
      return { kept: kept.slice(0, settings.maxLength), notes: notes.join(" ").trim() };
    }

    function change() {
      const { kept, notes } = understood(field.value);
      const caret = understood(field.value.slice(0, field.selectionStart)).kept.length;
      keep(field, kept.join(""), caret);
      write(refused, notes);
      source = kept;
      translate();
    }

    // The encoder runs once, the decoder once for each character, with its cache.
    async function translate() {
      const mine = ++turn;
      [writtenSoFar, chosen, followed] = [[], 0, true];
      sourceRow.replaceChildren(...source.map((letter) => make("span", {}, visible(letter))));
      place.classList.toggle("empty", !source.length);
      write(verdict, source.length ? "" : "Type a date.");
      draw();
      if (!source.length) return;
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      const cache = model.target.newCache(model.read(source.map((letter) => letters.indexOf(letter) + first)));
      let token = begin;
      while (writtenSoFar.length < longest && token !== end) {
        const [[logits], maps] = model.target.call([token], cache);
        const p = nextTokenProbabilities(logits);
        token = p.indexOf(Math.max(...p));
        writtenSoFar.push({ token, p: p[token], maps: maps.map((heads) => heads.map(([row]) => row)) });
        if (followed) chosen = writtenSoFar.length - 1;
        draw();
        if (!still) await new Promise((resolve) => setTimeout(resolve, PAUSE));
        if (mine !== turn) return;
      }
      const text = writtenSoFar.filter(({ token }) => token !== end).map(({ token }) => name(token)).join("");
      const all = writtenSoFar.reduce((product, { p }) => product * p, 1);
      write(verdict, `The model writes ${text}, with a probability of ${all.toFixed(2)}.`);
    }

    function draw() {
      cells.forEach(({ node, letter, number }, i) => {
        const found = writtenSoFar[i];
        node.classList.toggle("unused", !found);
        node.disabled = !found;
        if (!found) return;
        write(letter, name(found.token));
        write(number, found.p.toFixed(2));
        node.setAttribute("aria-pressed", i === chosen);
        node.setAttribute("aria-label", `character ${i}, ${name(found.token)}, probability ${found.p.toFixed(2)}`);
      });
      const now = writtenSoFar[chosen];
      const found = now ? looks.weights(now.maps) : [];
      lines.replaceChildren(...found.flatMap((weight, k) => (weight < 0.01 ? [] : [line(k, weight)])));
      Array.from(sourceRow.children).forEach((node, k) => {
        node.style.setProperty("--chance", (found[k] ?? 0).toFixed(2));
      });
      if (!now) return write(readout, "");
      const where = largest(found, (k) => `“${visible(source[k])}” at ${k}`);
      write(readout, `To write “${name(now.token)}”, it looks most at ${where}.`);
    }

    function line(k, weight) {
      const node = document.createElementNS("http://www.w3.org/2000/svg", "line");
      const at = { x1: (k + 0.5) / source.length, y1: 0, x2: (chosen + 0.5) / longest, y2: 1 };
      for (const [name, value] of Object.entries({ ...at, "stroke-width": (12 * weight).toFixed(2) }))
        node.setAttribute(name, value);
      return node;
    }

    field.addEventListener("input", (event) => {
      if (!event.isComposing) change();
    });
    field.addEventListener("compositionend", change);
    place.append(
      make("p", { class: "typing" }, make("label", { for: "date" }, "Date"), field),
      make("p", { class: "examples" }, ...examples),
      refused,
      make("div", { class: "translation" }, sourceRow, lines, targetRow),
      readout,
      verdict,
      make("p", { class: "switches" }, make("span", {}, make("label", { for: "looks" }, "lines show"), looks.select), button("Write it again", translate)),
    );
    field.value = settings.examples[0];
    return (found) => {
      model = found;
      change();
    };
  }

  whenOpened(place, "translates", read, start);
}
