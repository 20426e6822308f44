"use strict";
/* Shows answers of resperf. Text from files is only ever set as text, never parsed as HTML. */

const DATA = JSON.parse(document.getElementById("data").textContent);
const MOST_ROWS = 500; // of a table: more make a page slow; JSON and CSV have all
const MOST_DEVICES = 4;
const $ = (id) => document.getElementById(id);
let limits = DATA.limits || {};

/* ---- elements, numbers ---- */

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== ""));
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const known = (value) => typeof value === "number" && Number.isFinite(value);
function number(value, digits = 4) {
  if (!known(value)) return "-";
  const shown = Number(value.toPrecision(digits));
  return Math.abs(shown) >= 1e6 || (shown && Math.abs(shown) < 1e-4) ? shown.toExponential() : String(shown);
}
const percent = (share) => (known(share) ? `${(100 * share).toFixed(1)}%` : "-");
function bytes(value) {
  if (!known(value)) return "-";
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(value, 1)) / 10)));
  return `${number(value / 1024 ** power, 3)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
const inUnit = (value, unit) => (unit === "bytes" ? bytes(value) : `${number(value)} ${unit}`);
const interval = (low, high) => (known(low) && known(high) ? `${number(low)} to ${number(high)}` : "not known");
const words = (text) => text.trim().split(/[\s,]+/).filter(Boolean);

/* ---- tables ---- */

/* columns: {title, of: row -> value, show: value, row -> text or node, text: bool, wrap: bool} */
function table(columns, rows, caption, sortBy = -1) {
  const shown = columns.filter((c) => rows.some((row) => !["", null, undefined].includes(c.of(row))));
  const body = el("tbody");
  const note = el("p", { class: "quiet" });
  const heads = shown.map((column) =>
    el("th", { class: column.text ? "text" : null, scope: "col" },
      el("button", { type: "button", onclick: () => sort(column) }, column.title)));
  let by = null;
  let down = false;
  function sort(column) {
    down = by === column ? !down : !column.text;
    by = column;
    heads.forEach((head, i) => {
      if (shown[i] === by) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const empty = (value) => value === null || value === undefined || Number.isNaN(value);
    const sorted = [...rows].sort((a, b) => {
      const [x, y] = [by.of(a), by.of(b)];
      if (empty(x) || empty(y)) return empty(x) - empty(y);
      const order = column.text ? String(x).localeCompare(String(y)) : x - y;
      return down ? -order : order;
    });
    draw(sorted);
  }
  function draw(sorted) {
    body.replaceChildren(...sorted.slice(0, MOST_ROWS).map((row) => el("tr", {}, shown.map((column) => {
      const value = column.of(row);
      const cell = column.show ? column.show(value, row) : known(value) ? number(value) : value ?? "-";
      const kind = [column.text && "text", column.wrap && "wrap"].filter(Boolean).join(" ");
      return el("td", { class: kind || null, title: column.text ? value : null }, cell);
    }))));
    note.textContent = rows.length > MOST_ROWS ? `${MOST_ROWS} of ${rows.length}; JSON and CSV have all` : "";
  }
  if (sortBy >= 0) sort(columns[sortBy]);
  else draw(rows);
  return el("div", {}, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), note);
}

/* A bar from 0 to a value, with its interval as a whisker. */
function bar(value, low, high, most, kind = "") {
  const x = (v) => (known(v) && most > 0 ? Math.min(120, (120 * v) / most) : 0);
  return svg("svg", { width: 124, height: 14, viewBox: "0 0 124 14", class: kind, "aria-hidden": true },
    svg("rect", { class: "fill", x: 0, y: 2, width: x(value), height: 10 }),
    known(low) && known(high)
      ? svg("path", { class: "whisker", d: `M${x(low)} 7H${x(high)}M${x(low)} 3v8M${x(high)} 3v8` }) : null);
}

/* ---- charts ---- */

function ticks(low, high) {
  const marks = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.floor(Math.log10(high)); power++) marks.push(10 ** power);
  return marks.filter((_, i) => i % Math.ceil(marks.length / 6) === 0);
}
const SI = (value) => {
  const power = Math.max(0, Math.min(5, Math.floor(Math.log10(value) / 3)));
  return value < 1 ? number(value, 2) : `${number(value / 1000 ** power, 3)}${["", "k", "M", "G", "T", "P"][power]}`;
};

function axes(width, height, [x0, x1], [y0, y1], xMarks, yMarks, titles) {
  const left = 58, bottom = 40, top = 12, right = 14;
  const X = (v) => left + ((width - left - right) * Math.log(v / x0)) / Math.log(x1 / x0);
  const Y = (v) => height - bottom - ((height - bottom - top) * Math.log(v / y0)) / Math.log(y1 / y0);
  const frame = [
    svg("path", { class: "axis", fill: "none", d: `M${left} ${top}V${height - bottom}H${width - right}` }),
    xMarks.map((v) => svg("text", { x: X(v), y: height - bottom + 16, "text-anchor": "middle" }, SI(v))),
    yMarks.map((v) => [svg("path", { class: "axis", d: `M${left} ${Y(v)}H${width - right}`, opacity: .5 }),
      svg("text", { x: left - 6, y: Y(v) + 4, "text-anchor": "end" }, SI(v))]),
    svg("text", { x: (width + left) / 2, y: height - 6, "text-anchor": "middle" }, titles[0]),
    svg("text", { x: 12, y: height / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${height / 2})` }, titles[1]),
  ];
  return { X, Y, frame };
}
const picture = (label, width, height, ...children) => el("div", { class: "plot" },
  svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, children));
const legend = (names) =>
  el("ul", { class: "legend" }, names.map((name, i) => el("li", { class: `k${i % 6}` }, el("i"), name)));

function roofline(answer) {
  const dots = answer.layers
    .filter((l) => l.macs > 0 && l.moved_bytes > 0 && l.execution_ms > 0)
    .map((l) => ({ ...l, x: (2 * l.macs) / l.moved_bytes, rate: (ms) => (2 * l.macs) / (ms / 1e3) }));
  if (!dots.length) return [];
  const device = limits[answer.device];
  const half = { amp: "fp16", "": "fp32" }[answer.precision] ?? answer.precision;
  const peaks = Object.entries(device ? device.peaks_flops_per_s : {}).filter(([name]) => ["fp32", half].includes(name));
  const top = Math.max(...dots.map((d) => d.rate(known(d.low_ms) ? d.low_ms : d.execution_ms)), ...peaks.map((p) => p[1]));
  const low = Math.min(...dots.map((d) => d.rate(known(d.high_ms) ? d.high_ms : d.execution_ms)));
  const xs = dots.map((d) => d.x);
  const [x0, x1] = [Math.min(...xs) / 2, Math.max(...xs, ...peaks.map((p) => p[1] / device.bandwidth_bytes_per_s)) * 2];
  const [y0, y1] = [low / 2, top * 2];
  const { X, Y, frame } = axes(640, 340, [x0, x1], [y0, y1], ticks(x0, x1), ticks(y0, y1),
    ["operations per byte moved", "operations per second"]);
  const roofs = peaks.map(([name, peak]) => {
    const knee = peak / device.bandwidth_bytes_per_s;
    const from = Math.max(x0, y0 / device.bandwidth_bytes_per_s);
    return [svg("path", { class: "roof", d: `M${X(from)} ${Y(from * device.bandwidth_bytes_per_s)}L${X(knee)} ${Y(peak)}H${X(x1)}` }),
      svg("text", { x: X(x1) - 4, y: Y(peak) - 5, "text-anchor": "end" }, `${name} ${SI(peak)}FLOP/s`)];
  });
  const kinds = [...new Set(dots.map((d) => d.kind))];
  const most = Math.max(...dots.map((d) => d.execution_ms));
  const marks = dots.map((d) => svg("g", { class: `k${kinds.indexOf(d.kind) % 6}` },
    known(d.low_ms) && known(d.high_ms) ? svg("path", { class: "whisker stroke",
      d: `M${X(d.x)} ${Y(d.rate(d.high_ms))}V${Y(d.rate(d.low_ms))}` }) : null,
    svg("circle", { class: "fill dot", cx: X(d.x), cy: Y(d.rate(d.execution_ms)), r: 3 + 7 * Math.sqrt(d.execution_ms / most) },
      svg("title", {}, `${d.name} (${d.kind}): ${number(d.execution_ms)} ms, 90% interval ${interval(d.low_ms, d.high_ms)}`))));
  return [el("h3", {}, "Roofline"),
    picture("Roofline: a dot for each layer", 640, 340, frame, roofs, marks), legend(kinds),
    el("p", { class: "quiet" }, "A dot is a layer, larger if it takes longer; its line is the 90% interval. " + (peaks.length
      ? "Roofs are the device's data sheet." : "This device's peak is not known: no roof is drawn.") +
      " Convolutions by Winograd or FFT need fewer operations and may lie above it.")];
}

function memory(answer) {
  const rows = Object.entries(answer.quantities).filter(([, q]) => q.unit === "bytes")
    .map(([name, q]) => ({ name: name.replace(/_bytes$/, "").replaceAll("_", " "), ...q }));
  const whole = limits[answer.device];
  if (!rows.length) return [];
  if (whole) rows.push({ name: `the device's memory`, value: whole.memory_bytes, method: "data sheet" });
  const most = Math.max(...rows.map((r) => (known(r.high) ? r.high : r.value)));
  return [el("h3", {}, "Memory at the peak"), table([
    { title: "what", of: (r) => r.name, text: true },
    { title: "size", of: (r) => r.value, show: bytes },
    { title: "", of: (r) => r.value, show: (_, r) => bar(r.value, r.low, r.high, most, r.method === "data sheet" ? "k5" : "") },
    { title: "90% interval", of: (r) => (r.method === "data sheet" ? "" : r.low ?? "not known"),
      show: (v, r) => (known(v) ? `${bytes(r.low)} to ${bytes(r.high)}` : v) },
    { title: "by", of: (r) => r.method, text: true },
  ], rows, "Memory at the peak")];
}

function scalingPart(scaling) {
  const series = scaling.series;
  const points = series.flatMap((s) => s.points.map((p) => ({ ...p, asked: s.batch })));
  const least = (p) => p.low_samples_per_s ?? p.samples_per_s;
  const most = (p) => p.high_samples_per_s ?? p.samples_per_s;
  const rates = points.flatMap((p) => [least(p), most(p)]);
  const counts = [...new Set(points.map((p) => p.devices))].sort((a, b) => a - b);
  const [x0, x1] = [counts[0] / 1.15, counts[counts.length - 1] * 1.15];
  const [y0, y1] = [Math.min(...rates) / 1.3, Math.max(...rates) * 1.3];
  const few = ticks(y0, y1).length > 1 ? ticks(y0, y1) : [Math.min(...rates), Math.max(...rates)];
  const { X, Y, frame } = axes(640, 320, [x0, x1], [y0, y1], counts, few, ["devices", "samples per second"]);
  const curves = series.map((one, i) => {
    const own = points.filter((p) => p.asked === one.batch);
    const up = own.map((p) => `${X(p.devices)} ${Y(most(p))}`);
    const down = own.map((p) => `${X(p.devices)} ${Y(least(p))}`).reverse();
    const legs = own.slice(1).map((p, j) => svg("path", { class: `curve stroke${p.extrapolated ? " far" : ""}`,
      d: `M${X(own[j].devices)} ${Y(own[j].samples_per_s)}L${X(p.devices)} ${Y(p.samples_per_s)}` }));
    return svg("g", { class: `k${i % 6}` },
      svg("path", { class: "band fill", d: `M${[...up, ...down].join("L")}Z` }), legs,
      own.map((p) => svg("path", { class: "whisker stroke", d: `M${X(p.devices)} ${Y(least(p))}V${Y(most(p))}` })),
      own.map((p) => svg("circle", { class: "fill", cx: X(p.devices), cy: Y(p.samples_per_s), r: p.devices === one.turning_point ? 6 : 3 })));
  });
  const remarks = [...scaling.notes, ...new Set(points.map((p) => p.extrapolated).filter(Boolean))];
  if (scaling.composed_of.length) remarks.unshift(`composed, not measured together: ${scaling.composed_of.join("; ")}`);
  for (const one of series) {
    if (known(one.turning_point)) remarks.unshift(`batch ${one.batch}: beyond ${one.turning_point} devices (large dot), ` +
      `one more adds less than ${percent(scaling.least_gain)} of the throughput of one`);
  }
  return [
    el("h3", {}, `Several devices: ${scaling.strong ? "they share each batch" : "each has a batch of its own"} (${scaling.method})`),
    picture("Throughput by number of devices, with its 90% band", 640, 320, frame, curves),
    legend(series.map((one) => `batch ${one.batch}`)),
    el("p", { class: "quiet" }, "Bands are 90% intervals; dashed lines are outside what was measured."),
    list(remarks, "remarks"),
    table([
      { title: "batch per device", of: (p) => p.batch },
      { title: "devices", of: (p) => p.devices },
      { title: `${scaling.quantity.replace(/_ms$/, "").replaceAll("_", " ")} ms`, of: (p) => p.time_ms },
      { title: "90% interval", of: (p) => p.low_ms ?? "not known", show: (_, p) => interval(p.low_ms, p.high_ms) },
      { title: "samples/s", of: (p) => p.samples_per_s },
      { title: "90% interval", of: (p) => p.low_samples_per_s ?? "not known", show: (_, p) => interval(p.low_samples_per_s, p.high_samples_per_s) },
      ...["epoch", "training"].map((what) => ({ title: `${what} s`, of: (p) => p[`${what}_s`],
        show: (v, p) => `${number(v)} (${interval(p[`low_${what}_s`], p[`high_${what}_s`])})` })),
      { title: "remark", of: (p) => (p.extrapolated ? "extrapolated" : ""), text: true },
    ], points, "Several devices"),
  ];
}

/* ---- one network ---- */

const list = (lines, kind) => (lines.length ? el("ul", { class: kind }, lines.map((line) => el("li", {}, line))) : null);

/* The time that was asked for: of a run, or of a training step. */
function asked(answer) {
  const step = answer.quantities && answer.quantities.step_ms;
  const whole = { value: answer.total_ms, low: answer.low_ms, high: answer.high_ms };
  return !known(answer.total_ms) && step ? (known(step.value) ? step : { ...whole, value: step }) : whole;
}

function originsOf(answer) {
  const named = { measured: "measured on this device", inferred: `inferred from ${answer.inferred_from || "other devices"}`,
    estimated: "estimated from data sheets", host: "waiting for the host", given: "given by you" };
  const parts = Object.entries(named).map(([name, title], i) => ({ title, share: answer.origins[name], i })).filter((p) => p.share > 0.0005);
  if (!parts.length) return [el("p", {}, `Rests on ${answer.rests_on}.`)];
  let at = 0;
  const rects = parts.map((part) => {
    const x = at;
    at += 600 * part.share;
    return svg("rect", { class: `k${part.i} fill`, x, y: 0, width: Math.max(1, 600 * part.share), height: 14 });
  });
  return [svg("svg", { viewBox: "0 0 600 14", width: 600, height: 14, preserveAspectRatio: "none", "aria-hidden": true }, rects),
    el("ul", { class: "legend" }, parts.map((p) => el("li", { class: `k${p.i}` }, el("i"), `${percent(p.share)} ${p.title}`)))];
}

function layersOf(answer, predicted) {
  const rows = answer.layers.map((layer, index) => ({ ...layer, index: index + 1 }));
  if (rows.length) {
    const most = Math.max(...rows.map((l) => Math.max(l.execution_ms ?? 0, l.high_ms ?? 0)));
    const source = (l) => (l.given ? "given by you" : l.estimated ? "estimated" : l.inferred ? "inferred" : "measured") +
      (l.in_range ? "" : `, out of range${l.reason ? `: ${l.reason}` : ""}`);
    return [el("h3", {}, `Layers (${rows.length})`), table([
      { title: "#", of: (l) => l.index, show: String },
      { title: "layer", of: (l) => l.name, text: true },
      { title: "kind", of: (l) => l.kind, text: true },
      { title: "ms", of: (l) => l.execution_ms },
      { title: "", of: () => 1, show: (_, l) => bar(l.execution_ms, l.low_ms, l.high_ms, most) },
      { title: "90% interval", of: (l) => (predicted ? l.low_ms ?? "not known" : ""), show: (_, l) => interval(l.low_ms, l.high_ms) },
      { title: "of total", of: (l) => l.execution_ms / answer.total_ms, show: percent },
      { title: "GMAC", of: (l) => l.macs / 1e9, show: (v) => v.toFixed(3) },
      { title: "rests on", of: predicted ? source : () => "", text: true, wrap: true },
    ], rows, "Layers", 3)];
  }
  const named = answer.groups && answer.groups.length
    ? [["Groups of operators", answer.groups], ["Classes of operators", answer.classes]]
    : [["Where the time goes", (answer.kinds || []).map((k) => ({ ...k, name: k.kind }))]];
  return named.filter(([, parts]) => parts.length).flatMap(([title, parts]) => {
    const most = Math.max(...parts.map((p) => p.high ?? p.ms));
    return [el("h3", {}, title), answer.groups && answer.groups.length
      ? el("p", { class: "quiet" }, "Attributed from times of whole networks, not measured layer by layer; bands of equally good fits.") : null,
      table([
        { title: "operators", of: (p) => p.name, text: true, wrap: true },
        { title: "ms", of: (p) => p.ms },
        { title: "", of: () => 1, show: (_, p) => bar(p.ms, p.low, p.high, most) },
        { title: "band", of: (p) => p.low ?? "not known", show: (_, p) => interval(p.low, p.high) },
      ], parts, title, 1)];
  });
}

function network(answer) {
  const predicted = answer.summary !== undefined && answer.origins !== undefined;
  const time = asked(answer);
  const runs = answer.percentiles_ms ? Object.entries(answer.percentiles_ms).map(([name, ms]) => `${name} ${number(ms)}`).join(", ") : "";
  const doubt = predicted
    ? known(time.low) ? `90% interval ${number(time.low)} to ${number(time.high)} ms${answer.complete ? "" : ", of what is predicted"}`
      : "no interval is known: take it as a rough figure"
    : `measured${runs ? `; whole runs: ${runs} ms` : ""}`;
  const warnings = [];
  if (answer.too_large) warnings.push(`TOO LARGE: ${answer.too_large}`);
  if (predicted && !answer.complete) {
    warnings.push(`INCOMPLETE: the total lacks ${answer.skipped.length} operators or copies; it covers ` +
      `${percent(answer.coverage.macs)} of the multiply-adds, ${percent(answer.coverage.moved_bytes)} of the bytes`);
  }
  if (answer.extrapolated) warnings.push(`extrapolated: ${answer.extrapolated}`);
  const remarks = [...(answer.warnings || []), ...(answer.advice ? [answer.advice] : []), ...(answer.notes || []),
    ...(answer.assumed || []).map((line) => `assumed: ${line}`)];
  const phases = Object.entries(answer.phases || {}).filter(([, ms]) => known(ms)).map(([name, ms]) => ({
    name: name.replace(/_ms$/, ""), ms }));
  for (const [name, key] of [["of this per-run overhead", "call_ms"], ["of this reshapes", "reshapes_ms"],
    ["of this overhead between layers", "overhead_ms"], ["of this waiting for the host", "waiting_ms"]]) {
    if (answer[key] > 0) phases.push({ name, ms: answer[key] });
  }
  return [
    el("p", { class: "total" }, known(time.value) ? `${number(time.value)} ms` : "time not known"),
    el("p", { class: "interval" }, doubt, known(answer.samples_per_s) ? `; ${number(answer.samples_per_s)} samples/s` : ""),
    ...(predicted ? originsOf(answer) : []),
    list(warnings, "remarks bad"), list(remarks, "remarks quiet"),
    phases.length ? table([
      { title: "phase", of: (p) => p.name, text: true },
      { title: "ms", of: (p) => p.ms },
      { title: "", of: (p) => ((answer.estimated_phases || []).includes(p.name) ? "estimated" : ""), text: true },
    ], phases, "Phases") : null,
    predicted && phases.length ? el("p", { class: "quiet" }, "Intervals of single phases are not known.") : null,
    ...layersOf(answer, predicted),
    ...((answer.skipped || []).length ? [el("h3", {}, "Not in the total"), table([
      { title: "operator", of: (s) => s.op, text: true }, { title: "name", of: (s) => s.name, text: true },
      { title: "reason", of: (s) => s.reason, text: true, wrap: true }], answer.skipped, "Not in the total")] : []),
    ...roofline(answer),
    ...(predicted ? memory(answer) : []),
  ];
}

const titleOf = (answer) => [answer.network, answer.batch ? `batch ${answer.batch}` : "", answer.precision, answer.compiled,
  answer.quantities && answer.quantities.step_ms !== undefined ? "training step" : "",
  `on ${answer.device} with ${answer.framework}`].filter(Boolean).join(", ");

/* Answers, the first of them open; of several, first a comparison. */
function networks(answers) {
  const most = Math.max(...answers.map((a) => asked(a).high ?? asked(a).value ?? 0));
  const compared = answers.length > 1 ? [table([
    { title: "network", of: (a) => a.network, text: true }, { title: "device", of: (a) => a.device, text: true },
    { title: "batch", of: (a) => a.batch, show: (v) => String(v ?? "-") },
    { title: "ms", of: (a) => asked(a).value },
    { title: "", of: () => 1, show: (_, a) => bar(asked(a).value, asked(a).low, asked(a).high, most) },
    { title: "90% interval", of: (a) => (a.origins ? asked(a).low ?? "not known" : "measured"),
      show: (v, a) => (a.origins ? interval(asked(a).low, asked(a).high) : v) },
    { title: "samples/s", of: (a) => a.samples_per_s ?? (1e3 * a.batch) / asked(a).value },
    { title: "rests on", of: (a) => a.rests_on || "", text: true },
    { title: "", of: (a) => (a.complete === false ? "INCOMPLETE" : a.too_large ? "TOO LARGE" : ""), text: true },
  ], answers, "Comparison")] : [];
  return [...compared, ...answers.map((answer, i) =>
    el("details", { class: "answer", open: i === 0 }, el("summary", {}, el("h2", {}, titleOf(answer))), network(answer)))];
}

function similar(answer) {
  const run = (r) => `${r.device} ${r.framework} ${r.precision} batch ${r.batch}: ` + Object.entries(r)
    .filter(([name]) => name.endsWith("_ms")).map(([name, ms]) => `${name.slice(0, -3)} ${number(ms)} ms`).join(", ");
  return el("details", { class: "answer", open: true }, el("summary", {}, el("h2", {}, "Similar known networks")),
    el("p", { class: "quiet" }, "Alike in operators, their order and the shapes of weights, by the cosine of GHN-2's vectors; " +
      "image sizes may differ. Times were measured; how noisy they are is not known."),
    list(answer.notes, "remarks quiet"), table([
      { title: "network", of: (s) => s.network, text: true },
      { title: "cosine", of: (s) => s.cosine, show: (v) => v.toFixed(3) },
      { title: "measured", of: (s) => s.runs.map(run).join("; ") || "not measured", text: true, wrap: true },
    ], answer.similar, "Similar known networks", 1));
}

/* ---- other commands ---- */

function columnsOf(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return names.filter((name) => rows.some((row) => row[name] !== null && typeof row[name] !== "object")).map((name) => ({
    title: name.replaceAll("_", " "), of: (row) => row[name] ?? "",
    text: rows.some((row) => typeof row[name] === "string"),
  }));
}

function compare(answers) {
  const kinds = [...new Set(answers.flatMap((a) => a.kinds.map((k) => k.kind)))];
  const rows = kinds.map((kind) => ({ kind, ms: answers.map((a) => a.kinds.filter((k) => k.kind === kind).reduce((sum, k) => sum + k.ms, 0)) }));
  const most = Math.max(...rows.flatMap((r) => r.ms));
  const names = answers.map((_, i) => String.fromCharCode(65 + i));
  return [el("h2", {}, "Side by side"), list(answers.map((a, i) => `${names[i]}: ${a.summary}`), "remarks"),
    table([{ title: "kind", of: (r) => r.kind, text: true },
      ...names.flatMap((name, i) => [{ title: `${name} ms`, of: (r) => r.ms[i] },
        { title: "", of: () => 1, show: (_, r) => bar(r.ms[i], null, null, most, `k${i % 6}`) }]),
      ...(answers.length === 2 ? [{ title: "B - A", of: (r) => r.ms[1] - r.ms[0] }] : [])], rows, "Side by side", 1)];
}

function evaluation(rows) {
  const runs = rows.flatMap((row) => (row.networks || []).map((run) => ({ ...run, quantity: row.phase })));
  const scatter = [...new Set(runs.map((run) => run.quantity))].flatMap((quantity) => {
    const own = runs.filter((run) => run.quantity === quantity);
    const dots = own.filter((run) => run.measured > 0 && run.predicted > 0);
    if (!dots.length) return [];
    const ends = dots.flatMap((d) => [d.measured, d.predicted, d.low, d.high]).filter((v) => known(v) && v > 0);
    const range = [Math.min(...ends) / 1.3, Math.max(...ends) * 1.3];
    const { X, Y, frame } = axes(480, 420, range, range, ticks(...range), ticks(...range), ["measured", "predicted"]);
    const title = `Whole networks: ${quantity}`;
    return [el("h3", {}, title), picture(`${title}, predicted against measured`, 480, 420, frame,
      svg("path", { class: "roof", d: `M${X(range[0])} ${Y(range[0])}L${X(range[1])} ${Y(range[1])}` }),
      dots.map((d) => svg("g", {}, known(d.low) && known(d.high) ? svg("path", { class: "whisker", d: `M${X(d.measured)} ${Y(d.low)}V${Y(d.high)}` }) : null,
        svg("circle", { class: "fill dot", cx: X(d.measured), cy: Y(d.predicted), r: 4 }, svg("title", {}, d.network))))),
    table(columnsOf(own), own, title)];
  });
  const flat = rows.map((row) => Object.fromEntries(Object.entries(row).flatMap(([name, value]) =>
    name === "errors" ? Object.entries(value) : [[name, value]])));
  return [el("h2", {}, "Evaluation"), el("p", { class: "quiet" }, "Errors are fractions: 0.05 is 5%. Noise floor: what a perfect predictor would score."),
    table(columnsOf(flat), flat, "Evaluation"), scatter];
}

function dataset(info) {
  const day = (seconds) => new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ");
  const { edges, ...rows_of } = info.progress;
  const progress = rows_of.ok.map((_, i) => ({ from: day(edges[i]), ok: rows_of.ok[i], noisy: rows_of.noisy[i], failed: rows_of.failed[i] }));
  const groups = Object.entries({ ...info.kinds, ...(info.networks ? { networks: info.networks } : {}) });
  const rows = groups.flatMap(([kind, group]) => Object.entries(group.quantities).map(([quantity, q]) => ({
    kind, quantity, rows: group.rows, ok: group.statuses.ok ?? 0, flagged: group.flagged, ...q, noise: q.noise })));
  const most = Math.max(...progress.map((p) => p.ok + p.noisy + p.failed), 1);
  const width = 640, step = (width - 60) / Math.max(progress.length, 1);
  const bars = progress.flatMap((p, i) => {
    let base = 180;
    return [["ok", 0], ["noisy", 1], ["failed", 4]].map(([name, kind]) => {
      const tall = (160 * p[name]) / most;
      base -= tall;
      return svg("rect", { class: `k${kind} fill`, x: 50 + i * step, y: base, width: Math.max(1, step - 1), height: tall },
        svg("title", {}, `${p.from}: ${p[name]} ${name}`));
    });
  });
  return [el("h2", {}, info.path), el("h3", {}, "Progress: rows by time"),
    picture("Rows measured by time", width, 210, svg("path", { class: "axis", fill: "none", d: "M50 20V180H630" }), bars,
      svg("text", { x: 44, y: 26, "text-anchor": "end" }, String(most)),
      info.rows ? [svg("text", { x: 50, y: 198 }, progress[0].from),
        svg("text", { x: 630, y: 198, "text-anchor": "end" }, day(edges[progress.length]))] : []),
    el("ul", { class: "legend" }, [["measured", 0], ["measured, noisy", 1], ["failed", 4]].map(([name, k]) => el("li", { class: `k${k}` }, el("i"), name))),
    el("h3", {}, "Rows, times and noise"), el("p", { class: "quiet" }, "Noise floor: what a perfect predictor would score, from layers measured twice."),
    table([{ title: "kind", of: (r) => r.kind, text: true }, { title: "quantity", of: (r) => r.quantity, text: true },
      { title: "rows", of: (r) => r.rows, show: String }, { title: "ok", of: (r) => r.ok, show: String },
      { title: "flagged", of: (r) => r.flagged, show: String },
      { title: "min", of: (r) => r.min }, { title: "median", of: (r) => r.median }, { title: "max", of: (r) => r.max },
      { title: "pairs", of: (r) => r.noise.pairs, show: String },
      { title: "noise floor", of: (r) => r.noise.mape, show: (v) => (known(v) ? percent(v) : "not known") }], rows, "Rows, times and noise")];
}

/* ---- what to take away ---- */

function csv(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : Array.isArray(value) ? value.join(" ") : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  return el("a", { href: url, download: name }, name.split(".").pop().toUpperCase());
}
function take(answer, command) {
  const answers = Array.isArray(answer) ? answer : [answer];
  const rows = answers.flatMap((a) => (a.series ? a.series.flatMap((s) => s.points)
    : a.layers && a.layers.length ? a.layers.map((l) => ({ network: a.network, device: a.device, batch: a.batch, ...l }))
      : (a.kinds && Array.isArray(a.kinds) ? a.kinds : [a]).map((k) => ({ network: a.network, device: a.device, batch: a.batch, ...k }))));
  const code = el("code", {}, command);
  const copy = el("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(command); copy.textContent = "Copied"; } catch { getSelection().selectAllChildren(code); }
  } }, "Copy");
  return el("p", { class: "take" }, ...(command ? [code, copy] : []),
    download("resperf.json", "application/json", JSON.stringify(answer, null, 2)), download("resperf.csv", "text/csv", csv(rows)));
}

const scalingSection = (answer) => [el("h2", {}, `${answer.network} on ${answer.device}, ${answer.framework}`), ...scalingPart(answer)];
/* Command -> what shows its answer. */
const SHOW = {
  predict: (answer) => (Array.isArray(answer) ? networks(answer) : scalingSection(answer)),
  measure: networks, compare, evaluate: evaluation, info: dataset,
};

/* ---- the form ---- */

const token = decodeURIComponent(location.hash.slice(1));
async function ask(path, parameters, body) {
  const query = new URLSearchParams(parameters.filter(([, value]) => value !== ""));
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let response;
  try {
    response = await fetch(`${path}?${query}`, { method: path === "v1/devices" ? "GET" : "POST", body, headers });
  } catch {
    throw new Error("the service does not answer; start it again: resperf serve");
  }
  const answer = await response.json().catch(() => ({ error: `status ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/* A word of a command line as a shell reads it. */
const quoted = (word) => (/^[\w.,=/:+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
const OPTIONS = { training: "train" };
function commandOf(network, parameters) {
  const parts = ["resperf", "predict", network];
  for (const [name, value] of parameters) {
    if (value === "" || name === "network" || name === "name") continue;
    parts.push(`--${OPTIONS[name] ?? name}`);
    if (value !== "true") parts.push(value);
  }
  return parts.map(quoted).join(" ");
}

let dropped = null;
async function predict() {
  const file = dropped, shipped = $("network").value;
  if (!file && !shipped) throw new Error("drop an ONNX file, or choose a shipped network");
  const label = file ? file.name : shipped;
  const which = file ? [["name", label.replace(/\.onnx$/i, "")]] : [["network", shipped]];
  const field = (name) => [name, $(name).value.trim()];
  const flag = (name) => [name, $(name).checked ? "true" : ""];
  const shapes = $("shape").value.trim().split(/\s+/).filter(Boolean).map((pair) => ["shape", pair]);
  const how = [field("precision"), field("framework"), ...words($("batch").value).map((n) => ["batch", n]), ...shapes,
    flag("training"), flag("compiled")];
  const chosen = [...new Set([...document.querySelectorAll("#devices select")].map((s) => s.value))];
  const answers = [], commands = [], failures = [], parts = [];
  for (const device of chosen) {
    const question = [["device", device], ...how];
    try {
      answers.push(...await ask("v1/predictions", [...which, ...question, field("method")], file));
      commands.push(commandOf(label, [...question, field("method")]));
    } catch (error) { failures.push(`${device}: ${error.message}`); }
    const counts = words($("counts").value);
    if (!counts.length) continue;
    const batches = words($("batch").value).length ? [] : [["batch", "1"]];
    const asking = (method) => [...question, ...batches, ["method", method], field("cluster"), field("images"), field("epochs"),
      ...counts.map((n) => ["devices", n])];
    const method = $("method").value.trim();
    try {
      // Runs on several devices need a method that predicts whole networks.
      let words = asking(method);
      const scaled = await ask("v1/scaling", [...which, ...words], file).catch((error) => {
        if (method || $("training").checked) throw error;
        words = asking("convmeter");
        return ask("v1/scaling", [...which, ...words], file);
      });
      parts.push(el("section", { class: "answer" }, scalingSection(scaled), take(scaled, commandOf(label, words))));
    } catch (error) { failures.push(`several ${device}: ${error.message}`); }
  }
  try {
    parts.push(similar(await ask("v1/similar", [...which, ...shapes], file)));
  } catch (error) { failures.push(`similar networks: ${error.message}`); }
  show(answers.length ? [...networks(answers), take(answers, commands.join("; ")), ...parts] : parts, failures);
}

function show(parts, failures = []) {
  $("answers").replaceChildren(...failures.map((line) => el("p", { class: "error", role: "alert" }, line)), ...fill(el("div"), {}, parts).childNodes);
}

function addDevice(names, value) {
  const select = el("select", { "aria-label": "Device" }, names.map((name) => el("option", { value: name }, name)));
  select.value = value;
  $("more").before(select);
  $("more").hidden = document.querySelectorAll("#devices select").length >= MOST_DEVICES;
  return select;
}

async function form() {
  $("form").hidden = false;
  $("network").append(...DATA.networks.map((name) => el("option", { value: name }, name)));
  $("precision").append(...DATA.precisions.map((name) => el("option", { value: name }, name)));
  $("cluster").append(...DATA.clusters.map((name) => el("option", { value: name }, name)));
  const choose = (file) => {
    dropped = file || null;
    $("network").value = "";
    $("status").textContent = file ? `${file.name}: ${bytes(file.size)}` : "";
  };
  $("file").addEventListener("change", () => choose($("file").files[0]));
  $("network").addEventListener("change", () => { if ($("network").value) { dropped = null; $("file").value = ""; } });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      $("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) choose(event.dataTransfer.files[0]);
    });
  }
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    $("go").disabled = true;
    $("status").textContent = "predicting ...";
    try { await predict(); $("status").textContent = "done"; } catch (error) { show([], [error.message]); $("status").textContent = ""; }
    $("go").disabled = false;
  });
  try {
    const rows = await ask("v1/devices", []);
    limits = Object.fromEntries(rows.filter((row) => row.limits).map((row) => [row.device, row.limits]));
    const names = [...new Set(rows.filter((row) => !row.damaged).map((row) => row.device))];
    addDevice(names, names.includes("cpu") ? "cpu" : names[0]);
    $("more").addEventListener("click", () => addDevice(names, names.find((n) => ![...document.querySelectorAll("#devices select")].some((s) => s.value === n))).focus());
    $("form").dataset.ready = "true";
  } catch (error) { show([], [error.message]); }
}

if (DATA && DATA.kind === "form") form();
else if (DATA) show([...SHOW[DATA.kind](DATA.answer), take(DATA.answer, DATA.command)], DATA.failures);
