// The programs of a job: its explorers, how full the buffer between them and the trainer was, and who waited for whom.
"use strict";
(() => {
  const { h } = View;
  const STAGES = [["training", "trained on", "1"], ["ready", "ready", "0"], ["played", "being played", "wait"]];
  const WAITS = [["groups", "for groups", "0"], ["places", "for places", "1"], ["weights", "for weights", "3"]];
  const PILLS = { lives: "good", silent: "bad", left: "even" };
  const MAX_BARS = 40;

  const about = (job) => {
    const state = (name) => job.states[name] || 0;
    const facts = [
      ["trainer", `${job.status}, step ${View.count(job.step)}`], ["newest version", job.version < 0 ? "none" : View.count(job.version)],
      ["explorers", `${job.explorers.filter((one) => one.state === "lives").length} of ${job.explorers.length} live`],
      ["open, being played, ready", `${View.count(state("open"))}, ${View.count(state("leased"))}, ${View.count(state("ready"))}`],
      ["taken, in no checkpoint yet", View.count(state("taken"))], ["trained", View.count(state("trained"))],
      ["dropped", View.count(state("dropped")) + (job.reasons.length ? ` (${job.reasons.map(([reason, count]) => `${reason}: ${View.count(count)}`).join(", ")})` : "")],
    ];
    return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  };

  const HEADERS = ["Explorer", "State", "Heard", "Version", "Behind", "Groups", "Per minute", "Lag when taken", "Dropped", "Plays", "Waited for places", "For weights"];
  const explorersTable = (job) => View.card(h("h2", {}, "Explorers"),
    h("p", { class: "quiet" }, `Behind: versions between an explorer’s weights and the newest. Lag: versions between a group’s oldest token and the trainer, on average; at most ${View.count(job.max_staleness)}. Per minute: over the last five, or over the time of an explorer that is gone.`),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, HEADERS.map((word, at) => h("th", { class: at > 1 ? "right" : null }, word)))),
      h("tbody", {}, job.explorers.map((one) => h("tr", {},
        h("td", {}, one.name), h("td", {}, View.pill(one.state, PILLS[one.state])),
        [View.ago(one.seen_at), View.count(one.version), View.count(one.behind), View.count(one.ready), View.number(one.per_min), View.number(one.lag), View.count(one.dropped), View.count(one.held), View.seconds(one.waited_places_s), View.seconds(one.waited_weights_s)]
          .map((text) => h("td", { class: "right" }, text))))))));

  const TAG_HEADERS = ["Tag", "Groups in batches", "Of all", "Tokens in batches", "Tokens dropped", "Of sampled tokens"];
  const MUCH = 0.1;
  const share = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}%`);
  const tagsTable = (job) => View.card(h("h2", {}, "Tags"),
    h("p", { class: "quiet" }, "What was trained on, and which share of the sampled tokens was dropped: of episodes that had become too old, or whose explorer was lost. Sampled are the tokens in batches and the dropped ones."),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, TAG_HEADERS.map((word, at) => h("th", { class: at ? "right" : null }, word)))),
      h("tbody", {}, job.tags.map((one) => h("tr", {}, h("td", {}, one.tag),
        [View.count(one.num_groups), share(one.share), View.count(one.num_tokens), View.count(one.dropped_tokens)].map((text) => h("td", { class: "right" }, text)),
        h("td", { class: "right" }, one.dropped_share > MUCH ? View.pill(share(one.dropped_share), "bad") : share(one.dropped_share))))))));

  const depthChart = (job) => {
    const ticks = new Map(View.timeTicks(0, job.times.at(-1), window.innerWidth < 800 ? 5 : 12).map((tick) => [job.times.findIndex((time) => time >= tick), View.seconds(tick)]));
    const bars = job.times.map((time, at) => ({ label: `after ${View.seconds(time)}`, tick: ticks.get(at) || null, parts: STAGES.map(([stage, name, color]) => ({ name, color, value: job.depth[stage][at] })) }));
    return View.stackedBars(`Groups in the buffer, over time: at most ${View.count(job.capacity)}`, bars, View.count, { legend: STAGES.map(([, name, color]) => ({ name, color })) });
  };

  const rateChart = (job) => {
    const names = Object.keys(job.rates).sort();
    const colors = View.colors(names);
    const series = names.map((name) => ({ name, color: colors.get(name), points: job.rates[name].map((rate, at) => [job.times[at], rate]) }));
    return View.lineChart("Groups per minute, by explorer", series, { size: "wide", low: 0, overTime: true });
  };

  const waits = (job) => {
    const parts = (one) => WAITS.map(([what, name, color]) => ({ name, color, value: one[what] || 0 }));
    const legend = WAITS.map(([, name, color]) => ({ name, color }));
    const bars = job.waits.slice(0, MAX_BARS).map((one) => ({ label: one.name, tick: one.name, parts: parts(one) }));
    const steps = job.waited_by_step.map((one) => ({
      label: one.last === one.step ? `step ${View.count(one.step)}` : `steps ${View.count(one.step)} to ${View.count(one.last)}, mean`,
      tick: View.count(one.step), parts: [{ name: "for groups", color: "0", value: one.waited_s }],
    }));
    return h("div", { class: "grid" },
      bars.length ? View.stackedBars("Seconds that each program waited", bars, View.seconds, { size: "large", legend }) : null,
      steps.length ? View.stackedBars("Seconds that the trainer waited, by step", steps, View.seconds, { size: "large", legend: legend.slice(0, 1) }) : null);
  };

  View.programsPage = async (id) => {
    const element = h("div", {});
    const update = async () => {
      const job = await View.data.get(`/sources/${id}/programs`);
      if (job.problem) { element.replaceChildren(View.empty("The buffer cannot be read", job.problem)); return; }
      element.replaceChildren(about(job), tagsTable(job), explorersTable(job), depthChart(job), rateChart(job), waits(job));
    };
    await update();
    return { title: "Programs", element, update };
  };
})();
