// The flame graph. Its data are columns with an entry for each frame, callers before what they call (see flames.py). What is looked at
// is laid out when it is looked at: a million entries cost little more than a thousand.

const ROW = 19;
const THREADS = 2; // the outermost levels of the data are processes and threads
const ORIGINS = ["own", "library", "stdlib", "native", "interpreter", "operator", "kernel"];
const WHOSE = ["program", "library", "Python", "compiled", "interpreter", "operator", "GPU"];
const FIRST_WITHOUT_FILE = 5; // of these
const MOST_HITS = 500; // places between which Enter walks
const MOST_FUNCTIONS = 250; // by either time

// ---- The data ----

async function unpacked(id) {
  const text = document.getElementById(id).textContent;
  const packed = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let at = bytes.indexOf(10) + 1; // behind the line of JSON
  const { columns, ...head } = JSON.parse(new TextDecoder().decode(bytes.subarray(0, at)));
  for (const [name, width] of columns) {
    head[name] = column(bytes, at, head.entries, width);
    at += width * head.entries;
  }
  return new Stacks(head);
}

function column(bytes, at, n, width) {
  const values = new (width > 4 ? Float64Array : width > 2 ? Uint32Array : Uint16Array)(n);
  for (let plane = 0, unit = 1; plane < width; plane++, unit *= 256, at += n) {
    for (let i = 0; i < n; i++) values[i] += bytes[at + i] * unit;
  }
  return values;
}

// All of flames.py's, and of each entry: total (own and all that it calls), parent (-1: none), end (behind the last entry below it).
class Stacks {
  constructor(head) {
    Object.assign(this, head);
    const { entries: n, depth, own, lost } = this;
    const parent = this.parent = new Int32Array(n);
    const end = this.end = new Int32Array(n);
    const path = [];
    for (let i = 0; i < n; i++) {
      while (path.length > depth[i]) end[path.pop()] = i;
      parent[i] = path.length ? path[path.length - 1] : -1;
      path.push(i);
    }
    for (const i of path) end[i] = n;
    this.total = this.sums(own, lost);
    this.origins = [...this.origins].map(Number);
    this.functions();
  }

  // Of each entry its own and all that it calls.
  sums(own, lost) {
    const total = new Float64Array(this.entries);
    for (let i = this.entries - 1; i >= 0; i--) {
      total[i] += own[i] + lost[i];
      if (this.parent[i] >= 0) total[this.parent[i]] += total[i];
    }
    return total;
  }

  // A name's function and file, '' for none.
  parts(name, origin) {
    const [, main, file] = (origin < FIRST_WITHOUT_FILE && name.match(/^(.*) \((.*)\)$/s)) || [null, name, ""];
    return [main, file];
  }

  // Frames of one function differ by their lines.
  functions() {
    const numbers = new Map();
    this.functionOf = Uint32Array.from(this.frames, (frame) => {
      const name = frame.endsWith(")") ? frame.replace(/:\d+\)$/, ")") : frame;
      if (!numbers.has(name)) numbers.set(name, numbers.size);
      return numbers.get(name);
    });
    this.functionNames = [...numbers.keys()];
    this.functionOrigins = new Uint8Array(numbers.size);
    this.functionOf.forEach((number, frame) => { this.functionOrigins[number] = this.origins[frame]; });
  }

  *within([from, to]) {
    for (let i = from; i < to; i = this.end[i]) yield i;
  }

  inside(i) { return [i + 1, this.end[i]]; }

  deepest([from, to]) {
    let most = 0;
    for (let i = from; i < to; i++) if (this.depth[i] > most) most = this.depth[i];
    return most;
  }

  // Own and total weight of each function; what calls itself counts once.
  weights(ranges) {
    const { depth, frame, functionOf } = this;
    const [own, total] = [0, 1].map(() => new Float64Array(this.functionNames.length));
    const open = new Uint32Array(own.length);
    for (const [from, to] of ranges) {
      const path = [];
      for (let i = from; i < to; i++) {
        while (path.length > Math.max(0, depth[i] - THREADS)) open[path.pop()]--;
        if (depth[i] < THREADS) continue;
        const number = functionOf[frame[i]];
        own[number] += this.own[i];
        if (!open[number]++) total[number] += this.total[i];
        path.push(number);
      }
      for (const number of path) open[number]--;
    }
    return { own, total };
  }
}

// ---- What is looked at: nodes {parent, depth, key, total, own, start, index, kids}, made when they are first asked for ----

class Layout {
  constructor(ranges, total) {
    this.ranges = ranges;
    this.root = { parent: null, depth: 0, key: -1, total, own: 0, start: 0, index: 0, kids: null };
  }

  // The widest first, from the left edge of their parent.
  kids(node) {
    if (node.kids) return node.kids;
    const found = new Map();
    this.gather(node, (key) => {
      if (!found.has(key)) found.set(key, { parent: node, depth: node.depth + 1, key, total: 0, own: 0, start: 0, index: 0, kids: null });
      return found.get(key);
    });
    node.kids = [...found.values()].sort((a, b) => b.total - a.total);
    let start = node.start;
    node.kids.forEach((kid, index) => {
      Object.assign(kid, { start, index });
      start += kid.total;
    });
    return node.kids;
  }
}

// From the callers to what they call; equal stacks of several threads are one.
class Callees extends Layout {
  constructor(stacks, ranges, total) {
    super(ranges, total);
    Object.assign(this, { stacks, names: stacks.frames, origins: stacks.origins });
    this.root.ranges = ranges;
  }

  gather(node, kidOf) {
    const { stacks } = this;
    for (const range of node.ranges) {
      for (const i of stacks.within(range)) {
        const kid = kidOf(stacks.frame[i]);
        kid.total += stacks.total[i];
        kid.own += stacks.own[i];
        if (stacks.other) kid.other = (kid.other ?? 0) + stacks.other[i];
        (kid.ranges ??= []).push(stacks.inside(i));
      }
    }
  }

  deepest(node) {
    const { stacks } = this;
    return Math.max(node.depth, ...node.ranges.filter(([from, to]) => from < to).map((range) => node.depth + 1 + stacks.deepest(range) - stacks.depth[range[0]]));
  }

  // Where an entry of the data is shown.
  place(i) {
    const { stacks, ranges } = this;
    const path = [];
    for (let at = i; at >= 0 && ranges.some(([from, to]) => from <= at && at < to); at = stacks.parent[at]) path.push(stacks.frame[at]);
    return path.reverse().reduce((node, frame) => this.kids(node).find((kid) => kid.key === frame), this.root);
  }

  places(entries) { return [...new Set(entries.map((i) => this.place(i)))]; }
}

// From the functions that the time was spent in to those that have called them.
class Callers extends Layout {
  constructor(stacks, ranges, total) {
    super(ranges, total);
    Object.assign(this, { stacks, names: stacks.functionNames, origins: stacks.functionOrigins });
  }

  gather(node, kidOf) {
    const { depth, frame, own, parent, functionOf } = this.stacks;
    const add = (i, weight) => {
      const kid = kidOf(functionOf[frame[i]]);
      kid.total += weight;
      if (!node.parent) kid.own += weight;
      (kid.entries ??= []).push(i);
      (kid.weights ??= []).push(weight);
    };
    if (node.parent) {
      node.entries.forEach((i, k) => { if (depth[i] > THREADS) add(parent[i], node.weights[k]); });
      return;
    }
    for (const [from, to] of this.ranges) {
      for (let i = from; i < to; i++) if (own[i] && depth[i] >= THREADS) add(i, own[i]);
    }
  }

  deepest(node) {
    const { depth } = this.stacks;
    if (!node.parent) return 1 - THREADS + Math.max(THREADS, ...this.ranges.map((range) => this.stacks.deepest(range)));
    return node.depth - THREADS + node.entries.reduce((most, i) => Math.max(most, depth[i]), THREADS);
  }

  places(_, matches) { return this.kids(this.root).filter((kid) => matches[kid.key]); }
}

// ---- The picture ----

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
    this.serial = 0;
    this.wire();
  }

  wire() {
    const { graph } = this;
    this.part("source").onchange = () => safely("flame graph", () => this.load());
    this.part("view").onchange = () => this.show();
    this.part("order").onchange = () => this.show();
    this.part("back").onclick = () => this.back();
    this.part("reset").onclick = () => this.reset();
    this.part("direction").onclick = (event) => {
      this.flipped = !this.flipped;
      event.target.textContent = `Draw as ${this.flipped ? "icicle" : "flame"}`;
      this.fit();
    };
    const search = this.part("search");
    search.oninput = () => this.search(search.value);
    search.onkeydown = (event) => { if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1); };
    graph.onscroll = () => this.draw();
    graph.onkeydown = (event) => this.key(event);
    graph.onpointermove = (event) => this.hover(this.at(event), event);
    graph.onpointerleave = () => this.hover(null);
    graph.onclick = (event) => this.click(this.at(event));
    new ResizeObserver(() => this.fit(true)).observe(graph);
    addEventListener("colours", () => this.draw());
  }

  async load() {
    const id = this.part("source").value;
    const stacks = await this.read(id);
    if (id !== this.part("source").value) return; // another was chosen meanwhile
    this.stacks = stacks;
    this.legend();
    this.offer();
    this.show();
  }

  read(id) {
    if (!this.cache.has(id)) this.cache.set(id, unpacked(id));
    return this.cache.get(id);
  }

  // Of the colours those that are used.
  legend() {
    ORIGINS.forEach((name, number) => { find(`.legend .${name}`, this.box).parentElement.hidden = !this.stacks.origins.includes(number); });
  }

  // The choice of processes and threads.
  offer() {
    const { stacks } = this;
    const name = (i) => stacks.frames[stacks.frame[i]];
    const processes = [...stacks.within([0, stacks.entries])];
    const threads = processes.flatMap((process) => [...stacks.within(stacks.inside(process))].map((thread) => [thread, `${name(process)} › ${name(thread)}`]));
    const several = processes.length > 1 ? processes.map((process) => [process, `${name(process)}, all threads`]) : [];
    this.whole = stacks.lost_outermost + processes.reduce((sum, i) => sum + stacks.total[i], 0);
    this.threads = threads.map(([i]) => i);
    const heaviest = (rows) => rows.sort((a, b) => stacks.total[b[0]] - stacks.total[a[0]]).map(([i, text]) => [i, `${text}: ${percent(stacks.total[i] / this.whole)}`]);
    const both = [["threads", "by process and thread"], ["merged", "all threads merged"]];
    if (threads.length < 2) both.reverse();
    const single = threads.length > 1 ? [...heaviest(several), ...heaviest(threads)] : [];
    this.part("view").replaceChildren(...[...both, ...single].map(([value, textContent]) => make("option", { value, textContent })));
  }

  show() {
    const { stacks } = this;
    const view = this.part("view").value;
    const upward = this.part("order").value === "self";
    this.grouped = view === "threads" && !upward;
    const chosen = Number(view);
    const bases = Number.isNaN(chosen) ? this.threads : stacks.depth[chosen] ? [chosen] : [...stacks.within(stacks.inside(chosen))];
    const ranges = this.grouped ? [[0, stacks.entries]] : bases.map((i) => stacks.inside(i));
    const total = Number.isNaN(chosen) ? this.whole : stacks.total[chosen];
    this.layout = new (upward ? Callers : Callees)(stacks, ranges, total);
    this.part("whole").textContent = `100 % = ${this.amount(total)}`
      + (bases.length > 1 ? ` (${bases.length} threads added up)` : "")
      + (stacks.left_out ? `; the ${decimal(stacks.left_out, 0)} lightest frames are left out` : "");
    Object.assign(this, { zoomed: this.layout.root, selected: null, hovered: null, past: [] });
    this.part("tip").hidden = true;
    this.part("at").textContent = "Point at a frame, or focus the graph and use the arrow keys.";
    this.item(this.layout.root);
    this.height = this.tall();
    [this.left, this.right] = [0, total];
    this.zoom(this.layout.root, false);
    this.search(this.needle);
    this.table(ranges, total);
  }

  // High enough for all frames of at least 0.5 %; the thin and deep ones are scrolled to.
  tall() {
    const { layout } = this;
    let rows = Math.min(18, 1 + layout.deepest(layout.root));
    const open = [layout.root];
    while (open.length) {
      const node = open.pop();
      if (node.depth >= rows) rows = node.depth + 1;
      open.push(...layout.kids(node).filter((kid) => kid.total >= layout.root.total / 200));
    }
    return Math.min(rows * ROW + 4, Math.max(240, Math.min(innerHeight * 0.7, 680)));
  }

  amount(value) { return amount(value * this.stacks.factor, this.stacks.unit); }

  name(node) { return node.parent ? this.layout.names[node.key] : "all"; }

  // -- zoom --

  zoom(node, animate = true) {
    this.zoomed = node;
    this.part("reset").disabled = !node.parent;
    this.part("back").disabled = !this.past.length;
    this.rows = this.layout.deepest(node) + 1;
    this.fit();
    this.move(node.start, node.start + node.total, animate);
  }

  enter(node) {
    if (node === this.zoomed) return;
    this.past.push(this.zoomed);
    this.zoom(node);
  }

  back() {
    const before = this.past.pop();
    if (!before) return;
    this.zoom(before);
    this.select(before);
  }

  reset() {
    this.enter(this.layout.root);
    this.select(this.layout.root);
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
    if (!this.layout) return;
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
    const { graph, canvas, pen, layout } = this;
    const [width, height, ratio] = [graph.clientWidth, graph.clientHeight, devicePixelRatio || 1];
    if (!layout || !width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    this.paint = this.palette();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.paint.back;
    pen.fillRect(0, 0, width, height);
    pen.font = `11.5px ${getComputedStyle(root).getPropertyValue("--mono")}`;
    pen.textBaseline = "middle";
    this.letter = pen.measureText("m").width;
    graph.dataset.drawn = this.drawBelow(width, height);
  }

  // Only what can be seen is made: rows above or below the window aside, nothing narrower than a pixel.
  drawBelow(width, height) {
    const { layout, left, right } = this;
    const scale = width / (right - left || 1);
    const open = [layout.root];
    let drawn = 0;
    while (open.length) {
      const node = open.pop();
      const x = Math.max(0, (node.start - left) * scale);
      const y = this.y(node.depth);
      if (y > -ROW && y < height) {
        this.bar(node, x, Math.min(width, (node.start + node.total - left) * scale) - x, y);
        drawn++;
      }
      if (this.flipped ? y < 0 : y > height) continue;
      for (const kid of layout.kids(node)) {
        const from = (kid.start - left) * scale;
        if (from > width) break;
        if (kid.total * scale < 1) {
          this.rest(from, (layout.kids(node).at(-1).start + layout.kids(node).at(-1).total - left) * scale, this.y(kid.depth));
          break;
        }
        if (from + kid.total * scale > 0) open.push(kid);
      }
    }
    return drawn;
  }

  // What is too narrow for frames of its own.
  rest(from, to, y) {
    if (to - from < 1) return;
    this.pen.fillStyle = this.paint.group;
    this.pen.fillRect(Math.max(0, from), y + ROW / 4, Math.min(this.graph.clientWidth, to) - Math.max(0, from), ROW / 2);
  }

  isGroup(node) { return this.grouped && node.depth <= THREADS || !node.parent; }

  fill(node) { return this.paint.origins[this.layout.origins[node.key]]; }

  bar(node, x, w, y) {
    const { pen, paint, letter } = this;
    const group = this.isGroup(node);
    const match = !group && this.matches?.[node.key];
    pen.globalAlpha = node.depth < this.zoomed.depth ? 0.45 : this.needle && !match && !group ? 0.4 : 0.84 + 0.16 * ((node.key * 0.618) % 1);
    pen.fillStyle = match ? paint.match : group ? paint.group : this.fill(node);
    pen.fillRect(x, y, Math.max(w - (w > 3 ? 1 : 0), 0.5), ROW - 1);
    pen.globalAlpha = 1;
    if (node === this.selected || node === this.hovered) {
      pen.strokeStyle = paint.ink;
      pen.lineWidth = node === this.selected ? 2 : 1;
      pen.strokeRect(x + 1, y + 1, Math.max(w - 3, 1), ROW - 3);
    }
    if (w > letter * 3 + 8) this.label(node, x + 5, y + ROW / 2, Math.floor((w - 9) / letter), match);
  }

  label(node, x, y, room, match) {
    const { pen, paint } = this;
    const [main, path] = this.stacks.parts(this.name(node), this.layout.origins[node.key]);
    pen.fillStyle = match ? paint.back : paint.ink;
    pen.fillText(main.length > room ? `${main.slice(0, room - 1)}…` : main, x, y);
    const file = path.split("/").pop();
    if (!file || main.length + 2 + file.length > room) return;
    pen.globalAlpha = 0.62;
    pen.fillText(file, x + (main.length + 1) * this.letter, y);
    pen.globalAlpha = 1;
  }

  // -- pointer and keyboard --

  at(event) {
    const { graph, layout, left, right } = this;
    const area = graph.getBoundingClientRect();
    const x = left + ((event.clientX - area.left - graph.clientLeft) / graph.clientWidth) * (right - left);
    const y = event.clientY - area.top - graph.clientTop;
    for (let node = layout.root; node; node = layout.kids(node).find((kid) => x >= kid.start && x < kid.start + kid.total)) {
      if (y >= this.y(node.depth) && y < this.y(node.depth) + ROW) return node;
    }
    return null;
  }

  hover(node, event) {
    const tip = this.part("tip");
    tip.hidden = !node || event?.pointerType === "touch";
    if (node !== this.hovered) {
      this.hovered = node;
      this.draw();
      if (node) tip.replaceChildren(make("b", { textContent: this.name(node) }), ...this.lines(node).map((line) => make("div", { textContent: line })));
    }
    if (tip.hidden) return;
    const { offsetWidth, offsetHeight } = tip;
    tip.style.left = `${Math.max(12, Math.min(event.clientX + 14, innerWidth - offsetWidth - 12))}px`;
    tip.style.top = `${event.clientY + 18 + offsetHeight > innerHeight ? event.clientY - offsetHeight - 12 : event.clientY + 18}px`;
  }

  lines(node) {
    const whole = this.layout.root.total || 1;
    const share = (value) => `${this.amount(value)}, ${percent(value / whole)}`;
    if (this.layout instanceof Callers && node.parent) {
      let spender = node;
      while (spender.parent.parent) spender = spender.parent;
      return spender === node ? [`self ${share(node.own)} of ${this.amount(whole)}`] : [`${share(node.total)} of ${this.amount(whole)} in ${this.name(spender)}, called from here`];
    }
    const lines = [`total ${share(node.total)} of ${this.amount(whole)}`, `self ${share(node.own)}`];
    if (this.zoomed.parent && node !== this.zoomed && node.total < this.zoomed.total) lines.push(`${percent(node.total / this.zoomed.total)} of what is zoomed in`);
    return lines;
  }

  tell(node) {
    this.part("at").replaceChildren(make("b", { textContent: this.name(node) }), ` ${this.lines(node).join(" · ")}`);
    this.item(node);
  }

  // The picture is a tree for whoever does not see it; of its items the one that the keys have reached exists. A new one is read out.
  item(node) {
    const { layout } = this;
    const told = { level: node.depth + 1, setsize: node.parent?.kids.length ?? 1, posinset: node.index + 1, selected: true };
    if (layout.kids(node).length) told.expanded = node.depth < this.zoomed.depth || node === this.zoomed;
    const item = make("div", { id: `flame-item-${++this.serial}`, textContent: `${this.name(node)}: ${this.lines(node).join(", ")}` });
    item.setAttribute("role", "treeitem");
    for (const [name, value] of Object.entries(told)) item.setAttribute(`aria-${name}`, value);
    this.part("item").replaceChildren(item);
    this.graph.setAttribute("aria-activedescendant", item.id);
  }

  click(node) {
    if (!node) return;
    this.part("tip").hidden = true;
    this.enter(node === this.zoomed && node.parent ? node.parent : node);
    this.select(node);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const at = this.selected ?? this.zoomed;
    const steps = {
      [this.flipped ? "ArrowUp" : "ArrowDown"]: () => (this.selected ? this.layout.kids(at)[0] : at),
      [this.flipped ? "ArrowDown" : "ArrowUp"]: () => at.parent,
      ArrowLeft: () => at.parent?.kids[at.index - 1],
      ArrowRight: () => at.parent?.kids[at.index + 1],
      Home: () => this.layout.root,
    };
    const acts = { Enter: () => this.click(at), " ": () => this.click(at), Escape: () => this.reset(), Backspace: () => this.back() };
    if (steps[event.key]) this.select(steps[event.key]() ?? at);
    else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  }

  select(node) {
    const { graph, zoomed } = this;
    this.selected = node;
    if (node.start + node.total <= zoomed.start || node.start >= zoomed.start + zoomed.total) this.enter(node.parent);
    const y = this.y(node.depth);
    if (y < 0) graph.scrollTop += y - ROW;
    else if (y + ROW > graph.clientHeight) graph.scrollTop += y + 2 * ROW - graph.clientHeight;
    this.tell(node);
    this.draw();
  }

  // -- search --

  search(text) {
    const { stacks, layout } = this;
    this.needle = text.trim();
    const wanted = this.needle.toLowerCase();
    const found = (names) => Uint8Array.from(names, (name) => name.toLowerCase().includes(wanted));
    this.matches = wanted ? found(layout.names) : null;
    const [entries, sum] = wanted ? this.outermost(found(stacks.frames)) : [[], 0];
    this.hits = layout.places(entries.slice(0, MOST_HITS), this.matches ?? []).slice(0, wanted ? MOST_HITS : 0);
    this.hit = -1;
    const places = `${entries.length > MOST_HITS ? "more than " : ""}${this.hits.length} place${this.hits.length === 1 ? "" : "s"}`;
    this.part("found").textContent = !wanted ? "" : entries.length
      ? `found in ${places}: ${this.amount(sum)}, ${percent(sum / layout.root.total)}. Enter: next` : "found nowhere";
    this.draw();
  }

  // The entries of frames that match, none below another, the heaviest first; and their weight together.
  outermost(matches) {
    const { depth, end, frame, total } = this.stacks;
    const entries = [];
    let sum = 0;
    for (const [from, to] of this.layout.ranges) {
      for (let i = from; i < to;) {
        if (depth[i] >= THREADS && matches[frame[i]]) {
          entries.push(i);
          sum += total[i];
          i = end[i];
        } else i++;
      }
    }
    return [entries.sort((a, b) => total[b] - total[a]), sum];
  }

  next(step) {
    if (!this.hits.length) return;
    this.hit = (this.hit + step + this.hits.length) % this.hits.length;
    this.enter(this.hits[this.hit]);
    this.select(this.hits[this.hit]);
  }

  // -- the same as a table: the functions with the most time, for those who can't use the picture, and for paper --

  table(ranges, whole) {
    const { stacks } = this;
    const { own, total } = stacks.weights(ranges);
    const heaviest = (weights) => [...weights.keys()].filter((i) => weights[i]).sort((a, b) => weights[b] - weights[a]).slice(0, MOST_FUNCTIONS);
    const rows = [...new Set([...heaviest(own), ...heaviest(total)])];
    const parts = rows.map((i) => stacks.parts(stacks.functionNames[i], stacks.functionOrigins[i]));
    const times = (key, label, meaning, weights) => [
      { ...this.measure(Math.max(...rows.map((i) => weights[i]))), key: `${key}_ns`, label, meaning, values: rows.map((i) => weights[i] * stacks.factor) },
      { key: `${key}_share`, label: "share", unit: `of ${this.amount(whole)}`, meaning, type: "share", values: rows.map((i) => weights[i] / whole) },
    ];
    const section = this.part("top");
    section.dataset.total = total.reduce((count, weight) => count + (weight > 0), 0);
    this.part("held").hidden = rows.length >= Number(section.dataset.total);
    grid(section, { sort: "self_ns", columns: [
      { key: "function", label: "function", meaning: "its lines added up", type: "code", values: parts.map(([name]) => name), act: (index) => this.look(parts[index][0]) },
      { key: "file", label: "file", meaning: "", type: "code", values: parts.map(([, file]) => file) },
      { key: "whose", label: "whose", meaning: "", type: "text", values: rows.map((i) => WHOSE[stacks.functionOrigins[i]]) },
      ...times("self", "self", "time in the function itself", own),
      ...times("total", "total", "time in it and all that it calls; once where it calls itself", total),
    ] });
  }

  // The unit in which all values up to the largest are shown.
  measure(largest) {
    if (this.stacks.unit !== "ns") return { type: "number", unit: "samples", factor: 1, places: null };
    const [factor, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([f]) => largest * this.stacks.factor >= f) ?? [1, "ns"];
    return { type: "number", unit, factor, places: Math.max(0, 3 - Math.floor(Math.log10(Math.max(1, (largest * this.stacks.factor) / factor)))) };
  }

  // Searched for, in the picture.
  look(name) {
    this.part("search").value = name;
    this.search(name);
    this.next(1);
    this.graph.focus();
    this.graph.scrollIntoView({ block: "center" });
  }
}

for (const box of every("[data-flame]")) start("flame graph", () => new Flame(box).load());
