"use strict";
// Hovering a line lights every line, in all panes, that shares a user line with it; a
// click keeps them lit and scrolls each pane to the first of them; Escape lets go.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
root.dataset.theme = location.hash === "#dark" || (dark && location.hash !== "#light") ? "dark" : "light";
document.getElementById("theme").onclick = () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
};
for (const graph of document.querySelectorAll(".graph")) {
  const panes = graph.querySelector(".panes");
  const byKey = new Map();
  for (const row of panes.querySelectorAll("[data-k]"))
    for (const key of row.dataset.k.split(" "))
      byKey.has(key) ? byKey.get(key).push(row) : byKey.set(key, [row]);
  let locked = null;
  const light = (row) => {
    for (const lit of panes.querySelectorAll(".lit")) lit.classList.remove("lit");
    if (row) for (const key of row.dataset.k.split(" ")) for (const each of byKey.get(key)) each.classList.add("lit");
  };
  const release = () => { locked = null; panes.classList.remove("locked"); light(null); };
  const lock = (row) => {
    locked = row;
    light(row);
    panes.classList.add("locked");
    for (const code of panes.querySelectorAll(".code")) {
      const first = code.querySelector(".lit");
      if (first && !code.contains(row)) code.scrollTo({ top: first.offsetTop - code.offsetTop - 60, behavior: "smooth" });
    }
  };
  panes.addEventListener("mouseover", (event) => { if (!locked) light(event.target.closest("[data-k]")); });
  panes.addEventListener("mouseleave", () => { if (!locked) light(null); });
  panes.addEventListener("click", (event) => {
    const row = event.target.closest("[data-k]");
    row && row !== locked ? lock(row) : release();
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") release(); });
  for (const button of graph.querySelectorAll(".toggles button"))
    button.onclick = () => {
      const on = button.classList.toggle("on");
      panes.querySelector(`.pane[data-pane="${button.dataset.pane}"]`).classList.toggle("off", !on);
    };
}
