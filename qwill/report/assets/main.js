// The page comes to life: the strip is filled, the tabs switch, a section is drawn when it is first opened.

const tabs = [...document.querySelectorAll("#tabs [role=tab]")];
const drawn = new Map();

function idOf(tab) {
  return tab.id.slice("tab-".length);
}

/** Open the section that the address names after #, or the first. */
async function openSection(focus = false) {
  const wanted = location.hash.slice(1);
  const tab = tabs.find((one) => idOf(one) === wanted) ?? (page.open ? null : tabs[0]);
  if (!tab) return; // the address names something else on the page
  for (const one of tabs) {
    one.setAttribute("aria-selected", String(one === tab));
    one.setAttribute("tabindex", one === tab ? "0" : "-1");
    document.getElementById(`panel-${idOf(one)}`).hidden = one !== tab;
  }
  if (focus) tab.focus();
  tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  page.open = idOf(tab);
  strip.paint(plainLegend(), null);
  await drawSection(page.open);
}

/** Draw a section in the colours of now and show the chosen token in it; what goes wrong is told in its place. */
async function drawSection(id) {
  const panel = document.getElementById(`panel-${id}`);
  panel.setAttribute("aria-busy", "true");
  try {
    if (!drawn.has(id)) drawn.set(id, firstDrawing(id, panel.querySelector(".body")));
    const section = await drawn.get(id);
    if (page.open === id) await section.redraw?.();
    if (page.open === id) await section.select?.(page.selected);
  } catch (error) {
    failed(id, error);
  } finally {
    panel.setAttribute("aria-busy", "false");
  }
}

async function firstDrawing(id, body) {
  const data = await dataOf(id);
  if (data) return sections.get(id)(body, data);
  body.append(h("p", { class: "missing" }, "This part is not in the report: ", visible(missing[id] ?? "it was not captured.")));
  return {};
}

function failed(id, error) {
  document.querySelector(`#panel-${id} .body`).replaceChildren(h("p", { class: "problem", text: error.message }));
  drawn.set(id, Promise.resolve({}));
  console.error(error);
}

/** Show the chosen token in the open section. */
async function selectIn(id) {
  try {
    await (await drawn.get(id))?.select?.(page.selected);
  } catch (error) {
    failed(id, error);
  }
}

function plainLegend() {
  return page.special ? "A dashed frame is a special token; the answer is underlined." : "The answer is underlined.";
}

function selected(position) {
  page.selected = position;
  const token = strip.tokens[position];
  const about = [`position ${position}`, token.id !== undefined && `id ${token.id}`, token.bytes && `bytes ${spaced(token.bytes)}`,
    token.special && "special", token.part && `in the ${token.part}`];
  strip.tell(word(token.text, "token-text big"), ` ${about.filter(Boolean).join(" · ")}`);
  if (page.open) selectIn(page.open);
}

function spaced(hexadecimal) {
  return hexadecimal.replace(/(..)(?=.)/g, "$1 ");
}

/** The tokens, from the section that has most about them. */
async function tokensOfPage() {
  const tokens = (await dataOf("tokens"))?.tokens;
  if (tokens) return tokens;
  const positions = (await dataOf("probabilities"))?.positions;
  if (positions) return positions;
  const texts = (await dataOf("attention"))?.texts ?? (await dataOf("logit_lens"))?.texts ?? [];
  return texts.map((text) => ({ text }));
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => { location.hash = idOf(tab); });
  tab.addEventListener("keydown", (event) => {
    const goals = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: tabs.length - 1 };
    if (!(event.key in goals)) return;
    event.preventDefault();
    const goal = tabs[(goals[event.key] + tabs.length) % tabs.length];
    goal.focus();
    location.hash = idOf(goal);
  });
});
window.addEventListener("hashchange", () => openSection());

function themeChanged() {
  if (page.open) {
    strip.paint(plainLegend(), null);
    drawSection(page.open);
  }
}
document.getElementById("theme").addEventListener("change", (event) => {
  if (event.target.value) document.documentElement.dataset.theme = event.target.value;
  else delete document.documentElement.dataset.theme;
  themeChanged();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);

const missing = (await dataOf("missing")) ?? {};
try {
  const tokens = await tokensOfPage();
  page.texts = tokens.map((token) => token.text);
  page.special = tokens.some((token) => token.special);
  if (tokens.length) {
    strip.fill(tokens, selected);
    strip.choose(Math.max(0, tokens.findIndex((token) => token.part === "answer")));
  } else {
    document.querySelector(".strip").hidden = true;
  }
} catch (error) {
  strip.tell(error.message);
  console.error(error);
}
await openSection();
document.documentElement.dataset.ready = "true";
