// The heads of all layers: their numbers, unpacked when wanted, and the overview of small pictures to choose one from.

/** What the attention section reads: pictures and strongest keys of a layer, unpacked once. */
function attentionStore(data) {
  const maps = new Map();
  const tops = new Map();
  const kept = (cache, layer, make) => {
    if (!cache.has(layer)) cache.set(layer, make());
    return cache.get(layer);
  };
  return {
    /** Uint8Array of Hq × G × G: 255 × the root of the weight. */
    map: (layer) => kept(maps, layer, () => inflate(data.maps[layer])),
    /** {index: Uint16Array, weight: Uint8Array (255 × the root)}, each Hq × T × k, strongest first. */
    top: (layer) => kept(tops, layer, async () => {
      const bytes = await inflate(data.top.layers[layer]);
      const count = bytes.length / 3;
      return { index: new Uint16Array(bytes.buffer.slice(0, 2 * count)), weight: bytes.subarray(2 * count) };
    }),
  };
}

const MEASURES = {
  picture: ["small pictures", null],
  entropy: ["entropy (bits)", (one, most) => one.entropy / (most || 1)],
  first_token: ["weight on the first token", (one) => one.first_token],
  previous_token: ["weight on the token before", (one) => one.previous_token],
  distance: ["mean distance (tokens)", (one, most) => one.distance / (most || 1)],
};

/** The overview: rows are layers, boxes are groups that share keys and values. Gives {element, redraw(), mark(layer, head)}. */
function headOverview(data, store, pick) {
  const { num_layers: layers, num_heads: heads, num_kv_heads: groups } = data;
  const size = heads / groups;
  const cells = [];
  const canvases = []; // one for each group of each layer: hundreds of small ones would be slow
  const measure = choices("Show", Object.entries(MEASURES).map(([value, [text]]) => [value, text]), "picture", () => redraw());
  const top = h("div", { class: "head-row names", "aria-hidden": "true" }, h("span", { class: "layer-name", text: "" }),
    [...Array(groups).keys()].map((group) => h("span", { class: "kv", style: { "--heads": size } },
      h("b", { text: `KV ${group}` }), size > 1 ? h("small", { text: `${group * size}–${group * size + size - 1}` }) : null)));
  const grid = h("div", { class: "head-grid", role: "grid", "aria-label": "Heads: rows are layers, columns are heads" },
    [...Array(layers).keys()].map((layer) => row(layer)));
  const legend = h("div");
  const element = h("div", { class: "overview", style: { "--count": heads, "--groups": groups } }, measure.element, legend, scroller("All heads", [top, grid], "heads"));

  function row(layer) {
    cells[layer] = [];
    canvases[layer] = [...Array(groups).keys()].map(() => h("canvas", { width: size * data.grid, height: data.grid, "aria-hidden": "true" }));
    const boxes = canvases[layer].map((canvas, group) => h("span", { class: "kv", role: "presentation", style: { "--heads": size } },
      canvas, [...Array(size).keys()].map((one) => cell(layer, group * size + one, group))));
    return h("div", { class: "head-row", role: "row" }, h("span", { class: "layer-name", role: "rowheader", text: layer }), boxes);
  }

  function cell(layer, head, group) {
    const about = data.summary?.[layer]?.[head];
    const numbers = about ? `, entropy ${number(about.entropy)} bits, first token ${percent(about.first_token)}, token before ${percent(about.previous_token)}` : "";
    const element = h("button", {
      type: "button", class: "head", role: "gridcell", tabindex: "-1", "data-layer": layer, "data-head": head, "aria-selected": "false",
      "aria-label": `layer ${layer}, head ${head}, KV head ${group}${numbers}`,
    });
    cells[layer][head] = element;
    return element;
  }

  async function redraw() {
    const [name, level] = MEASURES[measure.value()];
    const key = measure.value();
    const table = pixels();
    const most = level ? Math.max(...data.summary.flat().map((one) => one[key])) : 1;
    legend.replaceChildren(rampLegend("0", legendOf(key, name, most)));
    for (let layer = 0; layer < layers; layer += 1) {
      const levels = level ? null : await store.map(layer);
      if (measure.value() !== key) return; // another measure was chosen meanwhile
      canvases[layer].forEach((canvas, group) => {
        canvas.hidden = Boolean(level);
        if (!level) paintLevels(canvas, levels.subarray(group * size * data.grid ** 2), data.grid, table);
      });
      cells[layer].forEach((element, head) => fill(element, key, level, data.summary?.[layer]?.[head], most));
    }
  }

  /** A head's number in its cell, on the colour of its level; nothing where the picture shows it. */
  function fill(element, key, level, about, most) {
    element.replaceChildren();
    element.style.cssText = "";
    if (!level) return;
    const colour = ramp(level(about, most));
    const digits = key === "entropy" ? about[key].toFixed(1) : key === "distance" ? about[key].toFixed(0) : String(Math.round(about[key] * 100));
    element.style.cssText = `background:${css(colour)};color:${inkOn(colour)}`;
    element.append(h("small", { "aria-hidden": "true", text: digits }));
  }

  function legendOf(key, name, most) {
    if (key === "picture") return "1: weight, drawn as its root";
    return key === "entropy" || key === "distance" ? `${number(most)}: ${name}` : `100 %: ${name}, in percent`;
  }

  function mark(layer, head) {
    const before = grid.querySelector("[aria-selected=true]");
    before?.setAttribute("aria-selected", "false");
    before?.setAttribute("tabindex", "-1");
    cells[layer][head].setAttribute("aria-selected", "true");
    cells[layer][head].setAttribute("tabindex", "0");
  }

  grid.addEventListener("click", (event) => {
    const found = event.target.closest(".head");
    if (found) pick(Number(found.dataset.layer), Number(found.dataset.head));
  });
  grid.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const found = event.target.closest(".head");
    if (!found || !steps[event.key]) return;
    event.preventDefault();
    const layer = Math.min(layers - 1, Math.max(0, Number(found.dataset.layer) + steps[event.key][0]));
    const head = Math.min(heads - 1, Math.max(0, Number(found.dataset.head) + steps[event.key][1]));
    pick(layer, head);
    cells[layer][head].focus();
  });
  return { element, redraw, mark };
}

/** Draw heads side by side, from levels of 0 … 255; what lies above their diagonals does not exist and stays empty. */
function paintLevels(canvas, levels, grid, table) {
  const image = new ImageData(canvas.width, grid);
  const points = new Uint32Array(image.data.buffer);
  for (let head = 0; head * grid < canvas.width; head += 1) {
    for (let row = 0; row < grid; row += 1) {
      const [from, to] = [(head * grid + row) * grid, row * canvas.width + head * grid];
      for (let column = 0; column <= row; column += 1) points[to + column] = table[levels[from + column]];
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}
