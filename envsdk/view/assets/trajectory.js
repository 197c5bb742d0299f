// One trajectory, turn by turn, token by token.
"use strict";
(() => {
  const { h } = View;
  const LONG = 1600;
  let withPrompts = false;

  const text = (content, kind) => {
    const block = h("pre", { class: kind }, content);
    if (content.length <= LONG && content.split("\n").length <= 28) return block;
    block.classList.add("folded");
    const button = h("button", { type: "button", class: "unfold", onclick: () => { const folded = block.classList.toggle("folded"); button.textContent = folded ? "Show all" : "Show less"; } }, "Show all");
    return h("div", {}, block, button);
  };

  // A graded response: its verdict, what the reward is made of, and the row of data that it answers.
  const graded = (turn) => {
    const { verdict, parts, fields } = turn.details;
    const numbers = Object.entries(parts).map(([name, value]) => h("span", {}, `${name.replace(/_/g, " ")} ${View.minus(View.number(value))}`));
    return h("div", { class: `graded ${turn.reward > 0 ? "passed" : "missed"}` },
      h("div", { class: "row" }, h("b", {}, verdict || "graded"), h("span", { class: "quiet" }, `reward ${View.minus(View.number(turn.reward))}`)),
      numbers.length ? h("div", { class: "chips" }, numbers) : null,
      fields.length ? h("dl", {}, fields.map(([name, value]) => h("div", {}, h("dt", {}, name.replace(/_/g, " ")), h("dd", {}, text(value, "field"))))) : null);
  };

  const chips = (turn) => {
    const found = [];
    const parts = turn.details ? turn.details.parts : {};
    if (turn.reward && !turn.details) found.push(h("span", { class: turn.reward > 0 ? "good" : "bad" }, `reward ${View.signed(turn.reward, View.number)}`));
    if (turn.finish_reason !== "stop") found.push(h("span", { class: "warn" }, turn.finish_reason === "length" ? "cut off by its length" : turn.finish_reason));
    if (turn.calls) found.push(h("span", { class: { none: "", ok: "good", unknown_tool: "warn" }[turn.calls] ?? "bad" }, `tool call: ${turn.calls.replace(/_/g, " ")}`));
    for (const [name, value] of Object.entries(turn.metrics)) if (!(name in parts)) found.push(h("span", {}, `${name.replace(/_/g, " ")} ${View.minus(View.number(value))}`));
    if (turn.tokens) found.push(h("span", {}, View.plural(turn.tokens.ids.length, "token")));
    if (turn.tokens) {
      const versions = [...new Set(turn.tokens.versions.map(([version]) => version))];
      found.push(h("span", {}, versions.length > 1 ? `versions ${versions.join(", ")}` : `version ${versions[0]}`));
    }
    if (View.known(turn.logprob)) found.push(h("span", {}, `log-prob. ${View.minus(turn.logprob.toFixed(2))}`));
    return h("div", { class: "chips" }, found);
  };

  // Prompts may be long: their tokens are made when somebody wants to see them.
  const given = (prompt) => {
    const fill = () => { if (details.open && details.childElementCount === 1) details.append(View.promptStrip(prompt)); };
    const details = h("details", { class: "given", open: withPrompts, ontoggle: fill }, h("summary", {}, `${View.plural(prompt.ids.length, "token")} given, as the policy saw them`));
    fill();
    return details;
  };

  const history = (turn) => (turn.details ? turn.details.history.map(([role, content]) => h("div", {}, h("p", { class: "quiet" }, role), text(content, "observation"))) : null);

  View.turnBody = (turn, { observation = true, prompt = true } = {}) => [
    observation ? history(turn) : null,
    observation ? text(turn.observation, "observation") : null,
    prompt && turn.prompt ? given(turn.prompt) : null,
    turn.tokens ? View.tokenStrip(turn.tokens) : text(turn.reply || "(empty reply)", "reply"),
    turn.tokens && !turn.tokens.texts ? text(turn.reply, "reply") : null,
    turn.details ? graded(turn) : null,
    chips(turn),
  ];

  const failureBox = (failure) => h("div", { class: "notice" }, h("b", {}, `Failed: ${failure.boundary}/${failure.kind}`), h("p", {}, failure.message), h("p", { class: "quiet" }, "A failed episode has no outcome: it is left out of its group’s baseline and never scored 0."));

  const minimap = (trajectory) => {
    if (trajectory.turns.length < 2) return null;
    return h("nav", { class: "minimap", "aria-label": "Turns" }, trajectory.turns.map((turn) => h("a", {
      href: "#", class: `p${View.surprise(turn.logprob)}${turn.reward > 0 ? " good" : turn.reward < 0 ? " bad" : ""}`, title: `Turn ${turn.number}${View.known(turn.logprob) ? `, mean log-probability ${View.minus(turn.logprob.toFixed(2))}` : ""}`,
      onclick: (event) => { event.preventDefault(); document.getElementById(`turn-${turn.number}`).scrollIntoView({ block: "start" }); },
    }, turn.number)));
  };

  View.versionsOf = (trajectory) => [...new Set(trajectory.turns.flatMap((turn) => (turn.tokens ? turn.tokens.versions.map(([version]) => version) : [])))].sort((a, b) => a - b);

  View.trajectoryPage = async (id, key, params) => {
    const trajectory = await View.data.get(`/sources/${id}/trajectories/${encodeURIComponent(key)}`, params);
    const query = new URLSearchParams(params).toString();
    const suffix = query ? `?${query}` : "";
    const to = (other) => `#/s/${id}/t/${encodeURIComponent(other)}${suffix}`;
    const link = (other, word, name) => (other ? h("a", { class: "button", href: to(other), "data-step": name }, word) : h("span", { class: "button off" }, word));
    const facts = [
      ["reward", trajectory.outcome === "failed" ? "–" : View.minus(View.number(trajectory.reward))],
      ["turns", View.count(trajectory.turns.length + trajectory.turns_left_out)],
      ["sampled tokens", trajectory.has_tokens ? `${View.count(trajectory.num_sampled)} of ${View.count(trajectory.num_tokens)}` : "–"],
      ["mean log-probability", View.known(trajectory.logprob) ? View.minus(trajectory.logprob.toFixed(3)) : "–"],
      ["versions", View.versionText(trajectory)],
      ["took", View.seconds(trajectory.seconds)],
      ["waiting for replies", View.seconds(trajectory.generate_s)],
      ["in the environment", View.seconds(trajectory.env_s)],
      ["task", `${trajectory.split} ${trajectory.task}`],
      ["seed", String(trajectory.seed)],
      ["used for", `${View.useWord(trajectory.use)}${trajectory.step === null ? "" : `, step ${trajectory.step}`}${trajectory.why ? ` (${trajectory.why})` : ""}`],
      ["worker", trajectory.worker || "–"],
    ];
    const page = h("article", { class: "trajectory" });
    const group = `#/s/${id}/group/${trajectory.group}${suffix}`;
    const task = `#/s/${id}/task/${encodeURIComponent(trajectory.split)}/${trajectory.task}${suffix}`;
    page.append(
      h("div", { class: "row" },
        h("a", { class: "button", href: `#/s/${id}/trajectories${suffix}`, "data-step": "up" }, "‹ List"),
        link(trajectory.before, "Previous", "before"), link(trajectory.behind, "Next", "behind"),
        h("span", { class: "quiet" }, trajectory.place < 0 ? "not in the filtered list" : `${View.count(trajectory.place + 1)} of ${View.count(trajectory.total)}`),
        h("span", { class: "gap" }),
        h("a", { class: "button", href: group, "data-step": "group" }, "Its group side by side"),
        View.data.isExported ? null : h("a", { class: "button", href: task }, "Other plays of this task")),
      h("div", { class: "row title" }, h("h1", {}, trajectory.tag), View.outcomePill(trajectory), h("code", { class: "quiet" }, trajectory.id)),
      h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))));
    if (trajectory.failure) page.append(failureBox(trajectory.failure));
    if (trajectory.has_tokens && !trajectory.has_token_texts) page.append(h("p", { class: "notice even" }, "No tokenizer was found for this source, so tokens are shown by their ids: start with --tokenizer FOLDER to read them."));
    if (trajectory.has_tokens && trajectory.turns.length) {
      const toggle = h("label", { class: "field" }, h("input", { type: "checkbox", checked: withPrompts, onchange: (event) => { withPrompts = event.target.checked; for (const one of page.querySelectorAll("details.given")) one.open = withPrompts; } }), " prompt tokens");
      const controls = View.colorControls(page, View.versionsOf(trajectory));
      controls.append(h("span", { class: "gap" }), toggle);
      page.append(h("div", { class: "sticky" }, controls, minimap(trajectory)));
    }
    if (!trajectory.turns.length) page.append(View.empty("No turn was played", trajectory.failure ? "It failed before the first reply." : "The episode ended as it began."));
    for (const turn of trajectory.turns) page.append(h("section", { class: "turn", id: `turn-${turn.number}`, tabindex: "-1" }, h("h3", {}, `Turn ${turn.number}`), h("div", {}, View.turnBody(turn))));
    if (trajectory.turns_left_out) page.append(h("p", { class: "quiet" }, `${View.count(trajectory.turns_left_out)} more turns are in the file.`));
    const last = trajectory.turns.at(-1);
    if (trajectory.final_observation && !(last && last.details && last.details.verdict === trajectory.final_observation)) page.append(h("section", { class: "turn last" }, h("h3", {}, "In the end"), h("div", {}, text(trajectory.final_observation, "observation"))));
    return { title: `${trajectory.tag} ${trajectory.id}`, element: page };
  };
})();
