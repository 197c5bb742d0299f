// What ran when, and who waited for whom.
"use strict";
(() => {
  const { h } = View;
  // One color has one meaning on the page: what is published or validated is so in both parts of it. Waiting is quiet, so that
  // work stands out.
  const CAUSE_COLORS = { both: "2", trainer_waits: "0", engines_wait: "1", publish: "3", validate: "4", environments: "wait" };
  const SPAN_COLORS = { publish: "3", validate: "4", generate: "5", train: "6", checkpoint: "7", wait: "wait" };
  const spanColor = (name) => SPAN_COLORS[name] || "wait";
  const LANE = 34, GAP = 10, AXIS = 22, LABEL = 96;

  const parts = (waits, causes) => Object.entries(causes).map(([name, word]) => ({ name: word, value: waits[name] || 0, color: CAUSE_COLORS[name] }));

  const canvasLanes = (timeline) => {
    const names = [...new Set(timeline.lanes.flatMap((lane) => lane.spans.map((span) => span[2])))];
    const height = timeline.lanes.length * (LANE + GAP) + AXIS;
    const canvas = h("canvas", { class: "lanes", tabindex: "0", role: "img", "aria-label": `Timeline: ${timeline.lanes.map((lane) => `${lane.track} busy ${View.seconds(lane.busy_s)}`).join(", ")}. Arrow keys move, plus and minus zoom, 0 shows all.` });
    canvas.style.height = `${height}px`;
    let from = 0, until = timeline.seconds;
    let drag = null;

    const draw = () => {
      const width = canvas.clientWidth || 1000;
      const scale = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      const pen = canvas.getContext("2d");
      pen.scale(scale, scale);
      const style = getComputedStyle(document.documentElement);
      const color = (name) => style.getPropertyValue(name).trim();
      const palette = Object.fromEntries(names.map((name) => [name, color(spanColor(name) === "wait" ? "--wait" : `--c${spanColor(name)}`)]));
      pen.font = "12px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const x = (seconds) => LABEL + (seconds - from) / (until - from) * (width - LABEL - 8);
      for (const tick of View.ticks(from, until, 8)) {
        pen.fillStyle = color("--line");
        pen.fillRect(Math.round(x(tick)), 0, 1, height - AXIS);
        pen.fillStyle = color("--quiet");
        pen.textAlign = "center";
        pen.fillText(View.seconds(tick), Math.min(width - 24, x(tick)), height - AXIS / 2);
      }
      timeline.lanes.forEach((lane, at) => {
        const y = at * (LANE + GAP) + GAP / 2;
        pen.fillStyle = color("--well");
        pen.fillRect(LABEL, y, width - LABEL - 8, LANE);
        pen.save();
        pen.beginPath();
        pen.rect(LABEL, 0, width - LABEL - 8, height);
        pen.clip();
        for (const [start, seconds, name] of lane.spans) {
          if (start + seconds < from || start > until) continue;
          const left = x(start), wide = Math.max(0.7, x(start + seconds) - left - (x(start + seconds) - left > 3 ? 1 : 0));
          pen.fillStyle = palette[name];
          pen.fillRect(left, y, wide, LANE);
          if (wide > 46) {
            pen.fillStyle = spanColor(name) === "wait" ? color("--quiet") : color("--on-color");
            pen.textAlign = "left";
            pen.fillText(name, Math.max(left, LABEL) + 6, y + LANE / 2);
          }
        }
        pen.restore();
        pen.fillStyle = color("--ink");
        pen.textAlign = "left";
        pen.fillText(lane.track, 0, y + LANE / 2 - 7);
        pen.fillStyle = color("--quiet");
        pen.fillText(`busy ${View.percent(lane.busy_s / timeline.seconds, 0)}`, 0, y + LANE / 2 + 8);
      });
    };
    const clamp = (start, end) => {
      const span = Math.min(timeline.seconds, Math.max(timeline.seconds / 1e5, end - start));
      from = Math.max(0, Math.min(timeline.seconds - span, start));
      until = from + span;
      draw();
    };
    const zoom = (factor, around) => clamp(around - (around - from) * factor, around + (until - around) * factor);
    const at = (clientX) => {
      const box = canvas.getBoundingClientRect();
      return from + Math.max(0, (clientX - box.left - LABEL)) / (box.width - LABEL - 8) * (until - from);
    };
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && document.activeElement !== canvas) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event.clientX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { drag = [event.clientX, from, until]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { drag = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const moved = (drag[0] - event.clientX) / (canvas.clientWidth - LABEL - 8) * (drag[2] - drag[1]);
        clamp(drag[1] + moved, drag[2] + moved);
        return;
      }
      const box = canvas.getBoundingClientRect();
      const lane = timeline.lanes[Math.floor((event.clientY - box.top) / (LANE + GAP))];
      const seconds = at(event.clientX);
      const span = lane && lane.spans.find(([start, long]) => start <= seconds && seconds <= start + long);
      if (span) View.showTip([`${lane.track}: ${span[2]}${span[3] === null ? "" : `, step ${span[3]}`}`, `${View.seconds(span[1])}, from ${View.seconds(span[0])}`], event.clientX, event.clientY);
      else View.hideTip();
    });
    canvas.addEventListener("pointerleave", View.hideTip);
    canvas.addEventListener("keydown", (event) => {
      const span = until - from, middle = (from + until) / 2;
      const actions = {
        ArrowLeft: () => clamp(from - span / 6, until - span / 6), ArrowRight: () => clamp(from + span / 6, until + span / 6),
        "+": () => zoom(0.6, middle), "=": () => zoom(0.6, middle), "-": () => zoom(1.6, middle), 0: () => clamp(0, timeline.seconds),
      };
      if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      actions[event.key]();
    });
    new ResizeObserver(draw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    const button = (word, name, action) => h("button", { type: "button", "aria-label": name, onclick: action }, word);
    const legend = h("div", { class: "legend" }, names.map((name) => h("span", {}, h("i", { class: `b${spanColor(name)}` }), name)));
    return h("div", { class: "card" },
      h("div", { class: "row" }, h("h2", {}, "What ran when"), h("span", { class: "gap" }),
        button("−", "Zoom out", () => zoom(1.6, (from + until) / 2)), button("+", "Zoom in", () => zoom(0.6, (from + until) / 2)), button("All", "Show all", () => clamp(0, timeline.seconds))),
      legend, canvas, h("p", { class: "quiet hint" }, "Drag to move; Ctrl and the wheel, or + and −, to zoom; arrow keys when it has the focus."));
  };

  // Why the trainer waited: the longest waits, and any step that is asked for.
  const whyCard = ({ steps, note }) => {
    const card = (...rows) => View.card(h("h2", {}, "Why the trainer waited"), ...rows);
    if (!steps.length) return note ? card(h("p", { class: "quiet" }, note)) : null;
    const row = (each) => h("p", {}, h("b", {}, `Step ${each.step}, ${View.seconds(each.waited_s)}. `), each.said.replace(/^Step \d+ /, "It "));
    const longest = [...steps].sort((one, other) => other.waited_s - one.waited_s).slice(0, 5);
    const asked = h("div", {}, ...longest.map(row));
    const input = h("input", { type: "number", min: steps[0].step, max: steps[steps.length - 1].step, "aria-label": "Step", placeholder: "step" });
    input.addEventListener("input", () => {
      const found = steps.find((each) => each.step === Number(input.value));
      asked.replaceChildren(...(input.value === "" ? longest.map(row) : found ? [row(found)] : [h("p", { class: "quiet" }, `There is no batch of step ${input.value}.`)]));
    });
    return card(h("p", { class: "quiet" }, "The longest waits; or that before step ", input), asked, note && h("p", { class: "quiet" }, note));
  };

  View.timelinePage = async (id) => {
    const element = h("div", {});
    let drawn = -1;
    const update = async () => {
      const timeline = await View.data.get(`/sources/${id}/timeline`);
      if (timeline.seconds === drawn || (drawn > 0 && element.contains(document.activeElement))) return;
      drawn = timeline.seconds;
      if (!timeline.lanes.length) {
        element.replaceChildren(View.empty("Nothing has been recorded", "A run writes timeline.json from its first publication of weights on; data sets have none."));
        return;
      }
      const bars = timeline.steps.map((step) => ({ label: step.last === step.step ? `step ${step.step}` : `steps ${step.step} to ${step.last}, mean`, tick: View.count(step.step), parts: parts(step.waits, timeline.causes) }));
      element.replaceChildren(
        View.card(h("h2", {}, "Who waited for whom"), h("p", { class: "quiet" }, `Of ${View.seconds(Object.values(timeline.waits).reduce((sum, value) => sum + value, 0))} that are on record.`), View.shareBar(parts(timeline.waits, timeline.causes), View.seconds)),
        canvasLanes(timeline));
      if (bars.length) element.append(View.stackedBars("Seconds from one training step to the next, by who waited", bars, View.seconds));
      const why = timeline.decisions && whyCard(timeline.decisions);
      if (why) element.append(why);
    };
    await update();
    return { title: "Timeline", element, update };
  };
})();
