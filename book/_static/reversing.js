/* The reverse task: digits, the attention map, and the probability of every output. */
"use strict";

function reversing(place) {
  const read = (buffer, settings) => new Predictor(readSafetensors(buffer), settings);

  function start(place, { length, nSymbols, digits: first }) {
    const symbols = Array.from({ length: nSymbols }, (_, i) => String(i));
    const silenced = new Set();
    let model;
    let digits = [];
    const field = make("input", { id: "digits", type: "text", inputmode: "numeric" });
    const text = knownText(field, {
      known: [...symbols, " ", ",", ";"],
      reason: "the digits 0 to 9",
      atMost: (letters) => {
        const found = letters.filter((letter) => symbols.includes(letter));
        const tooLong = found.length > length && `The model has learned ${length} places: only the first ${length} digits are kept.`;
        const things = found.slice(0, length);
        return { things, kept: things.join(""), tooLong };
      },
      changed: (found) => {
        digits = found;
        for (const key of silenced) if (key >= digits.length) silenced.delete(key);
        show();
      },
    });
    // Where there is room for no more digits, one that is typed replaces the next one.
    field.addEventListener("beforeinput", (event) => {
      const { selectionStart: start, selectionEnd: end, value } = field;
      const full = value.length === length && start === end && start < length;
      if (event.inputType !== "insertText" || !full || !symbols.includes(event.data)) return;
      event.preventDefault();
      field.setRangeText(event.data, start, start + 1, "end");
      text.change();
    });
    const random = () => symbols[Math.floor(Math.random() * nSymbols)];
    const draw = button("Draw new ones", () => text.set(Array.from({ length }, random).join("")));
    const shuffled = () => digits.map((digit) => [Math.random(), digit]).sort(([a], [b]) => a - b);
    const shuffle = button("Shuffle", () => text.set(shuffled().map(([, digit]) => digit).join("")));
    const positions = check("positions", "positions", show, true);
    const sharpness = make("input", {
      type: "range", id: "sharpness", min: -5, max: 5, step: 0.5, value: 0, autocomplete: "off",
    });
    const factor = make("output", { for: "sharpness" });
    sharpness.addEventListener("input", show);
    const silence = button("Silence all keys", () => {
      for (const key of digits.keys()) silenced.add(key);
      show();
    });
    const reset = button("As trained", () => {
      positions.input.checked = true;
      sharpness.value = 0;
      silenced.clear();
      show();
    });
    // Two tables, a column for each place: what goes in, comes out, and how sure the model
    // is; and below the map the probability of every digit.
    const table = (words) => make("table", { class: "digits" }, make("caption", {}, words));
    const digitsTable = table("Press a digit in the row “in”, and no query can see it.");
    const chanceTable = table("The probability of each digit at each place: the stronger the colour, the larger.");
    const row = (table, kind, name = kind) =>
      table.appendChild(make("tr", { class: kind }, make("th", { scope: "row" }, name)));
    const rows = {};
    for (const name of ["place", "in", "wanted", "out", "right"]) rows[name] = row(digitsTable, name);
    rows.sure = row(digitsTable, "sure", "sure, %");
    const placeAgain = row(chanceTable, "place");
    const chanceRows = symbols.map((symbol) => row(chanceTable, "chance", `p(${symbol})`));
    // Every column is there from the start, so that none moves while one types.
    const columns = Array.from({ length }, (_, i) => {
      const key = button("", () => {
        if (!silenced.delete(i)) silenced.add(i);
        show();
      });
      const cells = {};
      const heading = () => make("th", { scope: "col" }, String(i));
      for (const name of Object.keys(rows))
        cells[name] = rows[name].appendChild(name === "place" ? heading() : make("td"));
      cells.in.append(key);
      const again = placeAgain.appendChild(heading());
      const chance = chanceRows.map((line) => line.appendChild(make("td")));
      return { ...cells, key, chance, all: [...Object.values(cells), again, ...chance] };
    });
    const verdict = make("p", { class: "verdict", role: "status" });
    const viewer = make("attention-viewer");

    function show() {
      const n = digits.length;
      const s = 2 ** Number(sharpness.value);
      write(factor, s < 1 ? `× 1/${Number((1 / s).toPrecision(2))}` : `× ${Number(s.toPrecision(2))}`);
      sharpness.setAttribute("aria-valuetext", factor.textContent);
      columns.forEach(({ all }, i) => all.forEach((cell) => cell.classList.toggle("unused", i >= n)));
      place.classList.toggle("empty", !n);
      if (!n) return write(verdict, "Type a digit.");
      const mask = digits.map(() => digits.map((_, key) => !silenced.has(key)));
      const x = digits.map((digit) => symbols.map((symbol) => Number(symbol === digit)));
      const [logits, maps] = model.call(x, { mask, positions: positions.input.checked, sharpness: s });
      const right = maskedSoftmax(logits).map((p, i) => tell(columns[i], p, i)).filter(Boolean).length;
      write(verdict, `${right} of ${n} ${n === 1 ? "place is" : "places are"} right.`);
      viewer.view = {
        about: "The attention map of the trained model, one row for each output",
        shape: [maps.length, 1, maps[0].length, n, n], maps: [{ name: "", weights: maps.flat(3) }],
        queries: [digits], keys: [digits], pictures: null, sequences: ["0"], silent: [...silenced],
        high: 1, chosen: { layer: 0, head: 0, query: 0 },
      };
    }
    // What comes out at a place, with these probabilities; is it right?
    function tell(cells, p, i) {
      const wanted = digits[digits.length - 1 - i];
      const out = String(best(p));
      const right = out === wanted;
      write(cells.key, digits[i]);
      cells.key.setAttribute("aria-pressed", silenced.has(i));
      cells.key.setAttribute("aria-label", `silence key ${i}, digit ${digits[i]}`);
      write(cells.wanted, wanted);
      write(cells.out, out);
      write(cells.right, right ? "✓" : "✗");
      cells.right.setAttribute("aria-label", right ? "right" : "wrong");
      cells.out.classList.toggle("wrong", !right);
      write(cells.sure, String(Math.min(99, Math.floor(100 * Math.max(...p))))); // two digits
      cells.chance.forEach((cell, symbol) => {
        cell.classList.toggle("chosen", String(symbol) === out);
        cell.setAttribute("aria-label", p[symbol].toFixed(2));
        cell.style.setProperty("--chance", p[symbol].toFixed(2));
      });
      return right;
    }

    place.append(
      make("p", { class: "typing" }, make("label", { for: "digits" }, "Digits"), field, shuffle, draw),
      make("p", { class: "switches" }, positions.label,
        make("span", {}, make("label", { for: "sharpness" }, "sharpness of the softmax"), sharpness, factor),
        make("span", {}, silence, reset)),
      text.refused, verdict,
      make("div", { class: "upper" }, make("div", { class: "wide" }, digitsTable),
        make("p", {}, "The attention map, a row for each output, a column for each digit that goes in:")),
      viewer,
      make("div", { class: "wide lower" }, chanceTable),
    );
    addEventListener("pageshow", () => model && show()); // some browsers bring back what the controls said
    return (found) => {
      const isFirst = !model;
      model = found;
      if (isFirst) text.set(first);
      else show();
    };
  }

  whenOpened(place, { what: "reverses", read, start, atOnce: true });
}
