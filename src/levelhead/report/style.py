"""The report's style sheet: one palette for light, one for dark, chosen by the reader's system."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f5f1; --card: #ffffff; --ink: #1d2126; --muted: #646b75; --line: #d9d7d0; --grid: #ebe9e3;
  --accent: #3b62c4; --good: #1c7f56; --warn: #a86a08; --bad: #c2362f; --soft: #f1efe9;
  --start: #9aa0a8; --sft: #7b8fd6; --grpo: #2f4fae;
  --task-0: #2e6fd0; --task-1: #d4622a; --task-2: #16876a; --task-3: #8a52bf;
  --task-4: #c23a76; --task-5: #0d7d96; --task-6: #9a7a0a; --task-7: #5f6b7a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131519; --card: #1b1e23; --ink: #e7e9ec; --muted: #9aa2ad; --line: #363b43; --grid: #2a2e35;
    --accent: #85a7ff; --good: #4cc38f; --warn: #e0a848; --bad: #ff7d74; --soft: #23272d;
    --start: #7d8591; --sft: #8d9fe6; --grpo: #b7c6ff;
    --task-0: #6ea6fb; --task-1: #f5955f; --task-2: #45c7a0; --task-3: #bd93ee;
    --task-4: #f27fae; --task-5: #4cc3dc; --task-6: #dcb94a; --task-7: #a7b1be;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 56px; -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
    "PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC",
    "WenQuanYi Micro Hei", sans-serif;
}
main, header, footer { max-width: 1240px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 30px; padding-bottom: 18px; }
.grid + .rows { margin-top: 16px; }
.aside { color: var(--muted); font-size: 13px; margin: -8px 0 12px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 14px; letter-spacing: -0.005em; }
h3 {
  font-size: 15px; margin: 0; display: flex; align-items: center; gap: 8px; min-width: 0;
  overflow-wrap: anywhere;
}
h3.sub { margin: 22px 0 10px; }
p { margin: 0 0 6px; }
pre, code, .code-name, .id {
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
pre { font-size: 12.5px; line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; tab-size: 2; }
.muted { color: var(--muted); font-size: 13px; }
.lead { font-size: 18px; margin: 10px 0 16px; max-width: 60em; }
.dot { width: 10px; height: 10px; border-radius: 50%; display: inline-block; flex: none; }
nav {
  position: sticky; top: 0; z-index: 5; background: color-mix(in srgb, var(--page) 92%, transparent);
  backdrop-filter: blur(6px); border-bottom: 1px solid var(--line);
}
nav div {
  max-width: 1240px; margin: 0 auto; padding: 0 14px; display: flex; gap: 2px; overflow-x: auto;
  scrollbar-width: none;
}
nav a { color: var(--muted); text-decoration: none; padding: 11px 8px; font-size: 14px; white-space: nowrap; }
nav a:hover, nav a:focus-visible { color: var(--ink); }
.outlook {
  display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr) minmax(0, 1.25fr); gap: 16px; margin: 4px 0 18px;
}
.outlook > div {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; min-width: 0;
}
.outlook h2 { font-size: 16px; margin: 0 0 8px; display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 10px; }
.outlook h2 .muted { font-weight: 400; }
.outlook .learnt h2 { color: var(--good); } .outlook .not-learnt h2 { color: var(--warn); }
.outlook ul, .outlook ol { margin: 0; padding: 0; list-style: none; font-size: 14px; }
.outlook ul li { padding: 5px 0; border-top: 1px solid var(--grid); overflow-wrap: anywhere; }
.outlook ul li:first-child, .outlook ol li:first-child { border-top: 0; padding-top: 0; }
.outlook .figures { display: flex; flex-wrap: wrap; align-items: baseline; gap: 0 8px; }
.outlook .figures { font-variant-numeric: tabular-nums; }
.outlook ol { counter-reset: way; }
.outlook ol li {
  counter-increment: way; position: relative; padding: 6px 0 6px 22px; border-top: 1px solid var(--grid);
  overflow-wrap: anywhere;
}
.outlook ol li::before { content: counter(way) "."; position: absolute; left: 0; color: var(--muted); }
.outlook code {
  display: block; width: fit-content; max-width: 100%; margin-top: 4px; padding: 2px 8px; border-radius: 6px;
  background: var(--soft); font-size: 12.5px;
}
.facts { display: flex; flex-wrap: wrap; gap: 8px 34px; margin: 18px 0 22px; }
.facts dt { color: var(--muted); font-size: 12.5px; }
.facts dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; }
.cards, .grid { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.grid { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.wide { grid-column: 1 / -1; }
.card, .row, .sample, .chart {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; min-width: 0;
}
.card { padding: 16px 18px; border-top: 3px solid var(--own, var(--line)); }
.card-head { display: flex; justify-content: space-between; align-items: center; gap: 10px; }
.change { margin: 10px 0 12px; color: var(--muted); font-size: 14px; }
.change b {
  font-size: 28px; color: var(--ink); font-weight: 650; letter-spacing: -0.02em;
  font-variant-numeric: tabular-nums;
}
.ladder {
  display: grid; grid-template-columns: auto minmax(60px, 1fr) auto; gap: 3px 12px; align-items: center;
  font-size: 13px; margin-bottom: 12px; font-variant-numeric: tabular-nums;
}
.ladder .stage { color: var(--muted); }
.track {
  position: relative; height: 20px;
  background: linear-gradient(var(--grid), var(--grid)) center / 100% 1px no-repeat;
}
.track i { position: absolute; top: 50%; }
.whisker { height: 5px; margin-top: -2.5px; background: var(--line); border-radius: 3px; }
.point { width: 12px; height: 12px; margin: -6px 0 0 -6px; border-radius: 50%; border: 2px solid var(--card); }
.point.diamond { border-radius: 2px; transform: rotate(45deg); width: 11px; height: 11px; }
.base { width: 0; height: 100%; margin-top: -10px; border-left: 1.5px dashed var(--warn); opacity: 0.7; }
.said { font-size: 14px; margin: 0 0 12px; overflow-wrap: anywhere; }
.zero { width: 1px; height: 100%; margin-top: -10px; background: var(--muted); opacity: 0.5; }
.pill {
  display: inline-block; padding: 1px 9px; border-radius: 99px; font-size: 12.5px; font-weight: 600;
  white-space: nowrap;
  --tone: var(--muted); color: var(--tone); background: color-mix(in srgb, var(--tone) 13%, transparent);
}
.pill.good { --tone: var(--good); } .pill.warn { --tone: var(--warn); }
.pill.bad { --tone: var(--bad); } .pill.info { --tone: var(--accent); }
.chart { padding: 14px 14px 6px; display: flex; flex-direction: column; }
.chart > .muted { margin: 2px 0 8px; }
.chart .alert { color: var(--bad); font-size: 13px; margin: 0 0 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 12px; margin-bottom: 4px; }
.legend button {
  all: unset; cursor: pointer; display: inline-flex; align-items: center; gap: 6px; font-size: 13px; padding: 3px 0;
  max-width: 100%; overflow-wrap: anywhere;
}
.legend button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
.legend button[aria-pressed="false"] { opacity: 0.4; text-decoration: line-through; }
.legend i { width: 14px; height: 4px; border-radius: 2px; flex: none; }
.legend i.dash { height: 0; border-top: 2px dashed; background: none !important; border-radius: 0; }
.plot { width: 100%; min-height: 120px; margin-top: auto; }
[id^="chart-own"] .plot, [id^="chart-strata"] .plot { margin-top: 0; }
.share { display: flex; height: 26px; border-radius: 6px; overflow: hidden; margin: 2px 0 10px; gap: 2px; }
.share span {
  color: #fff; font-size: 12px; line-height: 26px; padding: 0 8px; overflow: hidden; white-space: nowrap;
}
@media (prefers-color-scheme: dark) { .share span { color: #14171b; } }
.rows { display: grid; gap: 10px; }
.row { padding: 12px 16px; }
.row-head, .sample-head, .marks { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 10px; }
.row p { margin: 6px 0 2px; overflow-wrap: anywhere; }
.code-name { font-size: 13.5px; overflow-wrap: anywhere; }
details { margin: 6px 0; }
details > summary { cursor: pointer; color: var(--muted); font-size: 13px; }
details.sample > summary { color: var(--ink); font-size: 14px; padding: 2px 0; }
details.long > summary { display: block; list-style: none; }
details.long > summary::-webkit-details-marker { display: none; }
details.long[open] > summary { display: none; }
.sample { padding: 14px 16px; margin-bottom: 12px; }
.sample > .prompt, .sample pre.prompt { margin: 8px 0 12px; }
.prompt { color: var(--muted); font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; display: block; }
pre.prompt { font-family: inherit; line-height: 1.5; }
.id { font-size: 12px; overflow-wrap: anywhere; }
.answers { display: grid; gap: 10px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 250px), 1fr)); }
.answer {
  background: var(--soft); border-radius: 8px; padding: 10px 12px; min-width: 0; display: flex;
  flex-direction: column; gap: 8px;
}
.answer pre { flex: 1; max-height: 320px; overflow: auto; }
.answer .who { font-size: 13px; display: inline-flex; align-items: center; gap: 6px; }
.parts { font-size: 12px; overflow-wrap: anywhere; }
.pairs {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 240px), 1fr)); gap: 10px 24px;
  margin: 8px 0;
}
.pairs dt { color: var(--muted); font-size: 12.5px; overflow-wrap: anywhere; }
.pairs dd { margin: 0; overflow-wrap: anywhere; font-size: 14px; }
.sparks { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 190px), 1fr)); gap: 14px 22px; }
.sparks figure { margin: 0; min-width: 0; }
.sparks figcaption { font-size: 12.5px; overflow-wrap: anywhere; }
.sparks svg { width: 100%; height: 36px; display: block; }
.sparks polyline {
  fill: none; stroke: var(--accent); stroke-width: 1.5; vector-effect: non-scaling-stroke;
  stroke-linejoin: round;
}
.code {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
  margin-top: 8px;
}
.scroll { overflow-x: auto; margin: 4px 0 14px; }
.scroll table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
.scroll th, .scroll td { text-align: left; padding: 4px 18px 4px 0; border-bottom: 1px solid var(--line); }
.scroll th { color: var(--muted); font-weight: 500; white-space: nowrap; }
.evaluations td { white-space: nowrap; }
.beside { display: grid; gap: 16px; grid-template-columns: minmax(0, 1.7fr) minmax(0, 1fr); margin-bottom: 16px; }
.measured .aside { margin: 0 0 6px; }
.measured pre { background: var(--soft); border-radius: 8px; padding: 8px 12px; max-height: 200px; overflow: auto; }
.strata table { width: 100%; font-size: 13px; }
.strata td, .strata th { white-space: nowrap; }
.strata td:nth-child(n+2), .strata th:nth-child(n+2) { text-align: right; padding: 4px 2px 4px 10px; }
.strata td:first-child, .strata th:first-child {
  white-space: normal; overflow-wrap: break-word; padding-right: 4px;
  position: sticky; left: 0; background: var(--card);
}
.strata tr.metric td { color: var(--muted); font-size: 12.5px; border-bottom-color: var(--grid); }
.strata tr.metric td:first-child { padding-left: 16px; }
.strata tr.strong td { font-weight: 650; border-top: 1.5px solid var(--muted); }
footer { color: var(--muted); font-size: 13px; padding-top: 30px; padding-bottom: 40px; }
@media (max-width: 900px) { .outlook { grid-template-columns: minmax(0, 1fr); gap: 10px; } }
@media (max-width: 1080px) { .beside { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 860px) { .grid { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 560px) {
  main, header, footer { padding-left: 14px; padding-right: 14px; }
  .ladder { grid-template-columns: auto 1fr; grid-auto-flow: row dense; }
  .ladder .track { grid-column: 1 / -1; }
  .ladder .value { text-align: right; }
  .pairs { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .lead { font-size: 16px; }
  .share span { padding: 0 4px; font-size: 11px; }
}
@media print { nav { display: none; } .chart, .sample, .row, .card { break-inside: avoid; } }
"""
