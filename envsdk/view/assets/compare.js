// The page of `envsdk compare`: the verdict, and each metric of all groups in one chart.
"use strict";
(() => {
  const { h } = View;
  const ABOUT = "Mean of a group’s runs, and their lowest and highest values.";
  const { lines, charts } = JSON.parse(document.getElementById("data").textContent);
  const DASHES = ["none", "8 6", "2 6", "12 5 2 5"];
  const colors = View.colors([...new Set(charts.flatMap(({ series }) => series.map(({ name }) => name)))]);
  const chart = ({ title, percent, series }) => View.lineChart(
    title, series.map((one, at) => ({ ...one, color: colors.get(one.name), dash: DASHES[at % DASHES.length] })),
    { percent, ...(percent ? { low: 0, high: 1 } : {}), about: series.some(({ band }) => band.length) ? ABOUT : null });
  document.getElementById("bar").replaceChildren(h("span", { class: "brand" }, "envsdk compare"));
  document.getElementById("main").replaceChildren(
    View.card(h("h2", {}, "Verdict"), h("pre", {}, lines.join("\n"))), h("br"),
    h("div", { class: "grid" }, charts.map(chart)));
})();
