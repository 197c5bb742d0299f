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
    if (turn.is_replayed) found.push(h("span", { class: "warn" }, "replayed, not trained"));
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

  const history = (turn) => (turn.history ? turn.history.map(([role, content]) => h("div", {}, h("p", { class: "quiet" }, role), text(content, "observation"))) : null);

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

  // The tree of an episode of several segments: a lane for each, a dot for each turn in the order of time. A
  // click on a lane shows its turns, and those before them on its path.
  const STEP = 18, LANE = 22;
  const laneName = (segment, lane) => `Segment ${lane + 1}${segment.role ? ` (${segment.role})` : ""}`;
  const tree = (trajectory) => {
    if (!trajectory.segments.length) return null;
    const laneOf = new Map(trajectory.segments.flatMap((segment, lane) => segment.turns.map((turn) => [turn, lane])));
    const pathOf = (lane) => {
      const { turns, after } = trajectory.segments[lane];
      return [...(after === null ? [] : pathOf(laneOf.get(after)).filter((turn) => turn <= after)), ...turns];
    };
    const x = (turn) => STEP * (turn - 0.5), y = (lane) => LANE * (lane + 0.5);
    const show = (chosen) => {
      const shown = chosen === null ? null : new Set(pathOf(chosen));
      for (const turn of trajectory.turns) document.getElementById(`turn-${turn.number}`).hidden = shown !== null && !shown.has(turn.number);
      box.querySelectorAll("button").forEach((button, lane) => button.setAttribute("aria-pressed", String(lane - 1 === (chosen === null ? -1 : chosen))));
    };
    const button = (word, chosen, title) => h("button", { type: "button", "aria-pressed": String(chosen === null), title, onclick: () => show(chosen) }, word);
    const lanes = trajectory.segments.map((segment, lane) => {
      const from = segment.after === null ? [] : [[x(segment.after), y(laneOf.get(segment.after))]];
      const points = [...from, ...segment.turns.map((turn) => [x(turn), y(lane)])];
      return View.svg("g", {}, View.svg("polyline", { points: points.map((point) => point.join(",")).join(" "), class: `line s${lane % 6}` }),
        segment.turns.map((turn) => View.svg("circle", { cx: x(turn), cy: y(lane), r: 5, class: `f${lane % 6}` }, View.svg("title", {}, `Turn ${turn}`))));
    });
    const width = STEP * Math.max(...laneOf.keys()), height = LANE * lanes.length;
    const names = trajectory.segments.map((segment, lane) => button(laneName(segment, lane), lane, `${View.plural(segment.turns.length, "turn")} of its own, ${View.plural(segment.tokens, "token")} with those before`));
    const box = h("nav", { class: "tree", "aria-label": "Segments" }, button("All turns", null, "Every segment, in the order of time"),
      h("div", { class: "lanes-of" }, h("div", {}, names), View.svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The turns of each segment" }, lanes)));
    return box;
  };
  const origin = (trajectory, turn) => {
    const lane = trajectory.segments.findIndex((segment) => segment.turns.includes(turn.number));
    if (lane < 0) return null;
    const { turns, after } = trajectory.segments[lane], place = turns.indexOf(turn.number);
    const before = place ? turns[place - 1] : after;
    const how = before === turn.number - 1 ? "" : before === null ? ", a line of its own" : `, goes on from turn ${before}`;
    return h("p", { class: "quiet" }, `${laneName(trajectory.segments[lane], lane)}${how}`);
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
      ["task", [trajectory.task_name, `${trajectory.split} ${trajectory.task}`].filter(Boolean).join(", ")],
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
    page.append(...[tree(trajectory)].filter(Boolean));
    if (!trajectory.turns.length) page.append(View.empty("No turn was played", trajectory.failure ? "It failed before the first reply." : "The episode ended as it began."));
    for (const turn of trajectory.turns) page.append(h("section", { class: "turn", id: `turn-${turn.number}`, tabindex: "-1" }, h("h3", {}, `Turn ${turn.number}`), h("div", {}, origin(trajectory, turn), View.turnBody(turn))));
    if (trajectory.turns_left_out) page.append(h("p", { class: "quiet" }, `${View.count(trajectory.turns_left_out)} more turns are in the file.`));
    const last = trajectory.turns.at(-1);
    if (trajectory.final_observation && !(last && last.details && last.details.verdict === trajectory.final_observation)) page.append(h("section", { class: "turn last" }, h("h3", {}, "In the end"), h("div", {}, text(trajectory.final_observation, "observation"))));
    return { title: `${trajectory.tag} ${trajectory.id}`, element: page };
  };
})();
