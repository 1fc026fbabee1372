// The page's side of the actions: everything but the real mouse and keyboard events, which come from outside.
(() => {
  "use strict";
  const page = window.__levelhead;
  const LONGEST_TIMEOUT = 2147483647;
  const TYPED = /^(text|search|tel|url|email|password|number)$/;
  const SET = /^(date|time|month|week|datetime-local|color|range)$/;
  const STILL = "*, *::before, *::after { transition: none !important; animation: none !important; " +
    "scroll-behavior: auto !important; caret-color: transparent !important; }";

  const POINTS = [[0.5, 0.5], [0.25, 0.5], [0.75, 0.5], [0.5, 0.2], [0.5, 0.8], [0.1, 0.1], [0.9, 0.9], [0.1, 0.9]];

  // Runs once the page has loaded.  The images are kept, so that they show at once wherever they are used.
  page.prepare = async (urls) => {
    page.images = urls.map((url) => Object.assign(new Image(), { src: url }));
    await Promise.allSettled(page.images.map((image) => image.decode()));
    const style = document.createElement("style");
    style.textContent = STILL;
    document.head.append(style);
    page.advance(1000);
  };

  // Start the episode of a seed on a page that may still be in the middle of another one.
  page.reset = (seed, settle) => {
    page.advance(5000);
    document.activeElement?.blur();
    page.rewind();
    Math.seedrandom(String(seed));
    window.core.EPISODE_MAX_TIME = LONGEST_TIMEOUT;
    window.core.startEpisodeReal();
    window.scrollTo(0, 0);
    page.started = true;
    return page.settle(settle);
  };

  // What can be seen depends on how big pictures are, and that on whether they have come: those of the page, and those
  // that a style puts in an element's place.
  const known = new Set();
  let styled = null;

  function drawsByStyle(sheet) {
    try {
      return [...sheet.cssRules].some((rule) => /content:[^;]*url\(/.test(rule.cssText));
    } catch {
      return true;
    }
  }

  function picturesOnTheirWay() {
    const waited = [...document.images].filter((image) => !image.complete);
    styled ??= [...document.styleSheets].some(drawsByStyle);
    if (!styled) return waited;
    for (const element of document.body.querySelectorAll("*")) {
      const [, url] = /url\("(.+?)"\)/.exec(getComputedStyle(element).content) ?? [];
      if (!url || known.has(url)) continue;
      known.add(url);
      const image = new Image();
      image.src = url;
      waited.push(image);
    }
    return waited;
  }

  page.settle = (ms) => {
    page.advance(ms);
    const waited = picturesOnTheirWay();
    if (!waited.length) return page.look();
    return page.arrived(waited).then(page.painted).then(() => page.look());
  };

  function target(ref) {
    const element = page.refs?.[ref];
    if (!element) return [null, `there is no element ${ref}`];
    if (!element.isConnected) return [null, `element ${ref} is gone`];
    if (element.disabled) return [null, `element ${ref} is disabled`];
    return [element, ""];
  }

  function hits(element, x, y) {
    const found = document.elementFromPoint(x, y);
    if (!found) return false;
    // A click on something inside that has a number of its own is another action.
    if (page.refs.some((other) => other && other !== element && element.contains(other) && other.contains(found))) {
      return false;
    }
    return element.contains(found) || found.contains(element) || found.closest("label")?.control === element;
  }

  // A point on the element that a click would reach.
  page.point = (ref) => {
    const [element, error] = target(ref);
    if (!element) return { error };
    element.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = element.getClientRects()[0];
    if (!box) return { error: `element ${ref} is hidden` };
    for (const [across, down] of POINTS) {
      const [x, y] = [box.left + across * box.width, box.top + down * box.height];
      if (hits(element, x, y)) return { x, y };
    }
    return { error: `element ${ref} is covered by something else` };
  };

  page.focus = (ref) => {
    const [element, error] = target(ref);
    if (!element) return { error };
    element.scrollIntoView({ block: "nearest", inline: "nearest" });
    element.focus();
    return {};
  };

  const announce = (element) => {
    element.dispatchEvent(new Event("input", { bubbles: true }));
    element.dispatchEvent(new Event("change", { bubbles: true }));
  };

  // Focus a text field, its content selected if it is to be replaced or the caret at its end if it is not.  Fields
  // that are not typed into (dates, colours) take the text at once: `set` says so.
  page.enter = (ref, text, replace) => {
    const [element, error] = target(ref);
    if (!element) return { error };
    const typed = element.matches("textarea") || (element.matches("input") && TYPED.test(element.type));
    const set = element.matches("input") && SET.test(element.type);
    if (!typed && !set && !element.isContentEditable) return { error: `element ${ref} is not a text field` };
    if (element.readOnly) return { error: `element ${ref} cannot be edited` };
    page.focus(ref);
    if (set) {
      element.value = text;
      announce(element);
      return { set: true };
    }
    if (element.isContentEditable) getSelection().selectAllChildren(element);
    else element.select();
    if (!replace) {
      if (element.isContentEditable) getSelection().collapseToEnd();
      else if (element.type !== "number" && element.type !== "email") {
        element.setSelectionRange(element.value.length, element.value.length);
      }
    }
    return { set: false };
  };

  page.choose = (ref, text) => {
    const [element, error] = target(ref);
    if (!element) return { error };
    if (!element.matches("select")) return { error: `element ${ref} is not a list` };
    const clean = (raw) => raw.replace(/\s+/g, " ").trim();
    const options = [...element.options];
    const option =
      options.find((one) => clean(one.text) === clean(text)) ??
      options.find((one) => clean(one.text).toLowerCase() === clean(text).toLowerCase());
    if (!option) return { error: `element ${ref} has no option ${JSON.stringify(text)}` };
    element.focus();
    option.selected = true;
    announce(element);
    return {};
  };

  function scrollable(element) {
    for (let one = element; one; one = one.parentElement) {
      if (one.scrollHeight > one.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(one).overflowY)) return one;
    }
    return document.scrollingElement;
  }

  page.scroll = (ref, direction) => {
    const [element, error] = ref === null ? [document.scrollingElement, ""] : target(ref);
    if (!element) return { error };
    const area = scrollable(element);
    const before = area.scrollTop;
    area.scrollTop += (direction === "down" ? 0.8 : -0.8) * area.clientHeight;
    return area.scrollTop === before ? { error: `nothing to scroll ${direction}` } : {};
  };
})();
