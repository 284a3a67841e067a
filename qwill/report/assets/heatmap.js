// A picture of many small squares. It has a cursor that mouse, touch and arrow keys move, and says in words what is there.

/**
 * level(row, column) is 0 … 1 or null for nothing (`signed`: 0.5 is zero); describe(row, column) says it in words; pick is told of the cursor.
 * Gives {element, draw(), move(row, column)}: `move` sets the cursor without telling `pick`.
 */
function heatmap({ label, rows, columns, level, describe, pick, aspect, cell, signed = false }) {
  const canvas = h("canvas", { role: "img", "aria-label": label, width: columns, height: rows });
  const rowLine = h("span", { class: "row-line", "aria-hidden": "true" });
  const square = h("span", { class: "square", "aria-hidden": "true" });
  const words = h("p", { class: "readout", "aria-live": "polite" });
  const frame = h("div", {
    class: "heatmap-frame", tabindex: "0", role: "application",
    "aria-label": `${label}. The arrow keys move, the line below says what is there.`,
    style: cell ? { width: `${columns * cell}px`, height: `${rows * cell}px` } : { "aspect-ratio": aspect ?? `${columns} / ${rows}` },
  }, canvas, rowLine, square);
  const element = h("div", { class: cell ? "heatmap fixed" : "heatmap" }, cell ? scroller(label, frame) : frame, words);
  let cursor = [0, 0];

  function draw() {
    const table = pixels(signed);
    const image = new ImageData(columns, rows);
    const points = new Uint32Array(image.data.buffer);
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < columns; column += 1) {
        const value = level(row, column);
        if (value !== null) points[row * columns + column] = table[Math.round(Math.min(1, Math.max(0, value)) * 255)];
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function move(row, column) {
    cursor = [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
    const [top, left] = [cursor[0] / rows, cursor[1] / columns];
    rowLine.style.cssText = `top:${top * 100}%;height:${100 / rows}%`;
    square.style.cssText = `top:${top * 100}%;left:${left * 100}%;width:${100 / columns}%;height:${100 / rows}%`;
    words.replaceChildren(describe(...cursor));
    canvas.setAttribute("aria-label", `${label}. At the cursor: ${words.textContent}`);
  }

  function go(row, column) {
    move(row, column);
    pick?.(...cursor);
  }

  function at(event) {
    const box = canvas.getBoundingClientRect();
    go(Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns));
  }

  frame.addEventListener("click", at);
  frame.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const far = event.key === "Home" ? [cursor[0], 0] : event.key === "End" ? [cursor[0], columns - 1] : null;
    if (!steps[event.key] && !far) return;
    event.preventDefault();
    go(...(far ?? [cursor[0] + steps[event.key][0], cursor[1] + steps[event.key][1]]));
  });
  return { element, draw, move };
}
