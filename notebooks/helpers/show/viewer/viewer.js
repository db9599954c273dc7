/* <attention-viewer>: attention maps in which layer, head and query are chosen.

`__init__.py` writes the element, with what it shows in its attribute `data-view`, and this
script behind it. A script may hand it over as a property, too, and whenever it changes:

    element.view = {
      about: "one sentence",           // what a screen reader says first
      shape: [l, b, h, q, k],          // layers, sequences, heads, queries, keys
      maps: [{ name: "", weights }],   // in the order of the shape, one after another
      queries: [["the", "cat"]],       // a label for each element of each sequence
      keys: [["the", "cat"]],
      pictures: [["data:…"]] or null,  // in place of the labels, for both
      sequences: ["1st sentence"],     // names of the sequences
      high: 1,                         // the weight that gets the strongest colour
      silent: [],                      // keys to strike out, if there are any
      chosen: { layer: 0, head: 0, query: 0 }, // at first
    };

Everything stands in a shadow root. Without JavaScript the reader sees what the element
holds: pictures. Labels are only ever set as text. */
(() => {
  "use strict";
  const NAME = "attention-viewer";
  if (customElements.get(NAME)) return;
  const STYLE = "viewer.css";
  const DRAWING = document.createElement("template");
  DRAWING.innerHTML = "<svg aria-hidden='true' preserveAspectRatio='none'><line y1='0' y2='1'></line></svg>";
  const CELL = { least: 14, most: 34 }; // pixels
  const DOT = 8; // side of a weight in the picture that is stretched behind the cells
  let viewers = 0;

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }
  // An attribute, unless it says so already: writing costs the browser a new style.
  function say(node, name, value) {
    if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }

  const digits = (weight) => weight.toFixed(2);
  const count = (n) => Array.from({ length: n }, (_, i) => i);
  // "key 3", with its label unless the labels are but numbers of places.
  function inWords(what, labels, i) {
    const plain = labels.every((label, place) => label === String(place));
    return plain ? `${what} ${i}` : `${what} ${i}, “${labels[i]}”`;
  }
  // Is the text around the viewer light? Then so is the text in it, on something dark.
  function onDark(element) {
    const [r, g, b] = getComputedStyle(element).color.match(/[\d.]+/g).map(Number);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 128;
  }

  class AttentionViewer extends HTMLElement {
    #view = null;
    #number = 0;
    #width = 0; // pixels, once it is known
    #heat = ""; // the colour of weight 1
    #panels = [];
    #place = { sequence: 0, query: 0, key: 0 };
    #kept = null; // the place to which a mouse that only passed by returns
    #watch = new MutationObserver(() => this.#followTheme());
    #sizes = new ResizeObserver(([{ contentRect }]) => this.#fit(contentRect.width));
    #scheme = matchMedia("(prefers-color-scheme: dark)");
    #theme = () => this.#followTheme();
    connectedCallback() {
      if (!this.shadowRoot) {
        this.#number = ++viewers;
        this.attachShadow({ mode: "open" });
        if (this.dataset.view) this.view = JSON.parse(this.dataset.view);
        else if (this.#view) this.#build();
      }
      for (const node of [document.documentElement, document.body])
        this.#watch.observe(node, { attributes: true });
      this.#scheme.addEventListener("change", this.#theme);
      addEventListener("beforeprint", this.#theme); // no observer comes in time for it
      this.#sizes.observe(this);
      this.#followTheme();
    }
    disconnectedCallback() {
      this.#watch.disconnect();
      this.#sizes.disconnect();
      this.#scheme.removeEventListener("change", this.#theme);
      removeEventListener("beforeprint", this.#theme);
    }
    set view(view) {
      const fixed = ({ maps, queries, keys, silent, chosen, ...rest }) => JSON.stringify([rest, maps.map(({ name }) => name)]);
      const first = !this.#view;
      const same = !first && fixed(view) === fixed(this.#view);
      this.#view = view;
      if (first) {
        // The key that the chosen query looks at most.
        const { query } = (this.#place = { sequence: 0, ...view.chosen });
        const row = this.#row({ map: 0, ...view.chosen }, query);
        this.#place.key = row.indexOf(Math.max(...row));
        this.#kept = { ...this.#place };
      }
      if (!this.shadowRoot) return;
      if (!same) return this.#build();
      this.#write();
      this.#fit();
    }
    get view() { return this.#view; }
    // What stands there: choosers, panels, a switch for the second panel.
    #build() {
      const { shape, maps, sequences, about } = this.#view;
      const [layers, , heads] = shape;
      this.#keepInside();
      this.#panels = [];
      this.panels = make("div", { class: "panels" });
      const frame = make("div", { class: "frame", role: "group", "aria-label": about });
      if (sequences.length > 1) frame.append(this.#chooser("sequence", sequences, this.#place));
      frame.append(this.panels);
      this.#addPanel(0);
      if (maps.length > 1) this.#addPanel(1);
      if (layers * heads * maps.length > 1) frame.append(this.#compareSwitch());
      frame.append(this.#scale());
      this.shadowRoot.replaceChildren(make("style", {}, STYLE), frame);
      this.#followTheme();
      this.#write();
      this.#fit();
    }
    #keepInside() {
      const [, sequences, , queries, keys] = this.#view.shape;
      for (const place of [this.#place, this.#kept]) {
        place.sequence = Math.min(place.sequence, sequences - 1);
        place.query = Math.min(place.query, queries - 1);
        place.key = Math.min(place.key, keys - 1);
      }
    }
    // Radio buttons for one of the choices that are kept in `kept`.
    #chooser(what, names, kept) {
      const group = `${what}-${this.#number}-${this.#panels.length}`;
      const field = make("fieldset", {}, make("legend", {}, what));
      names.forEach((name, i) => {
        const input = make("input", { type: "radio", name: group, value: i });
        input.checked = i === kept[what];
        input.addEventListener("change", () => {
          kept[what] = i;
          this.#write();
        });
        field.append(make("label", {}, input, make("span", {}, name)));
      });
      return field;
    }
    #compareSwitch() {
      const input = make("input", { type: "checkbox" });
      input.checked = this.#panels.length > 1;
      input.addEventListener("change", () => {
        if (input.checked) this.#addPanel(this.#view.maps.length - 1);
        else this.#panels.pop().node.remove();
        this.#write();
        this.#fit();
      });
      return make("label", { class: "compare" }, input, "two maps");
    }
    #scale() {
      const { high } = this.#view;
      const end = high < 1 ? `${high} or more` : "1";
      const pair = make("span", { class: "legend" }, make("span", { class: "framed" }), "the chosen query and key");
      return make("p", { class: "scale", "aria-hidden": "true" }, "weight 0", make("span", { class: "bar" }), end, pair);
    }
    #addPanel(map) {
      const { shape, maps, chosen } = this.#view;
      const [layers, , heads] = shape;
      const panel = { map, layer: chosen.layer, head: chosen.head };
      if (this.#panels.length > 0 && maps.length === 1) {
        // Not twice the same: another head, or another layer if there is but one head.
        if (heads > 1) panel.head = (chosen.head + 1) % heads;
        else panel.layer = (chosen.layer + 1) % layers;
      }
      const choosers = make("div", { class: "choosers" });
      const choices = { map: maps.map(({ name }) => name), layer: count(layers), head: count(heads) };
      for (const [what, names] of Object.entries(choices))
        if (names.length > 1) choosers.append(this.#chooser(what, names, panel));
      panel.readout = make("p", { class: "readout", role: "status" });
      panel.canvas = make("canvas", { "aria-hidden": "true" });
      const box = make("div", { class: "box" }, ...this.#matrix(panel));
      box.addEventListener("pointerover", (event) => this.#point(event));
      box.addEventListener("pointerleave", () => this.#goTo(this.#kept));
      box.addEventListener("click", (event) => this.#point(event, true)?.focus({ preventScroll: true }));
      panel.node = make("div", { class: "panel" }, choosers, box, panel.readout);
      this.#panels.push(panel);
      this.panels.append(panel.node);
    }
    // A map with its labels, and lines from the query to the keys above it.
    #matrix(panel) {
      const [, , , queries, keys] = this.#view.shape;
      const label = (attributes) => make("span", { class: "label", ...attributes });
      const cell = (k) => make("span", { class: "cell", role: "gridcell", tabindex: -1, "data-key": k });
      panel.lines = DRAWING.content.firstChild.cloneNode();
      panel.lines.append(...count(keys).map(() => DRAWING.content.firstChild.firstChild.cloneNode()));
      panel.asking = count(queries).map((q) => label({ "data-query": q }));
      panel.top = make("div", { class: "row top", "aria-hidden": "true" }, make("span", { class: "corner" }, "query →"), ...panel.asking);
      // One word per line: keys on the right, beside this corner, queries below it.
      const words = ["key →", "query ↓"].map((word) => make("span", {}, word));
      const corner = make("span", { class: "corner", role: "columnheader", "aria-label": "query" }, ...words);
      panel.columns = count(keys).map((k) => label({ role: "columnheader", "data-key": k }));
      const header = make("div", { class: "row head", role: "row" }, corner, ...panel.columns);
      panel.rows = count(queries).map((q) => {
        const [name, cells] = [label({ role: "rowheader" }), count(keys).map(cell)];
        const node = make("div", { class: "row", role: "row", "data-query": q }, name, ...cells);
        return { node, label: name, cells };
      });
      panel.grid = make("div", { class: "grid", role: "grid" }, header, ...panel.rows.map(({ node }) => node));
      panel.grid.addEventListener("keydown", (event) => this.#press(event, panel));
      panel.grid.addEventListener("focusin", (event) => this.#point(event, true));
      return [panel.top, panel.lines, make("div", { class: "stack" }, panel.canvas, panel.grid)];
    }
    // The pointer or the focus is on a query, on a key, or on a cell of both; a click or
    // the focus keeps the place.
    #point(event, keep = false) {
      const query = event.target.closest("[data-query]")?.dataset.query;
      const key = event.target.closest("[data-key]")?.dataset.key;
      if (query === undefined && key === undefined) return null;
      this.#goTo({ query: Number(query ?? this.#place.query), key: Number(key ?? this.#place.key) });
      if (keep) this.#kept = { ...this.#place };
      return event.target.closest(".cell");
    }
    #goTo({ query, key }) {
      if (query === this.#place.query && key === this.#place.key) return;
      Object.assign(this.#place, { query, key });
      this.#write(false);
    }
    #press(event, panel) {
      const [, , , queries, keys] = this.#view.shape;
      const { query, key } = this.#place;
      const goal = {
        ArrowUp: [query - 1, key],
        ArrowDown: [query + 1, key],
        ArrowLeft: [query, key - 1],
        ArrowRight: [query, key + 1],
        Home: [query, 0],
        End: [query, keys - 1],
      }[event.key];
      if (!goal || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      const [newQuery, newKey] = [queries, keys].map((n, i) => Math.max(0, Math.min(n - 1, goal[i])));
      this.#goTo({ query: newQuery, key: newKey });
      panel.rows[newQuery].cells[newKey].focus();
    }
    // Fill in what the present choice shows; `all` also writes labels and colours.
    #write(all = true) {
      for (const panel of this.#panels) {
        if (all) {
          this.#writeLabels(panel);
          this.#writeWeights(panel);
        }
        this.#lightUp(panel);
      }
    }
    #labelled(node, texts, pictures, i) {
      const picture = pictures?.[i];
      if (picture) {
        if (node.firstElementChild?.src === picture) return;
        const image = make("img", { src: picture, alt: texts[i], width: 32, height: 32 });
        node.replaceChildren(image);
      } else if (node.textContent !== texts[i]) node.textContent = texts[i];
    }
    #writeLabels(panel) {
      const { queries, keys, pictures } = this.#view;
      const { sequence } = this.#place;
      const drawn = pictures?.[sequence];
      panel.columns.forEach((node, k) => this.#labelled(node, keys[sequence], drawn, k));
      panel.asking.forEach((node, q) => this.#labelled(node, queries[sequence], drawn, q));
      const { silent = [] } = this.#view;
      panel.columns.forEach((node, k) => node.classList.toggle("silent", silent.includes(k)));
      panel.rows.forEach(({ label }, q) => this.#labelled(label, queries[sequence], drawn, q));
      const long = (texts) => !drawn && texts.some((text) => [...text].length > 2);
      panel.top.classList.toggle("turned", long(queries[sequence]));
      panel.columns[0].parentNode.classList.toggle("turned", long(keys[sequence]));
      panel.grid.setAttribute("aria-label", this.#nameOf(panel) || "weights");
    }
    #nameOf({ map, layer, head }) {
      const { maps, shape } = this.#view;
      const parts = [maps[map].name, shape[0] > 1 && `layer ${layer}`, shape[2] > 1 && `head ${head}`];
      return parts.filter(Boolean).join(", ");
    }
    #row(panel, query) {
      const { shape, maps } = this.#view;
      const [, sequences, heads, queries, keys] = shape;
      const before = (panel.layer * sequences + this.#place.sequence) * heads + panel.head;
      const start = (before * queries + query) * keys;
      return maps[panel.map].weights.slice(start, start + keys);
    }
    // What a cell says; its colour is painted behind it, much faster than styles are.
    #writeWeights(panel) {
      panel.rows.forEach(({ cells }, q) => {
        const row = this.#row(panel, q);
        cells.forEach((cell, k) => say(cell, "aria-label", digits(row[k])));
      });
      this.#paint(panel);
    }
    #paint({ canvas, ...panel }) {
      const [, , , queries, keys] = this.#view.shape;
      canvas.width = keys * DOT; // empties it
      canvas.height = queries * DOT;
      const pen = canvas.getContext("2d");
      pen.fillStyle = this.#heat;
      for (let q = 0; q < queries; q++) {
        this.#row(panel, q).forEach((weight, k) => {
          pen.globalAlpha = Math.min(1, weight / this.#view.high);
          pen.fillRect(k * DOT, q * DOT, DOT, DOT);
        });
      }
    }
    #lightUp(panel) {
      const { query, key } = this.#place;
      const row = this.#row(panel, query);
      const cell = panel.rows[query].cells[key];
      panel.rows.forEach(({ node }, q) => say(node, "aria-selected", q === query));
      if (panel.chosen && panel.chosen !== cell) {
        panel.chosen.tabIndex = -1;
        panel.chosen.classList.remove("chosen");
      }
      panel.chosen = cell;
      cell.tabIndex = 0;
      cell.classList.add("chosen");
      panel.asking.forEach((node, q) => node.classList.toggle("chosen", q === query));
      panel.columns.forEach((node, k) => node.classList.toggle("chosen", k === key));
      this.#draw(panel, row);
      this.#tell(panel, row);
    }
    // Lines from the query, above, to each key, below; a cell is one wide.
    #draw(panel, row) {
      const [, , , queries, keys] = this.#view.shape;
      say(panel.lines, "viewBox", `0 0 ${Math.max(queries, keys)} 1`);
      [...panel.lines.children].forEach((line, k) => {
        const shade = 0.3 + 0.7 * Math.min(1, row[k] / this.#view.high);
        say(line, "x1", this.#place.query + 0.5);
        say(line, "x2", k + 0.5);
        say(line, "stroke-width", (0.4 + 8 * row[k]).toFixed(2));
        say(line, "stroke-opacity", row[k] < 0.005 ? 0 : shade.toFixed(2));
      });
    }
    #tell(panel, row) {
      const { sequence, query, key } = this.#place;
      const [queries, keys] = ["queries", "keys"].map((kind) => this.#view[kind][sequence]);
      const best = count(row.length).sort((a, b) => row[b] - row[a] || a - b).slice(0, 3);
      const parts = best.map((k) => `${inWords("key", keys, k)} (${digits(row[k])})`);
      const even = Math.max(...row) - Math.min(...row) < 0.005;
      let most = `most weight on ${parts.join(", ")}`;
      if (even) most = row[0] > 0 ? `the same weight on every key (${digits(row[0])})` : "looks at nothing";
      const here = even || best.includes(key) ? "" : ` On ${inWords("key", keys, key)}: ${digits(row[key])}.`;
      const name = this.#nameOf(panel);
      const text = `${name && `${name}. `}${inWords("Query", queries, query)}: ${most}.${here}`;
      if (panel.readout.textContent !== text) panel.readout.textContent = text;
    }
    #followTheme() {
      const frame = this.shadowRoot.querySelector(".frame");
      if (!frame || !this.isConnected) return;
      frame.classList.toggle("dark", onDark(this));
      const heat = `rgb(${getComputedStyle(frame).getPropertyValue("--heat")})`;
      if (heat === this.#heat) return;
      this.#heat = heat;
      for (const panel of this.#panels) this.#paint(panel);
    }
    // As large as the room allows, between two bounds; beyond, a panel scrolls.
    #fit(width = this.#width || this.clientWidth) {
      if (!this.#panels.length || !width) return;
      this.#width = width;
      const [, , , queries, keys] = this.#view.shape;
      const beside = this.#panels.length > 1 && width >= 560 ? 2 : 1;
      this.panels.style.setProperty("--columns", beside);
      const all = (width - 20 * (beside - 1)) / beside;
      const longest = Math.max(...this.#view.queries.flat().map((text) => [...text].length));
      const label = this.#view.pictures ? 56 : Math.max(56, Math.min(110, 12 + 7.5 * longest));
      const room = all - label - 6;
      const cell = Math.floor(room / Math.max(queries, keys));
      const side = Math.max(CELL.least, Math.min(CELL.most, cell));
      for (const { lines } of this.#panels) lines.style.width = `${side * Math.max(queries, keys)}px`;
      this.style.setProperty("--label", `${label}px`);
      this.style.setProperty("--cell", `${side}px`);
    }

  }

  customElements.define(NAME, AttentionViewer);
})();
