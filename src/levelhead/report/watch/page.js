// The live page: tabs, the runs, and what is asked of the server.  Text from a run only ever becomes text: no part of
// this page builds markup from a string.
"use strict";

const Watch = (() => {
  const byId = (id) => document.getElementById(id);

  // Control characters and marks that turn the direction of writing would make a text read otherwise than it is.
  const hidden = new RegExp(
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]", "g");
  const visible = (value) =>
    (typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value))
      .replace(hidden, "\ufffd");

  // The page's own words in the reader's language; what a run wrote (pre, code, names) is never exchanged.
  const words = {
    phrases: new Map(Object.entries(WATCH_WORDS.phrases)),
    patterns: Object.entries(WATCH_WORDS.patterns).map(([pattern, template]) => [new RegExp(`^(?:${pattern})$`, "s"), template]),
  };
  const VERBATIM = new Set(["pre", "code", "b", "option"]);
  const NAMES = new Set(["text", "name"]); // classes of elements that hold what a run wrote
  const SPOKEN = new Set(["title", "aria-label", "alt"]);
  const translated = (text) => {
    const phrase = words.phrases.get(text);
    if (phrase !== undefined) return phrase;
    for (const [pattern, template] of words.patterns) {
      const match = pattern.exec(text);
      if (match) return match.slice(1).reduce((said, part) => said.replace("{}", () => words.phrases.get(part) ?? part), template);
    }
    return text;
  };
  const make = (name, { cls, text, ...attributes } = {}, ...children) => {
    const element = document.createElement(name);
    if (cls) element.className = cls;
    if (text !== undefined) element.textContent = VERBATIM.has(name) || NAMES.has(cls) ? visible(text) : translated(visible(text));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, SPOKEN.has(key) ? translated(value) : value);
    element.append(...children.filter(Boolean));
    return element;
  };

  const number = (value, digits = 4) =>
    typeof value === "number" ? String(Number(value.toPrecision(digits))).replace("-", "\u2212") : visible(value);

  const ask = async (path, parameters = {}) => {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries(parameters)) {
      for (const one of Array.isArray(value) ? value : [value]) if (one !== "" && one !== null) query.append(key, one);
    }
    const answer = await fetch(`${path}?${query}`, { cache: "no-store" });
    if (!answer.ok) throw new Error(visible(await answer.text()));
    return answer.json();
  };

  const colour = (index) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--task-${index % 8}`).trim();
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const tones = { critical: "bad", warning: "warn", info: "info", healthy: "good" };
  const pill = (text, severity) => make("span", { cls: `pill ${tones[severity] || ""}`, text });

  const state = { runs: [], off: new Set(), tab: "curves" };
  const tabs = {};

  const options = (select, entries) => {
    const before = select.value;
    const same = select.options.length === entries.length
      && entries.every(([value, text], i) => select.options[i].value === value && select.options[i].text === text);
    if (same) return;
    select.replaceChildren(...entries.map(([value, text]) => make("option", { value, text })));
    if (entries.some(([value]) => value === before)) select.value = before;
  };

  const progress = (run) => {
    if (!run.rows) return translated("no steps yet");
    const at = translated(run.steps ? `${run.stage} ${run.step} of ${run.steps}` : `${run.stage} ${run.step}`);
    return `${at}${run.running ? "" : ` \u00b7 ${translated("not running")}`}`;
  };

  const drawRuns = () => {
    const place = byId("runs");
    state.runs.forEach((run, index) => {
      let label = place.children[index];
      if (!label) {
        const box = make("input", { type: "checkbox" });
        box.checked = true;
        box.addEventListener("change", () => {
          if (!state.off.delete(index)) state.off.add(index);
          tabs.curves.redraw();
        });
        label = make("label", { title: visible(run.folder) }, box, make("i", { cls: "dot" }),
          make("b", { text: run.name }), make("span", { cls: "muted" }));
        place.append(label);
      }
      label.children[1].style.background = colour(index);
      label.children[3].textContent = progress(run) + (run.unreadable ? ` \u00b7 ${translated(`${run.unreadable} lines unreadable`)}` : "");
    });
    const choices = state.runs.map((run, index) => [String(index), visible(run.name)]);
    for (const select of [byId("events-run"), byId("filter").elements.run]) options(select, choices);
  };

  const open = (name) => {
    state.tab = name;
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const chosen = tab.getAttribute("aria-controls") === name;
      tab.setAttribute("aria-selected", String(chosen));
      byId(tab.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (state.runs.length && tabs[name]) tabs[name].tick().catch(trouble);
  };

  const say = (text, tone) => {
    byId("live").textContent = translated(text);
    byId("live").className = `pill ${tone}`;
  };
  const trouble = (error) => say(error instanceof TypeError ? "the server has gone" : error.message, "bad");

  const look = async () => {
    try {
      if (!document.hidden || !state.runs.length) {
        state.runs = (await ask("/api/state")).runs;
        drawRuns();
        const running = state.runs.some((run) => run.running);
        say(running ? "live" : "up to date", running ? "good" : "");
        await tabs[state.tab].tick();
      }
    } catch (error) {
      trouble(error);
    }
    setTimeout(look, 2000);
  };

  const begin = () => {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      tab.addEventListener("click", () => open(tab.getAttribute("aria-controls")));
    }
    for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
    look();
  };
  document.addEventListener("DOMContentLoaded", begin);

  return { ask, byId, colour, make, number, options, pill, state, tabs, translated, trouble, variable, visible };
})();

// Events and findings.
(() => {
  const { ask, byId, make, number, pill, tabs, trouble } = Watch;
  const logs = new Map();
  let drawn = "";
  const MOST_SHOWN = 300;

  const list = (title, texts) => texts && texts.length
    ? [make("p", { cls: "muted", text: title }),
      make("ul", { cls: "said-list" }, ...texts.map((text) => make("li", { text })))] : [];

  const pairs = (values) => Object.entries(values || {}).map(([key, value]) => `${key} ${number(value)}`).join(" \u00b7 ");

  const table = (rows) => make("div", { cls: "scroll" }, make("table", {}, ...rows.map((row, i) =>
    make("tr", {}, ...row.map((text) => make(i ? "td" : "th", { cls: i ? "name" : "", text }))))));

  const finding = (one) => {
    const sure = `${Math.round(100 * one.confidence)}%${one.first_step === null ? "" : ` \u00b7 since step ${one.first_step}`}`;
    const readings = one.evidence.map((e) => [e.metric, e.step === null ? e.statistic || "" : String(e.step), number(e.value)]);
    const remedies = one.remedies.map((r) => `${pairs(r.set)}${r.set && Object.keys(r.set).length ? ": " : ""}${r.why}`);
    return make("article", { cls: "row" },
      make("div", { cls: "row-head" }, pill(one.code === "healthy" ? "healthy" : one.severity,
        one.code === "healthy" ? "healthy" : one.severity), make("h3", { text: one.title }),
      make("code", { text: one.code }), make("span", { cls: "muted", text: sure })),
      make("p", { text: one.meaning }), ...list("For", one.for), ...list("Against", one.against),
      readings.length ? table([["metric", "step", "value"], ...readings]) : null, ...list("What to change", remedies));
  };

  const event = (one) => make("article", { cls: "row" },
    make("div", { cls: "row-head" }, pill(one.severity, one.severity), make("span", { cls: "num", text: `step ${number(one.step)}` }),
      make("code", { text: one.code }), one.action ? pill(one.action, "") : null),
    make("p", { text: one.message }), make("p", { cls: "muted", text: pairs(one.evidence) }));

  const graveness = { "": 0, warning: 1, critical: 2 };
  const drawLog = (run) => {
    const least = graveness[byId("severity").value];
    const wanted = (logs.get(run) || { rows: [] }).rows.filter((one) => (graveness[one.severity] || 0) >= least);
    const shown = wanted.slice(-MOST_SHOWN).reverse().map(event);
    const rest = wanted.length - shown.length;
    byId("log").replaceChildren(...(shown.length ? shown : [make("p", { cls: "muted", text: "None." })]),
      ...(rest > 0 ? [make("p", { cls: "muted", text: `${rest} earlier ones are in events.jsonl.` })] : []));
  };

  tabs.events = {
    async tick() {
      const run = byId("events-run").value || "0";
      const log = logs.get(run) || { epoch: 0, rows: [], from: 0 };
      const news = await ask("/api/events", { run, epoch: log.epoch, count: log.from + log.rows.length });
      const fresh = news.start !== log.from + log.rows.length || news.epoch !== log.epoch;
      logs.set(run, fresh ? { epoch: news.epoch, from: news.start, rows: news.events }
        : { ...log, rows: [...log.rows, ...news.events] });
      const name = `${run} ${byId("severity").value}`;
      if (fresh || news.events.length || drawn !== name) drawLog(run);
      drawn = name;
      const said = await ask("/api/findings", { run });
      const place = byId("findings");
      const text = JSON.stringify(said);
      if (place.dataset.shown === text) return;
      place.dataset.shown = text;
      place.replaceChildren(...(said.note ? [make("p", { cls: "muted", text: said.note })] : said.findings.map(finding)));
    },
  };
  for (const id of ["events-run", "severity"]) {
    byId(id).addEventListener("change", () => tabs.events.tick().catch(trouble));
  }

  tabs.recipe = {
    async tick() {
      const said = await ask("/api/recipes");
      const text = JSON.stringify(said);
      const place = byId("recipes");
      if (place.dataset.shown === text) return;
      place.dataset.shown = text;
      const names = said.runs.map((run) => run.name);
      byId("differences").replaceChildren(said.differences.length
        ? table([["key", ...names], ...said.differences.map((row) => [row.key, ...row.values])])
        : make("p", { cls: "muted", text: names.length > 1 ? "They do not." : "There is one run on this page." }));
      place.replaceChildren(...said.runs.map((run) => make("details", names.length > 1 ? {} : { open: "" },
        make("summary", { text: `${run.name}: ${run.file}` }),
        run.changes.length ? table([["changed while it ran", "before", "after"],
          ...run.changes.map((c) => [c.key, c.before, c.after])]) : null,
        make("pre", { text: run.text || "The recipe cannot be read." }))));
    },
  };
})();
