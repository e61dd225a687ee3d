"use strict";
// Figures about clients: their accuracies as dots, and over rounds.

const MODELS = { global: { name: "global model", symbol: "circle-open", colour: "#0072b2", dash: "dash" },
  personal: { name: "personal model", symbol: "circle", colour: "#d55e00", dash: "solid" } };
const SCORES = { mean: "mean over clients, weighted by test samples", p10: "10 % quantile of the clients", worst: "worst client" };
// The shown series that have scores by client.
const withClients = (group, state) => group.series.map((one, j) => ({ ...one, j, clients: group.clients.series[j] }))
  .filter((one) => one.clients && !state.hidden.has(one.j));

// Dots of about the same accuracy are put beside each other, as far as the lane is wide.
function swarm(values, binWidth, half) {
  const bins = new Map(), place = values.map((value) => {
    if (value === null) return null;
    const bin = Math.round(value / binWidth), k = bins.get(bin) || 0;
    bins.set(bin, k + 1);
    return [bin, k];
  });
  return place.map((one) => {
    if (!one) return null;
    const count = bins.get(one[0]), step = Math.min(half / 2, (2 * half) / Math.max(1, count - 1));
    return (one[1] - (count - 1) / 2) * step;
  });
}

// The lowest of the dots: its value, and who has it.
function lowest(dots, ids) {
  const value = range([dots])[0], who = ids.filter((_, k) => dots[k] === value);
  return { value, who: who.length > 1 ? `${who.length} clients` : `client ${who[0]}` };
}

const positionWords = (clients, position) => (position < clients.rounds.length
  ? `round ${clients.rounds[position]}` : `mean of the last ${Math.min(5, clients.rounds.length)} evaluated rounds`);

Object.assign(figures, {
  clients(group, state, look) {
    const series = withClients(group, state), at = state.client, lanes = [], told = [];
    series.forEach((one, row) => Object.keys(one.clients.dots).forEach((model, k, { length }) => {
      const dots = one.clients.dots[model][at];
      if (dots) lanes.push({ one, model, dots, y: row + (length > 1 ? 0.46 * k - 0.23 : 0), half: length > 1 ? 0.16 : 0.24 });
    }));
    const [low, high] = range(lanes.map((lane) => lane.dots)), span = Math.max(5, high - low);
    const names = lanes.map((lane) => lowest(lane.dots, lane.one.clients.ids));
    const room = (7 * Math.max(0, ...names.map((one) => one.who.length)) + 24) / Math.max(120, look.width - 150);
    const data = lanes.flatMap(({ one, model, dots, y, half }, k) => {
      const { clients } = one, other = Object.keys(clients.dots).find((name) => name !== model);
      const offsets = swarm(dots, span / 90, half), mean = clients.mean[model][at], label = literal(one.label);
      const colour = one.style[look.theme], beside = other && clients.dots[other][at];
      const also = dots.map((_, i) => (beside && beside[i] !== null ? `<br>${other} model ${beside[i].toFixed(1)} %` : ""));
      told.push(`${one.label}, ${model} model: ${names[k].value.toFixed(1)} %, ${names[k].who}`);
      return [{
        x: dots, y: offsets.map((offset) => (offset === null ? null : y + offset)), type: "scatter", mode: "markers",
        marker: { symbol: MODELS[model].symbol, color: colour, size: dots.length > 40 ? 6 : 8, opacity: 0.8,
          line: { color: colour, width: 1.5 } }, showlegend: false,
        customdata: dots.map((_, i) => [literal(clients.ids[i]), clients.tests[i], also[i]]),
        hovertemplate: `<b>client %{customdata[0]}</b>, %{customdata[1]:,} test samples<br>${label}<br>` +
          `${model} model %{x:.1f} %%{customdata[2]}<extra></extra>`,
      }, {
        x: [mean], y: [y], type: "scatter", mode: "markers", showlegend: false,
        marker: { symbol: "line-ns", size: one.clients.dots.personal ? 20 : 26, line: { color: look.ink, width: 2.5 } },
        hovertemplate: `${label}<br>${model} model, weighted mean %{x:.1f} %<extra></extra>`,
      }, {
        x: [names[k].value], y: [y], type: "scatter", mode: "text", showlegend: false, hoverinfo: "skip",
        text: [`${literal(names[k].who)}\u00a0\u00a0\u00a0`], textposition: "middle left", textfont: { size: 11, color: look.ink },
      }];
    });
    const keys = Object.keys(MODELS).filter((model) => lanes.some((lane) => lane.model === model));
    data.push(...keys.map((model) => ({ x: [null], y: [null], type: "scatter", mode: "markers", name: MODELS[model].name,
      marker: { symbol: MODELS[model].symbol, color: look.ink, size: 8, line: { color: look.ink, width: 1.5 } } })),
    { x: [null], y: [null], type: "scatter", mode: "markers", name: "mean, weighted",
      marker: { symbol: "line-ns", size: 14, line: { color: look.ink, width: 2.5 } } });
    const when = positionWords(group.clients, at), missing = lanes.length ? "" : `No client was tested in ${when}.`;
    return {
      missing,
      title: `Accuracy of every client, ${when}`, data, rows: Math.max(8, lanes.length, 1.4 * series.length),
      words: `A dot is a client${dotWords(series)}; the name is that of the worst.`,
      alt: `The worst clients. ${told.join("; ")}.`,
      layout: { showlegend: true,
        xaxis: { title: "accuracy on the client’s own test data (%)", zeroline: false,
          range: [low - span * (room + 0.02), Math.max(low + span, high) + 0.03 * span], tickvals: ticks(low, low + span) },
        yaxis: { title: "method", tickvals: series.map((_, row) => row), range: [series.length - 0.45, -0.55],
          ticktext: series.map((one) => literal(short(one.label, look.narrow ? 12 : 30))), showgrid: false, zeroline: false } },
    };
  },

  clientcurves(group, state, look) {
    const series = withClients(group, state).map((one) => ({ ...one,
      curves: { ...one.clients.curves, accuracy: one.clients.curves[one.clients.used][state.score] } }));
    const made = curves("accuracy", "The model that clients would use", `accuracy (%), ${SCORES[state.score].split(",")[0]}`,
      " %", { series }, { x: state.x, hidden: new Set() }, look);
    return { ...made, words: `On the clients’ own test data, ${SCORES[state.score]}. The personal model where a method has ` +
      "one, else the global one." };
  },

  clientrounds(group, state, look) {
    const known = group.series.map((one, j) => [one, group.clients.series[j]]).filter(([, clients]) => clients);
    const [one, clients] = known[state.method], data = [], x = clients.curves.rounds;
    for (const model of Object.keys(clients.dots)) {
      const { mean, p10, p90, worst } = clients.curves[model], { colour, name, dash } = MODELS[model];
      const sound = x.map((_, i) => i).filter((i) => p10.mean[i] !== null && p90.mean[i] !== null);
      data.push({
        x: [...sound, ...sound.slice().reverse()].map((i) => x[i]),
        y: [...sound.map((i) => p90.mean[i]), ...sound.map((i) => p10.mean[i]).reverse()],
        fill: "toself", fillcolor: fade(colour, look.theme === "dark" ? 0.25 : 0.15), line: { width: 0 }, type: "scatter", mode: "lines",
        hoverinfo: "skip", showlegend: false,
      }, trace(x, mean.mean, `${name}: weighted mean`, colour, dash), {
        ...trace(x, worst.mean, `${name}: worst client`, colour, "dot"), line: { color: colour, width: 1.5, dash: "2px,3px" } });
    }
    const many = clients.seeds > 1 ? ` Each is the mean over ${clients.seeds} seeds.` : "";
    return { title: `Clients over rounds: ${literal(short(one.label, look.narrow ? 18 : 40))}`, data,
      words: `Here bands go from the 10 % to the 90 % quantile of the clients.${many}`,
      missing: data.some((one) => one.name && countPoints(one.x, one.y) > 1) ? "" : MISSING,
      layout: { showlegend: true, xaxis: roundAxis([x], look),
        yaxis: { title: "accuracy (%)", ...limits("accuracy", data.map((one) => one.y)) } } };
  },
});

// From opposed to alike; the middle is the page, a little raised.
const RELATED = { light: [[0, "#2166ac"], [0.5, "#f1f3f5"], [1, "#b2182b"]], dark: [[0, "#67a9cf"], [0.5, "#2a3037"], [1, "#ef8a62"]] };

figures.relationship = (group, state, look) => {
  const { label, round, z, learned } = group.relationships[state.relationship], scale = RELATED[look.theme];
  const axis = { title: "client", showgrid: false, zeroline: false, tickvals: every(z.length) };
  const text = (look.width - 130) / z.length > 38 ? [cellTexts(z, (value) => value.toFixed(2), scale, -1, 1)] : [];
  return { title: `Relationship of the clients: ${literal(short(label, 30))}, round ${round}`, rows: Math.min(26, z.length),
    missing: learned ? "" : `${label} has not learned yet how its clients are related: that begins after method.inner rounds.`,
    words: "MOCHA’s learned Σ as correlations: 1 = the clients’ models are alike, −1 = opposed, 0 = unrelated.",
    data: [{ type: "heatmap", z, zmin: -1, zmax: 1, xgap: 1, ygap: 1, hoverongaps: false, colorscale: scale,
      colorbar: { title: { text: "correlation", side: "right" }, thickness: 12, outlinewidth: 0 },
      hovertemplate: "clients %{y} and %{x}: %{z:.2f}<extra></extra>" }, ...text],
    layout: { xaxis: axis, yaxis: { ...axis, autorange: "reversed" } } };
};

function dotWords(series) {
  const several = series.filter((one) => one.clients.seeds > 1), cut = series.find((one) => one.clients.ids.length < one.clients.all);
  const means = several.some((one) => one.clients.same) ? ", of several seeds its mean" : "";
  const apart = several.some((one) => !one.clients.same) ? ", once for every seed, as their splits differ" : "";
  const few = cut ? ` (drawn are the worst, the best and some between: ${cut.clients.ids.length} of ${cut.clients.all.toLocaleString("en")})` : "";
  return means + apart + few;
}

// Round numbers from low to high, a handful; none where an axis is widened for names.
function ticks(low, high) {
  const step = [1, 2, 5, 10, 20].find((n) => (high - low) / n <= 8) || 20;
  return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, k) => (Math.ceil(low / step) + k) * step);
}
