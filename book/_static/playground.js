/* Type something, and see what the trained models make of it.

`book/_ext/playground.py` puts a place for each model on the page, with its settings, and
calls the function of the model right behind it; `transformer.js` computes. */
"use strict";

const FRAMEWORKS = { jax: "JAX", torch: "PyTorch" };

/* The framework that the switch of the book has chosen. */
function side() {
  return document.documentElement.dataset.framework === "torch" ? "torch" : "jax";
}

function onSwitch(act) {
  new MutationObserver(act).observe(document.documentElement, { attributeFilter: ["data-framework"] });
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function button(text, act) {
  const node = make("button", { type: "button" }, text);
  node.addEventListener("click", act);
  return node;
}

function readBase64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
}

/* A sentence about characters that a model does not know. */
function leftOut(letters, reason) {
  const others = [...new Set(letters)];
  if (!others.length) return "";
  const named = others.slice(0, 5).map((letter) => `“${letter}”`).join(", ");
  return `${named}${others.length > 5 ? " and others" : ""}: left out, for the model knows only ${reason}.`;
}

/* What stands in a field from now on; the caret stays behind the same characters. */
function keep(field, kept, caret) {
  if (field.value === kept) return;
  field.value = kept;
  if (document.activeElement === field) field.setSelectionRange(caret, caret);
}

/* The reverse task. At each change the model runs once, and only what is different is
written. The weights of both frameworks and an attention viewer are on the page. */
function playground(place) {
  const settings = JSON.parse(place.dataset.settings);
  const viewer = place.querySelector("attention-viewer");
  const models = {};
  for (const { dataset, textContent } of document.querySelectorAll("script[data-weights]"))
    models[dataset.weights] = new Predictor(readSafetensors(readBase64(textContent)), settings);

  const symbols = Array.from({ length: settings.nSymbols }, (_, i) => String(i));
  const state = { digits: [], silenced: new Set() };
  const oneHot = (digit) => symbols.map((symbol) => Number(symbol === digit));

  // What was typed or pasted: its digits, and a sentence about what was left out.
  function read(text) {
    const letters = Array.from(text.replace(/[\s,;]/g, ""));
    const digits = letters.filter((letter) => symbols.includes(letter));
    const said = [leftOut(letters.filter((letter) => !symbols.includes(letter)), "the digits 0 to 9")];
    if (digits.length > settings.length) {
      said.push(`The model has learned ${settings.length} places: only the first ${settings.length} digits are kept.`);
    }
    return { digits: digits.slice(0, settings.length), said: said.join(" ").trim() };
  }

  // The controls.
  const field = make("input", {
    id: "digits", type: "text", inputmode: "numeric", autocomplete: "off", spellcheck: "false",
    "aria-describedby": "refused",
  });
  // Where there is room for no more digits, one that is typed replaces the next one.
  field.addEventListener("beforeinput", (event) => {
    const { selectionStart: start, selectionEnd: end, value } = field;
    const full = value.length === settings.length && start === end && start < settings.length;
    if (event.inputType !== "insertText" || !full || !symbols.includes(event.data)) return;
    event.preventDefault();
    field.setRangeText(event.data, start, start + 1, "end");
    set(field.value);
  });
  const refused = make("p", { id: "refused", role: "status", class: "refused" });
  const shuffle = button("Shuffle", () => {
    const digits = [...state.digits];
    for (let i = digits.length - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [digits[i], digits[j]] = [digits[j], digits[i]];
    }
    set(digits.join(""));
  });
  const draw = button("Draw new ones", () => {
    const random = () => symbols[Math.floor(Math.random() * symbols.length)];
    set(Array.from({ length: settings.length }, random).join(""));
  });
  const positions = make("input", {
    type: "checkbox", id: "positions", checked: "", autocomplete: "off",
  });
  positions.addEventListener("change", show);
  const sharpness = make("input", {
    type: "range", id: "sharpness", min: -5, max: 5, step: 0.5, value: 0, autocomplete: "off",
  });
  const factor = make("output", { for: "sharpness" });
  sharpness.addEventListener("input", show);
  const silence = button("Silence all keys", () => {
    state.digits.forEach((_, key) => state.silenced.add(key));
    show();
  });
  const reset = button("As trained", () => {
    positions.checked = true;
    sharpness.value = 0;
    state.silenced.clear();
    show();
  });
  field.addEventListener("input", (event) => {
    if (!event.isComposing) set(field.value);
  });
  field.addEventListener("compositionend", () => set(field.value));

  // Digits that are no longer there cannot be silent.
  function set(text) {
    const { digits, said } = read(text);
    const kept = digits.join("");
    keep(field, kept, read(field.value.slice(0, field.selectionStart)).digits.length);
    write(refused, said);
    state.digits = digits;
    for (const key of state.silenced) if (key >= digits.length) state.silenced.delete(key);
    show();
  }

  // Two tables, a column for each place: what goes in, comes out, and how sure the model
  // is; and below the map the probability of every digit.
  const ROWS = ["place", "in", "wanted", "out", "right", "sure"];
  const digitsTable = make("table", { class: "digits" });
  digitsTable.append(make("caption", {}, "Press a digit in the row “in”, and no query can see it."));
  const chanceTable = make("table", { class: "digits" });
  chanceTable.append(make("caption", {}, "The probability of each digit at each place: the stronger the colour, the larger."));

  function row(table, name, kind = name) {
    const node = make("tr", { class: kind }, make("th", { scope: "row" }, name));
    table.append(node);
    return node;
  }
  const shown = { sure: "sure, %" };
  const rows = Object.fromEntries(ROWS.map((name) => [name, row(digitsTable, shown[name] ?? name, name)]));
  const placeAgain = row(chanceTable, "place");
  const chanceRows = symbols.map((symbol) => row(chanceTable, `p(${symbol})`, "chance"));

  function column(i) {
    const key = make("button", { type: "button" });
    key.addEventListener("click", () => {
      if (!state.silenced.delete(i)) state.silenced.add(i);
      show();
    });
    const cells = {
      place: make("th", { scope: "col" }, String(i)),
      in: make("td", {}, key),
      wanted: make("td"),
      out: make("td"),
      right: make("td"),
      sure: make("td"),
    };
    for (const name of ROWS) rows[name].append(cells[name]);
    const again = placeAgain.appendChild(make("th", { scope: "col" }, String(i)));
    const chance = chanceRows.map((line) => line.appendChild(make("td")));
    return { ...cells, key, chance, all: [...Object.values(cells), again, ...chance] };
  }

  // Every column is there from the start, so that none moves while one types.
  const columns = Array.from({ length: settings.length }, (_, i) => column(i));
  const verdict = make("p", { class: "verdict", role: "status" });

  function show() {
    const n = state.digits.length;
    columns.forEach((cells, i) => {
      const used = i < n;
      if (cells.used !== used) for (const cell of cells.all) cell.classList.toggle("unused", !used);
      cells.used = used;
    });
    const s = 2 ** Number(sharpness.value);
    write(factor, s < 1 ? `× 1/${Number((1 / s).toPrecision(2))}` : `× ${Number(s.toPrecision(2))}`);
    sharpness.setAttribute("aria-valuetext", factor.textContent);
    const { chances, maps } = n ? answer(positions.checked, s) : { chances: [] };
    let right = 0;
    chances.forEach((p, i) => {
      const cells = columns[i];
      const wanted = state.digits[n - 1 - i];
      const out = String(p.indexOf(Math.max(...p)));
      const silent = state.silenced.has(i);
      right += out === wanted;
      write(cells.key, state.digits[i]);
      cells.key.setAttribute("aria-pressed", silent);
      cells.key.setAttribute("aria-label", `silence key ${i}, digit ${state.digits[i]}`);
      write(cells.wanted, wanted);
      write(cells.out, out);
      write(cells.right, out === wanted ? "✓" : "✗");
      cells.right.setAttribute("aria-label", out === wanted ? "right" : "wrong");
      cells.out.classList.toggle("wrong", out !== wanted);
      write(cells.sure, String(Math.min(99, Math.floor(100 * Math.max(...p))))); // two digits
      cells.chance.forEach((cell, symbol) => {
        const chance = p[symbol].toFixed(2);
        cell.classList.toggle("chosen", String(symbol) === out);
        if (cell.getAttribute("aria-label") === chance) return;
        cell.setAttribute("aria-label", chance);
        cell.style.setProperty("--chance", chance);
      });
    });
    const places = n === 1 ? "place is" : "places are";
    write(verdict, n ? `${right} of ${n} ${places} right (weights trained in ${FRAMEWORKS[side()]}).` : "Type a digit.");
    place.classList.toggle("empty", !n);
    if (n) {
      const shape = [maps.length, 1, maps[0].length, n, n];
      viewer.view = {
        about: settings.about,
        shape,
        maps: [{ name: "", weights: maps.flat(3) }],
        queries: [state.digits],
        keys: [state.digits],
        pictures: null,
        sequences: ["0"],
        high: 1,
        silent: [...state.silenced],
        chosen: { layer: 0, head: 0, query: 0 },
      };
    }
  }

  // Probabilities s c and maps l h s s of the digits that are there.
  function answer(positions, sharpness) {
    const mask = state.digits.map(() => state.digits.map((_, key) => !state.silenced.has(key)));
    const x = state.digits.map(oneHot);
    const [logits, maps] = models[side()].call(x, { mask, positions, sharpness });
    return { chances: maskedSoftmax(logits), maps };
  }

  const upper = make(
    "div",
    { class: "upper" },
    make("div", { class: "wide" }, digitsTable),
    make("p", {}, "The attention map, a row for each output, a column for each digit that goes in:"),
  );
  const lower = make("div", { class: "wide lower" }, chanceTable);
  place.querySelector(".without-scripts").remove();
  place.prepend(
    make("p", { class: "typing" }, make("label", { for: "digits" }, "Digits"), field, shuffle, draw),
    make(
      "p",
      { class: "switches" },
      make("label", {}, positions, "positions"),
      make("span", {}, make("label", { for: "sharpness" }, "sharpness of the softmax"), sharpness, factor),
      make("span", {}, silence, reset),
    ),
    refused,
    verdict,
    upper,
  );
  place.append(lower);
  onSwitch(show);
  addEventListener("pageshow", show); // some browsers bring back what the controls said
  place.classList.add("ready");
  set(settings.digits);
}
