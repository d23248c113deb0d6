// Asks for the same page each second and takes over the parts that changed. Pages work without it.
"use strict";
(() => {
  const PATIENCE = 10000;
  let failures = 0;

  // Pages that change slowly, or cost something, ask for longer pauses.
  const pause = () => 1000 * (Number(document.getElementById("main")?.dataset.pause) || 1);

  const say = (text) => {
    const state = document.getElementById("state");
    if (state && state.textContent !== text) state.textContent = text;
  };

  const isSelected = (part) => {
    const selection = getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  };

  // What has the focus keeps it, if it is still there.
  const replace = (part, next) => {
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    part.replaceWith(document.adoptNode(next));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const take = (fresh) => {
    const parts = (page) => [...page.querySelectorAll("[data-live]")];
    const ids = (page) => parts(page).map((part) => part.id).join();
    if (ids(document) !== ids(fresh)) {
      const main = fresh.getElementById("main");
      if (main) replace(document.getElementById("main"), main);
      return;
    }
    for (const part of parts(document)) {
      const next = fresh.getElementById(part.id);
      if (next.outerHTML !== part.outerHTML && !isSelected(part)) replace(part, next);
    }
  };

  const look = async () => {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (answer.status === 401) return location.reload();
    take(new DOMParser().parseFromString(await answer.text(), "text/html"));
  };

  const repeat = async () => {
    if (!document.hidden) {
      try {
        await look();
        failures = 0;
      } catch {
        failures += 1;
      }
      say(failures > 2 ? "The PoP does not answer; what is shown is old." : "");
    }
    setTimeout(repeat, pause());
  };

  document.querySelector("form[data-send]")?.requestSubmit();
  if (document.querySelector("[data-live]")) setTimeout(repeat, pause());
})();
