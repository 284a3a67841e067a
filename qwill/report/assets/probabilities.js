// Section: how probable each token was, what else might have come, and what would have followed.

defineSection("probabilities", (body, data) => {
  const { positions } = data;
  const whatIf = data.what_if ?? [];
  const surprise = positions.map(({ probability, logprob }) => (probability === null ? null : -logprob / Math.LN2));
  const entropy = positions.map((one) => one.entropy ?? null);
  const picture = chart({
    label: "Surprise and entropy of each token",
    series: [{ name: "surprise of the token that came", values: surprise, kind: "bars" }, { name: "entropy: surprise expected", values: entropy, kind: "line" }],
    unit: "bits",
    spacing: 5,
    ends: ["first token", "last token"],
    describe: (index) => {
      const one = positions[index];
      if (one.probability === null) return `${named(index)}: nothing stands before it, so nothing was predicted.`;
      return `${named(index)}: probability ${percent(one.probability)}, surprise ${number(surprise[index])} bits, entropy ${number(one.entropy)} bits.`;
    },
    pick: (index) => strip.choose(index),
  });
  const detail = h("div", { class: "two" });
  body.append(picture.element, detail, asTable("probabilities", ["position", "token", "probability", "rank", "surprise (bits)", "entropy (bits)"],
    () => positions.map((one, index) => [String(one.position), word(one.text), percent(one.probability), one.rank ?? "–", number(surprise[index]), number(one.entropy)])));

  return {
    select(position) {
      strip.paint("Colour and bar: probability of the token.", (index) => positions[index]?.probability ?? null);
      picture.move(position);
      detail.replaceChildren(alternatives(positions[position]), continuations(position));
    },
  };

  function alternatives(one) {
    if (one.probability === null) {
      return h("div", {}, h("h3", { text: "The first token" }), h("p", { text: "The model predicts what comes next, so the first token has no probability." }));
    }
    const among = one.top.some((other) => other.id === one.id);
    const rows = one.top.map((other, index) => candidate(other, index + 1, other.id === one.id));
    if (!among) rows.push(candidate(one, one.rank, true));
    const drawn_ = one.sampling_probability === null || one.sampling_probability === undefined ? null
      : h("p", { text: `Under the request's sampling settings its probability was ${percent(one.sampling_probability)}.` });
    return h("div", {},
      h("h3", {}, `Candidates for position ${one.position}`),
      h("p", { text: `The token that came was number ${one.rank}; entropy ${number(one.entropy)} bits, as if ${number(2 ** one.entropy)} tokens were equally likely.` }),
      drawn_,
      scroller("Candidates", plainTable("The most probable tokens at this position", ["rank", "token", "id", "probability"], rows)));
  }

  function candidate(other, rank, came) {
    return [String(rank ?? "–"), h("span", {}, word(other.text), came ? h("strong", { class: "came", text: " ← came" }) : null), String(other.id), bar(other.probability, percent(other.probability))];
  }

  function continuations(position) {
    const here = whatIf.filter((one) => one.position === position);
    const places = [...new Set(whatIf.map((one) => one.position))];
    const links = places.map((place) => h("button", {
      type: "button", class: "place-button", "aria-current": place === position ? "true" : null, onclick: () => strip.choose(place),
    }, `${place} `, word(positions[place]?.text ?? "")));
    return h("div", {},
      h("h3", { text: "What if another token had come here?" }),
      here.length ? here.map(continuation) : h("p", { text: places.length ? "Not computed for this position. It was for these:" : "No other continuation was computed." }),
      places.length ? h("p", { class: "places" }, here.length ? "Computed for: " : "", links) : null,
      h("p", { class: "hint" }, "In Python, for any position and any token: ", h("code", { text: `qwill.inspect.probabilities(trace).what_if(${position}, " other")` })));
  }

  function continuation(one) {
    return h("figure", { class: "what-if" },
      h("figcaption", {}, "Instead of ", word(one.replaced.text), ", the model is given ", word(one.by.text), " and goes on:"),
      h("blockquote", { dir: "auto" }, h("mark", {}, word(one.by.text)), word(one.text, "continuation")));
  }
});
