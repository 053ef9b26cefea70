// Loads the page again every few seconds, and replaces the parts that changed. Nothing is replaced while it has focus.
"use strict";

const PERIOD = 3000; // milliseconds

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of document.querySelectorAll("[data-live]")) {
          const other = fresh.getElementById(part.id);
          if (other && other.innerHTML !== part.innerHTML && !part.contains(document.activeElement)) {
            part.replaceChildren(...other.childNodes);
          }
        }
      }
    } catch {
      // The server has ended: the page stays as it is.
    }
  }
  setTimeout(refresh, PERIOD);
}

if (document.querySelector("[data-live]")) {
  setTimeout(refresh, PERIOD);
}

// Arrow keys go from token to token.
document.addEventListener("keydown", ({ key, target }) => {
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[key];
  const next = target.matches(".turn span") ? target[step] : step && target.matches(".turn pre") && target.firstChild;
  next?.focus?.();
});
