// Section: the angles by which queries and keys are turned, and how fast each pair of numbers turns.

defineSection("rotary", (body, data) => {
  const { inv_freq: speeds, wavelengths, head_dim: size, positions } = data;
  const dials = h("div", { class: "dials" });
  const title = h("h3");
  const length = Math.max(2, positions);
  const columns = Math.min(length, 256);
  const step = length / columns;
  const cosine = (row, column) => Math.cos(Math.floor(column * step) * speeds[row]);
  const picture = heatmap({
    label: "Cosine of the angle: pairs by positions",
    rows: speeds.length, columns, aspect: "3 / 1", signed: true,
    level: (row, column) => (cosine(row, column) + 1) / 2,
    describe: (row, column) => `Pair ${row} at position ${Math.floor(column * step)}: cosine ${cosine(row, column).toFixed(2)}; it turns once in ${number(wavelengths[row])} tokens.`,
    pick: (_row, column) => { strip.choose(Math.floor(column * step)); },
  });
  const distances = [...Array(length).keys()];
  const decay = data.similarity ?? distances.map((distance) => speeds.reduce((sum, speed) => sum + Math.cos(distance * speed), 0) / speeds.length);
  const likeness = chart({
    label: "Likeness of two equal vectors at a distance",
    series: [{ name: "mean cosine of all pairs", values: decay, kind: "line" }],
    unit: "1 = as if not turned", ends: ["same place", `${length - 1} tokens apart`],
    describe: (index) => `${plural(index, "token")} apart: ${decay[index].toFixed(3)}.`,
    pick: (index) => likeness.move(index),
  });
  const legend = h("div");
  body.append(
    h("p", { text: `Each head has ${size} numbers, so ${speeds.length} pairs; theta is ${short(data.theta)}. Pair 0 turns once in ${number(wavelengths[0])} tokens, `
      + `the last in ${short(wavelengths.at(-1))}.${data.context ? ` The model is made for ${short(data.context)} positions.` : ""}`
      + `${data.scaling ? ` The speeds are stretched (${data.scaling.kind}, factor ${number(data.scaling.factor)}).` : ""}` }),
    title, dials,
    h("h3", { text: "All pairs over the positions" }),
    h("p", { text: "A row is a pair, the fastest at the top; a column is a position. Fast pairs flicker, slow ones hardly change over this text." }),
    legend, picture.element,
    h("h3", { text: "What distance alone does" }),
    h("p", { text: "If a query and a key were the same vector, this is what the rotation would leave of their score at each distance: near tokens have an advantage that was not learned." }),
    likeness.element,
    asTable("pairs", ["pair", "speed (radians per token)", "tokens for one turn"], () => speeds.map((speed, pair) => [String(pair), number(speed), number(wavelengths[pair])])));
  likeness.move(1);

  function dial(pair, position) {
    const angle = (position * speeds[pair]) % (2 * Math.PI);
    const [x, y] = [Math.cos(angle), Math.sin(angle)];
    const degrees = Math.round((angle * 180) / Math.PI);
    return h("figure", { class: "dial" },
      svg("svg", { viewBox: "-1.15 -1.15 2.3 2.3", role: "img", "aria-label": `pair ${pair}: ${degrees} degrees` },
        svg("circle", { r: 1 }), svg("line", { x1: 0, y1: 0, x2: x, y2: -y }), svg("circle", { class: "tip", cx: x, cy: -y, r: 0.14 })),
      h("figcaption", {}, h("b", { text: pair }), ` ${degrees}°`));
  }

  return {
    redraw() {
      picture.draw();
      legend.replaceChildren(rampLegend("cosine −1", "1", true));
    },
    select(position) {
      strip.paint(plainLegend(), null);
      title.textContent = `Angles at position ${position}`;
      dials.replaceChildren(...speeds.map((_speed, pair) => dial(pair, position)));
      picture.move(0, Math.min(columns - 1, Math.floor(position / step)));
    },
  };
});
