// Shows the values under the pointer. Text goes in as text, never as markup.
(() => {
  const tip = document.getElementById("tip");
  const line = (text, color) => {
    const row = document.createElement("div");
    if (color !== undefined) {
      const dot = document.createElement("i");
      dot.className = "f" + color;
      row.append(dot);
    }
    row.append(text);
    return row;
  };
  const place = (event) => {
    const { width, height } = tip.getBoundingClientRect();
    const right = event.clientX + 16 + width < window.innerWidth;
    tip.style.left = Math.max(4, right ? event.clientX + 16 : event.clientX - width - 16) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, window.innerHeight - height - 4)) + "px";
    tip.style.visibility = "visible";
  };
  for (const chart of document.querySelectorAll("svg[data-hover]")) {
    const hover = JSON.parse(chart.dataset.hover);
    const cursor = chart.querySelector(".cursor");
    const hide = () => { tip.style.visibility = cursor.style.visibility = "hidden"; };
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
      const nearest = hover.x.reduce((best, [at], i) => Math.abs(at - x) < Math.abs(hover.x[best][0] - x) ? i : best, 0);
      const [at, label] = hover.x[nearest];
      const values = hover.series.filter((one) => one.values[nearest] !== null);
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
      cursor.style.visibility = "visible";
      tip.replaceChildren(line(label), ...values.map((one) => line(`${one.name}  ${one.values[nearest]}`, one.color)));
      place(event);
    });
    chart.addEventListener("pointerleave", hide);
  }
  for (const chart of document.querySelectorAll("svg[data-lanes]")) {
    chart.addEventListener("pointermove", (event) => {
      const title = event.target.dataset && event.target.dataset.title;
      if (!title) { tip.style.visibility = "hidden"; return; }
      tip.replaceChildren(line(title));
      place(event);
    });
    chart.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
  }
})();
