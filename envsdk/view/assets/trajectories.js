// The list of trajectories with its filters. The filters are in the address, so a list can be linked to.
"use strict";
(() => {
  const { h } = View;
  const PAGE = 50;

  View.filterNames = ["q", "tag", "use", "success", "failure", "task", "group", "version", "reward_min", "reward_max", "turns_min", "turns_max", "tokens_min", "tokens_max", "step_min", "step_max", "sort"];

  View.outcomePill = (row) => {
    if (row.outcome === "failed") return View.pill("failed", "warn");
    return row.success ? View.pill("solved", "good") : View.pill(row.outcome === "truncated" ? "cut off" : "not solved", "bad");
  };
  View.versionText = (row) => (row.oldest === null || row.oldest === undefined ? "–" : row.oldest === row.newest ? String(row.oldest) : `${row.oldest}–${row.newest}`);

  // How a column of the list is written, by the `form` that `columns.py` gives it.
  const WORDS = {
    text: (row, name) => row[name],
    task: (row) => row.task_name || `${row.split} ${row.task}`,
    use: (row) => [View.useWord(row.use), row.why ? h("span", { class: "quiet" }, ` ${row.why}`) : null],
  };
  const NUMBERS = {
    count: (row, name) => View.count(row[name]),
    number: (row, name) => View.minus(View.number(row[name])),
    short: (row, name) => (View.known(row[name]) ? View.minus(row[name].toFixed(2)) : "–"),
    reward: (row) => (row.outcome === "failed" ? "–" : View.minus(View.number(row.reward))),
    versions: View.versionText,
    seconds: (row, name) => View.seconds(row[name]),
  };
  const FORMS = { ...WORDS, ...NUMBERS };
  const line = (id, row, query, columns) => h("tr", {}, columns.map(({ name, form }) => (form === "result"
    ? h("td", { class: "tight" }, h("a", { href: `#/s/${id}/t/${encodeURIComponent(row.key)}${query}`, "data-row": "", "aria-label": `Trajectory ${row.id}` }, View.outcomePill(row)))
    : h("td", { class: form in NUMBERS ? "right" : null }, FORMS[form](row, name)))));

  View.trajectoriesPage = async (id, params) => {
    const state = { ...params };
    const results = h("div", { class: "results" });
    const notice = h("div", {});
    const inputs = {};
    const facetBoxes = {};
    const boxes = {};
    let asking = null;

    const hash = (values) => {
      const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "" && value !== undefined && value !== null));
      return [...query].length ? `?${query}` : "";
    };
    const change = (values) => {
      Object.assign(state, values);
      if (!("offset" in values)) delete state.offset;
      history.replaceState(null, "", `#/s/${id}/trajectories${hash(state)}`);
      return load();
    };
    const sortBy = (name) => change({ sort: state.sort === `-${name}` ? name : `-${name}` });

    const drawFacets = (facets) => {
      const words = { yes: "solved", no: "not solved", failed: "failed" };
      for (const [name, box] of Object.entries(facetBoxes)) {
        const found = facets[name] || [];
        const listed = state[name] && !found.some(([value]) => value === state[name]) ? [...found, [state[name], 0]] : found;
        box.hidden = !listed.length;
        const had = box.contains(document.activeElement) ? document.activeElement.dataset.value : null;
        box.lastElementChild.replaceChildren(...listed.map(([value, count]) => {
          const text = name === "use" ? View.useWord(value) : words[value] || value;
          return h("button", { type: "button", class: "facet", "data-value": value, "aria-pressed": String(state[name] === value), onclick: () => change({ [name]: state[name] === value ? "" : value }) }, h("span", {}, text), h("em", {}, View.count(count)));
        }));
        if (had !== null) { const again = [...box.lastElementChild.children].find((one) => one.dataset.value === had); if (again) again.focus(); }
      }
    };

    const page = { title: "Trajectories", isIndexing: false };
    const draw = (found) => {
      page.isIndexing = found.indexing.is_running;
      notice.replaceChildren(...[View.indexingNotice(found.indexing)].filter(Boolean));
      drawFacets(found.facets);
      const offset = Number(state.offset || 0);
      const query = hash(Object.fromEntries(View.filterNames.filter((name) => state[name]).map((name) => [name, state[name]])));
      if (!found.total) {
        const filtered = View.filterNames.some((name) => name !== "sort" && state[name]);
        results.replaceChildren(filtered
          ? View.empty("Nothing matches", "Take a filter away, or search for fewer words.")
          : View.empty("No trajectories", found.indexing.is_running ? "Their files are still being read." : "A run writes them with its first batch; a data set with its first file."));
        return;
      }
      // A data set has no steps, and of a policy without tokens none are to be looked for.
      const isData = found.rows.every((row) => row.use === "data");
      const hasTokens = !isData || found.rows.some((row) => View.known(row.sampled)) || ["tokens_min", "tokens_max", "version"].some((name) => state[name]);
      const columns = found.columns.filter((column) => !(isData && column.of === "runs") && (hasTokens || column.of !== "tokens"));
      for (const box of [facetBoxes.use, boxes.step]) box.hidden = isData;
      for (const box of [boxes.tokens, boxes.version]) box.hidden = !hasTokens;
      const head = columns.map(({ head: word, sort, form }) => {
        const active = sort && (state.sort || "").replace(/^-/, "") === sort;
        const arrow = active ? ((state.sort || "").startsWith("-") ? " ↓" : " ↑") : "";
        return h("th", { class: form in NUMBERS ? "right" : null, "aria-sort": active ? ((state.sort || "").startsWith("-") ? "descending" : "ascending") : null },
          sort ? h("button", { type: "button", class: "sort", onclick: () => sortBy(sort) }, word + arrow) : word);
      });
      const last = Math.min(found.total, offset + PAGE);
      const pager = h("nav", { class: "row pager", "aria-label": "Pages" },
        h("span", { class: "quiet", role: "status" }, `${View.count(offset + 1)}–${View.count(last)} of ${View.count(found.total)}`),
        h("button", { type: "button", disabled: offset === 0, onclick: () => change({ offset: Math.max(0, offset - PAGE) || "" }) }, "‹ Previous"),
        h("button", { type: "button", disabled: last >= found.total, onclick: () => change({ offset: offset + PAGE }) }, "Next ›"));
      results.replaceChildren(pager, h("div", { class: "card scroll" }, h("table", { class: "list" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, found.rows.map((row) => line(id, row, query, columns))))));
    };

    const load = async () => {
      if (asking) asking.abort();
      const own = asking = new AbortController();
      try {
        const found = await View.data.get(`/sources/${id}/trajectories`, { ...state, limit: PAGE }, own.signal);
        if (own === asking) draw(found);
      } catch (error) {
        if (error.name !== "AbortError") results.replaceChildren(View.empty("That cannot be searched for", error.message));
      }
    };

    const typed = View.debounce((name, value) => change({ [name]: value }), 180);
    const input = (name, attributes) => (inputs[name] = h("input", { value: state[name] || "", autocomplete: "off", oninput: (event) => typed(name, event.target.value), ...attributes }));
    const range = (name, word, step) => (boxes[name] = h("fieldset", {}, h("legend", {}, word), h("div", { class: "range" },
      input(`${name}_min`, { type: "number", step, placeholder: "from", "aria-label": `${word} from` }), "–", input(`${name}_max`, { type: "number", step, placeholder: "to", "aria-label": `${word} to` }))));
    const facet = (name, word) => (facetBoxes[name] = h("fieldset", { hidden: true }, h("legend", {}, word), h("div", {})));
    const clear = () => {
      for (const name of View.filterNames) delete state[name];
      for (const one of Object.values(inputs)) one.value = "";
      change({});
    };
    const only = ["group", "task"].filter((name) => state[name]).map((name) => h("p", { class: "quiet" }, `Only ${name} ${state[name]}`));
    const panel = h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      h("button", { type: "button", class: "narrow", onclick: () => panel.classList.toggle("open") }, "Filters"),
      input("q", { type: "search", placeholder: "Search all texts   /", "aria-label": "Search observations, replies, failures and ids", "data-search": "" }),
      only, facet("success", "Result"), facet("tag", "Tag"), facet("use", "Use"), facet("failure", "Failure"),
      range("reward", "Reward", "any"), range("turns", "Turns", "1"), range("tokens", "Sampled tokens", "1"), range("step", "Step", "1"),
      (boxes.version = h("fieldset", {}, h("legend", {}, "Sampled by version"), input("version", { type: "number", step: "1", "aria-label": "Version that sampled some of it" }))),
      h("button", { type: "button", onclick: clear }, "Clear all"));
    await load();
    return Object.assign(page, {
      element: h("div", { class: "browse" }, panel, h("div", {}, notice, results)),
      update: () => (results.contains(document.activeElement) ? null : load()),
      turn: (direction) => { const button = results.querySelectorAll(".pager button")[direction > 0 ? 1 : 0]; if (button && !button.disabled) button.click(); },
    });
  };
})();
