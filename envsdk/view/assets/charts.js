// Line charts, stacked bars and sparklines as SVG.
"use strict";
(() => {
  const { h, svg, known } = View;

  const niceStep = (span, count) => {
    const raw = span / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((one) => one * power >= raw * 0.999) || 10;
    return step * power;
  };
  const ticks = (low, high, count) => {
    if (!(high > low)) return [low];
    const step = niceStep(high - low, count);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(Number((at * step).toPrecision(12)));
    return found;
  };
  View.ticks = ticks;
  // Seconds, round in the unit that they are shown in.
  View.timeTicks = (low, high, count) => {
    const unit = high <= 120 ? 1 : high <= 7200 ? 60 : 3600;
    return ticks(low / unit, high / unit, count).map((one) => one * unit).filter(Number.isInteger);
  };

  const smoothed = (points) => {
    const half = Math.floor(points.length / 24);
    if (half < 1) return points;
    return points.map(([x], at) => {
      // Neighbors count the less the farther they are: under equal weights one spike would become a plateau.
      let sum = 0, weights = 0;
      for (let near = Math.max(0, at - half); near <= Math.min(points.length - 1, at + half); near += 1) {
        const weight = half + 1 - Math.abs(near - at);
        sum += weight * points[near][1];
        weights += weight;
      }
      return [x, sum / weights];
    });
  };

  const SIZES = { wide: [1150, 260], large: [560, 240], small: [340, 150] };

  // series: [{name, color, points: [[step, value]], band: [[step, low, high]], sparse, dash}]; with `overTime`, seconds instead of steps.
  View.lineChart = (title, series, { percent = false, size = "large", low = null, high = null, about = null, overTime = false } = {}) => {
    const drawn = series.filter((one) => one.points.length);
    // Charts are scaled to their place, letters too: a wide one would be too small to read in a narrow window.
    if (size === "wide" && window.innerWidth < 800) size = "large";
    const [width, height] = SIZES[size];
    const figure = h("figure", { class: `card chart ${size}` }, h("figcaption", { title }, title));
    if (!drawn.length) { figure.append(h("p", { class: "quiet" }, "No value yet.")); return figure; }
    const all = drawn.flatMap((one) => [...one.points, ...(one.band || []).flatMap(([x, least, most]) => [[x, least], [x, most]])]);
    const xs = all.map(([x]) => x), ys = all.map(([, y]) => y);
    const x0 = Math.min(...xs), x1 = Math.max(...xs);
    let y0 = low === null ? Math.min(...ys) : low, y1 = high === null ? Math.max(...ys) : high;
    if (y0 === y1) { const pad = Math.abs(y0) * 0.1 || 0.5; y0 -= pad; y1 += pad; }
    else if (low === null) { const pad = (y1 - y0) * 0.06; y0 -= y0 >= 0 && y0 - pad < 0 ? y0 : pad; if (high === null) y1 += pad; }
    const left = size === "small" ? 52 : 46, right = width - 10, top = 10, bottom = height - 24;
    const px = (x) => (x1 > x0 ? left + (x - x0) / (x1 - x0) * (right - left) : (left + right) / 2);
    const py = (y) => bottom - (y - y0) / (y1 - y0) * (bottom - top);
    const label = (value) => (percent ? `${Math.round(100 * value)}%` : View.minus(View.number(value)));
    const path = (points) => points.map(([x, y], at) => `${at ? "L" : "M"}${px(x).toFixed(1)},${py(y).toFixed(1)}`).join("");

    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", tabindex: "0", "aria-label": `${title}: ${drawn.map((one) => `${one.name} ${label(one.points.at(-1)[1])}`).join(", ")}` });
    for (const tick of ticks(y0, y1, size === "small" ? 3 : 5)) {
      picture.append(svg("line", { class: "axis", x1: left, x2: right, y1: py(tick), y2: py(tick) }), svg("text", { x: left - 7, y: py(tick) + 4, "text-anchor": "end" }, label(tick)));
    }
    for (const tick of (overTime ? View.timeTicks : ticks)(x0, x1, { wide: 15, large: 7, small: 4 }[size])) {
      if (Number.isInteger(tick)) {
        const words = overTime ? View.seconds(tick) : View.number(tick);
        picture.append(svg("text", { x: Math.min(px(tick), width - 2 - 3.3 * words.length), y: height - 6, "text-anchor": "middle" }, words));
      }
    }
    if (!overTime) picture.append(svg("text", { x: left - 10, y: height - 6, "text-anchor": "end" }, "step"));
    for (const one of drawn) {
      if (one.band && one.band.length) {
        const [least, most] = [1, 2].map((at) => smoothed(one.band.map((edge) => [edge[0], edge[at]])));
        picture.append(svg("path", { class: `band f${one.color}`, d: path([...least, ...most.reverse()]) }));
      }
      if (one.sparse) {
        picture.append(svg("path", { class: `line sparse s${one.color}`, d: path(one.points) }));
        for (const [x, y] of one.points) picture.append(svg("circle", { class: `f${one.color}`, cx: px(x), cy: py(y), r: 3.5 }));
      } else {
        const smooth = smoothed(one.points);
        if (smooth !== one.points) picture.append(svg("path", { class: `line raw s${one.color}`, d: path(one.points) }));
        picture.append(svg("path", { class: `line s${one.color}`, "stroke-dasharray": one.dash || "none", d: path(smooth) }));
        if (one.points.length === 1) picture.append(svg("circle", { class: `f${one.color}`, cx: px(one.points[0][0]), cy: py(one.points[0][1]), r: 3.5 }));
      }
    }
    const cursor = svg("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
    picture.append(cursor);
    const steps = [...new Set(xs)].sort((a, b) => a - b);
    let at = -1;
    const show = (index, clientX, clientY) => {
      at = Math.max(0, Math.min(steps.length - 1, index));
      const box = picture.getBoundingClientRect();
      const x = px(steps[at]);
      cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.setAttribute("visibility", "visible");
      const rows = drawn.flatMap((one) => one.points.filter(([step]) => step === steps[at]).map(([, value]) => [`${one.name}  ${percent ? View.percent(value) : View.minus(View.number(value))}`, one.color]));
      View.showTip([overTime ? `after ${View.seconds(steps[at])}` : `step ${View.count(steps[at])}`, ...rows], clientX === undefined ? box.left + x * box.width / width : clientX, clientY === undefined ? box.top : clientY);
    };
    const hide = () => { cursor.setAttribute("visibility", "hidden"); View.hideTip(); };
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const step = x0 + ((event.clientX - box.left) * width / box.width - left) / (right - left) * (x1 - x0);
      let best = 0;
      for (let i = 1; i < steps.length; i += 1) if (Math.abs(steps[i] - step) < Math.abs(steps[best] - step)) best = i;
      show(best, event.clientX, event.clientY);
    });
    picture.addEventListener("pointerleave", hide);
    picture.addEventListener("blur", hide);
    picture.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, Home: -steps.length, End: steps.length }[event.key];
      if (!move) return;
      event.preventDefault();
      show(at < 0 ? (move > 0 ? 0 : steps.length - 1) : at + move);
    });
    if (about) figure.append(h("p", { class: "quiet about" }, about));
    if (drawn.length > 1 || size !== "small") {
      const lines = drawn.filter((one) => !one.sparse);
      // Dots of a color that has no line have a name of their own.
      const alone = drawn.filter((one) => one.sparse && !lines.some((line) => line.color === one.color));
      figure.append(h("div", { class: "legend" },
        lines.map((one) => h("span", {}, h("i", { class: `b${one.color}` }), one.name)),
        alone.map((one) => h("span", {}, h("i", { class: `dot b${one.color}` }), one.name)),
        drawn.length > lines.length + alone.length ? h("span", {}, h("i", { class: "dot held" }), "held out") : null));
    }
    figure.append(picture);
    return figure;
  };

  View.sparkline = (points, { low = 0, high = 1 } = {}) => {
    const picture = svg("svg", { viewBox: "0 0 120 28", class: "spark", "aria-hidden": "true" });
    if (points.length > 1) {
      const x0 = points[0][0], x1 = points.at(-1)[0];
      const d = points.map(([x, y], at) => `${at ? "L" : "M"}${(2 + 116 * (x - x0) / (x1 - x0 || 1)).toFixed(1)},${(26 - 24 * (y - low) / (high - low || 1)).toFixed(1)}`).join("");
      picture.append(svg("path", { class: "line s0", d }));
    }
    return picture;
  };

  // parts: [{name, value, color}]; one bar, all parts in it.
  View.shareBar = (parts, format) => {
    const total = parts.reduce((sum, part) => sum + part.value, 0);
    const shown = parts.filter((part) => part.value > 0);
    return h("div", { class: "share" },
      h("div", { class: "bar", role: "img", "aria-label": shown.map((part) => `${part.name} ${View.percent(part.value / total, 0)}`).join(", ") },
        shown.map((part) => h("div", {
          class: `b${part.color}`, vars: { "flex-grow": String(part.value) },
          onpointermove: (event) => View.showTip([`${part.name}: ${format(part.value)}`], event.clientX, event.clientY), onpointerleave: View.hideTip,
        }))),
      h("div", { class: "legend wide" }, shown.map((part) => h("span", {}, h("i", { class: `b${part.color}` }), h("b", {}, View.percent(part.value / total, 0)), ` ${part.name} `, h("em", {}, format(part.value))))));
  };

  // bars: [{label, tick, parts: [{name, value, color}]}], one for each step. Where some have no tick, all others show theirs.
  View.stackedBars = (title, bars, format, { size = "wide", legend = [] } = {}) => {
    if (size === "wide" && window.innerWidth < 800) size = "large";
    const totals = bars.map((bar) => bar.parts.reduce((sum, part) => sum + part.value, 0));
    const high = Math.max(...totals, 1e-9);
    // Durations take room: 1 min 40 s.
    const longest = Math.max(...ticks(0, high, 4).map((tick) => format(tick).length));
    const width = size === "wide" ? 1120 : 560, height = size === "wide" ? 190 : 217, left = Math.max(46, 14 + 6.5 * longest), right = width - 8, top = 8, bottom = height - 24;
    const slot = (right - left) / bars.length;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", "aria-label": title });
    for (const tick of ticks(0, high, 4)) {
      const y = bottom - tick / high * (bottom - top);
      picture.append(svg("line", { class: "axis", x1: left, x2: right, y1: y, y2: y }), svg("text", { x: left - 7, y: y + 4, "text-anchor": "end" }, format(tick)));
    }
    const every = bars.some((bar) => bar.tick === null) ? 1 : Math.max(1, Math.ceil(bars.length / (size === "wide" ? 16 : 8)));
    bars.forEach((bar, at) => {
      let y = bottom;
      const group = svg("g", {});
      for (const part of bar.parts) {
        const tall = part.value / high * (bottom - top);
        y -= tall;
        if (tall > 0.05) group.append(svg("rect", { class: `f${part.color}`, x: left + at * slot + slot * 0.08, width: Math.max(0.4, slot * 0.84), y, height: tall }));
      }
      group.append(svg("rect", { class: "catch", x: left + at * slot, width: slot, y: top, height: bottom - top }));
      group.addEventListener("pointermove", (event) => View.showTip([bar.label, ...bar.parts.filter((part) => part.value > 0).map((part) => [`${part.name}  ${format(part.value)}`, part.color])], event.clientX, event.clientY));
      group.addEventListener("pointerleave", View.hideTip);
      picture.append(group);
      if (at % every === 0 && bar.tick !== null) picture.append(svg("text", { x: left + (at + 0.5) * slot, y: height - 6, "text-anchor": "middle" }, bar.tick));
    });
    const names = legend.map((one) => h("span", {}, h("i", { class: `b${one.color}` }), one.name));
    return h("figure", { class: `card chart ${size}` }, h("figcaption", {}, title), names.length ? h("div", { class: "legend" }, names) : null, picture);
  };

  // counts: [[value, count]]; one bar for each value, with its count and its share.
  View.histogram = (title, counts) => {
    const [width, height] = SIZES.large;
    const total = counts.reduce((sum, [, count]) => sum + count, 0), high = Math.max(...counts.map(([, count]) => count));
    const top = 36, bottom = height - 24, slot = (width - 24) / counts.length, wide = Math.min(90, slot * 0.7);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", "aria-label": `${title}: ${counts.map(([value, count]) => `${value}: ${View.percent(count / total)}`).join(", ")}` });
    counts.forEach(([value, count], at) => {
      const middle = 12 + (at + 0.5) * slot, y = bottom - count / high * (bottom - top);
      const texts = [[y - 19, View.count(count), "strong"], [y - 5, View.percent(count / total)], [height - 6, value]];
      picture.append(svg("rect", { class: "f0", x: middle - wide / 2, y, width: wide, height: bottom - y, rx: 3 }),
        ...texts.map(([place, words, kind]) => svg("text", { class: kind, x: middle, y: place, "text-anchor": "middle" }, words)));
    });
    picture.append(svg("line", { class: "axis", x1: 12, x2: width - 12, y1: bottom, y2: bottom }));
    return h("figure", { class: "card chart large" }, h("figcaption", {}, title), picture);
  };
})();
