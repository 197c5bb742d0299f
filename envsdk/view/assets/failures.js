// How all episodes ended, and failed episodes by boundary.
"use strict";
(() => {
  const { h } = View;

  const table = (id, boundary, rows) => View.card(
    h("div", { class: "row" }, h("h2", {}, boundary), h("a", { href: `#/s/${id}/trajectories?${new URLSearchParams({ failure: boundary })}` }, View.plural(rows.reduce((sum, row) => sum + row.count, 0), "trajectory", "trajectories"))),
    h("div", { class: "scroll" }, h("table", { class: "list" },
      h("thead", {}, h("tr", {}, ["Kind", "Tag", "Count", "Steps", "One of them says"].map((word, at) => h("th", { class: at === 2 || at === 3 ? "right" : null }, word)))),
      h("tbody", {}, rows.map((row) => h("tr", {},
        h("td", {}, h("a", { "data-row": "", href: `#/s/${id}/trajectories?${new URLSearchParams({ failure: `${boundary}/${row.kind}`, tag: row.tag })}` }, row.kind)),
        h("td", {}, row.tag), h("td", { class: "right" }, View.count(row.count)),
        h("td", { class: "right" }, row.first_step === null ? "–" : row.first_step === row.last_step ? View.count(row.first_step) : `${View.count(row.first_step)}–${View.count(row.last_step)}`),
        h("td", { class: "message" }, row.message)))))));

  View.failuresPage = async (id) => {
    const element = h("div", {});
    const update = async () => {
      const { failures, curves, ended, totals, files_left_out: leftOut } = await View.data.get(`/sources/${id}/failures`);
      const boundaries = [...new Set(failures.map((row) => row.boundary))];
      const parts = [];
      const colors = { delivered: "2", filtered: "4", stale: "1", failed: "3", cancelled: "wait" };
      const shares = ended.map(([name, value]) => ({ name, value, color: colors[name] || "5" }));
      if (shares.some((part) => part.value > 0)) parts.push(View.card(h("h2", {}, "How episodes ended"), View.shareBar(shares, View.count),
        h("p", { class: "quiet hint" }, "Every episode that was begun and has ended. One that was cancelled while it ran, as most stale ones are, left no trajectory; “not used” on the page of trajectories counts those that were finished and then thrown away.")));
      if (totals.length) parts.push(View.card(h("h2", {}, "Failed episodes, by boundary and kind"), View.shareBar(totals.map(([name, value], at) => ({ name, value, color: String(at % 6) })), View.count)));
      if (leftOut && boundaries.length) parts.push(h("p", { class: "quiet" }, `Below: failed episodes of the files that were read. ${View.count(leftOut)} files were left out.`));
      parts.push(...boundaries.map((boundary) => table(id, boundary, failures.filter((row) => row.boundary === boundary))));
      if (!boundaries.length && !totals.length) parts.push(View.empty("No episode failed", "Failures of environments, engines, agents, sandboxes and rewards would be listed here, each under one boundary."));
      const names = Object.keys(curves).filter((name) => name.startsWith("failures/"));
      if (names.length) parts.push(View.lineChart("Failed episodes, by step", names.map((name, at) => ({ name: name.slice(9), color: at % 6, points: curves[name] })), { low: 0, size: "wide" }));
      const lost = Object.keys(curves).filter((name) => name.startsWith("filter/") || name === "waste/tokens");
      if (lost.length) parts.push(h("p", { class: "quiet" }, "waste/tokens: sampled tokens of episodes that were thrown away, since the step before."), h("div", { class: "grid small" }, lost.map((name) => View.lineChart(name, [{ name, color: 1, points: curves[name] }], { size: "small" }))));
      element.replaceChildren(...parts);
    };
    await update();
    return { title: "Failures", element, update };
  };
})();
