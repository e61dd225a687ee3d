"use strict";
// Figures about classes: how well each is learned, and what it is taken for.

// How wide a cell becomes beside the names of the rows and the bar of colours, about.
const cellWidth = (look, names, count, bar) =>
  (look.width - (look.saved ? 108 : 54) - (bar ? 80 : 0) - 6.5 * Math.max(...names.map((one) => one.length))) / count;

// A heat map of per cents. `write` is what stands in a cell, `tell` what is said of it under the pointer.
function percentMap(z, rows, columns, write, tell, look) {
  const scale = AMOUNTS[look.theme], bar = !look.narrow, wide = cellWidth(look, rows, columns.length, bar);
  const texts = z.map((row) => row.map((value) => (value === null ? "" : write(value, wide))));
  const fits = wide > 4 + 6.3 * Math.max(...texts.flat().map((text) => text.length));
  const some = every(columns.length), step = Math.ceil((13 * some.length) / (wide * columns.length)); // no two names overlap
  const x = some.filter((_, i) => i % step === 0), axis = { showgrid: false, zeroline: false };
  return {
    fits, words: fits ? "" : " Point at a cell for its numbers.",
    data: [{
      type: "heatmap", z, zmin: 0, zmax: 100, xgap: wide > 8 ? 1 : 0, ygap: 1, hoverongaps: false, colorscale: scale,
      text: z.map((row, i) => row.map((value, k) => (value === null ? "" : literal(tell(i, k))))), hovertemplate: "%{text}<extra></extra>",
      showscale: bar || !fits, colorbar: { ticksuffix: " %", thickness: 12, outlinewidth: 0 },
    }, ...(fits ? [cellTexts(z, (value, i, k) => literal(texts[i][k]), scale, 0, 100)] : [])],
    xaxis: { ...axis, range: [-0.5, columns.length - 0.5], tickvals: x, tickangle: look.narrow && x.length > 5 ? 90 : "auto",
      ticktext: x.map((k) => literal(short(columns[k], look.narrow ? 10 : 14))) },
    yaxis: { ...axis, range: [z.length - 0.5, -0.5], tickvals: rows.map((_, i) => i), ticktext: rows.map(literal) },
  };
}

// The lowest and the highest of many classes that are sorted by accuracy.
const extremeWords = ({ names, sorted }) => (sorted ? " Classes are sorted by their mean over the methods: lowest are " +
  `${names.slice(0, 5).join(", ")}; highest are ${names.slice(-5).join(", ")}.` : "");

figures.classes = (group, state, look) => {
  const { names, series } = group.classes;
  const found = group.series.map((one, j) => ({ label: one.label, hidden: state.hidden.has(j), ...series[j] }))
    .filter((one) => one.accuracy && !one.hidden);
  const some = (one) => (one.seeds < one.runs ? ` (${one.seeds} of ${one.runs} seeds)` : "");
  const rows = found.map((one) => short(one.label, look.narrow ? 12 : 30) + some(one));
  const z = found.map((one) => one.accuracy);
  const tell = (i, k) => `${found[i].label}, class ${names[k]}: ${z[i][k].toFixed(1)} %` +
    (found[i].seeds > 1 ? `, mean of ${found[i].seeds} seeds` : "");
  const map = percentMap(z, rows.length ? rows : [""], names, (value, wide) => value.toFixed(wide > 36 ? 1 : 0), tell, look);
  const worst = found.map((one) => [one.label, one.accuracy.indexOf(range([one.accuracy])[0])]);
  return {
    title: "Accuracy by class (%)", data: map.data, low: true, rows: found.length + 3,
    missing: found.length ? "" : "No method with scores by class is chosen.",
    words: "Of the final global model, on the test images of each class; blank = there are none." + map.words + extremeWords(group.classes),
    alt: `The lowest class. ${worst.map(([label, k]) => `${label}: ${names[k]}`).join("; ")}.`,
    layout: { xaxis: { title: "class", ...map.xaxis }, yaxis: { title: "method", ...map.yaxis } },
  };
};

figures.confusion = (group, state, look) => {
  const { names, confusions } = group.classes, { label, counts } = confusions[state.confusion];
  const totals = counts.map((row) => row.reduce((sum, n) => sum + n, 0));
  const z = counts.map((row, i) => row.map((n) => (n ? (100 * n) / totals[i] : null)));
  const write = (value) => (value < 0.5 ? "<1" : value.toFixed(0));
  const tell = (i, k) => `${counts[i][k].toLocaleString("en")} of ${totals[i].toLocaleString("en")} of class ${names[i]} ` +
    `taken for ${names[k]}: ${z[i][k].toFixed(1)} %`;
  const map = percentMap(z, names.map((name) => short(name, look.narrow ? 10 : 14)), names, write, tell, look);
  return {
    title: `What is taken for what (%): ${literal(short(label, look.narrow ? 18 : 40))}`, data: map.data, rows: names.length * (map.fits ? 1 : 0.6) + 2,
    words: "Of the test images of each class, the part that the final global model takes for each class; blank = none." + map.words,
    layout: { xaxis: { title: "taken for", ...map.xaxis }, yaxis: { title: "class", ...map.yaxis } },
  };
};
