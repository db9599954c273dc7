/* How search results are ranked: Sphinx's own scores, and among pages that are found
   equally well first the chapters in the reader's framework, then those in the other,
   each in the order of the book: a term is explained where it first comes. */
var Scorer = {
  score: ([page, , , , score]) => {
    const side = /^notebooks\/\w+_(jax|torch)$/.exec(page)?.[1];
    if (!side) return score;
    const links = [...document.querySelectorAll("nav.bd-links a")];
    const place = links.findIndex((link) => link.getAttribute("href") === `${page}.html`);
    const own = side === document.documentElement.dataset.framework;
    return score + (own ? 0.5 : 0.25) - 0.002 * place;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
