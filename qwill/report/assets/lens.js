// Section: the logit lens, layers from the embedding (bottom) to the last (top), positions from left to right.

defineSection("logit_lens", (body, data) => {
  const { layers, positions, texts, cells } = data;
  const rows = [...layers.keys()].reverse(); // the top row is the last layer
  const vocabulary = Math.log(Math.max(2, ...cells.flat().map((cell) => cell.rank_of_final)));
  const measures = {
    rank: (cell) => 1 - Math.log(Math.max(1, cell.rank_of_final)) / vocabulary,
    probability: (cell) => cell.probability,
  };
  const measure = choices("Colour", [["rank", "rank of the final word"], ["probability", "probability of the layer's own word"]], "rank", () => redraw());
  const legend = h("div");
  const picture = heatmap({
    label: "Logit lens: layers by positions",
    rows: rows.length, columns: positions.length, cell: positions.length * 7 > 700 ? 7 : Math.max(7, Math.min(20, Math.floor(700 / positions.length))),
    level: (row, column) => measures[measure.value()](cells[rows[row]][column]),
    describe: (row, column) => {
      const cell = cells[rows[row]][column];
      return h("span", {}, `After ${layerName(rows[row])}, at position ${positions[column]} `, word(texts[column]), ": next would be ", word(cell.text),
        ` with ${percent(cell.probability)}; the final word has rank ${cell.rank_of_final}.`);
    },
    pick: (_row, column) => { strip.choose(positions[column]); },
  });
  const window_ = h("div");
  const detail = h("div");
  body.append(measure.element, legend, picture.element, window_, detail);

  function redraw() {
    picture.draw();
    const ends = measure.value() === "rank" ? ["rank far down", "rank 1"] : ["0 %", "100 %"];
    legend.replaceChildren(rampLegend(...ends));
  }

  function layerName(layer) {
    return layers[layer] === 0 ? "the embedding" : `layer ${layers[layer] - 1}`;
  }

  /** The words of some positions around the chosen one, as many as fit. */
  function words(column) {
    const fit = Math.max(1, Math.min(positions.length, Math.floor((body.clientWidth - 90) / 92)));
    const first = Math.max(0, Math.min(positions.length - fit, column - Math.floor(fit / 2)));
    const columns = [...Array(fit).keys()].map((index) => first + index);
    const table = h("table", { class: "lens" },
      h("caption", { text: "The word each layer would say next, around the chosen token" }),
      h("thead", {}, h("tr", {}, h("th", { scope: "col", text: "after" }), columns.map((one) => (
        h("th", { scope: "col", "aria-current": one === column ? "true" : null }, h("small", { text: positions[one] }), " ", word(texts[one])))))),
      h("tbody", {}, rows.map((layer) => h("tr", {},
        h("th", { scope: "row", text: layers[layer] === 0 ? "embedding" : `layer ${layers[layer] - 1}` }),
        columns.map((one) => lensCell(cells[layer][one], one === column))))));
    return scroller("Words of the layers", table);
  }

  function lensCell(cell, current) {
    const colour = ramp(measures[measure.value()](cell));
    return h("td", { "aria-current": current ? "true" : null, style: { background: css(colour), color: inkOn(colour) } }, word(cell.text), h("small", { text: percent(cell.probability) }));
  }

  return {
    redraw,
    select(position) {
      const column = positions.indexOf(position);
      if (column < 0) {
        window_.replaceChildren();
        detail.replaceChildren(h("p", { class: "missing", text: `Position ${position} came from the prefix cache or was not captured, so there is no lens for it.` }));
        return;
      }
      strip.paint("Colour and bar: how sure the last layer is of the next token.", (index) => {
        const found = positions.indexOf(index);
        return found < 0 ? null : cells.at(-1)[found].probability;
      });
      picture.move(0, column);
      window_.replaceChildren(words(column));
      detail.replaceChildren(asTable(`layers at position ${position}`, ["after", "next word", "id", "probability", "entropy (bits)", "rank of the final word"],
        () => rows.map((layer) => {
          const cell = cells[layer][column];
          return [layerName(layer), word(cell.text), String(cell.id), percent(cell.probability), number(cell.entropy), String(cell.rank_of_final)];
        })));
    },
  };
});
