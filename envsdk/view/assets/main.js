// Routing, the bar above each page, the keyboard, and updates while a run is training.
"use strict";
(() => {
  const { h } = View;
  const FAST_MS = 2000, SLOW_MS = 15000;
  const TABS = [["", "Overview"], ["trajectories", "Trajectories"], ["timeline", "Timeline"], ["failures", "Failures"], ["metrics", "Metrics"], ["programs", "Programs"]];
  const KEYS = [["1 … 6", "the tabs"], ["/", "search"], ["j  k", "next, previous row or trajectory"], ["Enter", "open"], ["n  p", "next, previous page of a list"], ["u", "back to the list"], ["g", "the trajectory’s group"], ["c", "color tokens by something else"], ["← →", "along a chart, the timeline, or a reply’s tokens"], ["?", "this list"]];
  let current = null, place = null, only = null, names = new Map(), stamp = null, turn = 0;

  const parse = () => {
    const [path, query] = (location.hash.replace(/^#/, "") || "/").split("?");
    const parts = path.split("/").filter(Boolean);
    return { source: parts[0] === "s" ? parts[1] : null, part: parts[2] || "", rest: parts.slice(3), params: Object.fromEntries(new URLSearchParams(query || "")) };
  };

  const bar = (where) => {
    const children = [h("a", { class: "brand", href: "#/" }, "envsdk view")];
    if (where.source) {
      children.push(h("span", { class: "name" }, names.get(where.source) || ""));
      const active = { t: "trajectories", group: "trajectories", task: "trajectories" }[where.part] || where.part;
      children.push(h("nav", { class: "tabs", "aria-label": "Pages" }, TABS.filter(([part]) => (part === "programs" ? withPrograms.has(where.source) : part !== "metrics" && part !== "timeline" || isRun(where.source))).map(([part, word]) =>
        h("a", { href: `#/s/${where.source}${part ? `/${part}` : ""}`, "aria-current": active === part ? "page" : null }, word))));
    }
    children.push(h("span", { class: "gap" }));
    if (View.data.isExported) children.push(h("span", { class: "quiet" }, `exported ${new Date(1000 * View.data.exportedAt).toISOString().slice(0, 16).replace("T", " ")} UTC, with a sample of the trajectories`));
    children.push(h("button", { type: "button", class: "plain", "aria-label": "Keys", onclick: help }, "?"));
    document.getElementById("bar").replaceChildren(...children);
  };

  const kinds = new Map(), withPrograms = new Set();
  const isRun = (id) => kinds.get(id) !== "data";

  const pageFor = (where) => {
    const { source, part, rest, params } = where;
    if (!source) return View.sourcesPage();
    const pages = {
      "": () => View.overviewPage(source), metrics: () => View.metricsPage(source), timeline: () => View.timelinePage(source), failures: () => View.failuresPage(source), programs: () => View.programsPage(source),
      trajectories: () => View.trajectoriesPage(source, params), t: () => View.trajectoryPage(source, decodeURIComponent(rest.join("/")), params),
      group: () => View.groupPage(source, rest.join("/")), task: () => View.taskPage(source, rest.join("/")),
    };
    return (pages[part] || pages[""])();
  };

  const learnNames = async () => {
    const { sources } = await View.data.get("/sources");
    names = new Map(sources.map((source) => [source.id, source.name]));
    for (const source of sources) {
      kinds.set(source.id, source.kind);
      if (source.has_programs) withPrograms.add(source.id);
    }
    only = sources.length === 1 ? sources[0].id : null;
  };

  const show = async () => {
    const mine = ++turn;
    place = parse();
    View.hideTip();
    const main = document.getElementById("main");
    try {
      if (!names.size || (place.source && !names.has(place.source))) await learnNames();
      if (!place.source && only) { location.replace(`#/s/${only}`); return; }
      bar(place);
      main.setAttribute("aria-busy", "true");
      // Asked for before the page itself, so that nothing that is written in between is missed.
      const before = place.source ? (await View.data.get(`/sources/${place.source}/progress`)).stamp : null;
      const page = await pageFor(place);
      if (mine !== turn) return;
      current = page;
      stamp = before;
      document.title = `${page.title}${place.source ? ` · ${names.get(place.source) || ""}` : ""} · envsdk`;
      main.replaceChildren(page.element);
      window.scrollTo(0, 0);
    } catch (error) {
      if (mine !== turn) return;
      current = null;
      bar(place);
      main.replaceChildren(error instanceof TypeError ? View.empty("The server does not answer", "Start it again and open the address that it prints.") : View.empty("That cannot be shown", error.message));
    } finally {
      main.removeAttribute("aria-busy");
    }
  };

  // A running job is asked for little, often; pages are drawn again only when something was written.
  const follow = async () => {
    let wait = SLOW_MS;
    try {
      if (!document.hidden && current && current.update) {
        if (place.source) {
          const mine = turn;
          const progress = await View.data.get(`/sources/${place.source}/progress`);
          if (progress.state === "running" || progress.indexing.is_running) wait = FAST_MS;
          if (mine === turn && (current.isIndexing || progress.stamp !== stamp || (progress.state === "running" && ["", "programs"].includes(place.part)))) {
            stamp = progress.stamp;
            await current.update();
          }
        } else await current.update();
      }
    } catch (error) {
      wait = SLOW_MS;
    }
    setTimeout(follow, wait);
  };

  const help = () => {
    const dialog = document.getElementById("help");
    dialog.replaceChildren(h("h2", {}, "Keys"), h("dl", { class: "keys" }, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])), h("form", { method: "dialog" }, h("button", {}, "Close")));
    dialog.showModal();
  };

  const moveRow = (by) => {
    const rows = [...document.querySelectorAll("#main [data-row]")];
    if (!rows.length) return false;
    const at = rows.indexOf(document.activeElement);
    rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))].focus();
    return true;
  };
  const followLink = (name) => { const link = document.querySelector(`#main [data-step="${name}"]`); if (link && link.href) link.click(); return Boolean(link); };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open) return;
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "checkbox";
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const tab = place && place.source && [...document.querySelectorAll(".tabs a")][Number(event.key) - 1];
    const actions = {
      "/": () => { const box = document.querySelector("[data-search]"); if (box) box.focus(); else if (place.source) location.hash = `#/s/${place.source}/trajectories`; },
      "?": help,
      j: () => followLink("behind") || moveRow(1),
      k: () => followLink("before") || moveRow(-1),
      n: () => current && current.turn && current.turn(1),
      p: () => current && current.turn && current.turn(-1),
      u: () => followLink("up"),
      g: () => followLink("group"),
      c: () => View.cycleColors(),
    };
    if (tab) tab.click();
    else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  });

  window.addEventListener("hashchange", show);
  View.data.start();
  show();
  if (!View.data.isExported) setTimeout(follow, FAST_MS);
})();
