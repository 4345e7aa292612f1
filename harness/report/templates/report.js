"use strict";
(() => {
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const root = document.documentElement;
document.body.classList.add("scripted");

// Compressed contents of the page.
async function unpack(id) {
  const packed = Uint8Array.from(atob($(`#${id}`).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
const data = $("#data") ? unpack("data").then(JSON.parse) : Promise.resolve({});
let plotly;
// From the page itself, or from the file that the pages of a site share.
function loadPlotly() {
  plotly ??= $("#plotly") ? unpack("plotly").then((text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.body.append(script);
    return window.Plotly;
  }) : new Promise((loaded) => {
    const script = element("script", undefined, { src: document.body.dataset.plotly });
    script.addEventListener("load", () => loaded(window.Plotly));
    document.body.append(script);
  });
  return plotly;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Theme: the system's, until somebody chooses.
const theme = $("#theme");
const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function nameTheme() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-pressed", String(isDark()));
}
theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); redraw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); redraw(); });
nameTheme();

// Sorting: a button in each head, so that it can be reached by keyboard.
function valueOf(cell) {
  const given = cell.dataset.value ?? cell.textContent.replaceAll(",", "");
  const number = parseFloat(given);
  return Number.isNaN(number) ? null : number;
}
for (const table of $$("table.sortable")) {
  $$("thead th[data-sort]", table).forEach((head) => {
    const button = element("button", head.textContent, { type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const column = [...head.parentNode.children].indexOf(head);
      const numeric = head.dataset.sort === "number";
      const first = numeric && column > 0 ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      $$("th", head.parentNode).forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const body = $("tbody", table);
      const key = (row) => (numeric ? valueOf(row.children[column]) : row.children[column].textContent.trim());
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null); // empty cells stay last
        return sign * (numeric ? x - y : x.localeCompare(y));
      };
      body.append(...[...body.children].sort(compare));
    });
  });
}

// Searching: rows that contain all words, in their method or in what else they are searched by.
$("#filter")?.addEventListener("input", (event) => {
  const words = event.target.value.trim().toLowerCase().split(/\s+/);
  const shown = new Set();
  for (const row of $$(".board tbody tr")) {
    const name = $("th", row).textContent.toLowerCase();
    const searched = `${name} ${row.dataset.words ?? ""}`.toLowerCase();
    row.hidden = !words.every((word) => searched.includes(word));
    if (!row.hidden) shown.add(name);
  }
  $("#found").textContent = words[0] ? `${shown.size} ${shown.size === 1 ? "method" : "methods"}` : "";
});

// One table at a time, or all.
const chooser = $("#table");
function chooseTable() {
  if (!chooser) return;
  for (const block of $$(".block")) block.hidden = chooser.value !== "" && block.dataset.table !== chooser.value;
}
chooser?.addEventListener("change", chooseTable);
chooseTable();
for (const link of $$("a[data-choose]")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    chooser.value = link.dataset.choose;
    chooseTable();
    $$("#conclusion .block").find((block) => !block.hidden)?.scrollIntoView();
  });
}

// The matrix: the sentence of the cell that is pointed at, or reached by arrow keys.
for (const matrix of $$(".matrix")) {
  const words = matrix.closest(".block").querySelector(".words");
  const cells = $$("td[title]", matrix);
  if (cells.length) cells[0].tabIndex = 0;
  const say = (event) => {
    const cell = event.target.closest("td[title]");
    if (cell) words.textContent = cell.title;
  };
  for (const event of ["mouseover", "focusin", "click"]) matrix.addEventListener(event, say);
  matrix.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    const cell = event.target.closest("td");
    const row = cell.parentNode;
    const rows = [...row.parentNode.children];
    const next = rows[rows.indexOf(row) + step[0]]?.children[[...row.children].indexOf(cell) + step[1]];
    if (next?.title) { cell.tabIndex = -1; next.tabIndex = 0; next.focus(); event.preventDefault(); }
  });
}

// Where in the page one is.
const links = new Map($$("nav a").map((link) => [link.getAttribute("href").slice(1), link]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-20% 0px -75% 0px" });
$$("main > section").forEach((section) => watcher.observe(section));

// Figures.
const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const narrow = () => matchMedia("(max-width: 40rem)").matches;
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SYMBOLS = ["circle", "square", "diamond", "cross", "triangle-up"];
const style = (index) => ({ color: color(`c${index % 8}`), dash: DASHES[Math.floor(index / 8) % 4], symbol: SYMBOLS[Math.floor(index / 8) % 5] });
// Plotly reads some tags in texts: names are shown as they stand.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const short = (value) => (typeof value === "number" ? String(+value.toPrecision(4)) : String(value));
const HOVER = "%{text}<extra></extra>";

function layout(changes = {}) {
  const axis = () => ({ gridcolor: color("line"), zerolinecolor: color("line"), linecolor: color("line"), automargin: true });
  const legend = narrow()
    ? { orientation: "h", y: -0.25, x: 0, font: { size: 11 } }
    : { font: { size: 12 }, itemsizing: "constant" };
  const base = {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: { color: color("text"), family: "system-ui, sans-serif", size: 13 },
    colorway: [0, 1, 2, 3, 4, 5, 6, 7].map((i) => color(`c${i}`)),
    margin: { l: 56, r: 16, t: narrow() ? 12 : 34, b: 48 }, height: narrow() ? 360 : 400, hovermode: "closest",
    hoverlabel: { bgcolor: color("panel"), bordercolor: color("line"), font: { color: color("text") } },
    modebar: { bgcolor: "transparent", color: color("quiet"), activecolor: color("accent") },
    legend, xaxis: axis(), yaxis: axis(),
  };
  for (const [key, value] of Object.entries(changes)) {
    if (/^[xy]axis/.test(key)) base[key] = { ...axis(), ...value };
    else if (key === "legend") base[key] = { ...legend, ...value };
    else base[key] = value;
  }
  return base;
}
const titled = (text, more = {}) => ({ title: { text, standoff: 8 }, ...more });

const best = (scores) => {
  let top = null;
  return scores.map((score) => (top = score === null ? top : top === null ? score : Math.max(top, score)));
};
const range = (ends) => {
  if (!ends?.log) return {};
  return { type: "log", exponentformat: "power", ...(ends.high / ends.low >= 100 ? { dtick: 1 } : {}) };
};

const FIGURES = {
  best(table) {
    const entries = Object.entries(table.search);
    const traces = entries.map(([method, found]) => {
      const { color: c, dash } = style(table.methods.indexOf(method));
      const y = best(found.scores);
      return { name: plain(method), x: y.map((_, i) => i + 1), y, mode: "lines", line: { color: c, dash, width: 2, shape: "hv" },
        text: y.map((v, i) => `${plain(method)}<br>trial ${i + 1}: ${short(v)}`), hovertemplate: HOVER };
    });
    return [traces, layout({ xaxis: titled("trials"), yaxis: titled(`${table.validation}, %`) })];
  },
  slices(table, chosen) {
    const found = table.search[chosen.method];
    const names = Object.keys(found?.params ?? {});
    if (!names.length) return null;
    const columns = narrow() ? 1 : Math.min(names.length, 3);
    const rows = Math.ceil(names.length / columns);
    const changes = { height: 60 + 240 * rows, showlegend: false, annotations: [], shapes: [], grid: { rows, columns, pattern: "independent", xgap: 0.12, ygap: 0.35 } };
    const traces = names.map((name, i) => {
      const suffix = i ? i + 1 : "";
      const ends = found.ranges[name] ?? {};
      const kept = found.scores.map((score, at) => at).filter((at) => found.scores[at] !== null && found.params[name][at] !== null);
      changes[`xaxis${suffix}`] = titled(plain(name), { ...range(ends) });
      changes[`yaxis${suffix}`] = { title: { text: i % columns ? "" : "MAP@R, %" } };
      for (const end of ["low", "high"]) {
        if (ends[end] === undefined) continue;
        changes.shapes.push({ type: "line", xref: `x${suffix}`, yref: `y${suffix} domain`, x0: ends[end], x1: ends[end], y0: 0, y1: 1, line: { color: color("quiet"), width: 1, dash: "dot" } });
      }
      return { x: kept.map((at) => found.params[name][at]), y: kept.map((at) => found.scores[at]), xaxis: `x${suffix}`, yaxis: `y${suffix}`, mode: "markers",
        marker: { color: kept.map((at) => (at === found.best ? color("c1") : color("c0"))), size: kept.map((at) => (at === found.best ? 13 : 7)), symbol: kept.map((at) => (at === found.best ? "star" : "circle")), opacity: 0.85 },
        text: kept.map((at) => `trial ${at + 1}: ${short(found.scores[at])}<br>${plain(name)} ${short(found.params[name][at])}`), hovertemplate: HOVER };
    });
    return [traces, layout(changes)];
  },
  contour(table, chosen) {
    const found = table.search[chosen.method];
    const contour = found?.contour;
    if (!contour) return null;
    const [across, up] = contour.names;
    const kept = found.scores.map((_, at) => at).filter((at) => found.scores[at] !== null);
    return [[
      { type: "contour", x: contour.x, y: contour.y, z: contour.z, colorscale: "Cividis", contours: { coloring: "heatmap" }, line: { width: 0.5 }, hoverinfo: "skip", colorbar: { title: { text: "%" }, thickness: 12 } },
      { x: kept.map((at) => found.params[across][at]), y: kept.map((at) => found.params[up][at]), mode: "markers",
        marker: { color: color("ground"), size: kept.map((at) => (at === found.best ? 14 : 7)), symbol: kept.map((at) => (at === found.best ? "star" : "circle")), line: { color: color("text"), width: 1 } },
        text: kept.map((at) => `trial ${at + 1}: ${short(found.scores[at])}<br>${plain(across)} ${short(found.params[across][at])}<br>${plain(up)} ${short(found.params[up][at])}`), hovertemplate: HOVER },
    ], layout({ showlegend: false, xaxis: titled(plain(across), range(found.ranges[across])), yaxis: titled(plain(up), range(found.ranges[up])) })];
  },
  importance(table, chosen) {
    const found = table.search[chosen.method];
    const entries = Object.entries(found?.importance ?? {}).sort((a, b) => a[1] - b[1]);
    if (!entries.length) return null;
    const names = entries.map(([name]) => plain(name) + (found.on_bound[name] ? " (edge)" : ""));
    return [[{ type: "bar", orientation: "h", y: names, x: entries.map(([, share]) => 100 * share), width: 0.5, marker: { color: color("c0") },
      text: entries.map(([name, share]) => `${plain(name)}: ${short(100 * share)} %${found.on_bound[name] ? `, best value at the ${found.on_bound[name]} end of its range` : ""}`), textposition: "none", hovertemplate: HOVER }],
    layout({ xaxis: titled("share, %", { rangemode: "tozero" }), yaxis: { type: "category" } })];
  },
  times(table) {
    const entries = Object.entries(table.search).map(([method, found]) => [method, found.seconds.filter((s) => s !== null)]).filter(([, s]) => s.length);
    if (!entries.length) return null;
    return [entries.reverse().map(([method, seconds]) => ({ type: "box", orientation: "h", name: plain(method), x: seconds, boxpoints: "all", jitter: 0.5, pointpos: 0, marker: { size: 4, color: style(table.methods.indexOf(method)).color }, line: { width: 1 } })),
      layout({ showlegend: false, height: 120 + 26 * entries.length, xaxis: titled("seconds per trial", { rangemode: "tozero" }), yaxis: { type: "category" } })];
  },
  carry(table, chosen) {
    const { methods, validation, test } = table.carry;
    const y = test[chosen.embedding];
    return [methods.map((method, i) => {
      const { color: c, symbol } = style(table.methods.indexOf(method));
      return { name: plain(method), x: [validation[i]], y: [y[i]], mode: narrow() ? "markers" : "markers+text", textposition: "top center", textfont: { size: 11 }, marker: { size: 10, color: c, symbol },
        text: [plain(method)], hovertemplate: `%{text}<br>validation %{x}, test %{y}<extra></extra>` };
    }), layout({ showlegend: narrow(), xaxis: titled(`${table.validation}, %`), yaxis: titled("test MAP@R, %") })];
  },
  training(table, chosen) {
    const models = table.training[chosen.method] ?? [];
    if (!models.length) return null;
    const traces = [];
    const seen = new Set();
    models.forEach((model) => {
      const c = color(`c${model.fold % 8}`);
      const common = { legendgroup: `fold ${model.fold}`, line: { color: c, width: 1 }, opacity: 0.75, mode: "lines" };
      const label = (i, value) => `reproduction ${model.run}, fold ${model.fold + 1}<br>step ${model.steps[i]}: ${short(value)}`;
      const first = !seen.has(model.fold);
      seen.add(model.fold);
      if (model.score.length) {
        traces.push({ ...common, name: `fold ${model.fold + 1}`, showlegend: first, x: model.steps, y: model.score, text: model.score.map((v, i) => label(i, v)), hovertemplate: HOVER });
        const at = model.steps.indexOf(model.best);
        traces.push({ legendgroup: common.legendgroup, showlegend: false, x: [model.best], y: [model.score[at]], mode: "markers", marker: { color: c, size: 6 }, hoverinfo: "skip" });
      }
      traces.push({ ...common, name: `fold ${model.fold + 1}`, showlegend: first && !model.score.length, x: model.steps, y: model.loss, xaxis: "x2", yaxis: "y2", text: model.loss.map((v, i) => label(i, v)), hovertemplate: HOVER });
    });
    const events = {};
    for (const model of models) for (const [name, steps] of Object.entries(model.events)) (events[name] ??= []).push(...steps);
    Object.entries(events).forEach(([name, steps], i) => {
      const low = Math.min(...models.flatMap((model) => model.score.length ? model.score : model.loss));
      const at = [...new Set(steps)];
      traces.push({ name: plain(name), x: at, y: at.map(() => low), mode: "markers", marker: { symbol: "line-ns-open", size: 12, color: color(`c${7 - i}`), line: { width: 2 } },
        text: at.map((step) => `${plain(name)}<br>step ${step}`), hovertemplate: HOVER });
    });
    const stacked = narrow();
    return [traces, layout({ height: stacked ? 640 : 400, grid: { rows: stacked ? 2 : 1, columns: stacked ? 1 : 2, pattern: "independent", xgap: 0.14, ygap: 0.2 },
      xaxis: titled("step"), yaxis: titled(`${table.course}, %`), xaxis2: titled("step"), yaxis2: titled("training loss"), legend: { y: stacked ? -0.12 : 1 } })];
  },
  classes(table, chosen) {
    const { names, queries, scores } = table.classes;
    const [x, y] = [scores[chosen.across], scores[chosen.up]];
    if (!x || !y) return null;
    const kept = names.map((_, i) => i).filter((i) => x[i] !== null && y[i] !== null);
    const top = 100 * Math.max(...kept.flatMap((i) => [x[i], y[i]]));
    return [[
      { x: [0, top], y: [0, top], mode: "lines", line: { color: color("quiet"), dash: "dot", width: 1 }, hoverinfo: "skip", showlegend: false },
      { x: kept.map((i) => 100 * x[i]), y: kept.map((i) => 100 * y[i]), mode: "markers", showlegend: false,
        marker: { size: 8, opacity: 0.8, color: kept.map((i) => (y[i] >= x[i] ? color("c0") : color("c1"))), symbol: kept.map((i) => (y[i] >= x[i] ? "circle" : "diamond")) },
        text: kept.map((i) => `${plain(names[i])}<br>${plain(chosen.across)} ${short(100 * x[i])}, ${plain(chosen.up)} ${short(100 * y[i])}<br>${queries[i]} queries`), hovertemplate: HOVER },
    ], layout({ height: narrow() ? 340 : 480, xaxis: titled(`${plain(chosen.across)}, MAP@R %`), yaxis: titled(`${plain(chosen.up)}, MAP@R %`) })];
  },
  cost(table, chosen) {
    const { titles, points } = table.costs;
    const which = titles.indexOf(chosen.price);
    const front = points.filter((point) => point.front[which]).sort((a, b) => a.prices[which] - b.prices[which]);
    const traces = [{ x: front.map((p) => p.prices[which]), y: front.map((p) => p.score), mode: "lines", line: { color: color("quiet"), width: 1.5, shape: "hv" }, hoverinfo: "skip", name: "Pareto front" }];
    points.forEach((point) => {
      const { color: c, symbol } = style(table.methods.indexOf(point.method));
      traces.push({ name: plain(point.method), x: [point.prices[which]], y: [point.score], mode: narrow() ? "markers" : "markers+text", textposition: "top center", textfont: { size: 11 },
        marker: { size: point.front[which] ? 12 : 8, color: c, symbol, line: { width: point.front[which] ? 2 : 0, color: color("text") } }, text: [plain(point.method)], hovertemplate: `%{text}<br>%{x}: %{y}<extra></extra>` });
    });
    return [traces, layout({ showlegend: narrow(), xaxis: titled(chosen.price), yaxis: titled("test MAP@R, %") })];
  },
  published(table) {
    const papers = [...new Set(table.published.map((row) => row.paper))];
    const spread = (i, n) => (n > 1 ? 0.5 * (i / (n - 1) - 0.5) : 0);
    const traces = papers.map((paper, at) => {
      const rows = table.published.filter((row) => row.paper === paper);
      return { name: plain(paper), x: rows.map((row, i) => (row.year ?? 0) + spread(i, rows.length)), y: rows.map((row) => row.value), mode: "markers",
        error_y: { type: "data", array: rows.map((row) => row.ci95), thickness: 1 }, marker: { size: 8, color: color(`c${at % 8}`), symbol: SYMBOLS[at % 5] },
        text: rows.map((row) => `${plain(row.method)}, ${row.year ?? ""}<br>${row.value}`), hovertemplate: HOVER };
    });
    const years = table.published.map((row) => row.year ?? 0);
    const last = Math.max(...years) + 1;
    traces.push({ name: "this table", x: table.ours.map((_, i) => last + spread(i, table.ours.length)), y: table.ours.map((row) => row.value), mode: "markers", marker: { size: 9, color: color("c7"), symbol: "star" },
      text: table.ours.map((row) => `${plain(row.method)}, ours<br>${row.value}`), hovertemplate: HOVER });
    const ticks = [...new Set(years)].sort();
    return [traces, layout({ height: narrow() ? 480 : 420, legend: { orientation: "h", y: -0.18, x: 0 }, xaxis: { tickvals: [...ticks, last], ticktext: [...ticks.map(String), "ours"] }, yaxis: titled("MAP@R, %") })];
  },
  map(table, chosen) {
    const pictures = table.pictures;
    const places = pictures.maps[chosen.method]?.[chosen.by];
    if (!places) return null;
    const { classes, groups, names, group_names } = pictures.points;
    const by = chosen.color === "superclass" && groups ? groups : classes;
    const titles = by === groups ? group_names : names;
    const distinct = [...new Set(by)].sort((a, b) => a - b);
    const few = distinct.length <= 12;
    const traces = distinct.map((value, i) => {
      const kept = by.map((_, at) => at).filter((at) => by[at] === value);
      return { name: plain(titles[value]), x: kept.map((at) => places[0][at]), y: kept.map((at) => places[1][at]), mode: "markers", customdata: kept,
        marker: { size: 7, opacity: 0.85, color: color(`c${i % 8}`), symbol: SYMBOLS[i % 5] }, text: kept.map((at) => plain(names[classes[at]])), hovertemplate: HOVER };
    });
    const bare = { showticklabels: false, zeroline: false, showgrid: false, title: { text: "" } };
    return [traces, layout({ height: narrow() ? 400 : 600, showlegend: few, xaxis: bare, yaxis: { ...bare, scaleanchor: "x" } })];
  },
  similarities(table, chosen) {
    const found = table.pictures.similarities[chosen.method];
    if (!found) return null;
    const middle = found.edges.slice(1).map((end, i) => (end + found.edges[i]) / 2);
    const line = (name, key, c, dash) => ({ name, x: middle, y: found[key], mode: "lines", fill: "tozeroy", line: { color: color(c), shape: "hvh", dash, width: 2 }, hovertemplate: `${name}: %{y}<extra></extra>` });
    return [[line("between classes", "between", "c1", "dash"), line("within classes", "within", "c0", "solid")],
      layout({ xaxis: titled("cosine similarity of two test images"), yaxis: titled("density") })];
  },
};

// What can be chosen of a figure: key -> label and options.
function optionsOf(name, table) {
  const searched = Object.keys(table.search);
  const scored = Object.keys(table.classes.scores);
  switch (name) {
    case "slices": case "contour": case "importance": return { method: ["Method", searched] };
    case "carry": return { embedding: ["Embedding", Object.keys(table.carry.test)] };
    case "training": return { method: ["Method", Object.keys(table.training)] };
    case "classes": return { across: ["Across", scored, scored[1]], up: ["Up", scored, scored[0]] };
    case "cost": return { price: ["Price", table.costs.titles] };
    case "map": return { method: ["Method", Object.keys(table.pictures.maps)], by: ["By", Object.keys(Object.values(table.pictures.maps)[0] ?? {})], color: ["Colour", table.pictures.points.groups ? ["superclass", "class"] : ["class"]] };
    case "similarities": return { method: ["Method", Object.keys(table.pictures.similarities)] };
    default: return {};
  }
}

function select(label, options, chosen, changed) {
  const holder = element("label", label);
  const made = element("select");
  for (const option of options) made.append(element("option", option, { value: option }));
  made.value = chosen ?? options[0];
  made.addEventListener("change", () => changed(made.value));
  holder.append(made);
  return holder;
}

const drawn = new Map();
async function prepare(figure) {
  const table = (await data)[figure.dataset.table];
  const chosen = {};
  const options = optionsOf(figure.dataset.figure, table);
  for (const [key, [label, values, first]] of Object.entries(options)) {
    chosen[key] = first ?? values[0];
    if (values.length > 1) $(".controls", figure).append(select(label, values, chosen[key], (value) => { chosen[key] = value; draw(figure); }));
  }
  drawn.set(figure, { table, chosen });
  await draw(figure);
}
async function draw(figure) {
  const { table, chosen } = drawn.get(figure);
  const canvas = $(".canvas", figure);
  const made = FIGURES[figure.dataset.figure](table, chosen);
  const Plotly = await loadPlotly();
  canvas.classList.toggle("empty", !made);
  if (!made) {
    Plotly.purge(canvas);
    canvas.textContent = "The records of this method hold nothing to draw here.";
    figure.dataset.drawn = "empty";
    return;
  }
  if (canvas.firstChild?.nodeType === Node.TEXT_NODE) canvas.textContent = "";
  const config = { responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], toImageButtonOptions: { format: "svg" } };
  await Plotly.react(canvas, made[0], made[1], config);
  if (figure.dataset.figure === "map" && !figure.dataset.drawn) followMap(canvas, table.pictures);
  if (figure.dataset.figure === "classes") showGains(figure, table, chosen);
  figure.dataset.drawn = "yes";
}
function redraw() { for (const figure of drawn.keys()) draw(figure); }
let width = narrow();
addEventListener("resize", () => { if (narrow() !== width) { width = narrow(); redraw(); } });
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    near.unobserve(entry.target);
    prepare(entry.target);
  }
}, { rootMargin: "600px" });
$$(".plot").forEach((figure) => near.observe(figure));
// Nobody waits for what is drawn before printing: it must not have to be loaded first.
if ($(".plot")) (window.requestIdleCallback ?? setTimeout)(() => loadPlotly());
addEventListener("beforeprint", () => $$(".plot").forEach((figure) => { if (!drawn.has(figure)) { near.unobserve(figure); prepare(figure); } }));

// The image of a point of the map.
const hover = $("#hover");
function followMap(canvas, pictures) {
  const show = (event) => {
    const point = event.points[0];
    const at = point.customdata;
    $("img", hover).src = pictures.thumbs[pictures.points.thumbs[at]];
    $("span", hover).textContent = `${pictures.points.names[pictures.points.classes[at]]}: ${pictures.points.files[at]}`;
    hover.hidden = false;
    const [x, y] = [event.event.clientX, event.event.clientY];
    hover.style.left = `${Math.min(x + 16, innerWidth - hover.offsetWidth - 8)}px`;
    hover.style.top = `${Math.min(y + 16, innerHeight - hover.offsetHeight - 8)}px`;
  };
  canvas.on("plotly_hover", show);
  canvas.on("plotly_click", show);
  canvas.on("plotly_unhover", () => { hover.hidden = true; });
}

// The classes that gain and lose most.
const MOST = 8;
function showGains(figure, table, { across, up }) {
  const place = figure.parentNode.querySelector(".gains");
  const { names, scores } = table.classes;
  const found = names.map((name, i) => [name, scores[across][i], scores[up][i]]).filter(([, a, b]) => a !== null && b !== null)
    .map(([name, a, b]) => [name, 100 * a, 100 * b, 100 * (b - a)]).sort((a, b) => b[3] - a[3]);
  const listed = (title, rows) => {
    const made = element("table");
    made.append(element("caption", title));
    const head = made.createTHead().insertRow();
    for (const text of ["class", across, up, "difference"]) head.append(element("th", text, { scope: "col", class: text === "class" ? "" : "num" }));
    const body = made.createTBody();
    for (const [name, ...values] of rows) {
      const row = body.insertRow();
      row.append(element("th", name, { scope: "row" }));
      values.forEach((value, i) => row.append(element("td", `${i === 2 && value > 0 ? "+" : ""}${value.toFixed(2)}`, { class: "num" })));
    }
    const holder = element("div", undefined, { class: "scroll" });
    holder.append(made);
    return holder;
  };
  place.replaceChildren(
    listed(`Where ${up} gains most over ${across}`, found.filter((row) => row[3] > 0).slice(0, MOST)),
    listed(`Where ${up} loses most`, found.filter((row) => row[3] < 0).slice(-MOST).reverse()),
  );
}

// Galleries: thumbnails lie once in the page; two methods side by side.
data.then((tables) => {
  for (const block of $$("#pictures .block")) {
    const pictures = tables[block.dataset.table].pictures;
    if (!pictures) continue;
    for (const image of $$("img[data-thumb]", block)) image.src = pictures.thumbs[image.dataset.thumb];
    const methods = [...new Set($$(".answer", block).map((answer) => answer.dataset.method))];
    const chosenAs = [...new Set($$(".query", block).map((query) => query.dataset.chosenAs))];
    const chosen = { one: methods[0], other: methods[1] ?? methods[0], as: "all" };
    const apply = () => {
      for (const answer of $$(".answer", block)) answer.hidden = ![chosen.one, chosen.other].includes(answer.dataset.method);
      for (const query of $$(".query", block)) query.hidden = chosen.as !== "all" && query.dataset.chosenAs !== chosen.as;
    };
    const controls = $(".gallery-controls", block);
    for (const [key, label, options] of [["one", "Method", methods], ["other", "beside", methods], ["as", "Queries", ["all", ...chosenAs]]]) {
      controls.append(select(label, options, chosen[key], (value) => { chosen[key] = value; apply(); }));
    }
    apply();
  }
});
})();
