// The first page of a run or data set: its state, headlines, learning curves, and all other metrics.
"use strict";
(() => {
  const { h } = View;

  const byTag = (curves, prefix) => Object.keys(curves).filter((name) => name.startsWith(prefix) && name !== `${prefix}mean`).map((name) => name.slice(prefix.length));

  View.learningCharts = (curves) => {
    const tags = [...new Set([...byTag(curves, "success/"), ...byTag(curves, "val/success/"), ...byTag(curves, "reward/")])].sort();
    // Held-out prompts of a domain are a tag of their own: it has the domain's color.
    const base = (tag) => (tag.endsWith("_val") && tags.includes(tag.slice(0, -4)) ? tag.slice(0, -4) : tag);
    const colors = View.colors([...new Set(tags.map(base))]);
    const color = new Map(tags.map((tag) => [tag, colors.get(base(tag))]));
    const of = (name, tag, sparse) => ({ name: sparse ? `${base(tag)}, held out` : tag, color: color.get(tag), sparse, points: curves[name] || [] });
    const success = tags.flatMap((tag) => [of(`success/${tag}`, tag, false), of(`val/success/${tag}`, tag, true)]);
    const reward = tags.flatMap((tag) => [of(`reward/${tag}`, tag, false), of(`val/reward/${tag}`, tag, true)]);
    return [View.lineChart("Success", success, { percent: true, low: 0, high: 1 }), View.lineChart("Reward per episode", reward)];
  };

  const progressCard = (source) => {
    const share = source.max_steps ? Math.min(1, source.steps / source.max_steps) : 0;
    const line = [];
    if (source.state === "running") {
      if (View.known(source.step_s)) line.push(`${View.seconds(source.step_s)} a step`);
      if (View.known(source.eta_s)) line.push(`about ${View.seconds(source.eta_s)} left`);
      if (source.last_event) line.push(`last recorded: ${source.last_event.name}, ${View.seconds(source.last_event.ago_s)} ago`);
    } else {
      if (View.known(source.step_s)) line.push(`${View.seconds(source.step_s)} a step at the end`);
      line.push(`last written ${View.ago(source.written_at)}`);
    }
    return h("div", { class: "progress" },
      h("div", { class: "row" }, View.statePill(source), h("b", {}, `Step ${View.stepsText(source)}`), h("span", { class: "quiet" }, line.join(" · "))),
      h("div", { class: "track" }, h("div", { class: source.state === "running" ? "done live" : "done", vars: { width: `${100 * share}%` } })));
  };

  const shardsCard = (source) => h("div", { class: "progress" },
    h("div", { class: "row" }, View.statePill(source), h("b", {}, `${View.count(source.shards)} of ${View.count(source.planned_shards)} files`), h("span", { class: "quiet" }, `last written ${View.ago(source.written_at)}`)),
    h("div", { class: "track" }, h("div", { class: source.state === "running" ? "done live" : "done", vars: { width: `${100 * source.shards / source.planned_shards}%` } })));

  const kpi = ({ value, name, about }) => h("div", { class: "card kpi" }, h("div", { class: "quiet" }, name), h("div", { class: "big" }, value), about ? h("div", { class: "quiet" }, about) : null);
  const kpis = (source) => h("div", { class: "grid kpis" }, source.headlines.map(kpi));

  // What asynchronous training costs and brings: how old the samples were, and where the trainer's time went.
  const TRAINER_PARTS = [["train", "0"], ["publish", "3"], ["validate", "4"], ["checkpoint", "1"], ["wait_batch", "wait"]];
  const paceCharts = (source) => {
    const charts = [];
    if (source.staleness.some(([, count]) => count > 0)) charts.push(View.histogram("Staleness when trained on", source.staleness));
    const parts = TRAINER_PARTS.map(([name, color]) => ({ name: name.replace("_batch", ""), color, values: new Map(source.curves[`time/${name}_s`] || []) })).filter((part) => [...part.values.values()].some((value) => value > 0));
    const steps = [...new Set(parts.flatMap((part) => [...part.values.keys()]))].sort((a, b) => a - b);
    const bars = steps.map((step) => ({ label: `step ${View.count(step)}`, tick: View.count(step), parts: parts.map(({ name, color, values }) => ({ name, color, value: values.get(step) || 0 })) }));
    if (bars.length) charts.push(View.stackedBars("The trainer’s seconds, by step", bars, View.seconds, { size: "large", legend: parts }));
    return charts.length ? h("div", { class: "grid" }, charts) : null;
  };

  const USES = { train: "trained on", validation: "validation", discarded: "not used", data: "data set" };
  View.useWord = (use) => USES[use] || use;

  const summaryTable = (source) => {
    const rows = source.summary.by_tag;
    if (!rows.length) return null;
    const link = (row) => `#/s/${source.id}/trajectories?${new URLSearchParams({ tag: row.tag, use: row.use })}`;
    const examples = source.examples.map(({ tag, why, key }) => h("a", { href: `#/s/${source.id}/t/${encodeURIComponent(key)}` }, `${why} of ${tag}`));
    return View.card(h("h2", {}, "Trajectories"),
      source.files_left_out ? h("p", { class: "quiet" }, `Of some of the files, taken evenly over the run; ${View.count(source.files_left_out)} were not read.`) : null,
      h("p", { class: "examples" }, examples),
      h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Tag", "Use", "Count", "Success", "Mean reward", "Mean turns", "Sampled tokens", "Failed"].map((word, at) => h("th", { class: at > 1 ? "right" : null }, word)))),
      h("tbody", {}, rows.map((row) => h("tr", {},
        h("td", {}, h("a", { href: link(row) }, row.tag)), h("td", {}, View.useWord(row.use)),
        [View.count(row.count), row.count > row.failed ? `${View.percent(row.successes / (row.count - row.failed))} of ${View.count(row.count - row.failed)}` : "–", View.minus(View.number(row.reward)), View.number(row.turns), View.count(row.sampled), View.count(row.failed)]
          .map((text) => h("td", { class: "right" }, text))))))));
  };

  const problems = (source) => (source.problems.length
    ? h("div", { class: "notice", role: "status" }, h("b", {}, "Not everything is here"), h("ul", {}, source.problems.slice(0, 8).map((line) => h("li", {}, line)), source.problems.length > 8 ? h("li", {}, `and ${source.problems.length - 8} more`) : null))
    : null);

  const signs = (source) => (source.signs && source.signs.length
    ? h("div", { class: "notice", role: "status" }, h("b", {}, "How learning goes"), h("ul", {}, source.signs.map((line) => h("li", {}, line))))
    : null);

  View.indexingNotice = (indexing) => (indexing && indexing.is_running && indexing.files
    ? h("div", { class: "notice even", role: "status" }, `Reading trajectory files: ${View.count(indexing.done)} of ${View.count(indexing.files)}, ${View.count(indexing.trajectories)} trajectories so far.`)
    : null);

  let withSettings = false;

  const draw = (source) => {
    const parts = [problems(source), signs(source), View.indexingNotice(source.indexing)];
    if (source.kind === "run") {
      parts.push(progressCard(source));
      if (source.facts.length) parts.push(h("dl", { class: "facts" }, source.facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
    } else {
      if (source.planned_shards && source.state !== "finished") parts.push(shardsCard(source));
      if (source.command) parts.push(h("pre", { class: "command" }, source.command));
    }
    parts.push(kpis(source));
    if (source.kind === "run") {
      if (Object.keys(source.curves).length) parts.push(h("div", { class: "grid" }, View.learningCharts(source.curves)), paceCharts(source));
      else parts.push(View.empty("No step has been logged yet", "The curves begin with the first line of metrics.jsonl."));
    }
    parts.push(summaryTable(source));
    if (source.config) parts.push(h("details", { class: "card", open: withSettings, ontoggle: (event) => { withSettings = event.target.open; } }, h("summary", {}, "All settings"), h("pre", {}, source.config)));
    return parts.filter(Boolean);
  };

  const live = (id, title, drawWith) => async () => {
    const page = { title, element: h("div", {}), isIndexing: false };
    page.update = async () => {
      const source = await View.data.get(`/sources/${id}`);
      page.isIndexing = source.indexing.is_running;
      page.element.replaceChildren(...drawWith(source));
    };
    await page.update();
    return page;
  };
  View.overviewPage = (id) => live(id, "Overview", draw)();

  const GROUPS = [["val/", "Held out"], ["success/", "Success"], ["reward/", "Reward"], ["actor/", "Policy"], ["critic/", "Critic"], ["advantage/", "Advantages"], ["kl_reward/", "KL in the reward"], ["staleness/", "Staleness"], ["rollout/", "Rollouts"], ["env/", "Environments"], ["time/", "Time"], ["weight_update/", "Weight updates"], ["engine/", "Engines"], ["ledger/", "Ledger, since the start"], ["failures/", "Failures"], ["filter/", "Filters"], ["waste/", "Waste"], ["dropped_share/", "Dropped, of the sampled tokens"]];
  const FIRST = ["loss", "entropy", "clip", "kl", "logprob", "ratio", "grad", "lr", "learning_rate"];
  const rank = (name) => { const at = FIRST.findIndex((word) => name.split("/").at(-1).includes(word)); return at < 0 ? FIRST.length : at; };
  let wanted = "";

  View.metricsPage = async (id) => {
    const charts = h("div", { class: "sections" });
    let curves = {};
    const drawAll = () => {
      const names = Object.keys(curves).filter((name) => name.toLowerCase().includes(wanted.toLowerCase()));
      const rest = new Set(names);
      const sections = GROUPS.map(([prefix, title]) => {
        const own = names.filter((name) => name.startsWith(prefix)).sort((a, b) => rank(a) - rank(b));
        own.forEach((name) => rest.delete(name));
        return [title, own];
      });
      sections.push(["Others", [...rest]]);
      const drawn = sections.filter(([, own]) => own.length).map(([title, own]) => {
        const changing = own.filter((name) => new Set(curves[name].map(([, value]) => value)).size > 1);
        const constant = own.filter((name) => !changing.includes(name));
        return h("section", {}, h("h2", {}, title),
          h("div", { class: "grid small" }, changing.map((name) => View.lineChart(name, [{ name, color: 0, points: curves[name] }], { size: "small" }))),
          constant.length ? h("p", { class: "quiet constants" }, "Constant: ", constant.map((name) => h("span", {}, `${name} `, h("b", {}, View.minus(View.number(curves[name][0][1])))))) : null);
      });
      charts.replaceChildren(...(drawn.length ? drawn : [View.empty("No metric of that name", wanted ? `None of ${Object.keys(curves).length} has “${wanted}” in its name.` : "Nothing has been logged yet.")]));
    };
    const update = async () => { curves = (await View.data.get(`/sources/${id}`)).curves || {}; drawAll(); };
    const search = h("input", { type: "search", value: wanted, placeholder: "entropy, engine/, loss …", "aria-label": "Show metrics whose name contains", "data-search": "", oninput: View.debounce((event) => { wanted = event.target.value; drawAll(); }, 120) });
    await update();
    return { title: "Metrics", element: h("div", {}, h("div", { class: "row" }, h("label", { class: "field" }, "Name contains ", search)), charts), update };
  };
})();
