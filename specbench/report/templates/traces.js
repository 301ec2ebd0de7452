"use strict";
// Tokens of a trace say more where the pointer, a finger or the arrow keys choose them.
{
  const WORDS = { MARK: "accepted, a mismatch", DEL: "drafted and rejected", INS: "correction by the target" };

  function choose(text, token) {
    text.querySelector(".chosen")?.classList.remove("chosen");
    const told = text.parentElement.querySelector(".token");
    if (!token) { told.textContent = ""; return; }
    token.classList.add("chosen");
    const weight = token.style.getPropertyValue("--w"), chance = token.dataset.a;
    told.textContent = [
      `“${token.textContent}”`,
      WORDS[token.tagName] ?? (chance ? "accepted, agreed" : "from the target"),
      `round ${token.dataset.r}`,
      chance ? `acceptance probability ${chance}` : "",
      weight ? `w ${weight}` : "",
    ].filter(Boolean).join(" · ");
  }

  for (const text of document.querySelectorAll(".trace .text")) {
    const point = event => choose(text, event.target === text ? null : event.target);
    text.addEventListener("pointerover", point);
    text.addEventListener("pointerdown", point);
    text.addEventListener("pointerleave", event => event.pointerType === "mouse" && choose(text, null));
    text.addEventListener("keydown", event => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const tokens = [...text.children], at = tokens.findIndex(t => t.classList.contains("chosen"));
      choose(text, tokens[Math.max(0, Math.min(tokens.length - 1, at + step))]);
    });
  }
}
