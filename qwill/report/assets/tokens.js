// Section: the tokens with their ids and bytes.

defineSection("tokens", (body, data) => {
  const { tokens } = data;
  const cards = tokens.map((token) => card(token));
  const special = tokens.filter((token) => token.special).length;
  const answer = tokens.filter((token) => token.part === "answer").length;
  const bytes = tokens.reduce((sum, token) => sum + token.bytes.length / 2, 0);
  body.append(
    h("p", { text: `${plural(tokens.length, "token")}: ${tokens.length - answer} in the prompt, ${answer} in the answer; `
      + `${special} special. Together ${plural(bytes, "byte")}, ${(bytes / tokens.length).toFixed(1)} for each token.` }),
    scroller("Tokens with ids and bytes", h("ol", { class: "cards", start: "0" }, cards), "tall"),
  );
  body.addEventListener("click", (event) => {
    const found = event.target.closest("[data-position]");
    if (found) strip.choose(Number(found.dataset.position));
  });
  return {
    select(position) {
      body.querySelector(".card[aria-current]")?.removeAttribute("aria-current");
      const element = cards[position].firstChild;
      element.setAttribute("aria-current", "true");
      const room = element.closest(".scroller");
      const [seen, box] = [room.getBoundingClientRect(), element.getBoundingClientRect()];
      if (box.top < seen.top || box.bottom > seen.bottom) room.scrollTop += box.top - seen.top - seen.height / 2;
    },
  };

  function card(token) {
    const kinds = ["card", token.special && "special", token.partial && "partial", token.part === "answer" && "answer"];
    const notes = [token.special && "special", token.partial && (token.character ? `part of ${visible(token.character)}` : "part of a character"), token.part];
    return h("li", {}, h("button", { type: "button", class: kinds.filter(Boolean).join(" "), "data-position": token.position },
      h("span", { class: "place", text: token.position }),
      word(token.text),
      h("span", { class: "id", text: token.id }),
      h("span", { class: "bytes", text: spaced(token.bytes) }),
      h("span", { class: "note", text: notes.filter(Boolean).join(", ") })));
  }
});
