// Curves: what is new since the last look is asked for and appended; what is drawn is smoothed and thinned here.
"use strict";

(() => {
  const { ask, byId, colour, make, options, state, tabs, translated, trouble, variable, visible } = Watch;

  const PANELS = [
    ["reward", "Reward", /^reward(\/.+)?$/, "mean reward of the step's rollouts"],
    ["held-out", "Held-out score", /^eval\/.+\/score$/, "mean reward on held-out prompts"],
    ["loss", "Loss", /^loss$/, "loss of the step"],
    ["entropy", "Entropy", /^entropy(\/.+)?$/, "nats a token"],
    ["kl", "KL", /^kl(\/.+)?$/, "divergence from the reference, nats a token"],
    ["dead", "Groups without signal", /^(dead_groups\/.+|frac_reward_zero_std)$/, "share of groups whose rewards are all the same"],
    ["lengths", "Lengths", /^completions\/(mean|min|max)_length$/, "tokens of a completion"],
    ["validity", "Answers that could be read", /^(validity(\/.+)?|token_accuracy)$/, "share of completions; in SFT, of tokens foretold"],
    ["clipped", "Truncated answers", /^completions\/clipped_ratio$/, "share of completions that ran out of tokens"],
    ["grad-norm", "Gradient norm", /^grad_norm$/, "before it is scaled down"],
    ["step-time", "Time", /^step_time$/, "seconds a step"],
  ];
  const DASHES = ["solid", "dot", "dash", "dashdot", "longdash"];
  const MOST_POINTS = 1200;
  const MOST_NAMES = 8;
  const ASKED_AT_ONCE = 60;

  const points = new Map(); // "run stage name" -> {epoch, steps, values, version}
  const panels = new Map(); // id -> {names, article, plot, legend, off, drawn, near}
  const extra = [];
  let stage = "";

  const keyOf = (run, name) => `${run} ${stage} ${name}`;
  const shownRuns = () => state.runs.map((_, index) => index).filter((index) => !state.off.has(index));

  const namesOf = (matches) => {
    const names = new Set();
    for (const index of shownRuns()) for (const name of state.runs[index].names[stage] || []) if (matches(name)) names.add(name);
    // Of a single task a number is the run's own: one curve.
    const tasks = (head) => [...names].filter((other) => other.startsWith(`${head}/`)).length;
    const twice = (name) => { const [head] = name.split("/"); return name !== head && names.has(head) && tasks(head) === 1; };
    return [...names].filter((name) => !twice(name)).slice(0, MOST_NAMES);
  };

  const chooseStage = () => {
    const stages = ["grpo", "sft", "start"].filter((one) => state.runs.some((run) => (run.names[one] || []).length));
    const label = { grpo: "GRPO", sft: "SFT", start: "before training" };
    options(byId("stage"), stages.map((one) => [one, translated(label[one])]));
    const chosen = byId("stage").value;
    if (chosen !== stage) {
      stage = chosen;
      for (const panel of panels.values()) panel.drawn = "";
    }
    // A GRPO stage that has just begun takes the page along, unless somebody chose another one.
    if (!byId("stage").dataset.chosen && stages.length && stage !== stages[0]) {
      byId("stage").value = stages[0];
      stage = stages[0];
    }
  };

  const fetchNew = async (run, names) => {
    for (let i = 0; i < names.length; i += ASKED_AT_ONCE) {
      const part = names.slice(i, i + ASKED_AT_ONCE);
      const c = part.map((name) => {
        const had = points.get(keyOf(run, name)) || { epoch: 0, steps: [] };
        return `${stage} ${had.epoch} ${had.steps.length} ${name}`;
      });
      for (const one of (await ask("/api/series", { run: String(run), c })).series) {
        const key = `${run} ${one.stage} ${one.name}`;
        const had = points.get(key) || { steps: [], values: [], version: 0 };
        points.set(key, {
          epoch: one.epoch,
          steps: had.steps.slice(0, one.start).concat(one.steps),
          values: had.values.slice(0, one.start).concat(one.values),
          version: had.version + 1,
        });
      }
    }
  };

  // Exponential moving mean, corrected for its beginning; a gap stays a gap.
  const smoothed = (values, by) => {
    let mean = 0;
    let weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = by * mean + (1 - by) * value;
      weight = by * weight + (1 - by);
      return mean / weight;
    });
  };

  // Of each stretch of steps its least and its largest value, so that no spike is lost.
  const thinned = (steps, values) => {
    if (steps.length <= MOST_POINTS) return [steps, values];
    const stretch = Math.ceil(steps.length / (MOST_POINTS / 2));
    const chosen = [];
    for (let from = 0; from < steps.length; from += stretch) {
      let low = -1;
      let high = -1;
      for (let i = from; i < Math.min(from + stretch, steps.length); i += 1) {
        if (values[i] === null) continue;
        if (low < 0 || values[i] < values[low]) low = i;
        if (high < 0 || values[i] > values[high]) high = i;
      }
      if (low < 0) chosen.push(from);
      else if (low === high) chosen.push(low);
      else chosen.push(Math.min(low, high), Math.max(low, high));
    }
    if (chosen[chosen.length - 1] !== steps.length - 1) chosen.push(steps.length - 1);
    return [chosen.map((i) => steps[i]), chosen.map((i) => values[i])];
  };

  // The drawing library reads a little markup in names.
  const plain = (text) => visible(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/%\{/g, "% {");

  const faint = (hex) => /^#[0-9a-f]{6}$/i.test(hex) ? `${hex}45` : hex;

  const tracesOf = (panel) => {
    const runs = shownRuns();
    const by = Number(byId("smoothing").value);
    const raw = byId("raw").checked || by === 0;
    const traces = [];
    for (const run of runs) {
      panel.names.forEach((name, i) => {
        const one = points.get(keyOf(run, name));
        if (!one || !one.steps.length || panel.off.has(name)) return;
        const paint = runs.length > 1 ? colour(run) : colour(i);
        const dash = runs.length > 1 ? DASHES[i % DASHES.length] : "solid";
        const label = runs.length > 1 ? `${state.runs[run].name} \u00b7 ${name}` : name;
        const few = one.steps.length < 12;
        const line = (values, extras) => {
          const [x, y] = thinned(one.steps, values);
          return { type: "scatter", mode: few ? "lines+markers" : "lines", x, y, name: plain(label), ...extras };
        };
        const smooth = by > 0 && !few;
        const hover = `${plain(label)} %{y:.4g}<extra></extra>`;
        if (raw || !smooth) {
          traces.push(line(one.values, { line: { color: smooth ? faint(paint) : paint, width: smooth ? 1.2 : 2, dash },
            marker: { size: 6, color: paint }, hovertemplate: hover }));
        }
        if (smooth) {
          const mean = { line: { color: paint, width: 2.4, dash }, hovertemplate: hover };
          traces.push(line(smoothed(one.values, by), raw ? { ...mean, hoverinfo: "skip", hovertemplate: null } : mean));
        }
      });
    }
    return traces;
  };

  // Numbers that differ by rounding alone are a level line, not a zigzag between ticks of sixteen digits.
  const level = (traces) => {
    const numbers = traces.flatMap((trace) => trace.y).filter((y) => y !== null);
    const [low, high] = numbers.reduce(([a, b], y) => [Math.min(a, y), Math.max(b, y)], [Infinity, -Infinity]);
    const size = Math.max(Math.abs(low), Math.abs(high));
    return numbers.length && high - low <= 1e-9 * size ? { range: [low - (size || 1), high + (size || 1)] } : {};
  };

  const layout = (traces) => {
    const narrow = window.innerWidth < 560;
    const axis = { gridcolor: variable("grid"), zerolinecolor: variable("line"), linecolor: variable("line"), ticks: "",
      automargin: true, fixedrange: narrow };
    return {
      height: 250, autosize: true, showlegend: false, margin: { l: 44, r: 12, t: 12, b: 34 }, hovermode: "x unified",
      uirevision: stage, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: variable("muted") },
      hoverlabel: { bgcolor: variable("card"), bordercolor: variable("line"), font: { color: variable("ink"), size: 12 } },
      xaxis: { ...axis, showgrid: false, showline: true, zeroline: false, nticks: narrow ? 5 : 9 },
      yaxis: { ...axis, nticks: 6, ...level(traces) },
    };
  };

  const drawPanel = (panel) => {
    if (!panel.near || panel.article.hidden) return;
    const versions = shownRuns().flatMap((run) => panel.names.map((name) => (points.get(keyOf(run, name)) || {}).version || 0));
    const asked = JSON.stringify([stage, shownRuns(), panel.names, [...panel.off], versions, byId("smoothing").value,
      byId("raw").checked, variable("page")]);
    if (asked === panel.drawn) return;
    panel.drawn = asked;
    const traces = tracesOf(panel);
    Plotly.react(panel.plot, traces, layout(traces), { responsive: true, displaylogo: false, displayModeBar: false });
  };

  const drawLegend = (panel) => {
    const many = shownRuns().length > 1;
    const asked = JSON.stringify([panel.names, many, [...panel.off], variable("page")]);
    if (panel.legend.dataset.shown === asked) return;
    panel.legend.dataset.shown = asked;
    panel.legend.replaceChildren(...panel.names.map((name, i) => {
      const line = make("i", { cls: many && i % DASHES.length ? "dash" : "" });
      line.style.background = many ? variable("muted") : colour(i);
      line.style.borderColor = variable("muted");
      if (many && i % DASHES.length) line.style.borderTopStyle = i % 2 ? "dotted" : "dashed";
      const button = make("button", { type: "button", "aria-pressed": String(!panel.off.has(name)) }, line, visible(name));
      button.addEventListener("click", () => {
        if (!panel.off.delete(name)) panel.off.add(name);
        redraw();
      });
      return button;
    }));
  };

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const panel = panels.get(entry.target.dataset.panel);
      if (!panel) continue;
      panel.near = entry.isIntersecting;
      drawPanel(panel);
    }
  }, { rootMargin: "400px" });

  const panelFor = (id, title, hint, matches, close) => {
    const plot = make("div", { cls: "plot" });
    plot.style.height = "250px";
    const legend = make("div", { cls: "legend" });
    const head = make("div", { cls: "chart-head" }, make("h3", { text: title }), close);
    const article = make("article", { cls: "chart", id: `chart-${id}` }, head, make("p", { cls: "muted", text: hint }), legend, plot);
    article.dataset.panel = id;
    byId("charts").append(article);
    panels.set(id, { matches, names: [], article, plot, legend, off: new Set(), drawn: "", near: false });
    watcher.observe(article);
  };
  for (const [id, title, pattern, hint] of PANELS) panelFor(id, title, hint, (name) => pattern.test(name));

  const addMetric = () => {
    const name = byId("metric").value.trim();
    const there = state.runs.some((run) => (run.names[stage] || []).includes(name));
    if (!there || extra.includes(name)) return;
    extra.push(name);
    byId("metric").value = "";
    const id = `own-${extra.length}`;
    const close = make("button", { type: "button", title: "Take this chart away", "aria-label": `Take ${name} away`, text: "\u00d7" });
    panelFor(id, name, "added", (other) => other === name, close);
    close.addEventListener("click", () => {
      panels.get(id).article.remove();
      panels.delete(id);
      extra.splice(extra.indexOf(name), 1);
    });
    tick().catch(trouble);
  };

  const redraw = () => {
    let any = false;
    for (const panel of panels.values()) {
      panel.names = namesOf(panel.matches);
      panel.article.hidden = !panel.names.length;
      any = any || panel.names.length > 0;
      drawLegend(panel);
      drawPanel(panel);
    }
    byId("no-curves").hidden = any;
  };

  const tick = async () => {
    chooseStage();
    redraw();
    const all = new Set(shownRuns().flatMap((run) => state.runs[run].names[stage] || []));
    options(byId("metrics"), [...all].sort().map((name) => [name, ""]));
    for (const run of shownRuns()) {
      const own = new Set(state.runs[run].names[stage] || []);
      const wanted = new Set([...panels.values()].flatMap((panel) => panel.names).filter((name) => own.has(name)));
      await fetchNew(run, [...wanted]);
    }
    redraw();
  };

  tabs.curves = { tick, redraw: () => tick().catch(trouble) };
  byId("stage").addEventListener("change", () => {
    byId("stage").dataset.chosen = "yes";
    tick().catch(trouble);
  });
  byId("smoothing").addEventListener("input", () => {
    byId("smooth-by").textContent = Number(byId("smoothing").value).toFixed(2);
    redraw();
  });
  byId("raw").addEventListener("change", redraw);
  byId("metric").addEventListener("change", addMetric);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
