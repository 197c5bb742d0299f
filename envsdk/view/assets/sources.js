// The list of runs and data sets, with the curves of some of them over one another.
"use strict";
(() => {
  const { h } = View;
  const STATES = { running: ["running", "good"], finished: ["finished", "even"], stopped: ["stopped", "warn"], silent: ["no longer writing", "bad"] };
  const MAX_COMPARED = 6;
  const chosen = new Set();
  let metric = "success/mean";

  View.statePill = (source) => {
    const [word, kind] = STATES[source.state] || ["", "even"];
    return word ? View.pill(word, kind) : null;
  };
  View.stepsText = (source) => (source.max_steps ? `${View.count(source.steps)} of ${View.count(source.max_steps)}` : View.count(source.steps));

  const change = (source) => h("span", { title: source.held_out_change || null }, (source.held_out || []).join(" → ") || "–");

  const cells = (source, onChosen, withRuns) => [
    withRuns ? h("td", { class: "tight" }, source.kind === "run"
      ? h("input", { type: "checkbox", checked: chosen.has(source.id), "aria-label": `Compare ${source.name}`, onchange: (event) => onChosen(source, event.target) })
      : null) : null,
    h("td", {}, h("a", { href: `#/s/${source.id}`, "data-row": "" }, source.name)),
    h("td", {}, source.kind === "run" ? View.statePill(source) : [View.pill("data set", "even"), source.state === "running" ? [" ", View.statePill(source)] : null]),
    h("td", { class: "right" }, source.kind === "run" ? View.stepsText(source) : withRuns ? `${View.count(source.episodes)} episodes` : View.count(source.episodes)),
    h("td", { class: withRuns ? null : "right" }, source.kind === "run" ? View.sparkline(source.success || []) : [View.percent(source.success_rate), source.success_of ? ` ${source.success_of}` : null]),
    withRuns ? h("td", { class: "right" }, source.kind === "run" ? change(source) : null) : null,
    h("td", { class: "right quiet" }, View.ago(source.written_at)),
  ];
  const heads = (withRuns) => (withRuns
    ? [[""], ["Name"], ["State"], ["Steps", 1], ["Success"], ["Held-out success", 1], ["Last written", 1]]
    : [["Name"], ["State"], ["Episodes", 1], ["Success", 1], ["Last written", 1]]);

  View.sourcesPage = async () => {
    const { folder, sources } = await View.data.get("/sources");
    const compare = h("div", {});
    const runs = sources.filter((source) => source.kind === "run");
    if (!chosen.size) [...runs].sort((a, b) => b.written_at - a.written_at).slice(0, 4).forEach((run) => chosen.add(run.id));

    const draw = async () => {
      const picked = runs.filter((run) => chosen.has(run.id)).slice(0, MAX_COMPARED);
      if (!picked.length) { compare.replaceChildren(h("p", { class: "quiet" }, "Tick runs to lay their curves over one another.")); return; }
      const loaded = await Promise.all(picked.map((run) => View.data.get(`/sources/${run.id}`)));
      const names = [...new Set(loaded.flatMap((run) => Object.keys(run.curves)))].sort();
      if (!names.includes(metric)) metric = names.includes("reward/mean") ? "reward/mean" : names[0] || "";
      const select = h("select", { onchange: (event) => { metric = event.target.value; draw(); } }, names.map((name) => h("option", { value: name }, name)));
      if (metric) select.value = metric;
      const series = loaded.map((run, at) => ({ name: run.name, color: at % 6, points: run.curves[metric] || [] }));
      compare.replaceChildren(
        h("div", { class: "row" }, h("h2", {}, "Side by side"), h("label", { class: "field" }, "Curve ", select)),
        View.lineChart(metric, series, { percent: metric.startsWith("success/") || metric.startsWith("val/success/"), size: "wide" }));
    };
    const onChosen = (source, box) => {
      if (box.checked && chosen.size >= MAX_COMPARED) { box.checked = false; return; }
      if (box.checked) chosen.add(source.id); else chosen.delete(source.id);
      draw();
    };
    const row = (source) => h("tr", {}, cells(source, onChosen, runs.length > 0));
    const body = h("tbody", {}, sources.map(row));
    if (!sources.length) return { title: "Runs", element: View.empty("Nothing to look at any more", `${folder} holds neither runs nor data sets.`), update: () => View.data.get("/sources").then((fresh) => { if (fresh.sources.length) location.reload(); }) };
    const page = h("div", {},
      h("h1", {}, "Runs and data sets"), h("p", { class: "quiet" }, folder),
      runs.length ? compare : null,
      h("div", { class: "card scroll" }, h("table", { class: "list" },
        h("thead", {}, h("tr", {}, heads(runs.length > 0).map(([word, right]) => h("th", { class: right ? "right" : null }, word)))),
        body)));
    if (runs.length) await draw();
    return {
      title: "Runs", element: page,
      update: async () => {
        const fresh = await View.data.get("/sources");
        if (!body.contains(document.activeElement)) body.replaceChildren(...fresh.sources.map(row));
      },
    };
  };
})();
