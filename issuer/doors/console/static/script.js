// Loads the page again every 5 seconds, and replaces the parts that are marked with data-live, except a part in which
// something has the focus or is selected. It stops while the page is hidden, and waits longer after each error.
"use strict";
const EVERY = 5000, LONGEST = 60000;
let pause = EVERY;

async function refresh() {
  if (!document.hidden) {
    try {
      const reply = await fetch(location.href, { headers: { accept: "text/html" }, signal: AbortSignal.timeout(EVERY) });
      if (!reply.ok || reply.redirected) throw new Error(reply.status);
      const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const other = fresh.getElementById(part.id);
        const selection = getSelection();
        const used = part.contains(document.activeElement) || (!selection.isCollapsed && part.contains(selection.anchorNode));
        if (other && !used && other.innerHTML !== part.innerHTML) {
          const open = [...part.querySelectorAll("details[open]")].map((each) => each.id);
          part.replaceChildren(...other.childNodes);
          for (const id of open) document.getElementById(id)?.setAttribute("open", "");
        }
      }
      pause = EVERY;
      document.body.classList.remove("old");
    } catch {
      pause = Math.min(LONGEST, pause * 2);
      document.body.classList.add("old");
    }
  }
  setTimeout(refresh, pause);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) pause = EVERY; });
if (document.querySelector("[data-live]")) setTimeout(refresh, pause);
