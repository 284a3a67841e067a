// Section: time, bytes and arithmetic of each operation, and how near they come to what the machine can do.

const PHASE_NAMES = {
  prefill: "prefill: reading the prompt",
  mixed: "mixed: reading one prompt while another answer is written",
  decode: "decode: writing the answer",
};

defineSection("roofline", (body, data) => {
  const phases = data.phases.map((one) => one.phase);
  const { read_bandwidth: bandwidth, peak_operations: peak } = data;
  const facts = h("p", { class: "readout" });
  const plot = h("div");
  const detail = h("p", { class: "readout", "aria-live": "polite" });
  const total = () => rows().reduce((sum, one) => sum + one.seconds, 0) || 1;
  const phase = choices("Phase", phases.map((one) => [one, PHASE_NAMES[one] ?? one]), phases.at(-1), () => redraw());
  const table = sortableTable({
    caption: "Operations, the same ones of all layers together", rows: [], sortBy: 2, pick: tell,
    columns: [
      { name: "operation", words: true, key: (one) => one.name, cell: (one) => dotted(one.name) },
      { name: "calls", key: (one) => one.calls, cell: (one) => String(one.calls) },
      { name: "time", key: (one) => one.seconds, cell: (one) => bar(one.seconds / total(), `${duration(one.seconds)}, ${percent(one.seconds / total())}`) },
      { name: "bytes", key: (one) => one.nbytes, cell: (one) => short(one.nbytes, "B") },
      { name: "bytes per second", key: (one) => one.rate, cell: (one) => `${short(one.rate, "B/s")}${bandwidth ? `, ${percent(one.rate / bandwidth)}` : ""}` },
      { name: "arithmetic per second", key: (one) => one.speed, cell: (one) => (one.operations ? short(one.speed, "op/s") : "–") },
      { name: "op per byte", key: (one) => one.intensity, cell: (one) => (one.operations ? number(one.intensity) : "–") },
    ],
  });
  body.append(phase.element, facts, plot, detail, scroller("Operations", table.element, "tall"), data.note ? h("p", { class: "hint", text: data.note }) : "");

  function rows() {
    return data.ops.filter((one) => one.phase === phase.value()).map((one) => ({
      ...one,
      name: one.module ? `${one.module} (${one.op})` : one.op,
      rate: one.seconds ? one.nbytes / one.seconds : 0,
      speed: one.seconds ? one.operations / one.seconds : 0,
      intensity: one.nbytes ? one.operations / one.nbytes : 0,
    })).sort((one, other) => other.seconds - one.seconds);
  }

  function redraw() {
    const about = data.phases.find((one) => one.phase === phase.value());
    const found = rows();
    facts.textContent = about ? `${plural(about.steps, "step")} with ${plural(about.tokens, "token")} in ${duration(about.seconds)}; the operations below are ${percent(total() / about.seconds)} of that, `
      + `the rest is what lies between them.${untraced(about)}` : "";
    table.show(found);
    plot.replaceChildren(roof(found));
    if (found.length) table.choose(found[0]);
  }

  function untraced(about) {
    const each = data.untraced_step_seconds;
    return each && about.phase === "decode" ? ` A step took ${duration(about.seconds / about.steps)} while it was watched, ${duration(each)} when it was not.` : "";
  }

  function tell(one) {
    const limit = bandwidth ? `${percent(one.rate / bandwidth)} of the ${short(bandwidth, "B/s")} that memory was measured to deliver` : "the machine's limit was not measured";
    detail.textContent = `${one.name}: ${plural(one.calls, "call")}, ${duration(one.seconds)}; ${short(one.nbytes, "B")} at ${short(one.rate, "B/s")} (${limit}); ${one.operations ? `${short(one.operations, "op")}, ${number(one.intensity)} per byte` : "no arithmetic that counts"}.`;
    plot.querySelector(".dot[aria-pressed=true]")?.setAttribute("aria-pressed", "false");
    plot.querySelector(`[data-name="${CSS.escape(one.name)}"]`)?.setAttribute("aria-pressed", "true");
  }

  /** The roofline: operations per byte to the right, operations per second upwards, both as powers of ten. */
  function roof(found) {
    const dots = found.filter((one) => one.intensity > 0 && one.speed > 0);
    if (!dots.length) return h("p", { class: "missing", text: "No operation here does arithmetic." });
    const xs = range([...dots.map((one) => one.intensity), ...(bandwidth && peak ? [peak / bandwidth] : [])]);
    const ys = range([...dots.map((one) => one.speed), ...(peak ? [peak] : []), ...(bandwidth ? dots.map((one) => one.intensity * bandwidth).map((one) => (peak ? Math.min(one, peak) : one)) : [])]);
    const x = (value) => ((Math.log10(value) - xs[0]) / (xs[1] - xs[0])) * 100;
    const y = (value) => (1 - (Math.log10(value) - ys[0]) / (ys[1] - ys[0])) * 100;
    const plot_ = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
    const [left, right] = xs.map((power) => 10 ** power);
    for (let power = xs[0]; power <= xs[1]; power += 1) plot_.append(svg("line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: 0, y2: 100 }));
    for (let power = ys[0]; power <= ys[1]; power += 1) plot_.append(svg("line", { class: "grid", x1: 0, x2: 100, y1: y(10 ** power), y2: y(10 ** power) }));
    if (bandwidth) {
      const corner = peak ? Math.min(right, peak / bandwidth) : right;
      plot_.append(svg("line", { class: "limit", x1: x(left), y1: y(left * bandwidth), x2: x(corner), y2: y(corner * bandwidth) }));
      if (peak) plot_.append(svg("line", { class: "limit", x1: x(corner), y1: y(peak), x2: 100, y2: y(peak) }));
    }
    const frame = h("div", { class: "roof", role: "group", "aria-label": "Roofline: arithmetic per byte to the right, arithmetic per second upwards" }, plot_,
      dots.map((one, index) => h("button", {
        type: "button", class: "dot", "data-name": one.name, "aria-pressed": "false", style: { left: `${x(one.intensity)}%`, top: `${y(one.speed)}%` },
        "aria-label": `${one.name}: ${number(one.intensity)} operations per byte, ${short(one.speed, "op/s")}`, onclick: () => table.choose(one), text: letterOf(index),
      })));
    const axis = h("div", { class: "axis", "aria-hidden": "true" }, powers(ys).map((power) => h("span", { style: { top: `${y(10 ** power)}%` }, text: short(10 ** power) })));
    const below = h("div", { class: "axis-x", "aria-hidden": "true" }, powers(xs).map((power) => h("span", { style: { left: `${x(10 ** power)}%` }, text: power < 0 ? String(10 ** power) : short(10 ** power) })));
    return h("div", { class: "chart" },
      h("p", { class: "key" }, h("span", { class: "unit", text: "upwards: operations per second; to the right: operations per byte" }),
        bandwidth ? h("span", { class: "key-limit", text: `limit: ${short(bandwidth, "B/s")} from memory${peak ? `, ${short(peak, "op/s")}` : ""}` }) : null),
      h("div", { class: "chart-area" }, axis, frame), below,
      h("p", { class: "letters" }, dots.map((one, index) => h("span", {}, h("b", { text: letterOf(index) }), ` ${one.name}`))));
  }

  function range(values) {
    const powers_ = values.filter((one) => one > 0).map(Math.log10);
    const [low, high] = [Math.floor(Math.min(...powers_)), Math.ceil(Math.max(...powers_))];
    return [low, high > low ? high : low + 1];
  }

  function powers([low, high]) {
    return [...Array(high - low + 1).keys()].map((one) => low + one);
  }

  return { redraw, select() { strip.paint(plainLegend(), null); } };
});
