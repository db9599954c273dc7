/* What all models of the page share: how weights are loaded, and how controls are made.

`book/_ext/playground.py` puts a place for each model on the page, with its settings, and
calls the function of the model right behind it; `transformer.js` computes. */
"use strict";

const SVG = "http://www.w3.org/2000/svg";

/* The framework that the switch of the book has chosen. */
const side = () => (document.documentElement.dataset.framework === "torch" ? "torch" : "jax");

function fill(node, attributes, children = []) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const drawn = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const write = (node, text) => node.textContent === text || (node.textContent = text);

function button(text, act) {
  const node = make("button", { type: "button" }, text);
  node.addEventListener("click", act);
  return node;
}

/* A box to tick, with its words. */
function check(id, words, act, checked = false) {
  const input = make("input", { id, type: "checkbox", autocomplete: "off" });
  input.checked = checked;
  input.addEventListener("change", act);
  return { input, label: make("label", {}, input, words) };
}

const readBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;

/* A field for what a model can read: the rest is left out, and a sentence says so.

`known` are the characters of the model, `reason` their name; `atMost` makes of them as
many as the model has places for, and says how many; `changed` is called
with these. */
function knownText(node, { known, reason, atMost, changed }) {
  const refused = make("p", { id: `${node.id}-refused`, role: "status", class: "refused" });
  fill(node, { autocomplete: "off", spellcheck: "false", "aria-describedby": refused.id });

  function understood(text) {
    const letters = Array.from(text);
    const others = [...new Set(letters.filter((letter) => !known.includes(letter)))];
    const named = others.slice(0, 5).map((letter) => `“${letter}”`).join(", ");
    const more = others.length > 5 ? " and others" : "";
    const said = others.length ? [`${named}${more}: left out, for the model knows only ${reason}.`] : [];
    const { kept, things, tooLong } = atMost(letters.filter((letter) => known.includes(letter)));
    return { kept, things, said: [...said, ...(tooLong ? [tooLong] : [])].join(" ") };
  }

  let last = null; // text of several lines comes as several events
  // The caret stays behind the same characters.
  function change() {
    const { kept, things, said } = understood(node.value);
    last = kept;
    const caret = understood(node.value.slice(0, node.selectionStart)).kept.length;
    if (node.value !== kept) {
      node.value = kept;
      if (document.activeElement === node) node.setSelectionRange(caret, caret);
    }
    write(refused, said);
    changed(things);
  }

  node.addEventListener("input", (event) => {
    if (!event.isComposing && node.value !== last) change();
  });
  node.addEventListener("compositionend", change);
  const put = (text) => (node.value = last = text);
  return { refused, change, put, set: (text) => change(put(text)) };
}

/* The bytes of a file of weights. It comes as a script, so that this works without a
server, too. */
function load({ address, name }) {
  return new Promise((resolve, reject) => {
    const script = make("script", { src: address });
    script.onload = () => resolve(readBase64(window.trainedWeights[name]));
    script.onerror = () => reject(new Error(`${name} could not be loaded`));
    document.head.append(script);
  });
}

/* A button that loads the weights; then the controls, and the model for them.

`read` makes a model of the bytes. `start` puts the controls for it into the place and returns
a function, which is called with the model, and again when another framework is chosen. */
function whenOpened(place, { what, read, start, atOnce = false }) {
  const settings = JSON.parse(place.dataset.settings);
  const weights = () => settings.weights[side()]; // published ones are the same for both
  const models = {}; // by the name of their weights
  let [use, current] = [null, null]; // what `start` returns; the name of the weights in use
  const said = make("p", { role: "status", class: "loading" });
  const opener = button("", () => choose());
  const label = () => write(opener, `Open the model that ${what} (${(weights().bytes / 2 ** 20).toFixed(1)} MiB)`);

  async function choose(byHand = true) {
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
    if (first) use = start(place, settings, models[name]);
    opener.hidden = true;
    place.classList.add("open");
    write(said, `The model runs with the ${about}.`);
    current = name;
    use(models[name]);
    const lost = [opener, document.body].includes(document.activeElement); // what had the focus is gone
    if (first && byHand && lost) place.focus({ preventScroll: true });
  }

  place.querySelector(".without-scripts").remove();
  place.tabIndex = -1;
  place.prepend(opener, said);
  label();
  opener.hidden = atOnce;
  if (atOnce) choose(false);
  const act = () => (use || opener.disabled ? weights().name === current || choose(false) : label());
  new MutationObserver(act).observe(document.documentElement, { attributeFilter: ["data-framework"] });
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

/* Numbers of places, the largest value first. */
const ordered = (values) => values.map((_, i) => i).sort((i, j) => values[j] - values[i]);
const best = (values) => values.indexOf(Math.max(...values));

/* Whose weights are the three largest, in words. */
const largest = (weights, name) =>
  ordered(weights).slice(0, 3).map((i) => `${name(i)} (${weights[i].toFixed(2)})`).join("; ");

/* White space made visible. */
const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
