// Loads the page again every 5 seconds, and replaces the parts that are marked with data-live, except a part in which
// something has the focus or is selected. It stops while the page is hidden. After each error it waits longer, and the
// page says that it is old.
"use strict";
const EVERY = 5000, LONGEST = 60000;
const old = document.getElementById("old");
let pause = EVERY, loaded = new Date();

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
      loaded = new Date();
      old.textContent = "";
    } catch {
      pause = Math.min(LONGEST, pause * 2);
      old.textContent = `This page cannot be loaded again. Its values are those of ${loaded.toLocaleTimeString()}.`;
    }
  }
  setTimeout(refresh, pause);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) pause = EVERY; });
if (document.querySelector("[data-live]")) setTimeout(refresh, pause);
