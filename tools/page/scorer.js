/* The order of what a search finds: pages of the report before documents about it. */
var Scorer = {
  score: ([page, , , , score]) => score + (/^(\d\d_|lesson)/.test(page) ? 20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
