// The panel in the page: shows what the kernel put into the model, whenever that changes.

const CONFIG = { displayModeBar: false, responsive: true, typesetMath: false };
const EARLIER = { color: "#808080", width: 1 };
const AXES = { step: "step", samples: "samples", time: "seconds" };
const HOVERS = { step: "step %{x:,}", samples: "%{x:,} samples", time: "%{x:.1f} s" };
const GONE = "The kernel has ended or was restarted: this is what the panel last showed.";

// plotly.js comes with every panel, but is run once per page: a module is never unloaded, so
// each would stay in the page's memory.
const plotly = (source) => (globalThis.ddpMagicPlotly ??= load(source));

async function load(source) {
  const before = globalThis.Plotly; // the page's own, if it has one; plotly.js overwrites it
  const text = `const module = { exports: {} };\n${source}\nexport default module.exports;`;
  const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  try {
    return (await import(url)).default;
  } finally {
    URL.revokeObjectURL(url);
    globalThis.Plotly = before;
  }
}

const make = (tag, className, attributes = {}) =>
  Object.assign(document.createElement(tag), { className, ...attributes });

const numbers = (type, view) =>
  new type(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));

// A moving average over the points before each, exponentially weighted; gaps stay gaps.
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let norm = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

// The second at which a step was made, between those that are known.
function secondOf(step, pairs) {
  let low = 0;
  let high = pairs.length - 1;
  if (high < 1) return NaN;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (pairs[middle][1] < step) low = middle;
    else high = middle;
  }
  const [[t0, s0], [t1, s1]] = [pairs[low], pairs[high]];
  return s1 === s0 ? t1 : t0 + ((t1 - t0) * (step - s0)) / (s1 - s0);
}

async function render({ model, el }) {
  const view = build(model, el);
  const showHead = () => head(model, view);
  const showWhere = () => {
    view.where.textContent = model.get("_told");
    view.where.hidden = !model.get("_told");
  };
  let drawing = null;
  let again = false;
  const draw = async () => {
    try {
      for (again = true; again; ) {
        again = false; // what comes meanwhile is drawn in one go afterwards
        await curves(model, view);
      }
    } finally {
      drawing = null;
    }
  };
  const showCurves = () => {
    again = true;
    return (drawing ??= draw());
  };
  const showGone = () => gone(view);

  const watched = {
    "change:_head": showHead,
    "change:_traces": showCurves,
    "change:_told": showWhere,
    comm_live_update: showGone,
  };
  for (const [event, show] of Object.entries(watched)) model.on(event, show);
  for (const control of view.controls) control.addEventListener("input", showCurves);
  showHead();
  showWhere();
  await showCurves();
  return () => {
    for (const [event, show] of Object.entries(watched)) model.off(event, show);
    if (globalThis.ddpMagicPlotly) globalThis.ddpMagicPlotly.then((Plotly) => Plotly.purge(view.chart));
  };
}

// What is there from the beginning; it is never made anew, so that focus and hover stay.
function build(model, el) {
  const view = {};
  const root = el.appendChild(make("section", "ddp-panel", { ariaLabel: "Ranks of the running cell" }));
  const top = root.appendChild(make("div", "ddp-row"));
  const chips = top.appendChild(make("ul", "ddp-row ddp-chips", { ariaLabel: "What each rank does" }));
  if (model.get("_has_controls")) {
    const where = make("button", "", { textContent: "Where", type: "button", title: "Show where each rank is" });
    const stop = make("button", "", {
      textContent: "■ Stop",
      type: "button",
      title: "Stop this cell on all its ranks; once more kills what does not end",
    });
    const buttons = { where, stop };
    for (const [what, button] of Object.entries(buttons)) {
      button.addEventListener("click", () => {
        try {
          model.send(what);
        } catch {
          gone(view);
        }
      });
    }
    top.append(where, stop);
  }
  const told = root.appendChild(make("div", "ddp-told"));
  const line = root.appendChild(make("div", "ddp-row"));
  const progress = line.appendChild(make("progress", "ddp-progress", { hidden: true }));
  const facts = line.appendChild(make("span", "ddp-facts"));
  const where = root.appendChild(make("pre", "ddp-where", { hidden: true }));
  where.setAttribute("aria-live", "polite");
  const bar = root.appendChild(make("div", "ddp-row", { hidden: true }));
  const smooth = make("input", "", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
  const weight = make("output", "ddp-weight", { textContent: "0" });
  const log = make("input", "", { type: "checkbox" });
  const axis = make("select", "");
  for (const name of Object.keys(AXES)) axis.append(make("option", "", { value: name, textContent: name }));
  const compare = make("input", "", { type: "checkbox", checked: true });
  const labelled = (text, control) => {
    const label = bar.appendChild(make("label", ""));
    label.append(text, control);
    return label;
  };
  labelled("smooth", smooth).append(weight);
  labelled("by", axis);
  labelled("log", log);
  const compared = labelled("earlier runs", compare);
  const chart = root.appendChild(make("div", ""));
  const controls = [smooth, log, axis, compare];
  const parts = { root, chips, told, progress, facts, where, bar, smooth, weight, log, axis, compare, compared };
  return Object.assign(view, parts, { chart, controls });
}

// The page is no longer connected to the widget: what is seen is old, and nothing can be pressed.
function gone({ root, told }) {
  root.classList.add("ddp-gone");
  told.textContent = GONE;
  for (const button of root.querySelectorAll("button")) button.disabled = true;
}

function head(model, { chips, told, progress, facts }) {
  const shown = model.get("_head");
  const wanted = shown.chips ?? [];
  while (chips.children.length > wanted.length) chips.lastChild.remove();
  wanted.forEach(({ doing, text, title }, index) => {
    const chip = chips.children[index] ?? chips.appendChild(make("li", "ddp-chip"));
    if (chip.title === title && chip.textContent === text) return;
    Object.assign(chip, { textContent: text, title, ariaLabel: title });
    chip.dataset.doing = doing;
  });
  told.textContent = shown.told ?? "";
  facts.textContent = (shown.facts ?? []).join(" · ");
  progress.hidden = !shown.progress;
  if (shown.progress) {
    const [done, of] = shown.progress;
    Object.assign(progress, { value: done, max: of, title: `batch ${done} of ${of}` });
    progress.setAttribute("aria-label", `batch ${done} of ${of} of this pass over the data`);
  }
}

async function curves(model, view) {
  const traces = model.get("_traces");
  if (!traces.length) return;
  const Plotly = await plotly(model.get("_plotly_js"));
  model.set("_plotly_js", ""); // JupyterLab keeps closed models: not with five megabytes each
  const pairs = model.get("_steps_at");
  const batch = model.get("_head").batch;
  for (const option of view.axis.options) {
    option.disabled = (option.value === "samples" && !batch) || (option.value === "time" && pairs.length < 2);
  }
  const earlier = model.get("_earlier");
  view.bar.hidden = false;
  view.compared.hidden = !earlier.length;

  const axis = view.axis.value;
  const weight = Number(view.smooth.value);
  view.weight.textContent = view.smooth.value;
  view.compare.disabled = axis === "time"; // of earlier runs it is not kept
  const place = { step: (s) => s, samples: (s) => s * batch, time: (s) => secondOf(s, pairs) }[axis];
  const named = traces.length > 1 ? "%{fullData.name}, " : "";
  const trace = ({ steps, values, ...style }) => ({
    ...style,
    hovertemplate: `${named}${HOVERS[axis]}: %{y:.4g}<extra></extra>`,
    x: steps ? numbers(Float64Array, steps).map(place) : [null],
    y: values ? smoothed(numbers(Float32Array, values), weight) : [null],
  });
  const before = view.compare.checked && axis !== "time" ? earlier : [];
  const faint = (one) => ({ ...trace(one), line: EARLIER, opacity: 0.45, showlegend: false, hoverinfo: "skip" });
  const layout = structuredClone(model.get("_figure_layout")); // plotly.js writes into it
  layout.xaxis.title.text = AXES[axis];
  layout.xaxis.hoverformat = axis === "time" ? ".1f" : ",.0f";
  const drawn = traces.map(trace);
  if (view.log.checked) {
    const left = drawn.some(({ y }) => y.some((value) => value !== null && value <= 0)) ? "values ≤ 0 are not shown" : "";
    const title = [layout.yaxis.title.text, left].filter(Boolean).join(": ");
    Object.assign(layout.yaxis, { type: "log", tickformat: "", dtick: "D2", minorloglabels: "complete" });
    layout.yaxis.title.text = title;
  }
  layout.uirevision = `${axis} ${view.log.checked}`; // a zoom outlives the next update
  await Plotly.react(view.chart, [...before.map(faint), ...drawn], layout, CONFIG);
}

export default { render };
