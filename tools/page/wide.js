/* Tables and formulas that are wider than the page say that they scroll. */
'use strict';

addEventListener('DOMContentLoaded', () => {
  const seen = new ResizeObserver((entries) => entries.forEach(({target}) => {
    target.classList.toggle('wide', target.scrollWidth > target.clientWidth + 1);
  }));
  document.querySelectorAll('.pst-scrollable-table-container, .bd-content .output, div.math')
    .forEach((part) => seen.observe(part));
});
