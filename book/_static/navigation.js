/* The reader's framework: remembered, and followed by all pages.

Every link works without this file; with it, the switch leads to the section that is being read,
and pages of no side show links of one framework. It also folds extras, and prints pages light. */
(() => {
  "use strict";
  const root = document.documentElement;
  const CHOICE = "sphinx-design-tab-id-framework"; // where synchronised tabs keep theirs
  const TABS = '.sd-tab-label[data-sync-group="framework"]';
  const ownSide = sideOf(location.pathname);

  function sideOf(path) {
    return /\/notebooks\/\w+_(jax|torch)\.html$/.exec(path)?.[1];
  }
  // A browser may forbid storage; then nothing is remembered, and all else works.
  const attempt = (act) => {
    try {
      return act(localStorage);
    } catch {}
  };
  const keep = (key, value) => attempt((store) => store.setItem(key, value));
  const kept = (key) => attempt((store) => store.getItem(key));

  function choose(side) {
    keep(CHOICE, side);
    if (ownSide) return; // a chapter's own links stay on its side
    root.dataset.framework = side;
    showChoice();
  }

  function showChoice() {
    const side = root.dataset.framework;
    for (const button of document.querySelectorAll("button[data-choose]"))
      button.setAttribute("aria-pressed", button.dataset.choose === side);
    for (const tab of document.querySelectorAll(TABS))
      if (tab.dataset.syncId === side) tab.control.checked = true;
  }
  // The last section whose heading is above a line below the header.
  function currentSection() {
    const header = document.querySelector(".bd-header-article");
    const line = Math.max(0, header?.getBoundingClientRect().bottom ?? 0) + 24;
    const sections = [...document.querySelectorAll("article section[id] section[id]")];
    return sections.filter((node) => node.getBoundingClientRect().top <= line).pop();
  }

  function prepareSwitch() {
    for (const link of document.querySelectorAll("a[data-choose]:not([aria-current])")) {
      for (const event of ["pointerdown", "focus", "keydown", "click"])
        link.addEventListener(event, () => (link.hash = currentSection()?.id ?? ""));
    }
    for (const button of document.querySelectorAll("button[data-choose]"))
      button.addEventListener("click", () => choose(button.dataset.choose));
    showChoice();
  }
  // Following any link of the book to a chapter, or opening a tab, is a choice.
  function watchChoices() {
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.("a[href]");
      const side = link && link.origin === location.origin && sideOf(link.pathname);
      if (side && link.pathname !== location.pathname) choose(side);
    });
    // A third tab is no framework: what was chosen before is kept, once the tab is.
    const act = ({ dataset: { syncId: side } }) =>
      side === "javascript" ? setTimeout(keep, 0, CHOICE, root.dataset.framework) : choose(side);
    for (const tab of document.querySelectorAll(TABS)) tab.control.addEventListener("change", () => act(tab));
    if (ownSide && !kept(CHOICE)) choose(ownSide);
  }
  // A button for all folds of a kind; the choice is remembered.
  function prepareAll(selector, key, verb, show) {
    const button = document.querySelector(selector);
    if (!button) return;
    let open = kept(key) === "open";
    const act = (toggled) => {
      open = open !== toggled;
      keep(key, open ? "open" : "folded");
      show(open);
      button.textContent = button.textContent.replace(/^\w+/, open ? "Fold" : verb);
    };
    button.addEventListener("click", () => act(true));
    act(false);
  }
  // An extra is one line until a reader wants it: by the line, by a link to it, or by
  // the browser's search in the page.
  function prepareExtras() {
    const extras = [...document.querySelectorAll("section.extra")].map((section) => {
      const [line, body] = [".extra-line", ".extra-body"].map((name) => section.querySelector(name));
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-controls", (body.id = `${section.id}-body`));
      const time = line.textContent.replace(/^A/, "a").replace(".", "");
      const show = (open) => {
        if (open) body.removeAttribute("hidden");
        else body.setAttribute("hidden", "until-found");
        button.setAttribute("aria-expanded", open);
        button.textContent = open ? "Fold this extra" : `Show this extra, ${time}`;
        document.dispatchEvent(new Event("toggle")); // what scrolls is looked at again
      };
      button.addEventListener("click", () => show(body.hasAttribute("hidden")));
      body.addEventListener("beforematch", () => show(true));
      line.replaceChildren(button);
      return { section, show };
    });
    prepareAll("button.show-extras", "extras", "Show", (open) => extras.forEach(({ show }) => show(open)));
    const unfold = () => {
      const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest(".extra");
      extras.find(({ section }) => section === wanted)?.show(true);
    };
    unfold();
    addEventListener("hashchange", unfold);
  }
  // The keyboard reaches what scrolls sideways, also what was folded at first.
  function reachWhatScrolls() {
    const boxes = document.querySelectorAll("article :is(table, pre, div.math, mjx-container, .cell_output, .output, .wide)");
    for (const box of boxes) {
      const scrolls = box.scrollWidth > box.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(box).overflowX);
      if (scrolls) box.tabIndex = 0;
    }
  }

  function start() {
    const checks = document.querySelectorAll(".cell.tag_check details");
    prepareAll("button.unfold-checks", "checks", "Unfold", (open) => checks.forEach((check) => (check.open = open)));
    prepareExtras();
    prepareSwitch();
    watchChoices();
    for (const event of ["toggle", "change"]) document.addEventListener(event, reachWhatScrolls, true);
    addEventListener("resize", reachWhatScrolls);
    addEventListener("load", () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(reachWhatScrolls));
  }
  document.addEventListener("DOMContentLoaded", start);
  // Paper is light. (This file stands in the head: what draws in a page hears of it later.)
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
