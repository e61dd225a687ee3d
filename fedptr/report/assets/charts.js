"use strict";
// Figures for Plotly, as functions of a group's data and of what is chosen on the page. Nothing here touches the page.

// Plotly reads a little HTML in texts; names from files are to be shown as they are.
const literal = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const AXES = { rounds: "communication round", seconds: "seconds of computation", mb: "MB sent, up and down",
  epsilon: "privacy spent, ε" };
const PHASES = { training: "#56b4e9", matching: "#d55e00", projection: "#e69f00", aggregation: "#009e73",
  evaluation: "#cc79a7", other: "#999999" };
const MORE = ["#0072b2", "#f0e442", "#882255"]; // phases nobody thought of
const LAYERS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999"];
const DIM = [[0, "#2f4f86"], [0.5, "#8d8a78"], [1, "#ffe945"]]; // like Cividis, but few is not black on black
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

function fade(colour, part) {
  const levels = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${levels.join(",")},${part})`;
}

const shown = (group, state) => group.series.filter((_, j) => !state.hidden.has(j));

// Least and greatest of the numbers in lists that may hold nulls.
function range(lists) {
  const all = lists.flat().filter((value) => value !== null);
  return all.length ? [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))] : [0, 1];
}

function line(x, y, style, colour, name, unit) {
  const marks = x.length <= 20;
  return {
    x, y, name: literal(name), type: "scatter", mode: marks ? "lines+markers" : "lines",
    line: { color: colour, width: style.width, dash: style.dash }, marker: { symbol: style.symbol, size: 6 },
    hovertemplate: `%{fullData.name}<br>%{x:,.5~g}: %{y:.4~g}${unit}<extra></extra>`,
  };
}

function curves(what, title, words, unit, group, state, look) {
  const data = [];
  for (const one of shown(group, state)) {
    const x = one.curves[state.x], y = one.curves[what], colour = one.style[look.theme];
    if (y.low) {
      const sound = x.map((_, i) => i).filter((i) => y.low[i] !== null && y.high[i] !== null);
      data.push({
        x: [...sound.map((i) => x[i]), ...sound.map((i) => x[i]).reverse()],
        y: [...sound.map((i) => y.high[i]), ...sound.map((i) => y.low[i]).reverse()],
        fill: "toself", fillcolor: fade(colour, 0.16), line: { width: 0 }, type: "scatter", mode: "lines",
        hoverinfo: "skip", showlegend: false,
      });
    }
    data.push(line(x, y.mean, one.style, colour, one.label, unit));
  }
  const means = range(shown(group, state).map((one) => one.curves[what].mean));
  const bands = range(shown(group, state).flatMap((one) => [one.curves[what].low || [], one.curves[what].high || []]));
  const yaxis = limits(what, means, bands);
  return { title, data, layout: { xaxis: { title: AXES[state.x], rangemode: "tozero" }, yaxis: { title: words, ...yaxis } } };
}

// With few seeds a band may be far wider than the curves: it is cut where it would hide them.
function limits(what, [low, high], [bandLow, bandHigh]) {
  const room = 0.6 * (high - low) + 1e-9, pad = 0.05 * (high - low) + 1e-9;
  if (what === "loss" && low > 0 && high / low > 50) {
    return { type: "log", range: [Math.log10(low) - 0.1, Math.log10(high) + 0.1] };
  }
  const floor = Math.max(0, Math.min(low, Math.max(bandLow, low - room)) - pad);
  const top = Math.max(high, Math.min(bandHigh, high + room)) + pad;
  return { range: [floor, what === "accuracy" ? Math.min(top, 101) : top] };
}

const figures = {
  accuracy: (group, state, look) => ({
    ...curves("accuracy", "Test accuracy", "test accuracy (%)", " %", group, state, look), words: band(group) }),
  loss: (group, state, look) => ({
    ...curves("loss", "Test loss", "test loss (cross-entropy)", "", group, state, look), words: band(group) }),

  cost(group, state, look) {
    const averaged = Math.max(...shown(group, state).map((one) => one.final.averaged));
    const data = shown(group, state).map((one) => ({
      x: [one.final[state.cost]], y: [one.final.accuracy], name: literal(one.label), type: "scatter", mode: "markers",
      marker: { color: one.style[look.theme], symbol: one.style.symbol, size: 12 },
      error_y: { type: "data", array: [one.final.half || 0], visible: one.final.half !== null, thickness: 1.5 },
      hovertemplate: "%{fullData.name}<br>%{x:,.4~g}: %{y:.2f} %<extra></extra>",
    }));
    return {
      title: "Cost and accuracy", data, words: "Up and to the left is better. Bars: 95 % confidence interval.",
      layout: { xaxis: { title: `${AXES[state.cost]}, whole run`, rangemode: "tozero" },
        yaxis: { title: `accuracy (%), ${averaged > 1 ? `last ${averaged} rounds` : "last round"}` } },
    };
  },

  phases(group, state, look) {
    const series = shown(group, state), found = new Set(series.flatMap((one) => Object.keys(one.phases)));
    const names = [...new Set([...Object.keys(PHASES), ...found])].filter((name) => found.has(name));
    const y = series.map((_, i) => i), labels = series.map((one) => literal(short(one.label, look.narrow ? 16 : 34)));
    const data = names.map((name, k) => ({
      y, x: series.map((one) => one.phases[name] || 0), name: literal(name), type: "bar", orientation: "h",
      marker: { color: PHASES[name] || MORE[k % MORE.length] }, customdata: series.map((one) => literal(one.label)),
      hovertemplate: "%{customdata}<br>%{fullData.name} %{x:.3~g} s<extra></extra>",
    }));
    return {
      title: "Time by phase", data, words: "Mean over rounds and seeds.", rows: series.length,
      layout: { barmode: "stack", showlegend: true, xaxis: { title: "seconds a round" },
        yaxis: { title: "method", tickvals: y, ticktext: labels, autorange: "reversed", showgrid: false } },
    };
  },

  split(group, state, look) {
    const split = group.splits[state.split], most = Math.max(10, ...split.counts.flat());
    const ticks = [1, 10, 100, 1000, 10000, 100000].filter((n) => n <= most);
    const wide = (look.width - 130) / split.classes.length;
    const text = split.counts.length <= 25 && wide > 6 + 6.5 * String(most).length;
    const few = split.counts.length < split.clients ? ` (the first ${split.counts.length} of ${split.clients})` : "";
    return {
      title: "Samples by client and class", rows: Math.max(8, Math.min(30, split.counts.length)),
      words: `Heterogeneity ${split.heterogeneity}: the mean total-variation distance of the clients’ label ` +
        "distributions to the pooled one, weighted with the clients’ sizes; 0 is iid. Blank = no sample.",
      data: [{
        type: "heatmap", z: split.counts.map((row) => row.map((n) => (n ? Math.log10(n) : null))), zmin: 0,
        zmax: Math.log10(most), customdata: split.counts, xgap: 1, ygap: 1, hoverongaps: false,
        text: text ? split.counts.map((row) => row.map((n) => (n ? String(n) : ""))) : undefined,
        texttemplate: text ? "%{text}" : undefined, textfont: { size: 11 },
        colorscale: look.theme === "dark" ? DIM : "YlGnBu", reversescale: look.theme !== "dark",
        colorbar: { title: { text: "samples", side: "right" }, tickvals: ticks.map(Math.log10), thickness: 12,
          ticktext: ticks.map((n) => n.toLocaleString("en")), outlinewidth: 0 },
        hovertemplate: "client %{y}, class %{x}<br>%{customdata} samples<extra></extra>",
      }],
      layout: {
        xaxis: { title: "class", showgrid: false, zeroline: false, tickvals: every(split.classes.length),
          ticktext: every(split.classes.length).map((k) => literal(short(split.classes[k], 14))) },
        yaxis: { title: `client${few}`, autorange: "reversed", showgrid: false, zeroline: false,
          tickvals: every(split.counts.length) },
      },
    };
  },

  matching: (group, state) => rounds(group, state, "Matching loss", "matching loss", true,
    [["match_before", "before", "#0072b2", "dash"], ["match_after", "after", "#d55e00", "solid"]],
    "Before and after the outer steps of a round; mean over those who matched."),
  beta: (group, state) => rounds(group, state, "Student step size β", "β", false,
    [["beta", "β", "#009e73", "solid"]], "Learned with the auxiliary images; mean over those who have one."),
  cosines: (group, state) => rounds(group, state, "Cosines with the real global step", "cosine", false,
    [["cos_aux", "auxiliary (projected step)", "#d55e00", "solid"], ["cos_local", "local step", "#0072b2", "dash"]],
    "How well a step foretells the global one: 1 is the same direction; mean over clients."),
  reach: (group, state) => rounds(group, state, "Length of the projected step", "steps of the global model", false,
    [["reach", "projected step", "#d55e00", "solid"]],
    "1 is as long as the step that the global model then made; mean over those who projected."),

  // A rate of zero has no place on a logarithmic axis: the curve begins where there is something.
  roc(group, state, look) {
    const { curves } = group.audits[state.audit], all = curves.flatMap((one) => [...one.fpr, ...one.tpr]);
    const least = Math.min(1, ...all.filter((value) => value > 0));
    const data = curves.map((one, k) => ({
      x: one.fpr, y: one.tpr.map((value) => value || null), name: literal(one.name), type: "scatter", mode: "lines",
      line: { color: LAYERS[k % LAYERS.length], width: 2, shape: "hv", dash: DASHES[Math.floor(k / LAYERS.length) % 5] },
      hovertemplate: "%{fullData.name}<br>FPR %{x:.3~g}: TPR %{y:.3~g}<extra></extra>",
    }));
    data.push({ x: [least, 1], y: [least, 1], name: "chance", type: "scatter", mode: "lines", hoverinfo: "skip",
      line: { color: look.ink, width: 1, dash: "dash" } });
    const axis = (title) => ({ title, type: "log", range: [Math.log10(least), 0.02], dtick: 1, exponentformat: "power" });
    return { title: "Membership inference: ROC", data,
      words: "Left is what matters: members found with few false alarms. On the dashed line an attack knows nothing.",
      layout: { showlegend: true, xaxis: axis("false-positive rate"), yaxis: axis("true-positive rate") } };
  },

  auxiliary(group, state) {
    const { series } = group.audits[state.audit], colours = { real: "#d55e00", noise: "#0072b2" };
    const data = series.filter((one) => one.y.some((value) => value !== null)).map((one, k) =>
      trace(one.x, one.y, one.name, colours[one.init], DASHES[k % 3]));
    return { title: "If an auxiliary set left its owner", data,
      words: "By the distance to the set alone; 0.5 is chance. Sets never leave their owner in FedPTR.",
      layout: { showlegend: true, xaxis: { title: "communication round" },
        yaxis: { title: "AUC, or part of the images", range: [0, 1.03] } } };
  },

  distances(group, state) {
    const view = group.views[state.run];
    const [low, high] = range((view.distances || []).map((row) => row.filter((value) => value)));
    const data = (view.layers || []).map((name, j) => trace(view.rounds,
      view.distances[j].map((value) => value || null), name, LAYERS[j % LAYERS.length],
      DASHES[Math.floor(j / LAYERS.length) % DASHES.length]));
    return {
      title: "Distance to the projection", data, words: "Of every layer after local training; mean over clients. A distance of zero has no place on this axis.",
      layout: { showlegend: true, xaxis: { title: "communication round" },
        yaxis: { title: "‖w<sub>j</sub> − w̃<sub>j</sub>‖", type: "log", exponentformat: "power",
          dtick: high / low > 15 ? 1 : undefined } },
    };
  },
};

// Of the chosen run; `empty` where it recorded nothing of the kind.
function rounds(group, state, title, words, log, columns, note) {
  const view = group.views[state.run];
  const data = columns.filter(([name]) => view[name] && view[name].some((value) => value !== null))
    .map(([name, label, colour, dash]) => trace(view.rounds, view[name], label, colour, dash));
  const [low, high] = range(data.map((one) => one.y));
  const type = log && low > 0 && high / low > 10 ? "log" : "linear";
  return { title, data, words: note, empty: !data.length,
    layout: { showlegend: data.length > 1, xaxis: { title: "communication round" }, yaxis: { title: words, type } } };
}

function trace(x, y, name, colour, dash) {
  return { x, y, name: literal(name), type: "scatter", mode: x.length <= 20 ? "lines+markers" : "lines",
    line: { color: colour, width: 2, dash }, connectgaps: true,
    hovertemplate: "%{fullData.name}<br>round %{x}: %{y:.4~g}<extra></extra>" };
}

const band = (group) => (group.series.some((one) => one.curves.accuracy.low)
  ? "Bands: 95 % confidence interval of the mean over seeds (Student’s t)." : "One seed each.");
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Positions to name on an axis, about forty at most.
function every(count) {
  const step = [1, 2, 5, 10, 20, 50, 100].find((n) => count / n <= 40) || 500;
  return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
}

// What all charts have in common. On a picture to be saved there is a legend, and the condition below the title.
function complete(figure, group, look) {
  const { layout } = figure, legend = layout.showlegend || (look.saved && figure.data.length > 0);
  const axis = (one) => ({ automargin: true, gridcolor: look.grid, linecolor: look.line, zerolinecolor: look.grid,
    ...one, title: { text: one.title, standoff: 10, font: { size: 13 } } });
  const names = figure.data.filter((one) => one.name && one.showlegend !== false).map((one) => one.name);
  const below = legend ? 20 * legendRows(names, look.width - 70) : 0;
  const lines = look.saved ? wrap(group.title, look.width / 6.5) : [];
  const subtitle = lines.map((text) => `<br><span style="font-size:12px">${literal(text)}</span>`).join("");
  return {
    data: figure.data,
    layout: {
      ...layout, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis), showlegend: Boolean(legend),
      title: { text: `<b>${figure.title}</b>${subtitle}`, x: 0, xref: "container", xanchor: "left", pad: look.saved ? { t: 26, l: 14 } : { t: 8 },
        y: 1, yref: "container", yanchor: "top", font: { size: 15 } },
      legend: { orientation: "h", x: 0, xanchor: "left", y: -58 / (look.height - 102 - 22 * lines.length),
        yanchor: "top", font: { size: 12 }, traceorder: "normal" },
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: look.ink },
      margin: { l: look.saved ? 80 : 56, r: look.saved ? 28 : 14, t: 44 + 22 * lines.length, b: 48 }, width: look.width, height: look.height + below,
      paper_bgcolor: look.paper, plot_bgcolor: look.paper, hovermode: "closest", dragmode: look.touch ? false : "zoom",
      hoverlabel: { bgcolor: look.raised, bordercolor: look.line, font: { color: look.ink }, align: "left" },
    },
  };
}

// Plotly gives all entries the width of the longest.
function legendRows(names, width) {
  const widest = 50 + 7 * Math.max(0, ...names.map((name) => name.length));
  return Math.ceil(names.length / Math.max(1, Math.floor(width / widest)));
}

function wrap(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines[lines.length - 1] && (lines[lines.length - 1] + word).length > most) lines.push("");
    lines[lines.length - 1] += `${word} `;
  }
  return lines.map((one) => one.trim());
}
