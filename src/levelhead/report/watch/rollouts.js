// The rollout browser: a filtered list that goes on by pages, and a prompt's group side by side.
"use strict";

(() => {
  const { ask, byId, make, number, options, pill, tabs, translated, trouble, variable, visible } = Watch;
  const form = byId("filter");
  let following = null; // where the list goes on; null at its end
  let asked = ""; // the filter that the list shows
  let turn = 0; // counts up with every new list, so that a late answer to an old one is dropped

  const wanted = () => Object.fromEntries(new FormData(form).entries());

  const outcome = (row) => {
    const facts = [make("span", { text: `step ${number(row.step)}` }), make("span", { cls: "name", text: row.task })];
    facts.push(make("span", { cls: "num", text: `reward ${number(row.reward)}` }));
    if (typeof row.advantage === "number") facts.push(make("span", { text: `advantage ${number(row.advantage, 3)}` }));
    if (row.length !== undefined) facts.push(make("span", { text: `${number(row.length)} tokens` }));
    if (row.turn_rewards) facts.push(make("span", { text: `by turn ${row.turn_rewards.map((paid) => number(paid, 3)).join(", ")}` }));
    if (row.finish === "length") facts.push(pill("cut off", "warning"));
    if (row.valid === false) facts.push(pill("not readable", "critical"));
    return facts;
  };

  const strata = (row) => Object.entries(row.strata || {}).map(([key, value]) => make("span", { cls: "name", text: `${key}=${value}` }));

  const entry = (row, run) => {
    const button = make("button", { cls: "entry", type: "button" },
      make("span", { cls: "facts-line" }, ...outcome(row), ...strata(row)),
      make("span", { cls: "prompt", text: row.prompt || "" }), make("span", { cls: "text", text: row.completion || translated("(empty)") }));
    button.addEventListener("click", () => {
      for (const other of byId("list").children) other.removeAttribute("aria-current");
      button.setAttribute("aria-current", "true");
      showGroup(run, row).catch(trouble);
    });
    return button;
  };

  const leftOut = (count) => (count ? make("p", { cls: "muted", text: `${count} more characters are in the file.` }) : null);

  const bar = (advantage, most) => {
    const filled = make("i");
    const share = most > 0 ? Math.abs(advantage) / most : 0;
    filled.style.left = advantage < 0 ? `${50 - 50 * share}%` : "50%";
    filled.style.width = `${50 * share}%`;
    filled.style.background = variable(advantage < 0 ? "bad" : "good");
    return make("div", { cls: "bar", title: `advantage ${number(advantage)}` }, filled);
  };

  const member = (row, most, run) => {
    const parts = Object.entries(row.parts || {}).map(([name, value]) => `${name} ${number(value, 3)}`).join(" \u00b7 ");
    return make("article", { cls: "row" },
      make("div", { cls: "facts-line" }, ...outcome(row).slice(2)),
      typeof row.advantage === "number" ? bar(row.advantage, most) : null,
      parts ? make("p", { cls: "muted", text: parts }) : null,
      row.drawing ? Episodes.workflow(row.drawing) : null,
      make("pre", { text: row.completion || translated("(empty)") }), leftOut(row.completion_left_out),
      row.episode ? Episodes.pages(row, run) : null,
      row.info ? make("details", {}, make("summary", { text: "notes" }), make("pre", { text: JSON.stringify(row.info, null, 1) })) : null);
  };

  const showGroup = async (run, row) => {
    const { rows } = await ask("/api/group", { run, file: row.file, task: row.task, prompt: row.prompt_id });
    if (!rows.length) return;
    const advantages = rows.map((one) => one.advantage).filter((one) => typeof one === "number");
    const most = Math.max(0, ...advantages.map(Math.abs));
    const same = advantages.length > 1 && most === 0;
    byId("group").replaceChildren(
      make("article", { cls: "row" },
        make("div", { cls: "facts-line" }, make("span", { text: `step ${number(row.step)}` }), make("span", { cls: "name", text: row.task }),
          make("code", { text: row.prompt_id }), ...strata(row), make("span", { text: row.file }),
          same ? pill("no signal: all advantages are 0", "warning") : null),
        make("pre", { text: rows[0].prompt }), leftOut(rows[0].prompt_left_out)),
      make("div", { cls: "members" }, ...rows.map((one) => member(one, most, run))));
    if (window.innerWidth <= 820) byId("group").scrollIntoView({ block: "start" });
  };

  const told = (answer, shown) => {
    const filtered = asked !== JSON.stringify({ run: wanted().run });
    const index = answer.indexed < answer.files ? ` (${answer.indexed} of ${answer.files} files indexed so far)` : "";
    const said = [translated(`${shown} shown`), translated(`${answer.matching} of ${answer.rollouts} rollouts match${form.elements.text.value && filtered ? ", the text aside" : ""}`) + translated(index)];
    byId("counts").textContent = [...said, ...answer.notes.map((note) => translated(visible(note)))].join(" \u00b7 ");
  };

  // Asks on until a page is full, the list has ended, or another filter was set.
  const read = async (own) => {
    const run = form.elements.run.value || "0";
    const goal = byId("list").children.length + 40;
    byId("more").hidden = true;
    do {
      const where = following ? { file: following[0], line: String(following[1]) } : {};
      const answer = await ask("/api/rollouts", { ...wanted(), run, ...where });
      if (own !== turn) return;
      byId("list").append(...answer.rows.map((row) => entry(row, run)));
      following = answer.next;
      const every = (names) => [["", translated("all")], ...names.map((name) => [name, visible(name)])];
      options(form.elements.task, every(answer.tasks));
      options(form.elements.stratum, every(answer.strata));
      form.elements.stratum.parentElement.hidden = !answer.strata.length;
      told(answer, byId("list").children.length);
    } while (following && byId("list").children.length < goal);
    byId("more").hidden = !following;
  };

  const begin = async () => {
    const now = JSON.stringify(wanted());
    if (now === asked) return;
    asked = now;
    turn += 1;
    following = null;
    byId("list").replaceChildren();
    await read(turn);
  };

  let waiting = 0;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => begin().catch(trouble), 250);
  });
  byId("more").addEventListener("click", () => read(turn).catch(trouble));

  tabs.rollouts = { tick: begin };
})();
