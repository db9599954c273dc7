/* Draw a digit, and see what the vision Transformer makes of it. A drawing becomes a picture as
those of its training did: NIST's programs put digits into a box, with some ink, and upright
(Garris et al. 1994). A bitmap is a list of rows of 0 and 1; a stroke is a list of points [x, y],
from 0 to 1 on the paper. */
"use strict";

const PEN = 0.1; // width of the pen on the paper, whose side is 1

/* Pixels whose centre is at most half a width away from a stroke. */
function bitmap(strokes, side, width) {
  const rows = Array.from({ length: side }, () => new Array(side).fill(0));
  const inside = (pixel) => Math.min(side, Math.max(0, pixel));
  const from = (a, b) => inside(Math.floor(Math.min(a, b) - width / 2));
  const to = (a, b) => inside(Math.ceil(Math.max(a, b) + width / 2));
  function line([x0, y0], [x1, y1]) {
    const [dx, dy] = [x1 - x0, y1 - y0];
    for (let y = from(y0, y1); y < to(y0, y1); y++) {
      for (let x = from(x0, x1); x < to(x0, x1); x++) {
        const along = ((x + 0.5 - x0) * dx + (y + 0.5 - y0) * dy) / (dx * dx + dy * dy || 1);
        const near = Math.min(1, Math.max(0, along));
        const distance = Math.hypot(x + 0.5 - x0 - near * dx, y + 0.5 - y0 - near * dy);
        if (distance <= width / 2) rows[y][x] = 1;
      }
    }
  }
  for (const points of strokes) points.forEach((point, i) => line(points[Math.max(0, i - 1)], point));
  return rows;
}

const inkOf = (rows) => rows.flat().reduce((sum, value) => sum + value, 0);

/* Strokes stretched to a box in the middle, edges of a line of this width included.

What is narrower than the pen is not stretched any more than the pen itself would be. */
function fitted(strokes, side, box, width) {
  const points = strokes.flat();
  const maps = box.map((size, axis) => {
    const values = points.map((point) => point[axis]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const factor = Math.min((size - width) / (high - low), size / PEN);
    return (value) => side / 2 + factor * (value - (low + high) / 2);
  });
  return strokes.map((points) => points.map((point) => point.map((value, axis) => maps[axis](value))));
}

/* The bitmap of fitted strokes, their width such that about `ink` pixels are on. */
function withInk(strokes, side, { box, ink }) {
  const drawn = (width) => bitmap(fitted(strokes, side, box, width), side, width);
  let [low, high] = [0, box[0]];
  while (high - low > 0.1) {
    const middle = (low + high) / 2;
    if (inkOf(drawn(middle)) < ink) low = middle;
    else high = middle;
  }
  return drawn(high);
}

/* Rows shifted until the leftmost pixels near the top and near the bottom are in line. */
function upright(rows) {
  const used = rows.flatMap((row, y) => (row.includes(1) ? [y] : []));
  const [top, bottom] = [used[0] + 2, used.at(-1) - 2]; // the edges may be noisy
  const [first, last] = [rows[top]?.indexOf(1), rows[bottom]?.indexOf(1)];
  if (!(bottom > top) || first < 0 || last < 0) return rows;
  const slope = (first - last) / (bottom - top);
  return rows.map((row, y) => {
    const shift = Math.round((y - rows.length / 2) * slope);
    return row.map((_, x) => row[x - shift] ?? 0);
  });
}

/* How many pixels are on in each block. */
function countBlocks(rows, block) {
  const starts = Array.from({ length: rows.length / block }, (_, n) => n * block);
  const part = (y, x) => rows.slice(y, y + block).map((row) => row.slice(x, x + block));
  return starts.map((y) => starts.map((x) => inkOf(part(y, x))));
}

/* The picture of a drawing: counts y x, normalised as those of the data set, or not. */
function pictureOf(strokes, normalised, settings) {
  const { imageSize, block } = settings;
  const side = imageSize * block;
  const plain = strokes.map((points) => points.map((point) => point.map((value) => side * value)));
  const rows = normalised && strokes.length
    ? upright(withInk(strokes, side, settings))
    : bitmap(plain, side, side * PEN);
  return countBlocks(rows, block);
}

/* A picture moved by whole pixels; nothing comes in from outside. */
function moved(picture, down, right) {
  return picture.map((row, y) => row.map((_, x) => picture[y - down]?.[x - right] ?? 0));
}

/* A vision Transformer: what it sees in a digit that is drawn, painted or chosen. */
function seeing(place) {
  const read = (buffer, settings) => new VisionTransformer(readSafetensors(buffer), settings);

  function start(place, settings) {
    const { imageSize, patch, block } = settings;
    const classes = Array.from(settings.classes);
    const full = block ** 2; // the count of a block that is all ink
    const pixels = Array.from({ length: imageSize }, (_, i) => i);
    const examples = settings.examples.map(([label, counts]) => {
      const rows = pixels.map((y) => Array.from(counts.slice(y * imageSize, (y + 1) * imageSize)));
      return { label, picture: rows.map((row) => row.map((count) => parseInt(count, full + 1))) };
    });
    let model;
    let strokes = []; // of the drawing, if the picture is one
    let picture = moved(examples[0].picture, 0, 0); // counts y x, before the shift
    let label = examples[0].label; // of a test digit
    let shift = { down: 0, right: 0 };
    let drawing = false;
    let at = { y: 0, x: 0 }; // the pixel that Tab leads to
    // The paper.
    const line = drawn("path", { "stroke-width": PEN });
    const words = "Paper: draw a digit with mouse, pen or finger";
    const paper = drawn("svg", { viewBox: "0 0 1 1", class: "paper", role: "img", "aria-label": words }, line);
    const normalise = check("normalise", "normalise the drawing", () => strokes.length && redraw(), true);

    function pointOf(event) {
      const { left, top, width, height } = paper.getBoundingClientRect();
      return [(event.clientX - left) / width, (event.clientY - top) / height].map((value) =>
        Math.min(1, Math.max(0, value)));
    }

    function redraw() {
      [label, shift] = [null, { down: 0, right: 0 }];
      picture = pictureOf(strokes, normalise.input.checked, settings);
      show();
    }

    paper.addEventListener("pointerdown", (event) => {
      if (!event.isPrimary || event.button) return;
      event.preventDefault(); // no text gets selected
      paper.setPointerCapture(event.pointerId);
      drawing = true;
      strokes.push([pointOf(event)]);
      redraw();
    });
    paper.addEventListener("pointermove", (event) => {
      if (!drawing || !event.isPrimary) return;
      const all = event.getCoalescedEvents?.() ?? [];
      strokes.at(-1).push(...(all.length ? all : [event]).map(pointOf));
      redraw();
    });
    for (const name of ["pointerup", "pointercancel"]) paper.addEventListener(name, (event) => {
      if (!drawing || !event.isPrimary) return;
      drawing = false;
      show();
    });
    // A picture that is no drawing.
    function use(other, itsLabel = null) {
      [strokes, picture, label, shift] = [[], other, itsLabel, { down: 0, right: 0 }];
      drawing = false;
      show();
    }

    const clear = button("Clear", () => use(moved(picture, imageSize, 0)));
    const arrows = [["←", "left", 0, -1], ["↑", "up", -1, 0], ["↓", "down", 1, 0], ["→", "right", 0, 1]];
    const within = (value) => Math.min(imageSize, Math.max(-imageSize, value));
    const shifters = arrows.map(([sign, word, down, right]) => fill(button(sign, () => {
      shift = { down: within(shift.down + down), right: within(shift.right + right) };
      show();
    }), { "aria-label": `Shift ${word} by one pixel` }));
    // What the model gets: a pixel is painted by a press, or by keys.
    const cells = pixels.map((y) => pixels.map((x) => {
      const node = make("span", { role: "gridcell" });
      node.addEventListener("click", () => paint(y, x));
      node.addEventListener("focus", () => reach(y, x));
      return node;
    }));
    const rows = cells.map((row) => make("div", { role: "row" }, ...row));
    const grid = make("div", { role: "grid", class: "pixels", "aria-label": "What the model gets, pixel by pixel", "aria-describedby": "about-given" }, ...rows);
    const steps = { ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowRight: [0, 1] };
    grid.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const [down, right] = steps[event.key] ?? [0, 0];
      const paints = event.key === " " || event.key === "Enter";
      if (!paints && !(event.key in steps)) return;
      event.preventDefault(); // the page does not scroll
      if (paints) paint(at.y, at.x);
      else cells[at.y + down]?.[at.x + right]?.focus();
    });

    function reach(y, x) {
      cells[at.y][at.x].tabIndex = -1;
      at = { y, x };
      cells[y][x].tabIndex = 0;
    }

    function paint(y, x) {
      const painted = moved(picture, shift.down, shift.right);
      painted[y][x] = painted[y][x] ? 0 : full;
      use(painted);
    }
    // Test digits.
    const digits = examples.map(({ picture, label }, i) => {
      const before = examples.slice(0, i).filter((other) => other.label === label).length;
      const name = `Test digit ${label}, number ${before + 1}`;
      return fill(button("", () => use(moved(picture, 0, 0), label)), { "aria-label": name }, [thumbnail(picture)]);
    });
    // Counts as pixels that are more or less transparent.
    function copy(canvas, picture) {
      const image = new ImageData(imageSize, imageSize);
      picture.flat().forEach((count, i) => (image.data[4 * i + 3] = (255 * count) / full));
      canvas.getContext("2d").putImageData(image, 0, 0);
      return canvas;
    }

    function thumbnail(picture) {
      return copy(make("canvas", { width: imageSize, height: imageSize, "aria-hidden": "true" }), picture);
    }
    // Probabilities, and where the class token looks.
    const verdict = make("p", { role: "status", class: "verdict" });
    const bars = classes.map((name) => {
      const [token, bar, number] = ["token", "bar", "number"].map((kind) => make("span", { class: kind }));
      write(token, name);
      return { node: make("li", {}, token, bar, number), bar, number };
    });
    const list = make("ul", { class: "classes", "aria-label": "Probability of each class" }, ...bars.map(({ node }) => node));
    const below = thumbnail(picture);
    const nPatches = imageSize / patch; // in a row
    const patches = Array.from({ length: nPatches ** 2 }, () => make("li", {}, make("span", { class: "aloud" })));
    const heat = make("ul", { class: "patches", "aria-label": "Attention weight of each patch" }, ...patches);
    const patchAt = (i) => `row ${Math.floor(i / nPatches)}, column ${i % nPatches}`;
    const looks = layersAndHeads("sees", settings, show);
    const readout = make("p", { class: "readout" });
    // One picture: its class, and the weights of the class token, its own one first.
    function show() {
      const seen = moved(picture, shift.down, shift.right);
      const [logits, maps] = model.call(seen.map((row) => row.map((count) => [count / full])));
      const [p] = maskedSoftmax([logits]);
      const [own, ...weights] = looks.weights(maps.map((heads) => heads.map(([row]) => row)));
      line.setAttribute("d", strokes.map((points) => `M${points.join(" ")}${points.length > 1 ? "" : `L${points[0]}`}`).join(""));
      seen.forEach((row, y) => row.forEach((count, x) => {
        const node = cells[y][x];
        node.style.setProperty("--ink", count / full);
        node.setAttribute("aria-label", `row ${y}, column ${x}: ${count} of ${full}`);
      }));
      copy(below, seen);
      digits.forEach((node, i) => node.setAttribute("aria-pressed",
        label !== null && examples[i].picture.every((row, y) => row.every((count, x) => count === picture[y][x]))));
      const most = best(p);
      bars.forEach(({ node, bar, number }, i) => {
        node.classList.toggle("best", i === most);
        bar.style.setProperty("--share", p[i]);
        write(number, p[i].toFixed(2));
      });
      verdict.setAttribute("aria-busy", drawing); // a screen reader waits until the end
      const truth = label === null ? "" : ` The label says ${label}.`;
      const sides = [[shift.down, "down", "up"], [shift.right, "right", "left"]].filter(([n]) => n);
      const words = sides.map(([n, more, less]) => `${Math.abs(n)} ${n > 0 ? more : less}`);
      const way = words.length ? ` Shifted by ${words.join(" and ")}.` : "";
      write(verdict, `The model says ${classes[most]}, with a probability of ${p[most].toFixed(2)}.${truth}${way}`);
      const highest = Math.max(...weights);
      patches.forEach((node, i) => {
        node.style.setProperty("--chance", (weights[i] / highest).toFixed(3));
        write(node.firstChild, `${patchAt(i)}: ${weights[i].toFixed(2)}`);
      });
      write(readout, `Of the patches it looks most at ${largest(weights, patchAt)}. The weight of the class token itself is ${own.toFixed(2)}, the strongest colour ${highest.toFixed(2)}.`);
    }

    const part = (name, words, ...nodes) => make("div", { class: name },
      make("p", { id: `about-${name}` }, words), make("div", { class: "sight" }, ...nodes));
    place.style.setProperty("--pixels", imageSize);
    place.style.setProperty("--patches", nPatches);
    place.append(
      make("p", { class: "switches" }, clear,
        make("span", { role: "group", "aria-label": "Shift the picture" }, ...shifters),
        normalise.label),
      make("div", { class: "sights" },
        part("drawing", "Draw a digit here.", paper),
        part("given", "What the model gets. Press a pixel to paint it.", grid),
        part("found", "Probability of each class.", list),
        part("looked", "Where the class token looks.", below, heat),
        make("div", { class: "looking" }, verdict, make("p", {}, make("label", { for: "sees" }, "Colours show"), looks.select), readout)),
      make("p", {}, "Test digits, which no training has seen. Press one to choose it."),
      make("p", { class: "test-digits" }, ...digits),
    );
    for (const row of cells) for (const node of row) node.tabIndex = -1;
    reach(0, 0);
    return (found) => {
      model = found;
      show();
    };
  }

  whenOpened(place, { what: "sees", read, start });
}
