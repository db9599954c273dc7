/* A language model: what it writes, the most probable next tokens, and its attention. */
"use strict";

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

function writing(place) {
  const SHOWN = 10; // of the most probable tokens
  const PAUSE = 40; // milliseconds between two tokens of a run

  const read = (buffer, settings) => ({
    model: new ModernLM(readSafetensors(buffer), settings), pairs: new BytePairs(readHeader(buffer).metadata),
  });

  function start(place, { prompt, maxLength, ...sizes }, { model, pairs }) {
    let tokens = [];
    let typed = prompt; // what "start again" goes back to
    let written = 0; // how many tokens at the end the model has written
    let cache = null;
    let known = []; // the tokens whose keys and values are in the cache
    let maps = []; // where each of them looks: l h k
    let picked = null; // the token whose weights are shown; null: the last one
    let p = [];
    let running = false;

    const field = make("textarea", { id: "writing", rows: 6, autocapitalize: "off" });
    const text = knownText(field, {
      known: [...pairs.numbers.keys()],
      reason: `the ${pairs.numbers.size} characters of its vocabulary`,
      atMost: (letters) => {
        const all = pairs.encode(letters.join(""));
        const things = all.slice(0, maxLength);
        const tooLong = all.length > maxLength && `The model has ${maxLength} positions: only the first ${maxLength} tokens are kept.`;
        return { things, kept: pairs.decode(things), tooLong };
      },
      changed: (found) => {
        [tokens, written, picked, running] = [found, 0, null, false];
        typed = pairs.decode(tokens);
        write(said, "");
        show();
      },
    });
    const state = make("p", { class: "state" });
    const said = make("p", { role: "status", class: "said" });
    const one = button("One token", () => append(choose(), "Written"));
    const run = button("Run", () => (running ? (running = false) : runOn()));
    const again = button("Start again", () => text.set(typed));
    const list = make("ol", { class: "next", "aria-label": "The most probable next tokens" });
    const rows = Array.from({ length: SHOWN }, (_, i) => {
      const [token, bar, number] = ["token", "bar", "number"].map((name) => make("span", { class: name }));
      const node = fill(button("", () => append(rows[i].value, "Appended")), {}, [token, bar, number]);
      list.append(make("li", {}, node));
      return { node, token, bar, number, value: 0 };
    });
    const seen = make("div", { role: "radiogroup", class: "seen", "aria-labelledby": "seen-about" });
    const looks = layersAndHeads("attends", sizes, look);
    const readout = make("p", { class: "readout" });
    // A slider or a field for a number, with what it says behind it.
    const knob = (id, name, attributes, words) => {
      const input = make("input", { id, autocomplete: "off", ...attributes });
      const output = make("output", { for: id });
      input.addEventListener("input", show);
      const label = make("span", {}, make("label", { for: id }, name), input, output);
      const number = () => Number(input.value);
      return { input, label, number, tell: () => write(output, words(number())) };
    };
    const range = (min, max, step, value) => ({ type: "range", min, max, step, value });
    const temperature = knob("temperature", "temperature", range(0.1, 2, 0.1, 1), (value) => value.toFixed(1));
    const topK = knob("top-k", "top-k", range(1, 50, 1, 50), (value) => (value < 50 ? String(value) : "all"));
    const topP = knob("top-p", "top-p", range(0.05, 1, 0.05, 1), (value) => value.toFixed(2));
    const seed = knob("seed", "seed", { type: "number", min: 0, max: 999, value: 0 }, () => "");
    const knobs = [temperature, topK, topP, seed];
    const greedy = check("greedy", "greedy", show);
    const cached = check("cache", "key–value cache", show, true);
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
      return { last: found.at(-1), computed: tokens.length - n, time };
    }

    function options() {
      if (greedy.input.checked) return {};
      const k = topK.number();
      return { temperature: temperature.number(), topK: k < 50 ? k : undefined, topP: topP.number() };
    }

    const choose = () => (greedy.input.checked ? best(p) : drawToken(p, chance(seed.number(), tokens.length)));
    const full = () => tokens.length >= maxLength;

    function append(token, how) {
      const probability = p[token].toFixed(2);
      tokens.push(token);
      written += 1;
      text.put(pairs.decode(tokens));
      field.scrollTop = field.scrollHeight;
      write(text.refused, "");
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
      running = false;
      show();
      if (tokens.length > before) write(said, `${tokens.length - before} tokens written.`);
    }

    function show() {
      const none = !tokens.length;
      place.classList.toggle("empty", none);
      for (const { input, tell } of knobs) {
        tell();
        input.disabled = greedy.input.checked;
      }
      one.disabled = none || full();
      run.disabled = one.disabled && !running;
      write(run, running ? "Stop" : "Run");
      if (none) return write(state, "Type a beginning.");
      const { last, computed, time } = logits();
      p = nextTokenProbabilities(last, options());
      ordered(last).slice(0, SHOWN).forEach((token, i) => {
        const row = rows[i];
        row.value = token;
        write(row.token, visible(pairs.tokens[token]));
        write(row.number, p[token] ? p[token].toFixed(2) : "–");
        row.bar.style.setProperty("--share", p[token]);
        row.node.setAttribute("aria-label", `${aloud(pairs.tokens[token])}, probability ${p[token].toFixed(2)}`);
        row.node.disabled = full();
      });
      const work = `${computed} ${computed === 1 ? "position" : "positions"} computed in ${time.toFixed(1)} ms`;
      write(state, `${tokens.length} of ${maxLength} tokens; ${work}.${
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

    place.append(
      make("p", {}, make("label", { for: "writing" }, "Beginning of a text (code or its documentation, as in the training)")),
      field, text.refused,
      make("p", {}, one, run, again, greedy.label, cached.label),
      make("p", { class: "switches" }, ...knobs.map(({ label }) => label)),
      state, said,
      make("p", {}, "The most probable next tokens. Press one to append it."),
      list,
      make("p", { id: "seen-about" }, "The text as the model sees it; what it has written is underlined. Press a token, and the colours show where it looks."),
      make("p", { class: "switches" }, make("label", { for: "attends" }, "Attention of"), looks.select),
      seen, readout,
    );
    return () => text.set(typed);
  }

  whenOpened(place, { what: "writes", read, start });
}
