// The page's base: elements, data blocks, numbers as words, the chosen token, and the list of sections.
// Knows no section. Texts are only ever put in as text nodes, never as HTML.

/** Make an HTML element. `properties` are attributes, but for on… (listeners), style (an object) and text. */
function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Make an SVG element. */
function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A token's or a request's text: shown as it is, but nothing in it can turn or hide what stands around it. */
function word(text, kind = "token-text") {
  return h("bdi", { class: kind, dir: "auto", text: visible(text) });
}

/** Signs for what a text has no letter for. Unicode's own pictures of these are empty boxes in common fonts. */
const SIGNS = { "\u240a": "↵", "\u2409": "⇥", "\n": "↵", "\t": "⇥" };

/** `text` with control and direction characters written out. */
function visible(text) {
  return String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2400-\u2421\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g,
    (character) => SIGNS[character] ?? written(character.charCodeAt(0)),
  );
}

/** A character as its number; a picture of a control character as the character that it stands for. */
function written(code) {
  const meant = code === 0x2421 ? 0x7f : code >= 0x2400 && code < 0x2421 ? code - 0x2400 : code;
  return `<U+${meant.toString(16).toUpperCase().padStart(4, "0")}>`;
}

// ---- data ----

/** The data of a section, or null; unpacked when first asked for. */
async function dataOf(id) {
  const element = document.getElementById(`data-${id}`);
  if (!element) return null;
  if (element.dataset.packed !== "deflate") return JSON.parse(element.textContent);
  return JSON.parse(new TextDecoder().decode(await inflate(element.textContent)));
}

/** Bytes from base64 of a zlib stream. */
async function inflate(base64) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser cannot unpack the data (it lacks DecompressionStream). Any browser from 2023 on can.");
  }
  const characters = atob(base64);
  const packed = new Uint8Array(characters.length);
  for (let place = 0; place < characters.length; place += 1) packed[place] = characters.charCodeAt(place);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// ---- numbers as words ----

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** 12 345 678 -> "12.3 M" */
function short(value, unit = "") {
  const [size, prefix] = UNITS.find(([one]) => Math.abs(value) >= one) ?? [1, ""];
  const scaled = value / size;
  const digits = prefix === "" && Number.isInteger(value) ? String(value) : scaled.toPrecision(3);
  return `${Math.abs(scaled) >= 1000 ? Math.round(scaled) : digits}${prefix || unit ? " " : ""}${prefix}${unit}`.trim();
}

/** Seconds as s, ms or µs. */
function duration(seconds) {
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${(seconds * 1e6).toPrecision(3)} µs`;
}

/** A share of 1 as a percentage; tiny ones do not become 0. */
function percent(share) {
  if (share === null || share === undefined) return "–";
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${value >= 99.995 ? "100" : value.toFixed(value < 10 ? 2 : 1)} %`;
}

/** A number with four digits that count. */
function number(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e6 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

// ---- the chosen token and the sections ----

/** What all sections share. `selected` is a position; `texts[position]` its token as words. */
const page = { selected: 0, texts: [], open: null };

/** Section id -> function(body, data) that draws it and gives {select(position), redraw()}. */
const sections = new Map();

function defineSection(id, draw) {
  sections.set(id, draw);
}

/** "17 “the”" for texts that name a position. */
function named(position) {
  const text = page.texts[position];
  return text === undefined ? `${position}` : `${position} “${visible(text)}”`;
}
