// Tables: plain ones, ones that can be sorted, a chart's numbers as a table, and bars inside cells.

/** A scroller that the keyboard reaches, for what is wider or longer than its place. */
function scroller(label, content, kind = "") {
  return h("div", { class: `scroller ${kind}`, tabindex: "0", role: "region", "aria-label": label }, content);
}

/** A table from heads and rows of cells; a cell is text or an element. The first cell of a row is its head. */
function plainTable(caption, heads, rows) {
  return h("table", {},
    h("caption", { text: caption }),
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", text: head })))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, index) => (
      h(index ? "td" : "th", index ? {} : { scope: "row" }, cell)))))));
}

/** A chart's numbers, made only when somebody opens them. */
function asTable(caption, heads, rows) {
  const details = h("details", { class: "as-table" }, h("summary", { text: `The numbers as a table: ${caption}` }));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(scroller(caption, plainTable(caption, heads, rows()), "tall"));
  });
  return details;
}

/** A dotted name that may be broken after its dots. */
function dotted(name) {
  return h("span", {}, name.split(".").flatMap((part, index) => (index ? [".", h("wbr"), part] : [part])));
}

/** A bar of a share of 1 with its number in words. */
function bar(share, text) {
  return h("span", { class: "bar" },
    h("span", { class: "bar-room", "aria-hidden": "true" },
      h("span", { style: { width: share > 0 ? `${Math.max(0.5, Math.min(1, share) * 100)}%` : "0" } })),
    h("span", { class: "bar-text", text }));
}

/**
 * A table whose heads sort it. columns: {name, key(row) to sort by, cell(row) -> text or element, words: sorted as text}.
 * With `pick`, the first cell is a button that chooses its row. Gives {element, show(rows)}.
 */
function sortableTable({ caption, columns, rows, sortBy, pick }) {
  let order = { column: sortBy ?? 0, down: !columns[sortBy ?? 0].words };
  let shown = rows;
  let picked = null;
  const body = h("tbody");
  const heads = columns.map((column, index) => h("th", { scope: "col" }, h("button", {
    type: "button", class: "sort", text: column.name, onclick: () => sortBy_(index),
  })));
  const element = h("table", { class: "sortable" },
    h("caption", { text: caption }), h("thead", {}, h("tr", {}, heads)), body);

  function sortBy_(column) {
    order = { column, down: order.column === column ? !order.down : !columns[column].words };
    draw();
  }

  function draw() {
    heads.forEach((head, index) => {
      const direction = order.down ? "descending" : "ascending";
      head.setAttribute("aria-sort", index === order.column ? direction : "none");
    });
    const key = columns[order.column].key;
    const sign = order.down ? -1 : 1;
    const sorted = [...shown].sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    });
    body.replaceChildren(...sorted.map(line));
  }

  function line(row) {
    const cells = columns.map((column, index) => {
      const content = column.cell(row);
      if (index) return h("td", {}, content);
      return h("th", { scope: "row" }, pick ? h("button", { type: "button", class: "pick", onclick: () => choose(row) }, content) : content);
    });
    const element = h("tr", { "aria-current": row === picked ? "true" : null }, cells);
    element.row = row;
    return element;
  }

  function choose(row) {
    picked = row;
    for (const one of body.rows) {
      if (one.row === row) one.setAttribute("aria-current", "true");
      else one.removeAttribute("aria-current");
    }
    pick(row);
  }

  function show(next) {
    shown = next;
    draw();
  }

  draw();
  return { element, show, choose };
}

/** A group of choices of which one holds. options: [value, text]; gives {element, value()}. */
function choices(legend, options, chosen, onchange) {
  const name = `choice-${choices.count = (choices.count ?? 0) + 1}`;
  let value = chosen;
  const element = h("fieldset", { class: "choices" }, h("legend", { text: legend }),
    options.map(([one, text]) => h("label", {},
      h("input", {
        type: "radio", name, value: one, checked: one === chosen,
        onchange: () => { value = one; onchange(one); },
      }), h("span", { text }))));
  return { element, value: () => value };
}
