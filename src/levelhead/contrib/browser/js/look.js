// What a person can see, as lines of text and numbered elements.
(() => {
  "use strict";
  const CLICKS = new Set(["click", "mousedown", "mouseup", "dblclick", "pointerdown", "touchstart"]);
  const SKIPPED_TAGS = new Set(["SCRIPT", "STYLE", "TEMPLATE", "NOSCRIPT", "LINK", "META", "TITLE", "HEAD", "OPTION",
    "DESC", "DEFS"]);
  // MiniWoB's own furniture, and the widget parts that repeat the element beside them.
  const SKIPPED = "#reward-display, #sync-task-cover, #click-canvas, #query, .hitarea, .ui-helper-hidden-accessible";
  const DRAGGED = ".ui-sortable > *, .ui-draggable-handle, [draggable=true]";
  const ARIA = new Set(
    ("button link tab menuitem menuitemcheckbox menuitemradio option checkbox radio slider spinbutton switch textbox " +
      "searchbox combobox treeitem").split(" "),
  );
  const SHAPES = new Set(["circle", "ellipse", "rect", "polygon", "polyline", "path", "line"]);
  const INPUT_ROLES = {
    button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio",
    range: "slider", number: "spinbutton", password: "password", search: "textbox", date: "date", time: "time",
    color: "color", file: "file",
  };
  const COLORS = {
    black: [0, 0, 0], white: [255, 255, 255], grey: [128, 128, 128], red: [255, 0, 0], green: [0, 128, 0],
    lime: [0, 255, 0], blue: [0, 0, 255], yellow: [255, 255, 0], cyan: [0, 255, 255], magenta: [255, 0, 255],
    orange: [255, 165, 0], purple: [128, 0, 128], pink: [255, 192, 203], brown: [165, 42, 42], olive: [128, 128, 0],
  };
  // Class names that say how a widget is drawn and not what it is.
  const STYLING = /^ui-(corner|widget|state|button|icon|slider|spinner-button)/;
  const LONGEST_NAME = 100;
  const LONGEST_VALUE = 240;
  const MOST_OPTIONS = 40;

  // Which elements answer to a click is nowhere in the DOM, so registrations are counted as they are made.
  const listeners = new WeakMap();
  const clickListeners = new WeakMap();
  const { addEventListener, removeEventListener } = EventTarget.prototype;
  const count = (target, type, step) => {
    if (!(target instanceof Element)) return;
    if (CLICKS.has(type)) listeners.set(target, (listeners.get(target) ?? 0) + step);
    if (type === "click") clickListeners.set(target, (clickListeners.get(target) ?? 0) + step);
  };
  EventTarget.prototype.addEventListener = function (type, listener, options) {
    if (listener) count(this, type, 1);
    return addEventListener.call(this ?? window, type, listener, options);
  };
  EventTarget.prototype.removeEventListener = function (type, listener, options) {
    if (listener) count(this, type, -1);
    return removeEventListener.call(this ?? window, type, listener, options);
  };

  const squeeze = (text) => text.replace(/\s+/g, " ").trim();
  const shorten = (text) => (text.length > LONGEST_NAME ? text.slice(0, LONGEST_NAME - 3) + "..." : text);
  const shortenMiddle = (text) => {
    const half = LONGEST_VALUE / 2 - 3;
    return text.length > LONGEST_VALUE ? `${text.slice(0, half)} ... ${text.slice(-half)}` : text;
  };
  const listens = (element) => (listeners.get(element) ?? 0) > 0 || typeof element.onclick === "function";

  function shown(element) {
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return false;
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0;
  }

  // The role of an element that can be acted on, "" for any other.
  function roleOf(element) {
    const tag = element.tagName.toLowerCase();
    const aria = element.getAttribute("role");
    if (tag === "input") return INPUT_ROLES[element.type] ?? "textbox";
    if (tag === "textarea") return "textarea";
    if (tag === "select") return element.multiple ? "listbox" : "combobox";
    if (tag === "canvas") return "canvas";
    if (SHAPES.has(tag) && element instanceof SVGElement) return tag;
    if (aria && ARIA.has(aria)) return aria;
    if (element.matches(".ui-slider-handle")) return "slider";
    if (tag === "button" || tag === "summary") return "button";
    if (element.isContentEditable && !element.parentElement?.isContentEditable) return "textbox";
    if (tag === "a" && (element.hasAttribute("href") || listens(element))) return "link";
    if (tag === "body" || tag === "html" || tag === "label") return "";
    const style = getComputedStyle(element);
    const points = style.cursor === "pointer" && getComputedStyle(element.parentElement).cursor !== "pointer";
    const focusable = element.tabIndex >= 0 && element.hasAttribute("tabindex");
    if (!listens(element) && !points && !focusable && !element.matches(DRAGGED)) return "";
    return points && style.textDecorationLine === "underline" ? "link" : "item";
  }

  const NATIVE = "a, button, input, select, textarea, summary, canvas, [contenteditable]";
  const native = (element) => element.matches(NATIVE);

  function holdsElements(element) {
    for (const inner of element.querySelectorAll("*")) {
      if (!inner.matches(SKIPPED) && roleOf(inner) !== "" && shown(inner)) return true;
    }
    return false;
  }

  // The text of an element that is not part of an element inside it that can be acted on.
  function ownText(element) {
    let text = "";
    for (const child of element.childNodes) {
      if (child instanceof Text) text += ` ${child.data}`;
      else if (child instanceof HTMLElement && roleOf(child) === "" && shown(child)) text += ` ${ownText(child)}`;
    }
    return squeeze(text);
  }

  function colorName(css) {
    const found = /rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)/.exec(css);
    if (!found || found[4] === "0") return "";
    const rgb = found.slice(1, 4).map(Number);
    let best = "";
    let least = Infinity;
    for (const [name, other] of Object.entries(COLORS)) {
      const distance = other.reduce((sum, value, i) => sum + (value - rgb[i]) ** 2, 0);
      if (distance < least) [best, least] = [name, distance];
    }
    return best;
  }

  const sizeAndPlace = (element) => {
    const box = element.getBoundingClientRect();
    const [w, h, x, y] = [box.width, box.height, box.left + box.width / 2, box.top + box.height / 2].map(Math.round);
    return `${w}x${h} at ${x},${y}`;
  };

  function describeShape(element) {
    const style = getComputedStyle(element);
    const color = colorName(style.fill) || colorName(style.stroke);
    const corners = element.points ? `${element.points.numberOfItems} corners ` : "";
    return squeeze(`${color} ${corners}${sizeAndPlace(element)}`);
  }

  function nameOf(element, role) {
    if (SHAPES.has(role)) return describeShape(element);
    if (role === "canvas") return sizeAndPlace(element);
    const labelled = (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id));
    const given = element.getAttribute("aria-label") || labelled.map((label) => label?.innerText ?? "").join(" ");
    if (squeeze(given)) return shorten(squeeze(given));
    if (element instanceof HTMLInputElement || element instanceof HTMLTextAreaElement) {
      if (role === "button") return squeeze(element.value);
      const label = element.closest("label") ?? (role === "checkbox" || role === "radio" ? element.labels?.[0] : null);
      return shorten(squeeze(label?.innerText ?? element.placeholder ?? "") || squeeze(element.placeholder ?? ""));
    }
    if (element instanceof HTMLSelectElement) return squeeze(element.closest("label")?.firstChild?.textContent ?? "");
    if (role === "textbox") return "";
    const text = squeeze(element.innerText ?? element.textContent);
    if (text) return shorten(text);
    const image = element.querySelector("img[alt]");
    const title = element.getAttribute("title") || element.getAttribute("alt") || image?.alt || "";
    // An icon: its class is the nearest thing to what it shows.
    const words = [...element.classList].filter((one) => !STYLING.test(one)).join(" ") || element.id;
    return squeeze(title || `${words} ${colorName(getComputedStyle(element).backgroundColor)}`);
  }

  function valueOf(element, role) {
    if (role === "password") return "*".repeat(element.value.length);
    if (role === "combobox" || role === "listbox") {
      if (!(element instanceof HTMLSelectElement)) return "";
      return [...element.selectedOptions].map((option) => squeeze(option.text)).join(", ");
    }
    if (role === "slider") return element.value ?? element.getAttribute("aria-valuenow") ?? "";
    if (["textbox", "textarea", "searchbox", "spinbutton", "date", "time", "color"].includes(role)) {
      return shortenMiddle(element.value ?? squeeze(element.innerText));
    }
    return "";
  }

  const overflow = (element) => {
    const above = element.scrollTop > 1;
    const below = element.scrollTop + element.clientHeight < element.scrollHeight - 1;
    return [above && "more above", below && "more below"].filter(Boolean);
  };

  function statesOf(element, hint) {
    const states = [];
    const aria = (name) => element.getAttribute(`aria-${name}`) ?? hint?.getAttribute(`aria-${name}`);
    if (element.checked || aria("checked") === "true") states.push("checked");
    const folded = aria("expanded");
    const item = element.closest("li");
    const active = item?.classList.contains("active") || aria("pressed") === "true";
    if (active || (aria("selected") === "true" && folded === null)) states.push("selected");
    if (folded === "true" || element.open) states.push("expanded");
    else if (folded === "false") states.push("collapsed");
    else if (item?.classList.contains("collapsable")) states.push("expanded");
    else if (item?.classList.contains("expandable")) states.push("collapsed");
    if (element.disabled || aria("disabled") === "true") states.push("disabled");
    if (element.readOnly) states.push("readonly");
    if (element instanceof HTMLTextAreaElement) states.push(...overflow(element));
    if (element === document.activeElement) states.push("focused");
    return states;
  }

  const meets = (box, clip) =>
    clip === null ||
    (box.right > clip.left + 1 && box.left < clip.right - 1 && box.bottom > clip.top + 1 && box.top < clip.bottom - 1);

  const within = (box, clip) => ({
    left: Math.max(box.left, clip?.left ?? -Infinity),
    right: Math.min(box.right, clip?.right ?? Infinity),
    top: Math.max(box.top, clip?.top ?? -Infinity),
    bottom: Math.min(box.bottom, clip?.bottom ?? Infinity),
  });

  class Walk {
    lines = [];
    refs = [null];
    parts = [];
    depth = 0;

    newline() {
      if (this.parts.length) this.lines.push({ depth: this.depth, parts: this.parts });
      this.parts = [];
    }

    text(text) {
      const clean = squeeze(text);
      if (!clean) return;
      const last = this.parts.length - 1;
      if (typeof this.parts[last] === "string") this.parts[last] += ` ${clean}`;
      else this.parts.push(clean);
    }

    element(element, role, hint = null) {
      const select = element instanceof HTMLSelectElement;
      const options = select ? [...element.options].slice(0, MOST_OPTIONS).map((option) => squeeze(option.text)) : [];
      const [name, value] = [nameOf(element, role), valueOf(element, role)];
      this.push(element, { role, name, value, states: statesOf(element, hint), options });
    }

    push(element, about) {
      this.refs.push(element);
      this.parts.push({ ref: this.refs.length - 1, name: "", value: "", states: [], options: [], ...about });
    }

    scrollArea(element) {
      this.newline();
      this.push(element, { role: "scroll area", states: overflow(element) });
      this.newline();
    }

    visitText(node, clip) {
      if (!squeeze(node.data)) return;
      if (clip !== null) {
        const range = document.createRange();
        range.selectNodeContents(node);
        if (!meets(range.getBoundingClientRect(), clip)) return;
      }
      this.text(node.data);
    }

    visitChildren(element, clip, hint) {
      const visible = getComputedStyle(element).visibility === "visible";
      for (const child of element.childNodes) {
        if (child instanceof Text && visible) this.visitText(child, clip);
        else if (child instanceof Element) this.visit(child, clip, hint);
      }
    }

    visitElementsOnly(element, clip) {
      for (const child of element.children) {
        if (SKIPPED_TAGS.has(child.tagName.toUpperCase()) || child.matches(SKIPPED) || !shown(child)) continue;
        if (roleOf(child) !== "") this.visit(child, clip, null);
        else this.visitElementsOnly(child, clip);
      }
    }

    // An element that is acted on.  Returns whether it has been dealt with, its content included.
    visitElement(element, box, clip, hint) {
      const role = roleOf(element);
      if (role === "" || box.width === 0 || box.height === 0 || !meets(box, clip)) return false;
      if (!native(element) && !SHAPES.has(role) && holdsElements(element)) {
        // A row with buttons in it is an element too if it takes clicks of its own, and not only those on its content.
        const name = (clickListeners.get(element) ?? 0) > 0 ? ownText(element) : "";
        if (name && !element.matches("#wrap, #area")) {
          this.newline();
          this.push(element, { role, name: shorten(name), states: statesOf(element) });
          this.visitElementsOnly(element, clip);
          return true;
        }
        return false;
      }
      const lends = hint !== null && (role === "link" || role === "item");
      this.element(element, lends ? hint.getAttribute("role") : role, hint);
      return true;
    }

    visit(element, clip, hint) {
      if (SKIPPED_TAGS.has(element.tagName.toUpperCase()) || element.matches(SKIPPED)) return;
      if (element.tagName === "BR") return this.newline();
      const style = getComputedStyle(element);
      if (style.display === "none" || style.opacity === "0") return;
      const hidden = style.visibility !== "visible";
      const box = element.getBoundingClientRect();
      const cell = element.closest("td, th");
      const block =
        !/^(inline|contents|table-cell|ruby)/.test(style.display) && !(element instanceof SVGElement) &&
        !(cell && cell.innerText.length <= LONGEST_NAME);
      if (block) this.newline();
      if (style.display === "table-cell" && typeof this.parts.at(-1) === "string") this.text("|");
      if (hidden || !this.visitElement(element, box, clip, hint)) this.visitInside(element, style, box, clip, hint);
      if (block) this.newline();
    }

    visitInside(element, style, box, clip, hint) {
      if (element.tagName === "LABEL") {
        const control = element.querySelector("input, select, textarea");
        if (control && shown(control)) return this.visit(control, clip, hint);
        if (/^(checkbox|radio)$/.test(element.control?.type ?? "") && shown(element.control)) return undefined;
      }
      if (element.tagName === "IMG" && element.alt && meets(box, clip)) this.text(`(image: ${element.alt})`);
      const role = element.getAttribute("role");
      const nests = role === "dialog" || element.tagName === "FIELDSET" || element.matches("li ul, li ol");
      if (role === "dialog") {
        this.newline();
        this.text("dialog");
        this.newline();
      }
      const overflows = element.scrollHeight > element.clientHeight + 2 && element.clientHeight > 0;
      const scrolls = overflows && /auto|scroll/.test(style.overflowY) && element !== document.body;
      if (scrolls) this.scrollArea(element);
      const clips = scrolls || (overflows && style.overflowY !== "visible" && element !== document.body);
      if (nests) this.newline();
      this.depth += nests ? 1 : 0;
      this.visitChildren(element, clips ? within(box, clip) : clip, ARIA.has(role) ? element : hint);
      if (nests) this.newline();
      this.depth -= nests ? 1 : 0;
      return undefined;
    }
  }

  // The page's own wording, with the name of a colour where a box of that colour stands in the sentence.
  function goal() {
    const query = document.getElementById("query");
    const patch = [...query.querySelectorAll("*")].find((one) => !one.textContent.trim() && one.children.length === 0);
    const color = patch ? colorName(getComputedStyle(patch).backgroundColor) : "";
    if (color) {
      patch.textContent = ` ${color} `;
      const text = squeeze(query.textContent);
      patch.textContent = "";
      return text;
    }
    const said = window.core.getUtterance();
    return squeeze(typeof said === "string" ? said : said.utterance);
  }

  const page = window.__levelhead;
  page.look = () => {
    // A document in which no episode was started: the page has been reloaded or led elsewhere.
    if (!page.started) return { stray: true };
    const walk = new Walk();
    walk.visitChildren(document.body, null, null);
    walk.newline();
    page.refs = walk.refs;
    return {
      stray: false,
      goal: goal(),
      lines: walk.lines,
      done: Boolean(window.WOB_DONE_GLOBAL),
      reward: Number(window.WOB_RAW_REWARD_GLOBAL),
      reason: window.WOB_REWARD_REASON ?? "",
    };
  };
})();
