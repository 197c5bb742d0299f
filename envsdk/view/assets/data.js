// Where the pages get their data: from the server, or from the page itself when it was exported.
"use strict";
(() => {
  const IDLE = { is_running: false, files: 0, done: 0 };
  let held = null;

  const fromServer = async (path, params, signal) => {
    const query = new URLSearchParams(Object.entries(params || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined));
    const answer = await fetch(`/api${path}${[...query].length ? `?${query}` : ""}`, { signal });
    const type = answer.headers.get("content-type") || "";
    const body = type.includes("json") ? await answer.json() : { error: await answer.text() };
    if (!answer.ok) throw new Error(body.error || `the server answered ${answer.status}`);
    return body;
  };

  const fromPage = (path, params) => {
    const [, , , part, ...rest] = path.split("/");
    const name = rest.map(decodeURIComponent).join("/");
    const { source, columns, rows, trajectories, groups, timeline, programs, failures } = held;
    const found = (asked) => View.findRows(columns, rows, trajectories, asked || {});
    if (path === "/sources") return { folder: "", sources: [source] };
    if (!part) return source;
    if (part === "timeline") return timeline;
    if (part === "programs" && programs) return programs;
    if (part === "failures") return failures;
    if (part === "progress") return { ...source, indexing: { ...IDLE, trajectories: rows.length }, stamp: "" };
    if (part === "trajectories" && !name) return { ...found(params), columns, indexing: { ...IDLE, trajectories: rows.length } };
    if (part === "trajectories" && trajectories[name]) {
      const keys = found(params).all.map((row) => row.key);
      const place = keys.indexOf(name);
      return { ...trajectories[name], place, total: keys.length, before: keys[place - 1] || null, behind: place < 0 ? null : keys[place + 1] || null };
    }
    if (part === "groups" && groups[name]) {
      return { ...groups[name], members: groups[name].members.map(({ key, advantage }) => ({ ...trajectories[key], advantage })) };
    }
    throw new Error("this is not in the exported page");
  };

  View.data = {
    start() {
      const element = document.getElementById("data");
      if (element) held = JSON.parse(element.textContent);
    },
    get isExported() { return held !== null; },
    get exportedAt() { return held ? held.exported_at : null; },
    get(path, params, signal) { return held ? Promise.resolve().then(() => fromPage(path, params)) : fromServer(path, params, signal); },
  };
})();
