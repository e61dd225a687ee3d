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
// From few to many; few can be told from the page behind.
const AMOUNTS = { light: [[0, "#9ad8c8"], [0.5, "#2b8cbe"], [1, "#08265e"]],
  dark: [[0, "#4a6bb5"], [0.5, "#3aa89a"], [1, "#f7e96b"]] };
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

// An axis of rounds has whole numbers only, however few there are.
const wholeStep = (span, narrow) => {
  const least = span / (narrow ? 6 : 9), power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return Math.max(1, [1, 2, 5, 10].find((n) => n * power >= least) * power);
};

function roundAxis(lists, look) {
  const [low, high] = range(lists), pad = 0.03 * Math.max(1, high - low);
  return { title: "communication round", range: [Math.min(low, 1) - pad, high + pad], tick0: 0, tickformat: ",d", zeroline: false,
    dtick: wholeStep(high - Math.min(low, 1), look.narrow) };
}

// What a figure says instead of showing no curve, or curves of one point.
const countPoints = (x, y) => y.filter((value, i) => value !== null && x[i] !== null).length;
const MISSING = "There is no chart of this: fewer than two rounds have a value of what is chosen.";

function line(x, y, style, colour, name, unit) {
  const marks = x.length <= 20;
  return {
    x, y, name: literal(name), type: "scatter", mode: marks ? "lines+markers" : "lines",
    line: { color: colour, width: style.width, dash: style.dash }, marker: { symbol: style.symbol, size: 6 },
    hovertemplate: `%{fullData.name}<br>%{x:,.5~g}: %{y:.4~g}${unit}<extra></extra>`,
  };
}

function curves(what, title, words, unit, group, state, look, kind = what) {
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
  const xs = data.map((one) => one.x), ys = data.map((one) => one.y);
  const xaxis = state.x === "rounds" ? roundAxis(xs, look) : { title: AXES[state.x], rangemode: "tozero" };
  const drawn = data.some((one) => one.name && countPoints(one.x, one.y) > 1);
  const { floor, ...yaxis } = limits(kind, ys, data.filter((one) => one.name).map((one) => one.y));
  for (const one of data) if (floor) one.y = one.y.map((value) => (value === null ? null : Math.max(floor, value)));
  return { title, data, missing: drawn ? "" : MISSING, words: floor ? "A band that reaches zero ends at the lower edge." : "",
    layout: { xaxis, yaxis: { title: words, ...yaxis } } };
}

// Everything that is drawn is within the axis, bands too. On a logarithmic axis what is not above zero ends at its floor.
function limits(what, lists, means = lists) {
  const [low, high] = range(lists), [least, most] = range(means);
  if (what === "loss" && least > 0 && most / least > 50) {
    const above = range(lists.map((list) => list.filter((value) => value > 0)));
    const floor = low > 0 ? undefined : above[0] / 2;
    const ends = [Math.log10(floor || above[0]), Math.log10(high)], pad = 0.04 * (ends[1] - ends[0]);
    return { floor, type: "log", range: [ends[0] - pad, ends[1] + pad], exponentformat: "power", dtick: Math.ceil((ends[1] - ends[0]) / 7) };
  }
  const pad = Math.max(0.04 * (high - low), what === "accuracy" ? 0.5 : 0.01);
  return { range: [low - pad, high + pad], zeroline: false, ...(what === "accuracy" ? percentTicks(low, high) : {}) };
}

// Whole per cents, and none that no accuracy can have.
function percentTicks(low, high) {
  const step = [1, 2, 5, 10, 20].find((n) => (high - low) / n <= 7) || 20;
  const first = Math.ceil(Math.max(0, low) / step), last = Math.floor(Math.min(100, high) / step);
  return last > first ? { tickvals: Array.from({ length: last - first + 1 }, (_, k) => (first + k) * step) } : {};
}

const figures = {
  // Tasks without classes are known by another score, which has no per cents.
  accuracy: (group, state, look) => (group.score
    ? curves("accuracy", `Test ${group.score.words}`, `test ${group.score.words}`, "", group, state, look, "score")
    : curves("accuracy", "Test accuracy", "test accuracy (%)", " %", group, state, look)),
  loss: (group, state, look) =>
    curves("loss", "Test loss", `test loss (${group.score ? group.score.loss : "cross-entropy"})`, "", group, state, look),

  cost(group, state, look) {
    const score = group.score ? group.score.words : "accuracy", unit = group.score ? "" : " %", most = group.score ? 1 : 100;
    const averaged = Math.max(...shown(group, state).map((one) => one.final.averaged));
    const data = shown(group, state).filter((one) => one.final[state.cost] !== null).map((one) => ({
      x: [one.final[state.cost]], y: [one.final.accuracy], name: literal(one.label), type: "scatter", mode: "markers",
      marker: { color: one.style[look.theme], symbol: one.style.symbol, size: 12 },
      error_y: { type: "data", symmetric: false, array: [Math.min(one.final.half || 0, most - one.final.accuracy)],
        arrayminus: [group.score ? one.final.half || 0 : Math.min(one.final.half || 0, one.final.accuracy)], visible: one.final.half !== null, thickness: 1.5 },
      hovertemplate: `%{fullData.name}<br>%{x:,.4~g}: %{y:.${group.score ? 3 : 2}f}${unit}<extra></extra>`,
    }));
    return {
      title: `Cost and ${score}`, data, words: "Up and to the left is better.",
      missing: data.length > 1 ? "" : `There is no chart of cost and ${score}: it needs two methods that have both.`,
      layout: { xaxis: { title: `${AXES[state.cost]}, whole run`, rangemode: "tozero" },
        yaxis: { title: `${score}${group.score ? "" : " (%)"}, ${averaged > 1 ? `last ${averaged} rounds` : "last round"}` } },
    };
  },

  phases(group, state, look) {
    const series = shown(group, state);
    const found = new Set(series.flatMap((one) => Object.keys(one.phases).filter((name) => one.phases[name] > 0)));
    const names = [...new Set([...Object.keys(PHASES), ...found])].filter((name) => found.has(name));
    const y = series.map((_, i) => i), labels = series.map((one) => literal(short(one.label, look.narrow ? 16 : 34)));
    const data = names.map((name, k) => ({
      y, x: series.map((one) => one.phases[name] || 0), name: literal(name), type: "bar", orientation: "h",
      marker: { color: PHASES[name] || MORE[k % MORE.length] }, customdata: series.map((one) => literal(one.label)),
      hovertemplate: "%{customdata}<br>%{fullData.name} %{x:.3~g} s<extra></extra>",
    }));
    return {
      title: "Where the time goes", data, words: "Mean over rounds and seeds.", rows: series.length, low: true,
      missing: data.length ? "" : "No method is chosen.",
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
    const z = split.counts.map((row) => row.map((n) => (n ? Math.log10(n) : null))), scale = AMOUNTS[look.theme];
    return {
      title: "Samples by client and class", rows: Math.max(8, Math.min(30, split.counts.length)),
      words: `Heterogeneity ${split.heterogeneity}: the mean total-variation distance of the clients’ label ` +
        "distributions to the pooled one, weighted with the clients’ sizes; 0 is iid. Blank = no sample.",
      data: [{
        type: "heatmap", z, zmin: 0, zmax: Math.log10(most), customdata: split.counts, xgap: 1, ygap: 1, hoverongaps: false,
        colorscale: scale,
        colorbar: { title: { text: "samples (logarithmic)", side: "right" }, tickvals: ticks.map(Math.log10), thickness: 12,
          ticktext: ticks.map((n) => n.toLocaleString("en")), outlinewidth: 0 },
        hovertemplate: "client %{y}, class %{x}<br>%{customdata} samples<extra></extra>",
      }, ...(text ? [cellTexts(z, (value, i, k) => String(split.counts[i][k]), scale, 0, Math.log10(most))] : [])],
      layout: {
        xaxis: { title: "class", showgrid: false, zeroline: false, tickvals: every(split.classes.length),
          ticktext: every(split.classes.length).map((k) => literal(short(split.classes[k], 14))) },
        yaxis: { title: `client${few}`, autorange: "reversed", showgrid: false, zeroline: false,
          tickvals: every(split.counts.length) },
      },
    };
  },

  matching: (group, state, look) => rounds(group, state, look, "Matching loss", "matching loss", true,
    [["match_before", "before", "#0072b2", "dash"], ["match_after", "after", "#d55e00", "solid"]],
    "Before and after the outer steps of a round; mean over those who matched."),
  beta: (group, state, look) => rounds(group, state, look, "Student step size β", "β", false,
    [["beta", "β", "#009e73", "solid"]], "Learned with the auxiliary images; mean over those who have one."),
  cosines: (group, state, look) => rounds(group, state, look, "Cosines with the real global step", "cosine", false,
    [["cos_aux", "auxiliary (projected step)", "#d55e00", "solid"], ["cos_local", "local step", "#0072b2", "dash"]],
    "How well a step foretells the global one: 1 is the same direction; mean over clients."),
  reach: (group, state, look) => rounds(group, state, look, "Length of the projected step", "steps of the global model", false,
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

  auxiliary(group, state, look) {
    const { series } = group.audits[state.audit], colours = { real: "#d55e00", noise: "#0072b2", sent: "#009e73" };
    const sent = series.some((one) => one.init === "sent");
    const data = series.filter((one) => countPoints(one.x, one.y) > 1).map((one, k) =>
      trace(one.x, one.y, one.name, colours[one.init], DASHES[k % 3]));
    const words = "By the distance to the set alone; 0.5 is chance.";
    return { title: sent ? "What the sets that clients sent give away" : "If an auxiliary set left its owner", data,
      words: sent ? words : `${words} Sets never leave their owner in FedPTR.`,
      empty: !data.length, layout: { showlegend: true, xaxis: roundAxis(data.map((one) => one.x), look),
        yaxis: { title: "AUC, or part of the images", range: [-0.03, 1.03] } } };
  },

  distances(group, state, look) {
    const view = group.views[state.run];
    const rounding = 1e-6 * range(view.distances || [])[1]; // a distance below is zero up to rounding
    const data = (view.layers || []).map((name, j) => trace(view.rounds,
      view.distances[j].map((value) => (value > rounding ? value : null)), name, LAYERS[j % LAYERS.length],
      DASHES[Math.floor(j / LAYERS.length) % DASHES.length])).filter((one) => countPoints(one.x, one.y) > 1);
    const [low, high] = range(data.map((one) => one.y));
    const left = (view.layers || []).length > data.length ? " Layers with a distance of zero have no place on this axis." : "";
    return {
      title: "Distance to the projection", data, empty: !data.length,
      words: `How far every layer is from the projected model after local training; mean over clients.${left}`,
      layout: { showlegend: true, xaxis: roundAxis(data.map((one) => one.x), look),
        yaxis: { title: "‖w<sub>j</sub> − w̃<sub>j</sub>‖", type: "log", exponentformat: "power",
          dtick: high / low > 15 ? 1 : undefined } },
    };
  },
};

// Of the chosen run; `empty` where it recorded nothing of the kind, or only once.
function rounds(group, state, look, title, words, log, columns, note) {
  const view = group.views[state.run];
  const data = columns.filter(([name]) => view[name] && countPoints(view.rounds, view[name]) > 1)
    .map(([name, label, colour, dash]) => trace(view.rounds, view[name], label, colour, dash));
  const [low, high] = range(data.map((one) => one.y));
  const type = log && low > 0 && high / low > 10 ? "log" : "linear";
  return { title, data, words: note, empty: !data.length,
    layout: { showlegend: data.length > 1, xaxis: roundAxis(data.map((one) => one.x), look),
      yaxis: { title: words, type, ...(type === "log" ? { tickvals: logTicks(low, high) } : {}) } } };
}

// 0.1, 0.2, 0.5, 1, 2 …
function logTicks(low, high) {
  const powers = Array.from({ length: 40 }, (_, k) => k - 20);
  return powers.flatMap((k) => [1, 2, 5].map((n) => Number(`${n}e${k}`))).filter((tick) => low <= tick && tick <= high);
}

function trace(x, y, name, colour, dash) {
  return { x, y, name: literal(name), type: "scatter", mode: x.length <= 20 ? "lines+markers" : "lines",
    line: { color: colour, width: 2, dash }, connectgaps: true,
    hovertemplate: "%{fullData.name}<br>round %{x}: %{y:.4~g}<extra></extra>" };
}

// The colour that a scale has at a part of its way, as levels of red, green and blue.
function colourAt(scale, part) {
  const at = Math.min(1, Math.max(0, part)), k = Math.max(1, scale.findIndex(([end]) => end >= at));
  const [[from, low], [to, high]] = [scale[k - 1], scale[k]], levels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return levels(low).map((level, i) => level + ((at - from) / (to - from)) * (levels(high)[i] - level));
}

const luminance = (levels) => levels.map((level) => level / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);

// Numbers in the cells of a heat map, black or white, whichever can be read better on the cell.
function cellTexts(z, write, scale, low, high) {
  const cells = z.flatMap((row, i) => row.map((value, k) => ({ value, i, k }))).filter((one) => one.value !== null);
  const ink = ({ value }) => (luminance(colourAt(scale, (value - low) / (high - low))) > 0.179 ? "#000000" : "#ffffff");
  return { x: cells.map((one) => one.k), y: cells.map((one) => one.i), text: cells.map((one) => write(one.value, one.i, one.k)),
    type: "scatter", mode: "text", textfont: { size: 11, color: cells.map(ink) }, hoverinfo: "skip", showlegend: false };
}

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
    ...one, title: { text: one.type === "log" ? `${one.title}, logarithmic` : one.title, standoff: 10, font: { size: 13 } } });
  const names = figure.data.filter((one) => one.name && one.showlegend !== false).map((one) => one.name);
  const below = legend ? 20 * legendRows(names, look.width - 70) : 0;
  const lines = look.saved ? wrap(group.title, look.width / 6.5) : [], heads = wrap(figure.title, look.width / 9);
  const top = 22 * (lines.length + heads.length - 1);
  const subtitle = lines.map((text) => `<br><span style="font-size:12px">${literal(text)}</span>`).join("");
  return {
    data: figure.data,
    layout: {
      ...layout, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis), showlegend: Boolean(legend),
      title: { text: `<b>${heads.join("<br>")}</b>${subtitle}`, x: 0, xref: "container", xanchor: "left", pad: look.saved ? { t: 26, l: 14 } : { t: heads.length > 1 ? 26 : 8 },
        y: 1, yref: "container", yanchor: "top", font: { size: 15 } },
      legend: { orientation: "h", x: 0, xanchor: "left", y: -58 / (look.height - 102 - top),
        yanchor: "top", font: { size: 12 }, traceorder: "normal" },
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: look.ink },
      margin: { l: look.saved ? 80 : 56, r: look.saved ? 28 : 14, t: 44 + top, b: 48 }, width: look.width, height: look.height + below,
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
