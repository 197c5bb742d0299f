// Episodes of one task side by side: a group as it was trained on, or all plays of a task over the run.
"use strict";
(() => {
  const { h } = View;

  const head = (id, member, mean) => h("div", { class: "head" },
    h("div", { class: "row" }, View.outcomePill(member), h("a", { href: `#/s/${id}/t/${encodeURIComponent(member.key)}`, "data-row": "" }, member.id)),
    h("div", { class: "quiet" }, `reward ${member.outcome === "failed" ? "–" : View.minus(View.number(member.reward))}`,
      View.known(member.advantage) && mean !== null ? h("b", { class: member.advantage > 0 ? "good" : member.advantage < 0 ? "bad" : "" }, ` ${View.signed(member.advantage, View.number)}`) : null,
      ` · ${View.plural(member.turns.length, "turn")}`, ` · version ${View.versionText(member)}`,
      member.step === null ? null : ` · step ${member.step}`));

  const isVerdict = (member) => { const last = member.turns.at(-1); return Boolean(last && last.details && last.details.verdict === member.final_observation); };

  const cell = (member, at, previous) => {
    const turn = member.turns[at];
    if (!turn) {
      if (at === member.turns.length) {
        return h("div", { class: "cell end" }, member.failure ? h("p", { class: "bad" }, `Failed: ${member.failure.boundary}/${member.failure.kind}. ${member.failure.message}`) : null,
          member.final_observation && !isVerdict(member) ? h("pre", { class: "observation" }, member.final_observation.slice(0, 1500)) : null);
      }
      return h("div", { class: "cell none" });
    }
    const same = previous && previous.turns[at] && previous.turns[at].observation === turn.observation;
    return h("div", { class: "cell" }, same ? h("p", { class: "quiet same" }, "same observation as on the left") : null, View.turnBody(turn, { observation: !same, prompt: false }));
  };

  const draw = (id, found, title, about) => {
    const page = h("article", { class: "group" });
    page.append(h("div", { class: "row" }, h("a", { class: "button", href: `#/s/${id}/trajectories`, "data-step": "up" }, "‹ List")));
    page.append(h("h1", {}, title), h("p", { class: "quiet" }, about));
    const [first] = found.members;
    const lines = [`${View.plural(found.total, "episode")} of ${first.tag}, task ${first.split} ${first.task}`];
    if (found.mean !== null) lines.push(`mean reward ${View.minus(View.number(found.mean))}, spread ${View.number(found.spread)}`);
    lines.push(found.fork === null ? "all replies are the same" : `replies part in turn ${found.fork + 1}`);
    page.append(h("p", {}, lines.join(" · ")));
    if (found.total > found.members.length) page.append(h("p", { class: "notice even" }, `The first ${found.members.length} are shown.`));
    if (found.members.some((member) => member.has_tokens)) page.append(View.colorControls(page, [...new Set(found.members.flatMap(View.versionsOf))].sort((a, b) => a - b)));
    const grid = h("div", { class: "compare", tabindex: "0", "aria-label": "Episodes side by side; scroll sideways for more", vars: { "--columns": String(found.members.length) } });
    grid.append(h("div", { class: "corner" }), ...found.members.map((member) => head(id, member, found.mean)));
    for (let at = 0; at <= found.num_turns; at += 1) {
      const isLast = at === found.num_turns;
      if (isLast && found.members.every((member) => member.turns.length < at || ((!member.final_observation || isVerdict(member)) && !member.failure))) break;
      grid.append(h("div", { class: `corner${at === found.fork ? " fork" : ""}` }, isLast ? "end" : String(at + 1)));
      found.members.forEach((member, column) => grid.append(cell(member, at, column ? found.members[column - 1] : null)));
    }
    page.append(grid);
    return { title, element: page };
  };

  View.groupPage = async (id, group) => draw(id, await View.data.get(`/sources/${id}/groups/${group}`), `Group ${group.split("/").pop()}`, "One task from one seed, played several times. The signed number is the reward less the group’s mean.");
  View.taskPage = async (id, task) => draw(id, await View.data.get(`/sources/${id}/tasks/${task}`), `Task ${task.split("/").map(decodeURIComponent).join(" ")}`, "Every play of this task, in the order of playing: how the policy’s answer to it changed.");
})();
