// Section: blocks of the KV cache step by step: who holds which, what is new, what was found in the prefix cache.

defineSection("kv_cache", (body, data) => {
  const { steps, requests, block_size: size } = data;
  const names = requests.map((request) => request.id);
  const blocks = [...new Set(steps.flatMap((step) => step.shares.flatMap((share) => share.blocks)))].sort((a, b) => a - b);
  const letter = (request) => letterOf(names.indexOf(request));
  const slider = h("input", { type: "range", id: "step", min: 0, max: Math.max(0, steps.length - 1), value: 0, oninput: () => show(Number(slider.value)) });
  const go = (by) => { slider.value = String(Number(slider.value) + by); show(Number(slider.value)); };
  const words = h("p", { class: "readout", "aria-live": "polite" });
  const grid = h("ol", { class: "blocks", "aria-label": "Blocks of the cache" });
  const shares = h("div");
  body.append(
    h("p", { text: `${plural(requests.length, "request")}, ${plural(steps.length, "step")}, blocks of ${plural(size, "token")}. `
      + (data.num_blocks ? `${plural(blocks.length, "block")} of ${data.num_blocks} were used.` : "") + (data.note ? ` ${data.note}` : "") }),
    h("p", { text: hits() }),
    h("div", { class: "slider" }, h("label", { for: "step", text: "Step" }), h("button", { type: "button", "aria-label": "One step back", onclick: () => go(-1) }, "←"), slider,
      h("button", { type: "button", "aria-label": "One step on", onclick: () => go(1) }, "→")),
    words,
    h("p", { class: "hint", text: "A filled bar is tokens that are kept; a striped one is written in this step; a double frame is a block that several requests share." }),
    grid, shares,
    asTable("requests and what they found in the cache", ["", "request", "prompt tokens", "found in the cache"], () => requests.map((request, index) => [
      badge(index), word(request.id), String(request.prompt_tokens), `${request.cached_tokens} (${percent(request.prompt_tokens ? request.cached_tokens / request.prompt_tokens : 0)})`])),
    asTable("steps", ["step", "time", "new tokens", "requests", "free blocks", "cached blocks"], () => steps.map((step) => [
      String(step.index), duration(step.seconds), String(step.shares.reduce((sum, share) => sum + share.count, 0)), String(step.shares.length), String(step.free), String(step.cached)])));

  function hits() {
    const found = requests.filter((request) => request.cached_tokens > 0);
    if (!found.length) return "No request found the beginning of its prompt in the prefix cache.";
    const sum = (key) => found.reduce((total, request) => total + request[key], 0);
    return `${found.length} of ${plural(requests.length, "request")} found the beginning of ${found.length > 1 ? "their prompts" : "its prompt"} in the prefix cache: `
      + `${sum("cached_tokens")} of ${sum("prompt_tokens")} tokens did not have to be computed again.`;
  }

  function badge(index) {
    return h("span", { class: "badge", style: { background: KINDS[index % KINDS.length], color: inkOn(parts(KINDS[index % KINDS.length])) }, text: letterOf(index) });
  }

  /** Block -> {owners, kept, fresh}: requests that hold it, tokens from before this step and of this step. */
  function state(index) {
    const held = new Map();
    const latest = new Map();
    for (const step of steps.slice(0, index + 1)) for (const share of step.shares) latest.set(share.request, { share, step });
    for (const [request, { share, step }] of latest) {
      if (lastStep(request) < index) continue; // it has ended
      const now = step === steps[index];
      const [before, after] = [now ? share.start : share.start + share.count, share.start + share.count];
      share.blocks.forEach((block, place) => {
        const inside = (tokens) => Math.min(size, Math.max(0, tokens - place * size));
        if (inside(after) === 0) return;
        const one = held.get(block) ?? { owners: [], kept: 0, after: 0 };
        one.owners.push(request);
        one.kept = Math.max(one.kept, inside(before));
        one.after = Math.max(one.after, inside(after));
        held.set(block, one);
      });
    }
    return held;
  }

  function lastStep(request) {
    return steps.findLastIndex((step) => step.shares.some((share) => share.request === request));
  }

  function show(index) {
    const step = steps[index];
    if (!step) return;
    const held = state(index);
    const shared = [...held.values()].filter((one) => one.owners.length > 1).length;
    slider.setAttribute("aria-valuetext", `step ${step.index} of ${steps.length}`);
    words.textContent = `Step ${index + 1} of ${steps.length}: ${step.shares.reduce((sum, share) => sum + share.count, 0)} new tokens in ${duration(step.seconds)}; `
      + `${plural(held.size, "block")} in use, ${shared} shared, ${step.free} free, ${step.cached} kept for later prompts.`;
    grid.replaceChildren(...blocks.map((block) => blockBox(block, held.get(block))));
    shares.replaceChildren(scroller("This step", plainTable("Computed in this step", ["", "request", "positions", "blocks", "from the prefix cache"], step.shares.map((share) => [
      badge(names.indexOf(share.request)), word(share.request), share.count > 1 ? `${share.start}–${share.start + share.count - 1}` : String(share.start), String(share.blocks.length), String(share.cached_tokens)])), "short"),
    step.copies?.length ? h("p", { text: `Copied before writing: ${step.copies.map(([from, to, count]) => `${count} tokens of block ${from} to ${to}`).join(", ")}.` }) : "");
  }

  function blockBox(block, one) {
    if (!one) return h("li", { class: "block empty" }, h("span", { class: "block-number", text: block }), h("span", { class: "block-room" }), h("span", { class: "block-note", text: "empty" }));
    const owners = one.owners.map(letter);
    const first = KINDS[names.indexOf(one.owners[0]) % KINDS.length];
    const note = owners.length > 4 ? `${owners.length}: ${owners[0]}…${owners.at(-1)}` : owners.join(" ");
    return h("li", { class: owners.length > 1 ? "block shared" : "block", style: { "--owner": first } },
      h("span", { class: "block-number", text: block }),
      h("span", { class: "block-room", "aria-hidden": "true" },
        h("span", { class: "kept", style: { width: `${(one.kept / size) * 100}%` } }),
        h("span", { class: "fresh", style: { width: `${((one.after - one.kept) / size) * 100}%` } })),
      h("span", { class: "block-note", text: note }), h("span", { class: "block-count", text: `${one.after}/${size}` }));
  }

  show(0);
  return { select() { strip.paint(plainLegend(), null); } };
});

/** 0 -> A … 25 -> Z, 26 -> A1 */
function letterOf(index) {
  const letter = String.fromCharCode(65 + (index % 26));
  return index < 26 ? letter : `${letter}${Math.floor(index / 26)}`;
}

/** "#0072b2" -> [0, 114, 178] */
function parts(colour) {
  return [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
}
