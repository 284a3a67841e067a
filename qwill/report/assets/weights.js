// Section: every tensor's shape, format, spread of values and error of quantizing.

defineSection("weights", (body, data) => {
  const { tensors } = data;
  const bytes = tensors.reduce((sum, one) => sum + one.nbytes, 0);
  const worst = Math.max(0, ...tensors.map((one) => one.error?.relative_rms ?? 0)) || 1;
  const detail = h("div", { "aria-live": "polite" });
  const filter = h("input", { type: "search", oninput: () => table.show(found()) });
  const table = sortableTable({
    caption: "Tensors", rows: tensors, sortBy: 3, pick: tell,
    columns: [
      { name: "tensor", words: true, key: (one) => one.name, cell: (one) => dotted(one.name) },
      { name: "shape", key: (one) => one.shape.reduce((a, b) => a * b, 1), cell: (one) => one.shape.join(" × ") },
      { name: "format", words: true, key: (one) => one.format, cell: (one) => `${one.format} (${number(one.bits_per_weight)} bits)` },
      { name: "bytes", key: (one) => one.nbytes, cell: (one) => short(one.nbytes, "B") },
      { name: "mean", key: (one) => one.mean, cell: (one) => number(one.mean) },
      { name: "std", key: (one) => one.std, cell: (one) => number(one.std) },
      { name: "largest", key: (one) => Math.max(Math.abs(one.min), Math.abs(one.max)), cell: (one) => number(Math.max(Math.abs(one.min), Math.abs(one.max))) },
      { name: "error", key: (one) => one.error?.relative_rms ?? null, cell: (one) => (one.error ? bar(one.error.relative_rms / worst, percent(one.error.relative_rms)) : "not known") },
    ],
  });
  body.append(
    h("p", { text: `${plural(tensors.length, "tensor")}, together ${short(bytes, "B")}.` }), detail,
    h("p", {}, h("label", { class: "filter", text: "Only names with " }, filter)),
    scroller("Tensors", table.element, "tall"));

  function found() {
    const wanted = filter.value.trim().toLowerCase();
    return tensors.filter((one) => one.name.toLowerCase().includes(wanted));
  }

  function tell(one) {
    const { edges, counts } = one.histogram;
    const logs = counts.map((count) => Math.log10(1 + count));
    const picture = chart({
      label: `Histogram of ${one.name}`,
      series: [{ name: "values in each interval", values: logs, kind: "bars" }],
      unit: "powers of ten", ends: [number(edges[0]), number(edges.at(-1))],
      describe: (index) => `${counts[index]} values from ${number(edges[index])} to ${number(edges[index + 1])}.`,
      pick: (index) => picture.move(index),
    });
    picture.move(counts.indexOf(Math.max(...counts)));
    const error = one.error ? `Error of quantizing: ${percent(one.error.relative_rms)} of the values' size (root mean square), at most ${number(one.error.max)}.` : "Its error is not known.";
    const looked = one.sampled < 1 ? ` ${percent(one.sampled)} of its rows were looked at.` : "";
    detail.replaceChildren(h("h3", { text: one.name }),
      h("p", { class: "readout", text: `${one.shape.join(" × ")}; ${one.stored ? `${one.stored} in the file, ` : ""}${one.format} in memory with ${number(one.bits_per_weight)} bits a weight; mean ${number(one.mean)}, standard deviation ${number(one.std)}, from ${number(one.min)} to ${number(one.max)}. ${error}${looked}` }),
      picture.element,
      asTable(`histogram of ${one.name}`, ["from", "to", "values"], () => counts.map((count, index) => [number(edges[index]), number(edges[index + 1]), String(count)])));
  }

  if (tensors.length) table.choose(tensors.reduce((one, other) => (other.nbytes > one.nbytes ? other : one)));
  return { select() { strip.paint(plainLegend(), null); } };
});
