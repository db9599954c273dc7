/* The reader's framework: remembered, followed by all pages, and the place kept.

Every link works without this file; with it, the switch leads to the section (and the
line) that is being read, and pages of no side show the links of the chosen framework
(book.css hides the others). It also prints dark pages light. */
(() => {
  "use strict";
  const root = document.documentElement;
  const CHOICE = "sphinx-design-tab-id-framework"; // where synchronised tabs keep theirs
  const PLACE = "place-in-the-twin";
  const CHECKS = "checks";
  const EXTRAS = "extras";
  const TABS = '.sd-tab-label[data-sync-group="framework"]';
  const SIDES = ["jax", "torch"];
  const ownSide = sideOf(location.pathname);

  function sideOf(path) {
    const match = /\/notebooks\/\w+_(jax|torch)\.html$/.exec(path);
    return match && match[1];
  }

  // A browser may forbid storage; then nothing is remembered, and all else works.
  function keep(store, key, value) {
    try {
      store().setItem(key, value);
    } catch {}
  }

  function take(store, key) {
    try {
      return store().getItem(key);
    } catch {
      return null;
    }
  }
  const forAlways = () => localStorage;
  const forNow = () => sessionStorage;

  function choose(side) {
    keep(forAlways, CHOICE, side);
    if (ownSide) return; // a chapter's own links stay on its side
    root.dataset.framework = side;
    showChoice();
  }

  function showChoice() {
    const side = root.dataset.framework;
    for (const button of document.querySelectorAll("button[data-choose]")) {
      button.setAttribute("aria-pressed", button.dataset.choose === side);
    }
    for (const tab of document.querySelectorAll(TABS)) {
      if (tab.dataset.syncId === side) tab.control.checked = true;
    }
  }

  // Where the reader is: the section under the header, and how far into which part.
  function headerBottom() {
    const header = document.querySelector(".bd-header-article");
    return header ? Math.max(0, header.getBoundingClientRect().bottom) : 0;
  }

  function partsOf(section) {
    return [...section.children].filter((node) => node.tagName !== "SECTION");
  }

  function currentPlace() {
    const line = headerBottom() + 8;
    const sections = [...document.querySelectorAll("article section[id] section[id]")];
    const reached = (node) => node.getBoundingClientRect().top <= line + 16; // an anchor's gap
    const section = sections.filter(reached).pop();
    if (!section) return null;
    const parts = partsOf(section);
    const found = parts.findIndex((node) => node.getBoundingClientRect().bottom > line);
    const index = found < 0 ? parts.length - 1 : found;
    const box = parts[index].getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (line - box.top) / (box.height || 1)));
    return { section: section.id, index, count: parts.length, share };
  }

  function goTo(place) {
    const section = document.getElementById(place.section);
    if (!section) return;
    const parts = partsOf(section);
    const index = Math.round((place.index / place.count) * parts.length);
    const box = parts[Math.min(index, parts.length - 1)].getBoundingClientRect();
    const top = window.scrollY + box.top + place.share * box.height - headerBottom() - 8;
    window.scrollTo({ top: Math.max(0, top), behavior: "instant" });
  }

  function leadToTheSection(link) {
    const place = currentPlace();
    link.hash = place ? place.section : "";
    return place;
  }

  function prepareSwitch() {
    for (const link of document.querySelectorAll("a[data-choose]:not([aria-current])")) {
      for (const event of ["pointerdown", "focus", "keydown"]) {
        link.addEventListener(event, () => leadToTheSection(link));
      }
      link.addEventListener("click", () => {
        const place = leadToTheSection(link);
        if (place) keep(forNow, PLACE, JSON.stringify({ path: link.pathname, ...place }));
      });
    }
    for (const button of document.querySelectorAll("button[data-choose]")) {
      button.addEventListener("click", () => choose(button.dataset.choose));
    }
    showChoice();
  }

  // Following any link of the book to a chapter, or opening a tab, is a choice.
  function watchChoices() {
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.("a[href]");
      const side = link && link.origin === location.origin && sideOf(link.pathname);
      if (side && link.pathname !== location.pathname) choose(side);
    });
    for (const tab of document.querySelectorAll(TABS)) {
      const side = SIDES.find((name) => name === tab.dataset.syncId);
      // A third tab is no framework: what was chosen before is kept, once the tab is.
      const act = side ? () => choose(side) : () => setTimeout(keep, 0, forAlways, CHOICE, root.dataset.framework);
      tab.control.addEventListener("change", act);
    }
    if (ownSide && !take(forAlways, CHOICE)) choose(ownSide);
  }

  // The browser goes to the section by itself when all has come, and formulas move what
  // is below them; so the place is looked up again after each, until the reader moves.
  async function returnToThePlace() {
    const kept = take(forNow, PLACE);
    keep(forNow, PLACE, "");
    const place = kept && JSON.parse(kept);
    if (!place || place.path !== location.pathname) return;
    let moved = false;
    for (const event of ["wheel", "touchmove", "keydown", "pointerdown"]) {
      addEventListener(event, () => (moved = true), { once: true, passive: true });
    }
    const loaded = new Promise((resolve) => addEventListener("load", resolve));
    if (document.readyState !== "complete") await loaded;
    await new Promise(requestAnimationFrame);
    if (!moved) goTo(place);
    await window.MathJax?.startup?.promise;
    if (!moved) goTo(place);
  }

  // All checks of a page can be unfolded at once; the choice is remembered.
  function prepareChecks() {
    const checks = document.querySelectorAll(".cell.tag_check details");
    const button = document.querySelector("button.unfold-checks");
    if (!button) return;
    const show = (open) => {
      for (const check of checks) check.open = open;
      button.textContent = button.textContent.replace(/^\w+/, open ? "Fold" : "Unfold");
    };
    let open = take(forAlways, CHECKS) === "open";
    button.addEventListener("click", () => {
      open = !open;
      keep(forAlways, CHECKS, open ? "open" : "folded");
      show(open);
    });
    show(open);
  }

  // An extra is one line until a reader wants it: by the line, by a link to it, or by
  // the browser's search in the page. The button at the top shows all, and is remembered.
  const extraOf = (hash) => hash && document.getElementById(decodeURIComponent(hash.slice(1)))?.closest(".extra");

  function prepareExtras() {
    const extras = [...document.querySelectorAll("section.extra")].map((section) => {
      const [line, body] = [".extra-line", ".extra-body"].map((name) => section.querySelector(name));
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-controls", (body.id = `${section.id}-body`));
      const time = line.textContent.replace(/^A|\.$/g, (letter) => (letter === "A" ? "a" : ""));
      const show = (open) => {
        if (open) body.removeAttribute("hidden");
        else body.setAttribute("hidden", "until-found");
        button.setAttribute("aria-expanded", open);
        button.textContent = open ? "Fold this extra" : `Show this extra, ${time}`;
        section.classList.toggle("folded", !open);
        document.dispatchEvent(new Event("toggle")); // what scrolls is looked at again
      };
      button.addEventListener("click", () => show(body.hasAttribute("hidden")));
      body.addEventListener("beforematch", () => show(true));
      line.replaceChildren(button);
      return { section, show };
    });
    const all = document.querySelector("button.show-extras");
    if (!all) return;
    const unfold = () => {
      const wanted = extraOf(location.hash);
      extras.find(({ section }) => section === wanted)?.show(true);
    };
    let open = take(forAlways, EXTRAS) === "open";
    const showAll = () => {
      for (const { show } of extras) show(open);
      all.textContent = all.textContent.replace(/^\w+/, open ? "Fold" : "Show");
    };
    all.addEventListener("click", () => {
      open = !open;
      keep(forAlways, EXTRAS, open ? "open" : "folded");
      showAll();
    });
    showAll();
    unfold();
    addEventListener("hashchange", unfold);
  }

  // The theme lets the keyboard reach what scrolls, but looks only at what is shown when
  // the page loads or the window changes: have it look again at what a reader unfolds.
  function watchWhatOpens() {
    for (const event of ["toggle", "change"])
      document.addEventListener(event, () => dispatchEvent(new Event("resize")), true);
  }

  // A formula that is a little too wide for a phone is set smaller.
  const SMALLEST = 0.6;

  function fitFormulas() {
    const formulas = [...document.querySelectorAll('article mjx-container[display="true"]')];
    for (const box of formulas) box.style.fontSize = box.dataset.size ??= box.style.fontSize || "100%";
    const shares = formulas.map((box) => box.parentElement.clientWidth / box.scrollWidth);
    formulas.forEach((box, i) => {
      if (shares[i] >= SMALLEST && shares[i] < 1) box.style.fontSize = `calc(${0.99 * shares[i]} * ${box.dataset.size})`;
    });
  }

  // What scrolls sideways says so at its edges, and the keyboard reaches it.
  const BOXES = "article :is(table, pre, div.math, mjx-container, .cell_output, .output, .wide)";

  function markEdges(boxes = document.querySelectorAll(BOXES)) {
    const found = [...boxes].map((box) => {
      const more = box.scrollWidth - box.clientWidth;
      const scrolls = more > 1 && /auto|scroll/.test(getComputedStyle(box).overflowX);
      return { box, scrolls, left: scrolls && box.scrollLeft > 1, right: scrolls && box.scrollLeft < more - 1 };
    });
    for (const { box, scrolls, left, right } of found) {
      box.classList.toggle("more-left", left);
      box.classList.toggle("more-right", right);
      if (scrolls) box.tabIndex = 0;
    }
  }

  function watchEdges() {
    const look = () => {
      fitFormulas();
      markEdges();
    };
    look();
    addEventListener("load", () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(look));
    addEventListener("resize", look);
    const scrolled = ({ target }) => target.matches?.(BOXES) && markEdges([target]);
    document.addEventListener("scroll", scrolled, { capture: true, passive: true });
  }

  function start() {
    watchEdges();
    watchWhatOpens();
    prepareChecks();
    prepareExtras();
    prepareSwitch();
    watchChoices();
    returnToThePlace();
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();

  // Paper is light, whatever the screen is. (This file stands in the head, so that what
  // draws in a page hears of printing later, and finds it light.)
  let theme;
  addEventListener("beforeprint", () => {
    theme ??= root.dataset.theme;
    root.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    if (theme) root.dataset.theme = theme;
    theme = undefined;
  });
})();
