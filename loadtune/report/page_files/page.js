"use strict";
// Draws what the page holds as data, and makes tables sort, filter and code copy. It judges and words nothing.
(() => {
  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const plots = JSON.parse(document.getElementById("figures").textContent);

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function themed(layout, node) {
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--rule"), zerolinecolor: colour("--rule"), automargin: true };
    const hover = { bgcolor: colour("--card"), bordercolor: colour("--rule"), font: { color: colour("--ink"), size: 12 }, align: "left" };
    const narrow = node.clientWidth < 560;
    return {
      ...layout,
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), family: getComputedStyle(document.body).fontFamily, size: narrow ? 11 : 12 },
      margin: { l: narrow ? 44 : 56, r: narrow ? 8 : 24, t: 30, b: 48, ...layout.margin },
      showlegend: false,
      hoverlabel: hover,
      xaxis: { ...axis, fixedrange: false, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
      // A finger that scrolls the page must not zoom a plot.
      dragmode: narrow ? false : "zoom",
    };
  }

  // Where there is no mouse to hover with, its buttons would only stand before the figures.
  const options = {
    responsive: true,
    displaylogo: false,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };

  function draw(id) {
    const node = document.getElementById(id);
    return Plotly.react(node, plots[id].data, themed(plots[id].layout, node), options);
  }

  // One after the other, so that the page can be read and scrolled meanwhile.
  function drawAll(ids) {
    if (!ids.length) {
      root.dataset.drawn = "all";
      return;
    }
    draw(ids[0]).then(() => setTimeout(drawAll, 0, ids.slice(1)));
  }

  function redraw() {
    delete root.dataset.drawn;
    drawAll(Object.keys(plots));
  }

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  function copy(words) {
    if (navigator.clipboard) return navigator.clipboard.writeText(words).catch(() => copyBySelection(words));
    return Promise.resolve(copyBySelection(words));
  }

  // Where a browser gives no clipboard to a page from a file.
  function copyBySelection(words) {
    const area = document.createElement("textarea");
    area.value = words;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => {
      copy(document.getElementById(button.dataset.of).textContent).then(() => {
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = "Copy"), 1500);
      });
    });
  }

  // Numbers by value, words by letters, what is missing last either way.
  function compare(left, right, sign) {
    const missing = (cell) => cell.textContent === "–";
    if (missing(left) || missing(right)) return missing(left) - missing(right);
    const [a, b] = [left.dataset.order, right.dataset.order];
    if (a !== undefined && b !== undefined) return sign * (Number(a) - Number(b));
    return sign * left.textContent.localeCompare(right.textContent, undefined, { numeric: true });
  }

  function sortBy(table, column) {
    const headings = [...table.tHead.rows[0].cells];
    const falling = headings[column].getAttribute("aria-sort") === "ascending";
    headings.forEach((heading) => heading.removeAttribute("aria-sort"));
    headings[column].setAttribute("aria-sort", falling ? "descending" : "ascending");
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], falling ? -1 : 1)));
  }

  function filter(section, table) {
    const words = section.querySelector(".filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const outcome = section.querySelector(".outcome")?.value ?? "";
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) {
      const text = [...row.cells].map((cell) => cell.textContent.toLowerCase()).join(" ");
      row.hidden = !words.every((word) => text.includes(word)) || (outcome !== "" && row.dataset.outcome !== outcome);
    }
    const shown = rows.filter((row) => !row.hidden).length;
    section.querySelector(".count").textContent = `${shown} of ${rows.length} shown`;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const section = table.closest("section");
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => sortBy(table, column));
    });
    section.addEventListener("input", () => filter(section, table));
    filter(section, table);
  }

  redraw();
})();
