/* How search results are ranked: Sphinx's own scores, and among pages that are found
   equally well first the chapters in the reader's framework, then those in the other. */
var Scorer = {
  score: ([page, , , , score]) => {
    const side = /^notebooks\/\w+_(jax|torch)$/.exec(page)?.[1];
    if (!side) return score;
    return score + (side === document.documentElement.dataset.framework ? 0.5 : 0.25);
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
