"""Checks that need a browser: positions and colours of texts. Scripts, and what they return."""

from __future__ import annotations

# Texts of each chart that lie on one another, or are cut off at the edge of their picture.
COLLISIONS = """
[...document.querySelectorAll('.plot svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].filter(one => one.textContent.trim());
  const boxes = texts.map(one => ({text: one.textContent, box: one.getBoundingClientRect()}));
  const cut = boxes.filter(({box}) => box.left < frame.left - 1 || box.right > frame.right + 1
                                   || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
  const over = boxes.flatMap((one, n) => boxes.slice(n + 1).filter(other =>
    Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left) > 1 &&
    Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top) > 2
  ).map(other => `${svg.id}: ${one.text} on ${other.text}`));
  return [...cut.map(({text}) => `${svg.id}: ${text} is cut off`), ...over];
})
"""
# Labels of limits that are crossed by a mark, or by the line of a limit.
CROSSED = """
[...document.querySelectorAll('.plot svg')].flatMap(svg => {
  const lines = [...svg.querySelectorAll('.mark line,line.limit')].map(one => one.getBoundingClientRect());
  return [...svg.querySelectorAll('text.limit')].filter(one => {
    const box = one.getBoundingClientRect();
    return lines.some(line => line.left < box.right - 1 && line.right > box.left + 1
                           && line.top < box.bottom - 2 && line.bottom > box.top + 2);
  }).map(one => `${svg.id}: ${one.textContent}`);
})
"""
# Words of which a part is in the next line. Long texts, code and values of facts may be broken anywhere.
BROKEN_WORDS = """
(() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), broken = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('script,style,svg,pre,dd,.t,details:not([open])')) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const tops = [...range.getClientRects()].map(box => Math.round(box.top));
      if (new Set(tops).size > 1) broken.push(word[0]);
    }
  }
  return broken;
})()
"""
# Boxes that are wider inside than outside must scroll and be marked; the others must not be marked.
HINTS = """
[...document.querySelectorAll('.scroll,.plot')].map(box => ({
  wide: box.scrollWidth > box.clientWidth + 1,
  scrolls: getComputedStyle(box).overflowX === 'auto',
  hint: (style => style.visibility === 'visible' ? style.content : '')(getComputedStyle(box, '::before')),
}))
"""
# How the keys of each figure are drawn, and how their lines are.
KEYS = """
[...document.querySelectorAll('figure')].flatMap(figure =>
  [...figure.querySelectorAll('.stroke path')].map(key => {
    const line = figure.querySelector(`.plot path[class="${key.getAttribute('class')}"]`);
    return [key, line].map(one => one && ['stroke', 'strokeWidth', 'strokeDasharray'].map(
      name => getComputedStyle(one)[name]).join(' '));
  }))
"""
COLOUR = "getComputedStyle(document.querySelector('%s')).%s"
# The colours of all texts that stand on the page itself, in charts too.
TEXT_COLOURS = """
[...new Set([...document.querySelectorAll('h1,h2,p,th,td,caption,svg text')].filter(
  one => one.textContent.trim()).map(
  one => one instanceof SVGElement ? getComputedStyle(one).fill : getComputedStyle(one).color))]
"""


def channels(colour: str) -> list[int]:
    """rgb(1, 2, 3) → [1, 2, 3]."""
    return [int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]


def luminance(colour: list[int]) -> float:
    """As WCAG defines it."""
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[int], other: list[int]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
