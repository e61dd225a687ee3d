"use strict";
// What the page does: charts are drawn when they come into sight, and again when something is chosen.

const groups = JSON.parse(document.getElementById("data").textContent);
const states = groups.map((group) => ({ x: "rounds", cost: "seconds", score: "mean", hidden: new Set(), split: 0, run: 0,
  audit: 0, method: 0, relationship: 0, confusion: 0, client: group.clients ? group.clients.rounds.length : 0 }));
const report = { drawn: 0, first: null, errors: [] }; // for tests
window.report = report;
window.addEventListener("error", (event) => report.errors.push(event.message));

const all = (place, what) => [...place.querySelectorAll(what)];
const indexOf = (element) => Number(element.closest("[data-group]").dataset.group);
const touch = matchMedia("(pointer: coarse)").matches;

function look(width, height, saved) {
  const css = getComputedStyle(document.documentElement), value = (name) => css.getPropertyValue(name).trim();
  return { width, height, saved, touch, theme: theme.name, narrow: width < 480, paper: value("--paper"),
    raised: value("--raised"), ink: value("--ink"), line: value("--line"), grid: value("--grid") };
}

function build(figure, width, saved) {
  const i = indexOf(figure), kind = figure.dataset.chart;
  const base = saved ? 620 : width < 480 ? 320 : 350;
  const made = figures[kind](groups[i], states[i], look(width, base, saved));
  const height = made.low ? Math.max(190, 110 + 24 * made.rows) : made.rows ? Math.max(base, 130 + 24 * made.rows) : base;
  return { ...made, ...complete(made, groups[i], look(width, height, saved)) };
}

function draw(figure) {
  const plot = figure.querySelector(".plot");
  figure.hidden = false; // for its width
  plot.hidden = false;
  const { data, layout, words, title, alt, empty, missing } = build(figure, plot.clientWidth, false);
  figure.hidden = Boolean(empty);
  plot.hidden = Boolean(missing);
  all(figure, "button").forEach((button) => { button.hidden = Boolean(missing); });
  figure.querySelector(".words").textContent = missing || words;
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", alt ? `${title}. ${alt}` : title);
  if (!missing && !empty) Plotly.react(plot, data, layout, { displayModeBar: false, responsive: false });
  if (plot.on && !plot.dataset.zoom) {
    plot.dataset.zoom = "yes";
    plot.on("plotly_relayout", (change) => keepWhole(plot, change));
  }
  if (!figure.dataset.drawn) {
    figure.dataset.drawn = "yes";
    report.drawn += 1;
    report.first ??= performance.now();
  }
}

// Ticks of rounds are whole numbers after a zoom too.
function keepWhole(plot, change) {
  const { range, tickformat } = plot.layout.xaxis;
  if ("xaxis.range[0]" in change && tickformat === ",d") {
    Plotly.relayout(plot, { "xaxis.dtick": wholeStep(range[1] - range[0], plot.clientWidth < 480) });
  }
}

// Tables that are too wide say so, until their end is in sight.
function showHint(scroll) {
  const more = scroll.scrollWidth - scroll.clientWidth;
  scroll.classList.toggle("more", more > 1 && scroll.scrollLeft < more - 1);
  scroll.nextElementSibling.hidden = more <= 1;
}

// A folded chart has no width; it is drawn again when it is opened.
const redraw = (place) => all(place, "figure[data-drawn]").filter((one) => !one.closest("details:not([open])")).forEach(draw);

function save(figure, format) {
  const { data, layout } = build(figure, 1000, true);
  const filename = `fedptr-${figure.dataset.chart}-${indexOf(figure) + 1}`;
  return Plotly.downloadImage({ data, layout }, { format, width: layout.width, height: layout.height, filename,
    scale: format === "png" ? 2 : 1 });
}

// The sample of a line in the legend: its colour, dashes and symbol.
function sample(svg) {
  const style = groups[indexOf(svg)].series[Number(svg.dataset.series)].style, colour = style[theme.name];
  const add = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    svg.append(element);
  };
  svg.replaceChildren();
  add("line", { x1: 0, x2: 34, y1: 7, y2: 7, stroke: colour, "stroke-width": style.width,
    "stroke-dasharray": style.dash === "solid" ? "none" : style.dash.replaceAll("px", "") });
  const shapes = { circle: "M13,7a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", square: "M13,3h8v8h-8z", diamond: "M17,2l5,5l-5,5l-5,-5z",
    "triangle-up": "M17,2l5,9h-10z", "triangle-down": "M17,12l5,-9h-10z", cross: "M15.5,2h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    x: "M13,5l2,-2l2,2l2,-2l2,2l-2,2l2,2l-2,2l-2,-2l-2,2l-2,-2l2,-2z", star: "M17,1l1.6,4.2l4.4,.2l-3.5,2.8l1.2,4.3l-3.7,-2.5l-3.7,2.5l1.2,-4.3l-3.5,-2.8l4.4,-.2z" };
  add("path", { d: shapes[style.symbol], fill: colour });
}

// Pictures of learned images: a slider over the rounds that were saved.
function showSheets(section) {
  const view = groups[indexOf(section)].views[states[indexOf(section)].run];
  const place = section.querySelector(".sheets");
  place.hidden = !view.sheets.length;
  section.querySelector(".left-out").hidden = !view.left_out;
  if (!view.sheets.length) return;
  const slider = place.querySelector("input");
  slider.hidden = view.sheets.length < 2;
  slider.max = view.sheets.length - 1;
  slider.value = slider.max;
  showSheet(section);
}

function showSheet(section) {
  const view = groups[indexOf(section)].views[states[indexOf(section)].run];
  const place = section.querySelector(".sheets"), sheet = view.sheets[Number(place.querySelector("input").value)];
  if (!sheet) return;
  const image = place.querySelector("img");
  image.src = sheet.src;
  const scale = Math.min(384, 0.62 * innerWidth) / Math.max(sheet.width, sheet.height);
  image.style.width = `${sheet.width * scale}px`;
  image.style.height = `${sheet.height * scale}px`;
  const sent = sheet.rows.length > 0, names = (sent ? sheet.rows : view.classes).map((name) => {
    const item = document.createElement("li");
    item.textContent = name;
    return item;
  });
  place.querySelector(".classes").replaceChildren(...names);
  place.querySelector(".kept").hidden = sent;
  place.querySelector(".sent").hidden = !sent;
  place.querySelector("strong").textContent = sent ? "Images that clients sent" : "Auxiliary images";
  image.alt = `${sent ? "images that clients sent" : "auxiliary images"} after round ${sheet.round}`;
  place.querySelector("output").textContent = sheet.round;
  place.querySelector(".owner").textContent = sheet.owner ? `of ${sheet.owner}` : "";
}

const withSheets = () => all(document, "section[data-group]").filter((section) => section.querySelector(".sheets"));

// The clients' dots: a slider over the evaluated rounds, and at its end the mean of the last five.
function showPosition(slider) {
  const i = indexOf(slider), words = positionWords(groups[i].clients, Number(slider.value));
  states[i].client = Number(slider.value);
  slider.closest("label").querySelector("output").textContent = words;
  slider.setAttribute("aria-valuetext", words);
}

function toggle(section, j, on) {
  states[indexOf(section)].hidden[on ? "delete" : "add"](j);
}

document.addEventListener("change", ({ target }) => {
  const section = target.closest("[data-group]");
  if (!section) return;
  const state = states[indexOf(section)];
  if (target.dataset.series) toggle(section, Number(target.dataset.series), target.checked);
  if (target.dataset.switch) state[target.dataset.switch] = target.value;
  if (target.dataset.choice) state[target.dataset.choice] = Number(target.value);
  if (target.dataset.choice === "run") showSheets(section);
  if (target.type !== "range") redraw(section);
});

document.addEventListener("input", ({ target }) => {
  if (target.closest(".sheets")) showSheet(target.closest("[data-group]"));
  if (target.dataset.slider) {
    showPosition(target);
    all(target.closest("[data-group]"), "figure[data-chart=clients][data-drawn]").forEach(draw);
  }
});

document.addEventListener("toggle", ({ target }) => { if (target.open) redraw(target); }, { capture: true });

document.addEventListener("click", ({ target }) => {
  if (target.dataset.export) save(target.closest("figure"), target.dataset.export);
  if (target.dataset.all !== undefined) {
    const section = target.closest("[data-group]");
    for (const box of all(section, "input[data-series]")) {
      box.checked = Boolean(target.dataset.all);
      toggle(section, Number(box.dataset.series), box.checked);
    }
    redraw(section);
  }
});

function repaint() {
  document.getElementById("theme").textContent = theme.name === "dark" ? "light" : "dark";
  all(document, ".sample").forEach(sample);
  redraw(document);
}

document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = theme.name === "dark" ? "light" : "dark";
  theme.keep(theme.name);
  repaint();
});
theme.system.addEventListener("change", repaint);

let width = innerWidth, waiting = 0;
addEventListener("resize", () => {
  if (innerWidth === width) return; // a phone's address bar comes and goes
  width = innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(() => { redraw(document); withSheets().forEach(showSheet); }, 120);
});

// A browser may keep what was chosen when a page is loaded again.
all(document, "select[data-choice]").forEach((menu) => { states[indexOf(menu)][menu.dataset.choice] = Number(menu.value); });
all(document, "input[data-slider]").forEach(showPosition);
const widths = new ResizeObserver((seen) => seen.forEach(({ target }) => showHint(target)));
all(document, ".scroll").forEach((scroll) => {
  widths.observe(scroll);
  scroll.addEventListener("scroll", () => showHint(scroll), { passive: true });
});
repaint();
withSheets().forEach(showSheets);
const sight = new IntersectionObserver((seen) => {
  for (const { target } of seen.filter((entry) => entry.isIntersecting)) {
    sight.unobserve(target);
    draw(target);
  }
}, { rootMargin: "250px" });
all(document, "figure[data-chart]").forEach((figure) => sight.observe(figure));
