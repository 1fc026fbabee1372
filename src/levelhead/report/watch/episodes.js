// What stands beside a rollout's text: a workflow as a drawing, a browser episode as pictures of its pages.
"use strict";

const Episodes = (() => {
  const { ask, make, number, translated, visible } = Watch;
  const SVG = "http://www.w3.org/2000/svg";

  const shape = (name, attributes, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
    if (text !== undefined) element.textContent = visible(text);
    return element;
  };

  const box = ({ x, y, width, height, label, kind }) => {
    const group = shape("g", { class: `step ${kind}` });
    group.append(shape("rect", { x, y, width, height, rx: kind === "done" ? 15 : 6 }),
      shape("text", { x: x + width / 2, y: y + height / 2, "text-anchor": "middle", "dominant-baseline": "central" }, label));
    return group;
  };

  const frame = ({ x, y, width, height, label }) => {
    const group = shape("g", { class: "loop" });
    group.append(shape("rect", { x, y, width, height, rx: 8 }), shape("text", { x: x + 10, y: y + 15 }, translated(label)));
    return group;
  };

  const line = ({ points, label, arrow }) => {
    const group = shape("g", { class: "way" });
    const [x, y] = points[points.length - 1];
    group.append(shape("polyline", { points: points.map((point) => point.join(",")).join(" ") }));
    if (arrow) group.append(shape("polygon", { points: `${x},${y} ${x - 7},${y - 4} ${x - 7},${y + 4}` }));
    if (label) group.append(shape("text", { x: points[1][0] + 3, y: points[1][1] - 5 }, translated(label)));
    return group;
  };

  const workflow = (drawing) => {
    const [width, height] = [drawing.width + 4, drawing.height + 4];
    const names = drawing.boxes.map((one) => one.label).join(", ");
    const svg = shape("svg", { viewBox: `-2 -2 ${width} ${height}`, width, height, role: "img", "aria-label": `${translated("workflow")}: ${names}` });
    svg.append(...drawing.frames.map(frame), ...drawing.lines.map(line), ...drawing.boxes.map(box));
    return make("div", { cls: "workflow" }, svg);
  };

  // Only a picture that the server made: an address of any other kind is not put into the page.
  const picture = (image, place) => (/^data:image\/png;base64,[A-Za-z0-9+/=]+$/.test(image)
    ? make("img", { src: image, alt: `the page ${place}`, width: 160, height: 210 }) : null);

  const strip = ({ frames, reward, same }) => {
    const figures = frames.map((one, i) => make("figure", {},
      picture(one.image, one.action === null ? "at the end" : `before action ${i + 1}`),
      make("figcaption", {}, one.action === null ? make("span", { cls: "muted", text: "at the end" }) : make("code", { text: one.action }),
        one.error ? make("span", { cls: "refused", text: one.error }) : null)));
    const told = `played again: raw reward ${number(reward, 3)}${same ? ", as in the run" : ", not what the run has"}`;
    return [make("div", { cls: "film" }, ...figures), make("p", { cls: same ? "muted" : "refused", text: told })];
  };

  const pages = (row, run) => {
    const button = make("button", { type: "button", cls: "show", text: "Show the pages" });
    const place = make("div", {}, button);
    button.addEventListener("click", async () => {
      button.disabled = true;
      button.textContent = translated("Playing the episode again \u2026");
      try {
        place.replaceChildren(...strip(await ask("/api/pages", { run, file: row.file, line: String(row.line) })));
      } catch (error) {
        place.replaceChildren(make("p", { cls: "refused", text: error.message }));
      }
    });
    return place;
  };

  return { pages, workflow };
})();
