// The live chart in the page: draws what the kernel put into the model, whenever that changes.

const CONFIG = { displayModeBar: false, responsive: true };

// plotly.js comes with every chart, but is run once per page: a module is never unloaded, so
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

const numbers = (type, view) =>
  new type(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));

const trace = ({ steps, values, ...style }) => ({
  ...style,
  x: numbers(Float64Array, steps),
  y: numbers(Float32Array, values),
});

async function render({ model, el }) {
  const Plotly = await plotly(model.get("_plotly_js"));
  model.set("_plotly_js", ""); // JupyterLab keeps closed models: not with five megabytes each
  const chart = el.appendChild(document.createElement("div"));
  const draw = () =>
    Plotly.react(
      chart,
      model.get("_traces").map(trace),
      structuredClone(model.get("_figure_layout")), // plotly.js writes into it
      CONFIG,
    );
  model.on("change:_traces", draw);
  await draw();
  return () => {
    model.off("change:_traces", draw);
    Plotly.purge(chart);
  };
}

export default { render };
