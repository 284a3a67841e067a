// Section: attention of all heads, and one head in detail: its picture, the strongest keys, QK before and after RoPE.

defineSection("attention", (body, data) => {
  const store = attentionStore(data);
  const pool = Math.max(1, data.num_tokens / data.grid);
  const size = data.num_heads / data.num_kv_heads;
  const chosen = { layer: Math.floor(data.num_layers / 2), head: 0, levels: null };
  const overview = headOverview(data, store, (layer, head) => show(layer, head));
  const title = h("h3", { "aria-live": "polite" });
  const facts = h("p", { class: "readout" });
  const layerChoice = selection("Layer", data.num_layers, (layer) => show(layer, chosen.head));
  const headChoice = selection("Head", data.num_heads, (head) => show(chosen.layer, head));
  const picture = heatmap({
    label: "Attention of this head: rows look, columns are looked at",
    rows: data.grid, columns: data.grid, aspect: "1 / 1",
    level: (row, column) => (column > row || !chosen.levels ? null : chosen.levels[row * data.grid + column] / 255),
    describe: (row, column) => describe(row, column),
    pick: (row) => { strip.choose(Math.min(data.num_tokens - 1, Math.floor((row + 1) * pool) - 1)); },
  });
  const keys = h("div");
  const qk = h("div");
  body.append(h("div", { class: "attention" }, overview.element, h("div", { class: "detail" },
    title, h("div", { class: "selects" }, layerChoice.element, headChoice.element), facts, picture.element,
    pool > 1 ? h("p", { class: "hint", text: `The picture is ${data.grid} × ${data.grid}: a square is the strongest weight among about ${Math.round(pool)} × ${Math.round(pool)} tokens. The list below is of single tokens.` }) : null,
    keys, qk)));

  function selection(label, count, onchange) {
    const select = h("select", { onchange: (event) => onchange(Number(event.target.value)) },
      [...Array(count).keys()].map((one) => h("option", { value: one, text: one })));
    return { element: h("label", { text: `${label} ` }, select), set: (value) => { select.value = String(value); } };
  }

  /** "12 “the”", or "12–13" for a square that stands for several tokens. */
  function range(index) {
    const [first, last] = [Math.floor(index * pool), Math.max(Math.floor(index * pool), Math.ceil((index + 1) * pool) - 1)];
    return last > first ? `${first}–${Math.min(last, data.num_tokens - 1)}` : named(first);
  }

  function describe(row, column) {
    if (column > row) return `${range(row)} cannot look at ${range(column)}: it comes later.`;
    const level = chosen.levels ? chosen.levels[row * data.grid + column] / 255 : 0;
    return `${range(row)} looks at ${range(column)} with weight ${percent(level * level)}${pool > 1 ? " (the strongest there)" : ""}.`;
  }

  async function show(layer, head) {
    Object.assign(chosen, { layer, head });
    const group = Math.floor(head / size);
    overview.mark(layer, head);
    layerChoice.set(layer);
    headChoice.set(head);
    const shared = size > 1 ? `shared by heads ${group * size}–${group * size + size - 1}` : "its own";
    title.textContent = `Layer ${layer}, head ${head} (KV head ${group}, ${shared})`;
    const about = data.summary?.[layer]?.[head];
    facts.textContent = about ? `On average: entropy ${number(about.entropy)} bits, ${percent(about.first_token)} on the first token, `
      + `${percent(about.previous_token)} on the token before, ${number(about.distance)} tokens back.`
      + (about.kind ? ` A ${about.kind}: ${data.kinds?.[about.kind] ?? ""}.` : "") : "";
    const levels = await store.map(layer);
    if (chosen.layer !== layer || chosen.head !== head) return;
    chosen.levels = levels.subarray(head * data.grid * data.grid, (head + 1) * data.grid * data.grid);
    picture.draw();
    qk.replaceChildren(await scores(layer, head));
    await looksAt(page.selected);
  }

  /** The strongest keys of the chosen token, in the list and on the strip. */
  async function looksAt(position) {
    const { layer, head } = chosen;
    const square = Math.min(data.grid - 1, Math.floor(position / pool));
    picture.move(square, square);
    const query = position - data.first;
    if (query < 0 || position >= data.num_tokens) {
      keys.replaceChildren(h("p", { class: "missing", text: `Position ${position} was not computed here (prefix cache, or the last token), so it looked at nothing.` }));
      strip.paint("", null);
      return;
    }
    const top = await store.top(layer);
    if (layer !== chosen.layer || head !== chosen.head || position !== page.selected) return;
    const k = data.top.k;
    const rows_ = data.num_tokens - data.first;
    const start = (head * rows_ + query) * k;
    const found = [...Array(Math.min(k, position + 1)).keys()].map((one) => [top.index[start + one], (top.weight[start + one] / 255) ** 2]);
    const weights = new Map(found);
    keys.replaceChildren(scroller("Strongest keys", plainTable(`What ${named(position)} looks at most`, ["position", "token", "weight"],
      found.map(([index, weight]) => [String(index), h("button", { type: "button", class: "pick", onclick: () => strip.choose(index) }, word(page.texts[index] ?? "")), bar(weight, percent(weight))]))));
    strip.paint(`Colour and bar: how much token ${position} looks at it, in layer ${layer}, head ${head}.`, (index) => weights.get(index) ?? null);
  }

  /** Scores of one query with every key, before and after the rotation. */
  async function scores(layer, head) {
    const found = await queryKeyScores(data, layer, head);
    if (!found) return h("p", { class: "missing", text: "Scores before and after the rotation were not captured." });
    const { position } = data.qk;
    const sequence = chart({
      label: `Scores of ${named(position)} with every key`,
      series: [{ name: "after RoPE (what softmax gets)", values: found.after, kind: "line" }, { name: "before RoPE", values: found.before, kind: "dashed" }],
      unit: "q·k/√D", spacing: 4, ends: ["key 0", `key ${found.after.length - 1}`],
      describe: (index) => `Key ${named(index)}: ${number(found.before[index])} before, ${number(found.after[index])} after the rotation.`,
      pick: (index) => sequence.move(index),
    });
    sequence.move(0);
    return h("div", {}, h("h3", { text: "Scores before and after the rotation" }),
      h("p", { text: `The query of position ${position}, the last of the prompt, with the key of each token. The gap between the lines is what the positions alone change.` }),
      sequence.element,
      asTable("scores", ["key", "token", "before RoPE", "after RoPE"], () => found.after.map((value, index) => [String(index), word(page.texts[index] ?? ""), number(found.before[index]), number(value)])));
  }

  overview.mark(chosen.layer, chosen.head);
  return {
    async redraw() {
      await Promise.all([overview.redraw(), show(chosen.layer, chosen.head)]);
    },
    select: async (position) => { if (chosen.levels) await looksAt(position); },
  };
});

/** {before, after} of one head as plain numbers, or null. A layer has float16 (2, Hq, keys): before, then after. */
async function queryKeyScores(data, layer, head) {
  const one = data.qk?.layers?.[layer];
  if (!one) return null;
  const bytes = await inflate(one);
  const halves = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const count = bytes.byteLength / 2 / 2 / data.num_heads;
  const read = (start) => [...Array(count).keys()].map((index) => half(halves.getUint16(2 * (start + index), true)));
  return { before: read(head * count), after: read((data.num_heads + head) * count) };
}

/** A 16-bit float from its bits. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
