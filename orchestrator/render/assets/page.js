// The page's behaviour: colours, copying, tables, charts and the flame graph. All data lies in JSON blocks of the page; names only ever become text nodes.
"use strict";
(() => {
  const root = document.documentElement;
  const find = (selector, inside = document) => inside.querySelector(selector);
  const every = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const block = (id) => JSON.parse(document.getElementById(id).textContent);

  function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  // One broken part must not take the others with it, nor break in silence.
  function safely(part, work) {
    try {
      work();
    } catch (error) {
      root.dataset.error = `${part}: ${error.message}`;
      console.error(part, error);
    }
  }

  const fixed = new Map();
  function decimal(value, places) {
    if (!fixed.has(places)) fixed.set(places, new Intl.NumberFormat("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }));
    return fixed.get(places).format(value);
  }
  const general = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 6 });
  const percent = (part) => (part > 0 && part < 0.0005 ? "<0.1 %" : `${decimal(100 * part, 1)} %`);

  function amount(value, unit) {
    if (unit === "samples") return `${decimal(value, 0)} sample${value === 1 ? "" : "s"}`;
    if (!value) return "0 s";
    const [factor, name] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([f]) => value >= f) ?? [1, "ns"];
    const shown = value / factor;
    return `${decimal(shown, shown < 10 && factor > 1 ? 2 : shown < 100 && factor > 1 ? 1 : 0)} ${name}`;
  }

  // ---- Colours ----

  function colours() {
    const names = { auto: "as the system has them", light: "light", dark: "dark" };
    const order = Object.keys(names);
    const button = find("#theme");
    const show = (theme) => {
      root.dataset.theme = theme;
      button.textContent = theme[0].toUpperCase() + theme.slice(1);
      button.setAttribute("aria-label", `Colours: ${names[theme]}`);
      dispatchEvent(new Event("colours"));
    };
    const stored = () => { try { return localStorage.getItem("profrun-theme"); } catch { return null; } };
    const store = (theme) => { try { localStorage.setItem("profrun-theme", theme); } catch { /* not allowed here: only this visit remembers */ } };
    button.onclick = () => {
      const next = order[(order.indexOf(root.dataset.theme) + 1) % order.length];
      store(next);
      show(next);
    };
    show(order.includes(stored()) ? stored() : "auto");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("colours")));
    let before = "auto";
    addEventListener("beforeprint", () => { before = root.dataset.theme; show("light"); every("details").forEach((d) => { d.open = true; }); });
    addEventListener("afterprint", () => show(before));
  }

  // ---- Copying, links into closed details, the current section ----

  function copying() {
    for (const button of every("button.copy")) {
      button.onclick = async () => {
        const code = find("code", button.parentElement);
        const text = code.textContent;
        const done = await Promise.resolve(navigator.clipboard?.writeText(text).then(() => true, () => false)) || byHand(code);
        button.textContent = done ? "Copied" : "Press Ctrl-C";
        setTimeout(() => { button.textContent = "Copy"; }, 1600);
      };
    }
  }

  function byHand(element) {
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }

  function sections() {
    const open = () => {
      const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
      if (target instanceof HTMLDetailsElement) target.open = true;
    };
    addEventListener("hashchange", open);
    open();
    const nav = bar();
    const links = new Map(every(".bar nav a").map((a) => [a.hash.slice(1), a]));
    const visible = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) visible[entry.isIntersecting ? "add" : "delete"](entry.target.id);
      const current = [...links.keys()].find((id) => visible.has(id));
      for (const [id, link] of links) {
        if (id === current) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
      const now = links.get(current);
      if (now) nav.scrollLeft = now.offsetLeft - nav.offsetLeft - (nav.clientWidth - now.offsetWidth) / 2;
    }, { rootMargin: "-140px 0px -50% 0px" });
    for (const id of links.keys()) observer.observe(document.getElementById(id));
  }

  // The bar's links, where they do not fit: they fade out where there are more, and the wheel moves them.
  function bar() {
    const nav = find(".bar nav");
    const room = () => nav.scrollWidth - nav.clientWidth;
    const hint = () => {
      nav.classList.toggle("more-before", nav.scrollLeft > 1);
      nav.classList.toggle("more-after", nav.scrollLeft < room() - 1);
    };
    nav.addEventListener("scroll", hint, { passive: true });
    nav.addEventListener("wheel", (event) => {
      if (event.deltaX || room() < 1) return;
      event.preventDefault();
      nav.scrollLeft += event.deltaY;
    }, { passive: false });
    new ResizeObserver(hint).observe(nav);
    hint();
    return nav;
  }

  // ---- Tables ----

  const PREVIEW = 12;
  const LONG = 180;

  function grid(section) {
    const { columns, sort } = block(section.dataset.grid);
    const table = find("table", section);
    const count = find("[data-count]", section);
    const more = find("[data-more]", section);
    const rows = columns[0].values.map((_, index) => index);
    const texts = rows.map((index) => columns.filter(isText).map((c) => c.values[index] ?? "").join("\n").toLowerCase());
    const state = { column: columns.findIndex((c) => c.key === sort), down: true, words: [], whole: false };
    const heads = columns.map((column, index) => head(column, () => {
      const again = state.column === index;
      Object.assign(state, { column: index, down: again ? !state.down : !isText(column) });
      fill();
    }));
    const body = make("tbody");
    table.append(make("thead", {}, make("tr", {}, ...heads)), body);

    function fill() {
      const chosen = rows.filter((index) => state.words.every((word) => texts[index].includes(word)));
      if (state.column >= 0) chosen.sort(comparing(columns[state.column].values, state.down));
      const shown = state.whole ? chosen : chosen.slice(0, PREVIEW);
      body.replaceChildren(...shown.map((index) => make("tr", {}, ...columns.map((column) => cell(column, index)))));
      heads.forEach((th, index) => {
        if (index === state.column) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        else th.removeAttribute("aria-sort");
      });
      const total = decimal(Number(section.dataset.total), 0);
      count.textContent = `Showing ${shown.length} of ${state.words.length ? `${chosen.length} matching rows in this page` : `${total} row${total === "1" ? "" : "s"}`}.`;
      more.hidden = chosen.length <= PREVIEW;
      more.textContent = state.whole ? `Show only ${PREVIEW}` : `Show ${state.words.length ? "all" : "the"} ${chosen.length}${state.words.length ? " matches" : " rows held here"}`;
    }

    find("[data-filter]", section).oninput = (event) => {
      state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
      fill();
    };
    more.onclick = () => { state.whole = !state.whole; fill(); };
    fill();
  }

  const isText = (column) => column.type === "text" || column.type === "code";

  function head(column, onclick) {
    const button = make("button", { type: "button", title: column.meaning, onclick }, make("b", { textContent: column.label }));
    if (column.unit) button.append(" ", make("em", { textContent: column.unit }));
    return make("th", { scope: "col", className: isText(column) || column.type === "share" ? "" : "n" }, button);
  }

  function comparing(values, down) {
    const sign = down ? -1 : 1;
    return (a, b) => {
      const [x, y] = [values[a], values[b]];
      if (x === null || y === null) return (x === null) - (y === null); // the unknown stands last either way
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || a - b;
    };
  }

  function cell(column, index) {
    const value = column.values[index];
    if (isText(column)) return value === null ? unknown("text") : text(value, column.type);
    if (value === null) return unknown(column.type === "share" ? "" : "n");
    if (column.type === "share") {
      const td = make("td", { className: "n share", textContent: percent(value) });
      td.style.setProperty("--part", value);
      return td;
    }
    return make("td", { className: "n", textContent: number(column, value), title: exact(column, value) });
  }

  const unknown = (className) => make("td", { className }, make("span", { className: "unknown", textContent: "unknown" }));

  function number({ type, factor, places }, value) {
    if (type === "id" || typeof value !== "number") return String(value);
    const scaled = value / factor;
    if (places === null) return Number.isInteger(scaled) ? decimal(scaled, 0) : general.format(scaled);
    const least = 10 ** -places;
    return scaled !== 0 && Math.abs(scaled) < least / 2 ? `<${decimal(least, places)}` : decimal(scaled, places);
  }

  const exact = ({ factor, key }, value) => factor === 1 ? "" : `${value.toLocaleString("en-US")} ${key.endsWith("ns") ? "ns" : "bytes"}`;

  function text(value, type) {
    const td = make("td", { className: `text ${type}` });
    const name = make("span", {}, ...breakable(middleOut(value)));
    td.append(name);
    if (value.length <= LONG) return td;
    const label = `all ${decimal(value.length, 0)} characters`;
    const button = make("button", { type: "button", textContent: label });
    button.setAttribute("aria-expanded", "false");
    button.onclick = () => {
      const whole = button.getAttribute("aria-expanded") === "false";
      name.replaceChildren(...breakable(whole ? value : middleOut(value)));
      button.textContent = whole ? "shorter" : label;
      button.setAttribute("aria-expanded", whole);
    };
    td.append(button);
    return td;
  }

  // Both ends of a long name tell it apart from others.
  const middleOut = (value) => (value.length <= LONG ? value : `${value.slice(0, LONG * 0.6)}…${value.slice(-LONG * 0.4)}`);

  // Paths and stacks may be broken after their separators.
  const breakable = (value) => value.split(/(?<=[/;])/).flatMap((piece, index) => (index ? [make("wbr"), piece] : [piece]));

  // ---- Flame graph: trees as flat arrays in preorder ----

  // A tree with a root above all; `start` is where a node begins on the horizontal axis, `end` the index after its last descendant.
  function tree({ depth, frame, total, self }) {
    const n = depth.length + 1;
    const t = {
      n, depth: new Int32Array(n), frame: new Int32Array(n), total: new Float64Array(n), self: new Float64Array(n),
      start: new Float64Array(n), end: new Int32Array(n), parent: new Int32Array(n),
    };
    t.frame[0] = t.parent[0] = -1;
    const path = [0];
    const next = [0];
    for (let i = 1; i < n; i++) {
      const d = t.depth[i] = depth[i - 1] + 1;
      for (let k = path.length - 1; k >= d; k--) t.end[path[k]] = i;
      path.length = d;
      t.parent[i] = path[d - 1];
      t.frame[i] = frame[i - 1];
      t.total[i] = total[i - 1];
      t.self[i] = self[i - 1];
      t.start[i] = next[d - 1];
      next[d - 1] += t.total[i];
      next[d] = t.start[i];
      path[d] = i;
    }
    for (const i of path) t.end[i] = n;
    t.total[0] = next[0];
    return t;
  }

  // The nodes below the first `skip` levels with equal stacks joined, widest first: all threads as one.
  function merged({ depth, frame, total, self }, skip) {
    const nodes = [{ frame: -1, total: 0, self: 0, kids: new Map() }];
    const path = [nodes[0]];
    for (let i = 0; i < depth.length; i++) {
      const d = depth[i] - skip;
      if (d < 0) continue;
      let node = path[d].kids.get(frame[i]);
      if (!node) path[d].kids.set(frame[i], node = { frame: frame[i], total: 0, self: 0, kids: new Map() });
      node.total += total[i];
      node.self += self[i];
      path[d + 1] = node;
    }
    const out = { depth: [], frame: [], total: [], self: [] };
    const stack = [[nodes[0], -1]];
    while (stack.length) {
      const [node, d] = stack.pop();
      if (d >= 0) {
        out.depth.push(d);
        out.frame.push(node.frame);
        out.total.push(node.total);
        out.self.push(node.self);
      }
      const kids = [...node.kids.values()].sort((a, b) => a.total - b.total);
      for (const kid of kids) stack.push([kid, d + 1]);
    }
    return out;
  }

  // The descendants of one node of the raw arrays.
  function below({ depth, frame, total, self }, at) {
    let end = at + 1;
    while (end < depth.length && depth[end] > depth[at]) end++;
    const part = (values) => values.slice(at + 1, end);
    return { depth: part(depth).map((d) => d - depth[at] - 1), frame: part(frame), total: part(total), self: part(self) };
  }

  const ROW = 19;
  const ORIGINS = ["own", "library", "native", "interpreter"];
  const GROUPS = 2; // process and thread, the two lowest levels of the data

  class Flame {
    constructor(box) {
      this.part = (name) => find(`[data-${name}]`, box);
      this.box = box;
      this.graph = this.part("graph");
      this.canvas = this.part("canvas");
      this.pen = this.canvas.getContext("2d", { alpha: false });
      this.flipped = false;
      this.needle = "";
      this.cache = new Map();
      this.wire();
      this.load();
    }

    wire() {
      const { graph } = this;
      this.part("source").onchange = () => this.load();
      this.part("view").onchange = () => this.show();
      this.part("reset").onclick = () => this.zoom(0);
      this.part("direction").onclick = (event) => {
        this.flipped = !this.flipped;
        event.target.setAttribute("aria-pressed", this.flipped);
        this.fit();
      };
      const search = this.part("search");
      search.oninput = () => this.search(search.value);
      search.onkeydown = (event) => { if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1); };
      graph.onscroll = () => this.draw();
      graph.onkeydown = (event) => this.key(event);
      graph.onpointermove = (event) => this.hover(this.at(event), event);
      graph.onpointerleave = () => this.hover(-1);
      graph.onclick = (event) => this.click(this.at(event));
      new ResizeObserver(() => this.fit(true)).observe(graph);
      addEventListener("colours", () => this.draw());
    }

    load() {
      const id = this.part("source").value;
      if (!this.cache.has(id)) this.cache.set(id, block(id));
      this.data = this.cache.get(id);
      this.lower = this.data.frames.map((name) => name.toLowerCase());
      const { depth, total, frame } = this.data.nodes;
      const whole = total.reduce((sum, v, i) => sum + (depth[i] ? 0 : v), 0);
      const threads = [];
      let process = "";
      depth.forEach((d, i) => {
        if (d === 0) process = this.data.frames[frame[i]];
        if (d === 1) threads.push([i, `${process} › ${this.data.frames[frame[i]]}`, total[i] / whole]);
      });
      this.threads = threads.length;
      const option = (value, textContent) => make("option", { value, textContent });
      const single = threads.sort((a, b) => b[2] - a[2]).map(([i, name, part]) => option(i, `${name}: ${percent(part)}`));
      const both = [option("threads", "by process and thread"), option("merged", "all threads merged")];
      if (threads.length < 2) both.reverse();
      this.part("view").replaceChildren(...both, ...(threads.length > 1 ? single : []));
      this.show();
    }

    show() {
      const view = this.part("view").value;
      const { nodes } = this.data;
      this.groups = view === "threads" ? GROUPS : 0;
      this.tree = tree(view === "threads" ? nodes : view === "merged" ? merged(nodes, GROUPS) : below(nodes, Number(view)));
      const several = this.threads > 1 && Number.isNaN(Number(view));
      this.part("whole").textContent = `100 % = ${this.amount(this.tree.total[0])}`
        + (several ? ` (${this.threads} threads added up)` : "")
        + (this.data.left_out ? `; the ${decimal(this.data.left_out, 0)} lightest frames are not drawn` : "");
      this.selected = this.hovered = -1;
      this.part("tip").hidden = true;
      this.part("at").textContent = "Point at a frame, or focus the graph and use the arrow keys.";
      this.height = this.tall();
      [this.left, this.right] = [0, this.tree.total[0]];
      this.zoom(0, false);
      this.search(this.needle);
    }

    // High enough for all frames of at least 0.5 %; the thin and deep ones are scrolled to.
    tall() {
      const { total, depth, n } = this.tree;
      let rows = Math.min(18, 1 + depth.reduce((a, b) => Math.max(a, b)));
      for (let i = 0; i < n; i++) if (total[i] >= total[0] / 200 && depth[i] >= rows) rows = depth[i] + 1;
      return Math.min(rows * ROW + 4, Math.max(240, Math.min(innerHeight * 0.7, 680)));
    }

    amount(value) { return amount(value * this.data.factor, this.data.unit); }

    name(i) { return i ? this.data.frames[this.tree.frame[i]] : "all"; }

    // -- zoom and layout --

    zoom(i, animate = true) {
      const { start, total, depth, end } = this.tree;
      this.zoomed = i;
      this.part("reset").disabled = i === 0;
      let deepest = 0;
      for (let k = i; k < end[i]; k++) if (depth[k] > deepest) deepest = depth[k];
      this.rows = deepest + 1;
      this.fit();
      this.move(start[i], start[i] + total[i], animate);
      if (i) this.tell(i);
    }

    move(left, right, animate) {
      cancelAnimationFrame(this.frame);
      const from = [this.left, this.right];
      const began = performance.now();
      const still = !animate || matchMedia("(prefers-reduced-motion: reduce)").matches;
      const step = () => {
        const t = still ? 1 : Math.min(1, (performance.now() - began) / 160);
        const eased = 1 - (1 - t) ** 3;
        this.left = from[0] + (left - from[0]) * eased;
        this.right = from[1] + (right - from[1]) * eased;
        this.draw();
        if (t < 1) this.frame = requestAnimationFrame(step);
      };
      step();
    }

    fit(keep = false) {
      const { graph } = this;
      graph.style.height = `${this.height}px`;
      this.part("space").style.height = `${Math.max(this.rows * ROW + 2, graph.clientHeight)}px`;
      if (!keep) graph.scrollTop = this.flipped ? graph.scrollHeight : 0;
      this.draw();
    }

    y(depth) {
      const row = this.flipped ? Math.max(this.rows, Math.floor(this.graph.clientHeight / ROW)) - 1 - depth : depth;
      return row * ROW + 1 - this.graph.scrollTop;
    }

    // -- drawing --

    palette() {
      const colour = (name) => getComputedStyle(find(`.legend .${name}`, this.box)).backgroundColor;
      const style = getComputedStyle(this.graph);
      return { origins: ORIGINS.map(colour), group: colour("group"), match: colour("match"), back: style.backgroundColor, ink: style.color };
    }

    draw() {
      const { graph, canvas, pen, tree: t } = this;
      const [width, height, ratio] = [graph.clientWidth, graph.clientHeight, devicePixelRatio || 1];
      if (!t || !width) return;
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        canvas.style.height = `${height}px`;
      }
      const paint = this.palette();
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.fillStyle = paint.back;
      pen.fillRect(0, 0, width, height);
      pen.font = `11.5px ${getComputedStyle(root).getPropertyValue("--mono")}`;
      pen.textBaseline = "middle";
      const letter = pen.measureText("m").width;
      const k = width / (this.right - this.left || 1);
      let drawn = 0;
      for (let i = 0; i < t.n;) {
        const x = (t.start[i] - this.left) * k;
        const w = t.total[i] * k;
        const y = this.y(t.depth[i]);
        if (w < 0.4 || x > width || x + w < 0 || (this.flipped ? y < -ROW : y > height)) {
          i = t.end[i];
          continue;
        }
        if (y > -ROW && y < height) {
          this.bar(paint, i, Math.max(0, x), Math.min(width, x + w) - Math.max(0, x), y, letter);
          drawn++;
        }
        i++;
      }
      graph.dataset.drawn = drawn;
    }

    bar(paint, i, x, w, y, letter) {
      const { pen, tree: t } = this;
      const frame = t.frame[i];
      const group = t.depth[i] <= this.groups;
      const match = !group && this.matches?.[frame];
      pen.globalAlpha = t.depth[i] < t.depth[this.zoomed] ? 0.45 : this.needle && !match && !group ? 0.4 : 0.84 + 0.16 * ((frame * 0.618) % 1);
      pen.fillStyle = match ? paint.match : group ? paint.group : paint.origins[this.data.origins[frame]];
      pen.fillRect(x, y, Math.max(w - (w > 3 ? 1 : 0), 0.5), ROW - 1);
      pen.globalAlpha = 1;
      if (i === this.selected || i === this.hovered) {
        pen.strokeStyle = paint.ink;
        pen.lineWidth = i === this.selected ? 2 : 1;
        pen.strokeRect(x + 1, y + 1, Math.max(w - 3, 1), ROW - 3);
      }
      if (w > letter * 3 + 8) this.label(paint, this.name(i), x + 5, y + ROW / 2, Math.floor((w - 9) / letter), match, letter);
    }

    label(paint, name, x, y, room, match, letter) {
      const { pen } = this;
      const cut = name.endsWith(")") ? name.lastIndexOf(" (") : -1;
      const main = cut > 0 ? name.slice(0, cut) : name;
      pen.fillStyle = match ? paint.back : paint.ink;
      pen.fillText(main.length > room ? `${main.slice(0, room - 1)}…` : main, x, y);
      const file = cut > 0 ? name.slice(cut + 2, -1).split("/").pop() : "";
      if (!file || main.length + 2 + file.length > room) return;
      pen.globalAlpha = 0.62;
      pen.fillText(file, x + (main.length + 1) * letter, y);
      pen.globalAlpha = 1;
    }

    // -- pointer and keyboard --

    at(event) {
      const area = this.graph.getBoundingClientRect();
      const t = this.tree;
      const x = this.left + ((event.clientX - area.left - this.graph.clientLeft) / this.graph.clientWidth) * (this.right - this.left);
      const y = event.clientY - area.top - this.graph.clientTop;
      for (let i = 0; i < t.n;) {
        const top = this.y(t.depth[i]);
        if (x < t.start[i] || x >= t.start[i] + t.total[i]) i = t.end[i];
        else if (y >= top && y < top + ROW) return i;
        else i++;
      }
      return -1;
    }

    hover(i, event) {
      const tip = this.part("tip");
      tip.hidden = i < 0 || event?.pointerType === "touch";
      if (i !== this.hovered) {
        this.hovered = i;
        this.draw();
        if (i >= 0) tip.replaceChildren(make("b", { textContent: this.name(i) }), ...this.lines(i).map((line) => make("div", { textContent: line })));
      }
      if (tip.hidden) return;
      const { offsetWidth, offsetHeight } = tip;
      tip.style.left = `${Math.max(12, Math.min(event.clientX + 14, innerWidth - offsetWidth - 12))}px`;
      tip.style.top = `${event.clientY + 18 + offsetHeight > innerHeight ? event.clientY - offsetHeight - 12 : event.clientY + 18}px`;
    }

    lines(i) {
      const { total, self } = this.tree;
      const whole = total[0] || 1;
      const lines = [`total ${this.amount(total[i])}, ${percent(total[i] / whole)} of ${this.amount(whole)}`, `self ${this.amount(self[i])}, ${percent(self[i] / whole)}`];
      if (this.zoomed && i !== this.zoomed && total[i] < total[this.zoomed]) lines.push(`${percent(total[i] / total[this.zoomed])} of what is zoomed in`);
      return lines;
    }

    tell(i) {
      this.part("at").replaceChildren(make("b", { textContent: this.name(i) }), ` ${this.lines(i).join(" · ")}`);
    }

    click(i) {
      if (i < 0) return;
      this.part("tip").hidden = true;
      this.selected = i;
      this.zoom(i === this.zoomed && i ? this.tree.parent[i] : i);
      this.tell(i);
    }

    key(event) {
      const step = { ArrowDown: this.flipped ? "out" : "in", ArrowUp: this.flipped ? "in" : "out", ArrowLeft: "before", ArrowRight: "after" }[event.key];
      if (step) this.select(this.walk(step));
      else if (event.key === "Enter" || event.key === " ") this.click(Math.max(0, this.selected));
      else if (event.key === "Escape") this.zoom(0);
      else return;
      event.preventDefault();
    }

    walk(step) {
      const { parent, end, total, depth, n } = this.tree;
      const i = this.selected;
      if (i < 0) return this.zoomed;
      if (step === "out") return Math.max(0, parent[i]);
      if (step === "in") {
        let widest = i;
        for (let kid = i + 1; kid < end[i]; kid = end[kid]) if (widest === i || total[kid] > total[widest]) widest = kid;
        return widest;
      }
      if (step === "after") return end[i] < n && depth[end[i]] === depth[i] ? end[i] : i;
      let before = i;
      for (let kid = parent[i] + 1; kid > 0 && kid < i; kid = end[kid]) before = kid;
      return before;
    }

    select(i) {
      const { start, total, depth } = this.tree;
      this.selected = i;
      if (start[i] + total[i] <= this.left || start[i] >= this.right) this.zoom(this.tree.parent[i]);
      const y = this.y(depth[i]);
      if (y < 0) this.graph.scrollTop += y - ROW;
      else if (y + ROW > this.graph.clientHeight) this.graph.scrollTop += y + 2 * ROW - this.graph.clientHeight;
      this.tell(i);
      this.draw();
    }

    // -- search --

    search(text) {
      const t = this.tree;
      this.needle = text.trim();
      const wanted = this.needle.toLowerCase();
      this.matches = wanted ? this.lower.map((name) => name.includes(wanted)) : null;
      this.hits = [];
      let sum = 0;
      for (let i = 1; wanted && i < t.n;) {
        if (t.depth[i] > this.groups && this.matches[t.frame[i]]) {
          this.hits.push(i);
          sum += t.total[i];
          i = t.end[i];
        } else i++;
      }
      this.hits.sort((a, b) => t.total[b] - t.total[a]);
      this.hit = -1;
      this.part("found").textContent = !wanted ? "" : this.hits.length
        ? `found in ${this.hits.length} place${this.hits.length > 1 ? "s" : ""}: ${this.amount(sum)}, ${percent(sum / t.total[0])}. Enter: next` : "found nowhere";
      this.draw();
    }

    next(step) {
      if (!this.hits.length) return;
      this.hit = (this.hit + step + this.hits.length) % this.hits.length;
      this.selected = this.hits[this.hit];
      this.zoom(this.selected);
      this.select(this.selected);
    }
  }

  // ---- Charts over steps and time: the nearest values to the pointer, or to the arrow keys ----

  function plot(box) {
    const { x, names, series, notes } = block(box.dataset.plot);
    const svg = find("svg", box);
    const cursor = find(".cursor", box);
    const tip = make("div", { className: "tip", hidden: true });
    tip.setAttribute("role", "status");
    box.append(tip);
    const scale = () => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    let at = -1;

    function row({ name, kind, unit, places, values }) {
      const value = values[at];
      const shown = value === null ? "unknown" : `${decimal(value, places)} ${unit}`;
      const label = make("span", { textContent: name });
      if (kind) label.prepend(make("i", { className: `swatch ${kind}` }));
      return make("div", { className: "row" }, label, make("span", { textContent: shown }));
    }

    function show(index, px, py) {
      if (index !== at) {
        at = index;
        const lines = series.filter(({ kind, values }) => !kind || values[at]).map(row);
        if (notes[at]) lines.push(make("div", { textContent: notes[at] }));
        tip.replaceChildren(make("strong", { textContent: names[at] }), ...lines);
        cursor.setAttribute("x1", x[at]);
        cursor.setAttribute("x2", x[at]);
        cursor.setAttribute("visibility", "visible");
      }
      tip.hidden = false;
      const left = px + 14 + tip.offsetWidth > innerWidth - 12 ? px - 14 - tip.offsetWidth : px + 14;
      tip.style.left = `${Math.max(12, left)}px`;
      tip.style.top = `${Math.max(12, Math.min(py + 14, innerHeight - tip.offsetHeight - 12))}px`;
    }

    function hide() {
      at = -1;
      tip.hidden = true;
      cursor.setAttribute("visibility", "hidden");
    }

    svg.onpointermove = ({ clientX, clientY }) => {
      const wanted = (clientX - svg.getBoundingClientRect().left) / scale();
      let near = x.findIndex((value) => value >= wanted);
      if (near < 0) near = x.length - 1;
      if (near && wanted - x[near - 1] < x[near] - wanted) near--;
      show(near, clientX, clientY);
    };
    svg.onpointerleave = hide;
    box.onblur = hide;
    box.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const next = at < 0 ? (step > 0 ? 0 : x.length - 1) : Math.max(0, Math.min(x.length - 1, at + step));
      const area = svg.getBoundingClientRect();
      box.scrollLeft = x[next] * scale() - box.clientWidth / 2;
      show(next, svg.getBoundingClientRect().left + x[next] * scale(), area.top + area.height * 0.3);
    };
  }

  root.classList.add("js");
  safely("colours", colours);
  safely("copying", copying);
  safely("sections", sections);
  for (const section of every("[data-grid]")) safely(`table ${section.id}`, () => grid(section));
  for (const box of every("[data-plot]")) safely(`chart ${box.dataset.plot}`, () => plot(box));
  for (const box of every("[data-flame]")) safely("flame graph", () => new Flame(box));
  root.dataset.ready = Math.round(performance.now());
})();
