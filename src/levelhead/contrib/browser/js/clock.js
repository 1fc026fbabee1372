// Page time that moves only when we say so: timers, animation frames and dates all read one clock.  An episode then
// depends on its seed and its actions alone, however long the policy thinks, and nothing ever waits.
(() => {
  "use strict";
  const EPOCH = Date.UTC(2017, 0, 2, 12);
  const FRAME = 16;
  const MOST_CALLS = 5000;
  const RealDate = Date;
  const realFrame = window.requestAnimationFrame.bind(window);
  const realTimeout = window.setTimeout.bind(window);
  const timers = new Map();
  let now = EPOCH;
  let order = 0;

  function add(callback, due, every, args) {
    const id = ++order;
    timers.set(id, { due, every, args, order: id, callback });
    return id;
  }

  function earliest(end) {
    let id = 0;
    let best = null;
    for (const [key, timer] of timers) {
      if (timer.due > end) continue;
      if (best === null || timer.due < best.due || (timer.due === best.due && timer.order < best.order)) {
        id = key;
        best = timer;
      }
    }
    return [id, best];
  }

  function advance(ms) {
    const end = now + ms;
    for (let calls = 0; calls < MOST_CALLS; calls++) {
      const [id, timer] = earliest(end);
      if (timer === null) break;
      now = Math.max(now, timer.due);
      if (timer.every === null) {
        timers.delete(id);
      } else {
        timer.due = now + timer.every;
        timer.order = ++order;
      }
      try {
        timer.callback(...timer.args);
      } catch (error) {
        console.error(error);
      }
    }
    now = end;
  }

  // Back to the epoch; what is still pending keeps its distance.
  function rewind() {
    const shift = EPOCH - now;
    for (const timer of timers.values()) timer.due += shift;
    now = EPOCH;
  }

  const callable = (callback) => (typeof callback === "function" ? callback : new Function(String(callback)));
  window.setTimeout = (callback, delay, ...args) =>
    add(callable(callback), now + Math.max(1, Number(delay) || 0), null, args);
  window.setInterval = (callback, delay, ...args) => {
    const every = Math.max(4, Number(delay) || 0);
    return add(callable(callback), now + every, every, args);
  };
  window.requestAnimationFrame = (callback) => {
    const due = now + FRAME - ((now - EPOCH) % FRAME);
    return add(() => callback(now - EPOCH), due, null, []);
  };
  const clear = (id) => void timers.delete(id);
  window.clearTimeout = clear;
  window.clearInterval = clear;
  window.cancelAnimationFrame = clear;
  performance.now = () => now - EPOCH;
  const dateNow = () => now;
  window.Date = new Proxy(RealDate, {
    apply: () => new RealDate(now).toString(),
    construct: (target, args, created) => Reflect.construct(target, args.length ? args : [now], created),
    get: (target, key) => (key === "now" ? dateNow : Reflect.get(target, key)),
  });

  // The browser's own next frame, by which it has handed on what the mouse did; no page time passes.
  const painted = () =>
    new Promise((resolve) => {
      realTimeout(resolve, 100);
      realFrame(() => realTimeout(resolve, 0));
    });

  const arrived = (images) => {
    const all = Promise.all(images.map((image) => image.decode().catch(() => null)));
    return Promise.race([all, new Promise((resolve) => realTimeout(resolve, 2000))]);
  };

  Object.defineProperty(window, "__levelhead", { value: { advance, rewind, painted, arrived } });
})();
