"use strict";
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  document.documentElement.classList.add("js");

  // --- data: columns of words are stored as [value, times, …] ---
  const data = JSON.parse($("#data").textContent);
  const unrun = (runs) => {
    const out = [];
    for (let i = 0; i < runs.length; i += 2) for (let n = runs[i + 1]; n > 0; n--) out.push(runs[i]);
    return out;
  };
  const column = {
    rank: data.rank || Array.from({ length: data.count }, (_, i) => i),
    pid: data.pid, cpu: data.cpu, kind: unrun(data.kind), group: unrun(data.group),
  };
  for (const name of ["node", "state", "step", "collective", "doing"]) column[name] = unrun(data[name]).map((i) => data.words[i]);
  const culprits = new Set(data.culprits);
  const kindOf = (i) => { const [name, role, letter, css] = data.kinds[column.kind[i]]; return { name, role, letter, css }; };
  const element = (tag, css, text) => {
    const made = document.createElement(tag);
    if (css) made.className = css;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // --- copy ---
  const copied = (button) => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
  const copyOld = (text) => {
    const area = document.body.appendChild(element("textarea"));
    area.value = text; area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const button of $$(".copy")) button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(button.dataset.copy); copied(button); }
    catch { if (copyOld(button.dataset.copy)) copied(button); }
  });

  // --- how long ago, and how long still ---
  const span = (seconds) => {
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 120) return `${whole} s`;
    if (whole < 7200) return `${Math.floor(whole / 60)} min`;
    return whole < 172800 ? `${Math.floor(whole / 3600)} h` : `${Math.floor(whole / 86400)} days`;
  };
  const tick = () => {
    for (const one of $$("[data-ago]")) one.textContent = `${span((Date.now() - Date.parse(one.dataset.ago)) / 1000)} ago`;
    for (const one of $$("[data-until]")) {
      const left = (Date.parse(one.dataset.until) - Date.now()) / 1000;
      one.textContent = left > 0 ? `in ${span(left)}` : "is over";
    }
  };
  tick();
  setInterval(tick, 1000);

  // --- map ---
  const detail = $("#detail");
  const show = (i) => {
    const words = [column.node[i], column.pid[i] ? `pid ${column.pid[i]}` : "no process", column.state[i],
      column.cpu[i] < 0 ? "" : `CPU ${column.cpu[i]} %`, column.step[i] && `step ${column.step[i]}`, kindOf(i).role];
    detail.classList.add("on");
    detail.replaceChildren(element("b", "", `rank ${column.rank[i]}${culprits.has(i) ? ", culprit" : ""}`),
      ` ${column.doing[i]}`, element("br"), element("span", "soft", words.filter(Boolean).join(" · ")));
  };
  for (const cell of $$(".cell")) for (const event of ["pointerenter", "focus", "click"]) cell.addEventListener(event, () => show(+cell.dataset.i));
  for (const map of $$(".drawn")) {
    const columns = +map.dataset.columns, perNode = +map.dataset.perNode, cursor = $(".cursor", map);
    const left = (c) => c * data.pitch + (perNode ? Math.floor(c / perNode) * data.gap : 0);
    let here = data.culprits[0] || 0;
    const go = (i) => {
      here = Math.max(0, Math.min(data.count - 1, i));
      cursor.setAttribute("x", left(here % columns) - 1);
      cursor.setAttribute("y", Math.floor(here / columns) * data.pitch - 1);
      show(here);
    };
    const at = (event) => {
      const spot = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
      const row = Math.floor(spot.y / data.pitch);
      let c = 0;
      while (c + 1 < columns && left(c + 1) <= spot.x) c++;
      const i = row * columns + c;
      if (row >= 0 && spot.x >= 0 && i < data.count) go(i);
    };
    for (const event of ["pointermove", "pointerdown"]) map.addEventListener(event, at);
    map.addEventListener("focus", () => { if (map.matches(":focus-visible")) go(here); });
    map.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      if (step) { event.preventDefault(); go(here + step); }
    });
  }
  for (const button of $$(".legend button")) button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    for (const other of $$(".legend button")) other.setAttribute("aria-pressed", String(on && other === button));
    $("#map").classList.toggle("dimmed", on);
    for (const one of $$("#map .cell, #map path[data-kind]")) one.classList.toggle("lit", on && one.dataset.kind === button.dataset.kind);
  });

  // --- tree ---
  const tree = $("#tree");
  if (tree) {
    const items = $$("li", tree).reverse();  // children before their parents
    const opened = new Map($$("details", tree).map((one) => [one, one.open]));
    const own = (item) => $$(":scope > details > summary code, :scope > details > code", item);
    const highlight = (code, wanted) => {
      const text = code.textContent, at = wanted ? text.toLowerCase().indexOf(wanted) : -1;
      if (at < 0) { if (code.firstElementChild) code.textContent = text; return false; }
      code.replaceChildren(text.slice(0, at), element("mark", "", text.slice(at, at + wanted.length)), text.slice(at + wanted.length));
      return true;
    };
    const search = (typed) => {
      const wanted = typed.trim().toLowerCase();
      let matches = 0;
      const alive = new Set();
      for (const item of items) {
        let hits = own(item).filter((code) => highlight(code, wanted)).length;
        if (wanted && $(".edge", item).textContent.toLowerCase().includes(wanted)) hits ||= 1;
        matches += hits;
        const below = alive.has(item);
        item.hidden = Boolean(wanted) && !hits && !below;
        const fold = $("details", item);
        fold.open = wanted ? below || hits > 0 : opened.get(fold);
        if (hits || below) { const above = item.parentElement.closest("li"); if (above) alive.add(above); }
      }
      $("#matches").textContent = wanted ? (matches ? `${matches} found` : "nothing found") : "";
    };
    $("#search").addEventListener("input", (event) => search(event.target.value));
    $("#search").addEventListener("keydown", (event) => { if (event.key === "Escape") { event.target.value = ""; search(""); } });
    for (const button of $$("[data-fold]")) button.addEventListener("click", () => {
      for (const one of opened.keys()) one.open = button.dataset.fold === "open";
    });
    tree.addEventListener("keydown", (event) => {
      const summary = event.target.closest("summary");
      if (!summary) return;
      const fold = summary.parentElement;
      const all = $$("summary", tree).filter((one) => one.checkVisibility());
      const at = all.indexOf(summary);
      const move = { ArrowDown: all[at + 1], ArrowUp: all[at - 1] }[event.key];
      if (event.key === "ArrowRight" && !fold.open) fold.open = true;
      else if (event.key === "ArrowRight") all[at + 1]?.focus();
      else if (event.key === "ArrowLeft" && fold.open) fold.open = false;
      else if (event.key === "ArrowLeft") fold.parentElement.parentElement.closest("details")?.querySelector("summary").focus();
      else if (move) move.focus();
      else if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
    });
  }

  // --- table ---
  const order = ["exited", "missing", "inert", "busy", "unclear", "waiting"];
  const suspicion = (i) => (culprits.has(i) ? -1 : order.indexOf(kindOf(i).role));
  const body = $("#ranks tbody"), PAGE = 200;
  let sorting = null, descending = false, limit = data.count > 256 ? Math.max(body.rows.length, 16) : 256;
  const texts = [];
  const textOf = (i) => (texts[i] ??= ["node", "state", "step", "collective", "doing"].map((name) => column[name][i])
    .concat(`rank ${column.rank[i]}`, `pid ${column.pid[i]}`, kindOf(i).name, kindOf(i).role).join("\n").toLowerCase());
  const number = (text) => { const found = parseInt(text, 10); return Number.isNaN(found) ? -1 : found; };
  const value = (i) => (sorting === "kind" ? kindOf(i).name : sorting === "step" ? number(column.step[i]) : column[sorting][i]);
  const compare = (a, b) => {
    if (!sorting) return suspicion(a) - suspicion(b) || column.rank[a] - column.rank[b];
    const x = value(a), y = value(b);
    return (x < y ? -1 : x > y ? 1 : 0) * (descending ? -1 : 1) || column.rank[a] - column.rank[b];
  };
  const chosen = () => {
    const wanted = $("#filter").value.trim().toLowerCase(), only = $("#suspects").checked;
    const number = /^\d+$/.test(wanted) ? +wanted : null;
    const fits = (i) => (number === null ? !wanted || textOf(i).includes(wanted) : column.rank[i] === number || column.pid[i] === number);
    return column.rank.map((_, i) => i).filter((i) => fits(i) && (!only || suspicion(i) < order.length - 1)).sort(compare);
  };
  const row = (i) => {
    const kind = kindOf(i), made = element("tr", culprits.has(i) ? "culprit" : "");
    const cell = (name, text) => made.appendChild(element("td", `k-${name}`, text));
    const maybe = (name, text) => made.appendChild(element("td", `k-${name}${text ? "" : " empty"}`, text || "–"));
    cell("rank", column.rank[i]); maybe("node", column.node[i]); maybe("pid", column.pid[i]);
    const badge = cell("kind").appendChild(element("span", `badge ${kind.css}`));
    badge.append(element("b", "", kind.letter), kind.name);
    maybe("state", column.state[i]); maybe("cpu", column.cpu[i] < 0 ? "" : `${column.cpu[i]} %`);
    maybe("step", column.step[i]);
    const group = cell("group");
    if (column.group[i] >= 0) { const link = group.appendChild(element("a", "", column.group[i] + 1)); link.href = `#group-${column.group[i]}`; }
    maybe("collective", column.collective[i]); cell("doing").append(element("span", "", column.doing[i]));
    return made;
  };
  const fill = () => {
    const found = chosen(), shown = found.slice(0, limit);
    body.replaceChildren(...shown.map(row));
    $("#shown").textContent = shown.length < data.count ? `${shown.length.toLocaleString("en")} of ${data.count.toLocaleString("en")} ranks` : `${data.count.toLocaleString("en")} ranks`;
    const rest = found.length - shown.length;
    $("#more").hidden = rest === 0;
    $("#more").textContent = `Show ${Math.min(rest, PAGE).toLocaleString("en")} more`;
  };
  $("#more").addEventListener("click", () => { limit += PAGE; fill(); });
  for (const event of ["#filter", "#suspects"]) $(event).addEventListener("input", () => { limit = Math.max(limit, PAGE); fill(); });
  for (const button of $$("[data-sort]")) button.addEventListener("click", () => {
    descending = sorting === button.dataset.sort && !descending;
    sorting = button.dataset.sort;
    for (const head of $$("th")) head.removeAttribute("aria-sort");
    button.parentElement.setAttribute("aria-sort", descending ? "descending" : "ascending");
    limit = Math.max(limit, PAGE);
    fill();
  });
  fill();

  // --- keys and paper ---
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) return;
    if (event.key === "u") $$(".trail a").pop()?.click();  // up, in the agent's site
    if (event.key !== "/") return;
    event.preventDefault(); $("#search")?.focus();
  });
  let folded = [];
  addEventListener("beforeprint", () => { folded = $$("details:not([open])"); for (const one of folded) one.open = true; });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
})();
