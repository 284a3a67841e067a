// Charts over positions or other equal steps: bars and lines on one scale, with a cursor as heatmap.js has one.

/** Round numbers from least to most, about `count` of them. */
function ticks(least, most, count = 4) {
  const raw = (most - least) / count || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= raw);
  const found = [];
  for (let tick = Math.ceil(least / step) * step; tick <= most + step * 1e-6; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}

/**
 * series: {name, values (null for none), kind: "bars" | "line" | "dashed"}; all are in `unit`.
 * describe(index) -> words for the cursor; pick(index) is told of it; ends: words under the left and the right end.
 * Gives {element, move(index)}.
 */
function chart({ label, series, unit, describe, pick, ends, spacing = 0 }) {
  const count = series[0].values.length;
  const all = series.flatMap((one) => one.values).filter((value) => value !== null);
  const marks = ticks(Math.min(0, ...all), Math.max(...all, Math.min(0, ...all) + 1e-9));
  const [least, most] = [Math.min(0, ...all, marks[0]), Math.max(...all, marks.at(-1))];
  const height = (value) => (1 - (value - least) / (most - least)) * 100;
  const plot = svg("svg", { viewBox: `0 0 ${count} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  for (const mark of marks) plot.append(svg("line", { class: mark === 0 ? "zero" : "grid", x1: 0, x2: count, y1: height(mark), y2: height(mark) }));
  series.forEach((one) => plot.append(drawnSeries(one, height)));
  const line = h("span", { class: "cursor-line", "aria-hidden": "true", hidden: true });
  const frame = h("div", {
    class: pick ? "plot" : "plot still", tabindex: pick ? "0" : null, role: pick ? "application" : null,
    "aria-label": pick ? `${label}. Left and right move, the line below says what is there.` : null,
    style: { "min-width": `${count * spacing}px` },
  }, plot, line, h("span", { class: "cursor-room" }));
  const words = h("p", { class: "readout", "aria-live": "polite" });
  let cursor = 0;

  function move(index) {
    cursor = Math.min(count - 1, Math.max(0, index));
    line.hidden = false;
    line.style.cssText = `left:${((cursor + 0.5) / count) * 100}%`;
    words.replaceChildren(describe(cursor));
    plot.setAttribute("aria-label", `${label}. At the cursor: ${words.textContent}`);
    const [seen, place] = [frame.parentElement, ((cursor + 0.5) / count) * frame.clientWidth];
    if (seen && (place < seen.scrollLeft || place > seen.scrollLeft + seen.clientWidth)) seen.scrollLeft = place - seen.clientWidth / 2;
  }

  function go(index) {
    move(index);
    pick(cursor);
  }

  if (pick) {
    frame.addEventListener("click", (event) => {
      const box = plot.getBoundingClientRect();
      go(Math.floor(((event.clientX - box.left) / box.width) * count));
    });
    frame.addEventListener("keydown", (event) => {
      const goals = { ArrowLeft: cursor - 1, ArrowRight: cursor + 1, Home: 0, End: count - 1 };
      if (!(event.key in goals)) return;
      event.preventDefault();
      go(goals[event.key]);
    });
  }
  const axis = h("div", { class: "axis", "aria-hidden": "true" },
    marks.map((mark) => h("span", { style: { top: `${height(mark)}%` }, text: number(mark) })));
  const element = h("div", { class: "chart" },
    h("p", { class: "key" }, series.map((one) => h("span", { class: `key-${one.kind}`, text: one.name })), h("span", { class: "unit", text: `in ${unit}` })),
    h("div", { class: "chart-area" }, axis, h("div", { class: "plot-scroller" }, frame)),
    ends ? h("p", { class: "ends" }, h("span", { text: ends[0] }), h("span", { text: ends[1] })) : null, pick ? words : null);
  return { element, move };
}

function drawnSeries({ values, kind }, height) {
  const zero = height(0);
  if (kind === "bars") {
    const path = values.map((value, index) => (value === null ? "" : `M${index + 0.1} ${zero}V${height(value)}h0.8V${zero}z`));
    return svg("path", { class: "bars", d: path.join("") });
  }
  let pen = "M";
  const path = values.map((value, index) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const step = `${pen}${index + 0.5} ${height(value)}`;
    pen = "L";
    return step;
  });
  return svg("path", { class: kind, d: path.join("") });
}
