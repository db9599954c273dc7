/* A translator of dates: what it writes, and where in the date each character looks. */
"use strict";

function translating(place) {
  const PAUSE = 180; // milliseconds between two characters

  const read = (buffer, settings) => new Translator(readSafetensors(buffer), settings);

  function start(place, { alphabet, begin, end, longest, examples, maxLength, ...sizes }) {
    const letters = Array.from(alphabet);
    const first = Math.max(begin, end) + 1; // the number of the first character
    const name = (token) => (token === end ? "end" : letters[token - first]);
    let model;
    let source = [];
    let writtenSoFar = []; // {token, p, maps l h k} of each character
    let chosen = 0;
    let followed = true; // the newest character is the chosen one
    let turn = 0; // of a translation; an older one stops

    const field = make("input", { id: "date", type: "text" });
    const text = knownText(field, {
      known: letters,
      reason: "characters that occur in its dates",
      atMost: (found) => {
        const things = found.slice(0, maxLength);
        const tooLong = found.length > maxLength && `The model has ${maxLength} positions: only the first ${maxLength} characters are kept.`;
        return { things, kept: things.join(""), tooLong };
      },
      changed: (found) => {
        source = found;
        translate();
      },
    });
    const sourceRow = make("div", { class: "letters source" });
    const targetRow = make("div", { class: "letters target" });
    const lines = drawn("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
    const readout = make("p", { class: "readout" });
    const verdict = make("p", { role: "status", class: "verdict" });
    const looks = layersAndHeads("looks", sizes, draw);
    const cells = Array.from({ length: longest }, (_, i) => {
      const [letter, number] = [make("span", { class: "letter" }), make("span", { class: "number" })];
      const node = fill(button("", () => pick(i)), {}, [letter, number]);
      for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => pick(i));
      targetRow.append(node);
      return { node, letter, number };
    });

    function pick(i) {
      [chosen, followed] = [i, false];
      draw();
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
        token = best(p);
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
      const ends = (k) => ({ x1: (k + 0.5) / source.length, y1: 0, x2: (chosen + 0.5) / longest, y2: 1 });
      lines.replaceChildren(...found.flatMap((weight, k) =>
        weight < 0.01 ? [] : [drawn("line", { ...ends(k), "stroke-width": (12 * weight).toFixed(2) })]));
      Array.from(sourceRow.children).forEach((node, k) => {
        node.style.setProperty("--chance", (found[k] ?? 0).toFixed(2));
      });
      if (!now) return write(readout, "");
      const where = largest(found, (k) => `“${visible(source[k])}” at ${k}`);
      write(readout, `To write “${name(now.token)}”, it looks most at ${where}.`);
    }

    place.append(
      make("p", { class: "typing" }, make("label", { for: "date" }, "Date"), field),
      make("p", { class: "examples" }, ...examples.map((date) => button(date, () => text.set(date)))),
      text.refused,
      make("div", { class: "translation" }, sourceRow, lines, targetRow),
      readout, verdict,
      make("p", { class: "switches" }, make("span", {}, make("label", { for: "looks" }, "lines show"), looks.select), button("Write it again", translate)),
    );
    return (found) => {
      model = found;
      text.set(field.value || examples[0]);
    };
  }

  whenOpened(place, { what: "translates", read, start });
}
