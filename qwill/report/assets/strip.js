// The strip of tokens at the top: the choice that all sections share. A section may colour it with numbers of its own.

const strip = {
  element: document.getElementById("strip"),
  legend: document.getElementById("strip-legend"),
  words: document.getElementById("chosen"),
  tokens: [],

  /** Show these tokens ({text, special, partial, part}); `onselect` is told of a choice. */
  fill(tokens, onselect) {
    this.tokens = tokens;
    this.onselect = onselect;
    this.element.replaceChildren(...tokens.map((token, position) => this.option(token, position)));
    this.element.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.choose(Number(option.dataset.position));
    });
    this.element.addEventListener("keydown", (event) => this.key(event));
    document.getElementById("previous").addEventListener("click", () => this.choose(page.selected - 1));
    document.getElementById("next").addEventListener("click", () => this.choose(page.selected + 1));
  },

  option(token, position) {
    const kinds = ["token", token.special && "special", token.partial && "partial", token.part === "answer" && "answer"];
    return h("span", {
      role: "option", class: kinds.filter(Boolean).join(" "), "data-position": position, tabindex: "-1", "aria-selected": "false",
    }, word(token.text));
  },

  key(event) {
    const last = this.tokens.length - 1;
    const goals = {
      ArrowLeft: page.selected - 1, ArrowRight: page.selected + 1, Home: 0, End: last,
      ArrowUp: this.beside(-1), ArrowDown: this.beside(1), PageUp: page.selected - 20, PageDown: page.selected + 20,
    };
    if (!(event.key in goals) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.choose(goals[event.key]);
    this.element.children[page.selected].focus({ preventScroll: true });
  },

  /** The token above or below the chosen one, as the lines happen to break. */
  beside(direction) {
    const here = this.element.children[page.selected].getBoundingClientRect();
    let best = page.selected;
    let least = Infinity;
    for (let position = page.selected + direction; position >= 0 && position < this.tokens.length; position += direction) {
      const there = this.element.children[position].getBoundingClientRect();
      const lines = Math.abs(there.top - here.top) / here.height;
      if (lines < 0.5) continue;
      if (lines > 1.9) break;
      const distance = Math.abs(there.left - here.left);
      if (distance < least) [best, least] = [position, distance];
    }
    return best;
  },

  choose(position) {
    const wanted = Math.min(this.tokens.length - 1, Math.max(0, position));
    this.mark(wanted);
    this.onselect(wanted);
  },

  /** Show the choice; tell nobody. */
  mark(position) {
    const before = this.element.querySelector("[aria-selected=true]");
    before?.setAttribute("aria-selected", "false");
    before?.setAttribute("tabindex", "-1");
    const option = this.element.children[position];
    option.setAttribute("aria-selected", "true");
    option.setAttribute("tabindex", "0");
    const [top, bottom] = [option.offsetTop, option.offsetTop + option.offsetHeight];
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop || bottom > scrollTop + clientHeight) this.element.scrollTop = top - clientHeight / 2;
  },

  /** Say what is chosen: parts are texts and elements. */
  tell(...parts) {
    this.words.replaceChildren(...parts);
  },

  /** Colour each token by level(position) of 0 … 1 or null; the bar under a token is as long as its level. */
  paint(legend, level) {
    this.legend.textContent = legend;
    [...this.element.children].forEach((option, position) => {
      const value = level ? level(position) : null;
      if (value === null || value === undefined) {
        option.style.cssText = "";
        return;
      }
      const colour = ramp(value);
      option.style.cssText = `background:${css(colour)};color:${inkOn(colour)};--level:${Math.round(value * 100)}%`;
    });
  },
};
