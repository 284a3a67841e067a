// Colours of the pictures, in both themes: nothing is near the background, much stands out from it. All of them differ
// in lightness, so that people with any kind of colour vision, and a printer, see the same order.

/** From nothing to much on a light page, and (cividis) on a dark one. */
const RAMPS = {
  light: [[243, 245, 244], [203, 223, 228], [141, 187, 207], [79, 141, 186], [36, 94, 155], [17, 54, 115], [6, 23, 66]],
  dark: [[0, 32, 76], [0, 48, 111], [57, 72, 107], [87, 93, 109], [112, 113, 115], [138, 134, 120], [166, 157, 117], [196, 181, 108], [228, 207, 91], [255, 233, 69]],
};

/** From the least over nothing to the most, for numbers that have a sign. */
const SIGNED = {
  light: [[140, 62, 0], [214, 132, 46], [250, 246, 238], [84, 150, 200], [0, 62, 125]],
  dark: [[255, 183, 94], [168, 96, 20], [30, 33, 39], [32, 104, 168], [126, 200, 255]],
};

/** Okabe and Ito's colours for kinds; each comes with a letter or a word as well. */
const KINDS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Red, green and blue for a level of 0 … 1; `signed` levels have nothing at 0.5. */
function ramp(level, signed = false) {
  const colours = (signed ? SIGNED : RAMPS)[isDark() ? "dark" : "light"];
  const place = Math.min(1, Math.max(0, level)) * (colours.length - 1);
  const low = Math.min(colours.length - 2, Math.floor(place));
  return colours[low].map((part, index) => Math.round(part + (colours[low + 1][index] - part) * (place - low)));
}

/** 256 levels as pixels, for pictures with many points: what a Uint32Array over an image's bytes holds. */
function pixels(signed = false) {
  const table = new Uint32Array(256);
  const bytes = new Uint8Array(table.buffer);
  for (let level = 0; level < 256; level += 1) bytes.set([...ramp(level / 255, signed), 255], 4 * level);
  return table;
}

function css([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

/** Black or white, whichever can be read on this colour. */
function inkOn([red, green, blue]) {
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 120 ? "#000" : "#fff";
}

/** The legend of the ramp: a bar from the least to the most. */
function rampLegend(least, most, signed = false) {
  const bar = h("span", { class: "ramp", "aria-hidden": "true" });
  for (let step = 0; step <= 10; step += 1) bar.append(h("span", { style: { background: css(ramp(step / 10, signed)) } }));
  return h("p", { class: "ramp-legend" }, h("span", { text: least }), bar, h("span", { text: most }));
}
