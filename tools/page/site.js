/* What pages do with scripts on: copy code, mark the section that is read, and spare keyboards the
 * boxes that have nothing to scroll. Without scripts nothing is missing but that. */
(() => {
'use strict';

function copyButtons() {
  const said = document.createElement('p');
  said.className = 'unseen';
  said.setAttribute('role', 'status');  // an aria-live region
  document.querySelector('main').append(said);
  for (const block of document.querySelectorAll('.code')) {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'copy';
    button.title = 'Copy this code';
    button.textContent = 'Copy';
    button.addEventListener('click', async () => {
      let text = block.querySelector('pre').textContent;
      if (block.querySelector('.diff')) text = text.replace(/^[+ ] ?/gm, '');  // the marks
      try {
        await navigator.clipboard.writeText(text);
        said.textContent = button.textContent = 'Copied';
      } catch {
        said.textContent = button.textContent = 'Not copied';
      }
      setTimeout(() => {
        said.textContent = '';
        button.textContent = 'Copy';
      }, 2000);
    });
    block.prepend(button);
  }
}

function onlyWhatScrolls() {
  for (const box of document.querySelectorAll('.scroll')) {
    const scrolls = box.scrollWidth > box.clientWidth;
    for (const [name, value] of [['tabindex', '0'], ['role', 'region']]) {
      if (scrolls) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
    // A name belongs to a role.
    const [from, to] = scrolls ? ['data-name', 'aria-label'] : ['aria-label', 'data-name'];
    if (!box.hasAttribute(from)) continue;
    box.setAttribute(to, box.getAttribute(from));
    box.removeAttribute(from);
  }
}

function markSection() {
  const links = [...document.querySelectorAll('.contents a')];
  const headings = [...document.querySelectorAll('main :is(h2, h3)[id]')];
  const top = (heading) => heading.getBoundingClientRect().top;
  const current = headings.filter((heading) => top(heading) < innerHeight / 4).pop();
  for (const link of links) {
    if (current && link.hash.slice(1) === encodeURI(current.id)) {
      link.setAttribute('aria-current', 'true');
    } else link.removeAttribute('aria-current');
  }
}

if (navigator.clipboard) copyButtons();
onlyWhatScrolls();
markSection();
addEventListener('resize', onlyWhatScrolls);
addEventListener('toggle', onlyWhatScrolls, true);  // what is folded has no width
addEventListener('scroll', markSection, {passive: true});
})();
