"use strict";
(() => {
  const root = document.documentElement, every = Number(document.body.dataset.every);
  root.classList.add("js");
  const $ = (what, from = document) => from.querySelector(what);
  const all = (what, from = document) => [...from.querySelectorAll(what)];
  const rows = () => all("[data-row]").filter(row => !row.hidden);
  const link = row => row.matches("a") ? row : $("[data-go]", row) || $("a", row);

  const here = $("nav [aria-current]");  /* a narrow menu may begin elsewhere */
  if (here) here.scrollIntoView({ block: "nearest", inline: "nearest" });

  /* filter */
  const narrowed = box => all("[data-row]", document.getElementById(box.dataset.of) || document);
  const narrow = () => {
    const box = $("#filter"), words = box ? box.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    for (const row of box ? narrowed(box) : []) {
      const text = words.length ? `${row.textContent} ${row.dataset.words || ""}`.toLowerCase() : "";
      row.hidden = !words.every(word => text.includes(word));
    }
  };
  document.addEventListener("input", event => { if (event.target.id === "filter") narrow(); });

  /* the row that is looked at */
  const mark = row => {
    all(".here").forEach(one => one.classList.remove("here"));
    if (!row) return;
    row.classList.add("here");
    row.scrollIntoView({ block: "nearest" });
    (link(row) || row).focus({ preventScroll: true });
  };
  const walk = by => {
    const shown = rows(), now = shown.findIndex(row => row.classList.contains("here"));
    if (shown.length) mark(shown[now < 0 ? (by > 0 ? 0 : shown.length - 1) : Math.min(shown.length - 1, Math.max(0, now + by))]);
  };

  /* keys */
  const help = $("#help");
  let chord = 0;
  const typing = target => target.matches && target.matches("input, textarea, select, [contenteditable]");
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const box = $("#filter"), key = event.key;
    if (key === "Escape" && box && (event.target === box || box.value)) {
      box.value = ""; narrow(); box.blur(); return;
    }
    if (typing(event.target)) { if (key === "Enter" && event.target === box) { event.preventDefault(); box.blur(); mark(narrowed(box).find(row => !row.hidden)); } return; }
    if (Date.now() < chord) {
      chord = 0;
      const place = all("nav a").find(one => one.dataset.key === key);
      if (place) { event.preventDefault(); place.click(); }
      return;
    }
    if (key === "g") chord = Date.now() + 1500;
    else if (key === "j") walk(1);
    else if (key === "k") walk(-1);
    else if (key === "u") { const up = $("[data-up]"); if (up) up.click(); }
    else if (key === "/" && box) { event.preventDefault(); box.focus(); }
    else if (key === "?" && help) { if (help.open) help.close(); else help.showModal(); }
  });
  document.addEventListener("click", event => {
    if (event.target.closest("#help-open")) help.showModal();
    const copy = event.target.closest("[data-copy]");
    if (copy && navigator.clipboard) navigator.clipboard.writeText(copy.dataset.copy).then(() => {
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
  });

  /* live: what has changed is replaced, the rest keeps its focus, selection and place */
  if (!every) return;
  const away = $("#away"), seen = new Map();
  const key = part => part.id;
  const parts = from => all("[data-live], #as-of", from);
  for (const part of parts(document)) seen.set(key(part), part.outerHTML);
  let tag = "", failed = 0, since = 0;
  const selects = part => { const now = getSelection(); return !now.isCollapsed && part.contains(now.anchorNode); };
  const put = fresh => {
    const main = $("#main"), news = parts(fresh), ids = new Set(news.map(key));
    for (const old of parts(main)) if (!ids.has(key(old))) { seen.delete(key(old)); old.remove(); }
    let before = null;
    for (const part of news) {
      const html = part.outerHTML, old = document.getElementById(part.id);
      if (old && seen.get(part.id) === html) { before = old; continue; }
      if (old && selects(old)) { before = old; tag = ""; continue; }  /* later */
      const made = document.importNode(part, true);
      if (old) swap(old, made);
      else if (before && before.parentNode === main) before.after(made);
      else main.prepend(made);
      seen.set(part.id, html);
      before = made;
    }
    narrow();
  };
  const swap = (old, made) => {
    const box = $("#filter", old), row = $(".here", old), at = row && link(row), focus = document.activeElement;
    const within = old.contains(focus) ? focus : null;
    const open = new Set(all("details[open][id]", old).map(one => one.id));
    for (const one of all("details[id]", made)) one.open = open.has(one.id);
    const newBox = $("#filter", made);
    if (box && newBox) newBox.replaceWith(box);
    old.replaceWith(made);
    if (within === box && box) box.focus();
    else if (within) {
      const href = within.getAttribute("href");
      const same = within.id ? document.getElementById(within.id) : href && all("a", made).find(one => one.getAttribute("href") === href);
      if (same) same.focus({ preventScroll: true });
    }
    if (at) {
      const again = all("[data-row]", made).find(one => link(one) && link(one).getAttribute("href") === at.getAttribute("href"));
      if (again) again.classList.add("here");
    }
  };
  const tell = text => {
    away.hidden = !text;
    if (away.textContent !== text) away.textContent = text;  /* or it would be read out again and again */
  };
  const OVER = "This is over, or no longer yours to see: what stands here is old.";
  /* the tab, and the desktop where the user wants it, show what is open */
  const ring = $("#notify"), WANTED = "mldebug-notify", can = "Notification" in window;
  const wants = () => can && Notification.permission === "granted" && localStorage.getItem(WANTED) === "yes";
  const shown = () => { ring.hidden = !can; ring.setAttribute("aria-pressed", String(wants())); ring.textContent = wants() ? "Notifications are on" : "Notify me of incidents"; };
  const more = (before, now) => { // is there one that was not there before, also where another one is over?
    const known = before ? before.split(", ") : [];
    const isKnown = one => { const at = known.indexOf(one); if (at >= 0) known.splice(at, 1); return at >= 0; };
    return now !== "" && !now.split(", ").every(isKnown);
  };
  const announce = fresh => {
    const before = document.body.dataset.open, now = fresh.body.dataset.open || "";
    document.title = fresh.title;
    $("#icon").href = $("#icon", fresh).getAttribute("href");
    document.body.dataset.open = now;
    if (more(before, now) && wants()) new Notification(fresh.title, { body: now, tag: "mldebug" });
  };
  if (ring) {
    ring.addEventListener("click", async () => {
      const on = !wants() && (await Notification.requestPermission()) === "granted";
      localStorage.setItem(WANTED, on ? "yes" : "no");
      shown();
    });
    shown();
  }
  const look = async () => {
    if (document.hidden && !wants()) return;
    const began = Date.now();
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(10000) });
      if (answer.type === "opaqueredirect" || answer.status === 401) { tell("You are logged out: load the page again."); return; }
      if (answer.status !== 304) {
        if (answer.status === 404) { tell(OVER); return; }
        if (!answer.ok) throw new Error(String(answer.status));
        const text = await answer.text();
        tag = answer.headers.get("ETag") || "";
        const fresh = new DOMParser().parseFromString(text, "text/html");
        announce(fresh);
        put(fresh);
      }
      failed = 0;
      tell("");
    } catch (error) {
      if (!failed) since = began;
      failed += 1;
      if (failed > 1 || Date.now() - since > 5000) tell(`The agent does not answer (for ${Math.round((Date.now() - since) / 1000)} s): what stands here is old.`);
    }
  };
  const turn = async () => { await look(); setTimeout(turn, every * 1000 * Math.min(4, 1 + failed / 4)); };
  setTimeout(turn, every * 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
})();
