// The filters of an exported page, which has no server: the same as `filters.py`, on the page's own rows.
"use strict";
(() => {
  const RANGES = { reward: "reward", turns: "turns", tokens: "sampled", step: "step" };
  const FACETS = {
    tag: (row) => row.tag,
    use: (row) => row.use,
    success: (row) => (row.outcome === "failed" ? "failed" : row.success ? "yes" : "no"),
    failure: (row) => (row.boundary ? `${row.boundary}/${row.failure}` : ""),
  };

  // Words as the index has them: lower case, without accents, apart from all punctuation.
  const words = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replace(/[^\p{L}\p{N}\p{Co}_]+/gu, " ").trim();

  const textOf = (trajectory) => ` ${words([
    trajectory.id,
    trajectory.failure ? trajectory.failure.message : "",
    ...trajectory.turns.flatMap((turn) => [turn.observation, turn.reply]),
    trajectory.final_observation,
  ].join("\n"))} `;

  const terms = (query) => {
    const found = [...query.matchAll(/"([^"]*)"|([^\s"]+)/g)].map((match) => match[1] || match[2] || "");
    const open = !query.trimEnd().endsWith('"') && found.length > 0 && [...found.at(-1)].length >= 3;
    return found.map((term, at) => ({ term: words(term), open: open && at === found.length - 1 })).filter(({ term }) => term);
  };

  const versions = (row, trajectory) => new Set(trajectory.turns.flatMap((turn) => (turn.tokens ? turn.tokens.versions.map(([version]) => version) : [])));

  View.searchRows = (rows, trajectories, params, without = "") => {
    const number = (name) => (params[name] && params[name].trim() !== "" ? Number(params[name]) : null);
    const asked = params.q ? terms(params.q) : [];
    const tests = [];
    const add = (name, test) => { if (name !== without) tests.push(test); };
    if (params.q) {
      tests.push((row) => {
        if (!asked.length) return false;
        const text = textOf(trajectories[row.key]);
        return asked.every(({ term, open }) => text.includes(open ? ` ${term}` : ` ${term} `));
      });
    }
    if (params.tag) add("tag", (row) => row.tag === params.tag);
    if (params.use) add("use", (row) => row.use === params.use);
    if (params.success) add("success", (row) => FACETS.success(row) === params.success);
    if (params.failure) add("failure", (row) => [row.boundary, FACETS.failure(row)].includes(params.failure));
    if (params.group) add("group", (row) => row.group === params.group);
    if (params.task) add("task", (row) => `${row.split}/${row.task}` === params.task);
    if (number("version") !== null) add("version", (row) => versions(row, trajectories[row.key]).has(number("version")));
    for (const [name, field] of Object.entries(RANGES)) {
      const low = number(`${name}_min`), high = number(`${name}_max`);
      if (low !== null) add(name, (row) => row[field] !== null && row[field] >= low);
      if (high !== null) add(name, (row) => row[field] !== null && row[field] <= high);
    }
    return rows.filter((row) => tests.every((test) => test(row)));
  };

  View.sortRows = (columns, rows, sort) => {
    const field = (columns.find((column) => column.sort && column.sort === (sort || "").replace(/^-/, "")) || {}).name;
    const sign = (sort || "").startsWith("-") ? -1 : 1;
    const placed = rows.map((row, at) => [row, at]);
    placed.sort(([one, a], [other, b]) => {
      const left = field ? one[field] : null, right = field ? other[field] : null;
      if (left !== right && left !== null && right !== null) return sign * (left < right ? -1 : 1);
      if (left !== right) return left === null ? 1 : -1;
      return sign * (a - b);
    });
    return placed.map(([row]) => row);
  };

  View.findRows = (columns, rows, trajectories, params) => {
    const found = View.sortRows(columns, View.searchRows(rows, trajectories, params), params.sort);
    const offset = Number(params.offset || 0), limit = Number(params.limit || 50);
    const facets = Object.fromEntries(Object.entries(FACETS).map(([name, valueOf]) => {
      const counts = new Map();
      for (const row of View.searchRows(rows, trajectories, params, name)) {
        const value = valueOf(row);
        if (value) counts.set(value, (counts.get(value) || 0) + 1);
      }
      return [name, [...counts].sort(([a], [b]) => (a < b ? -1 : 1))];
    }));
    return { all: found, total: found.length, rows: found.slice(offset, offset + limit), facets };
  };
})();
