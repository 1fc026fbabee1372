// Draws the figures of a run's report in the reader's theme.  Colours arrive as names ("$task-0", "$good/0.3") and are
// looked up among the page's CSS variables, so that light and dark are one set of figures.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);

  const colour = (name) => {
    const [key, alpha] = name.slice(1).split("/");
    const value = getComputedStyle(document.documentElement).getPropertyValue("--" + key).trim();
    if (!alpha || !/^#[0-9a-f]{6}$/i.test(value)) return value;
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(value.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},${alpha})`;
  };

  const COLOUR_KEYS = new Set(["color", "fillcolor"]);
  const painted = (value, key) => {
    if (Array.isArray(value)) return typeof value[0] === "object" && value[0] ? value.map((v) => painted(v)) : value;
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, k)]));
    }
    return COLOUR_KEYS.has(key) && typeof value === "string" && value.startsWith("$") ? colour(value) : value;
  };

  // Few steps: no ticks between them.  On a category axis every name is a tick, and x holds values, not steps.
  const ticksOf = (figure, narrow) => {
    if ((figure.layout.yaxis || {}).type === "category") return [{ nticks: narrow ? 4 : 9 }, { tickmode: "linear" }];
    const last = Math.max(...figure.data.map((trace) => trace.x[trace.x.length - 1] || 0));
    return [last <= 8 ? { dtick: 1 } : { nticks: narrow ? 5 : 9 }, { nticks: 6 }];
  };

  const layoutOf = (figure, height, width) => {
    const narrow = window.innerWidth < 560;
    const axis = {
      gridcolor: colour("$grid"), zerolinecolor: colour("$line"), linecolor: colour("$line"),
      tickcolor: colour("$line"), ticks: "", fixedrange: narrow, automargin: true,
    };
    const given = painted(figure.layout);
    const [xticks, yticks] = ticksOf(figure, narrow);
    return {
      ...given,
      height,
      ...(width ? { width, autosize: false } : { autosize: true }),
      showlegend: false,
      margin: { l: 44, r: 12, t: 12, b: 34 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("$muted") },
      hovermode: given.hovermode || "x unified",
      hoverlabel: {
        bgcolor: colour("$card"), bordercolor: colour("$line"), font: { color: colour("$ink"), size: 12 },
      },
      xaxis: { ...axis, showgrid: false, showline: true, zeroline: false, ...xticks, ...given.xaxis },
      yaxis: { ...axis, ...yticks, ...given.yaxis },
    };
  };

  const hidden = new Map();
  const draw = (figure, width) => {
    const place = document.getElementById("plot-" + figure.id);
    const off = hidden.get(figure.id) || new Set();
    const data = figure.data.map((trace) => ({ ...painted(trace), visible: !off.has(trace.legendgroup) }));
    const options = { responsive: true, displaylogo: false, displayModeBar: false, doubleClick: "reset" };
    return Plotly.react(place, data, layoutOf(figure, Number(place.dataset.height), width), options);
  };

  const byId = new Map(figures.map((figure) => [figure.id, figure]));
  const seen = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const id = entry.target.id.slice("plot-".length);
      if (entry.isIntersecting && !seen.has(id)) {
        seen.add(id);
        draw(byId.get(id));
      }
    }
  }, { rootMargin: "600px" });
  for (const figure of figures) watcher.observe(document.getElementById("plot-" + figure.id));

  for (const button of document.querySelectorAll("button[data-chart]")) {
    button.addEventListener("click", () => {
      const { chart, group } = button.dataset;
      const off = hidden.get(chart) || new Set();
      if (!off.delete(group)) off.add(group);
      hidden.set(chart, off);
      button.setAttribute("aria-pressed", String(!off.has(group)));
      draw(byId.get(chart));
    });
  }

  const redraw = () => { for (const id of seen) draw(byId.get(id)); };
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => { // on paper cards stand below one another, a page wide
    for (const figure of figures) { seen.add(figure.id); draw(figure, 640); }
  });
  window.addEventListener("afterprint", redraw);
})();
