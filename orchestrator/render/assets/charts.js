// Charts over steps and time, drawn by uPlot: bars of parts or a curve with its band, on grounds that are told apart, with marks.
// The pointer or the arrow keys read values, dragging or + and - zooms, Escape shows all again.

const faded = (colour, part) => colour.replace("rgb(", "rgba(").replace(")", `, ${part})`);

class Chart {
  constructor(box) {
    Object.assign(this, block(box.dataset.plot), { box });
    this.bars = this.over === "step";
    this.small = box.classList.contains("small");
    this.tip = make("div", { className: "tip", hidden: true });
    this.tip.setAttribute("role", "status");
    this.whole = make("button", { type: "button", className: "whole-view", textContent: "Show all", hidden: true, onclick: () => this.all() });
    box.append(this.whole, this.tip);
    this.paint();
    this.u = new uPlot(this.options(), this.data(), box);
    new ResizeObserver(() => this.fit()).observe(box);
    addEventListener("colours", () => { this.paint(); this.u.redraw(); });
    box.onkeydown = (event) => this.key(event);
    box.onblur = () => this.hide();
    this.u.over.onpointerenter = () => { this.read = true; };
    this.u.over.onpointerleave = () => this.hide();
  }

  // Colours are looked up once for each look of the page, not at every stroke.
  paint() {
    const hue = (name) => { this.tip.style.color = `var(--${name})`; return getComputedStyle(this.tip).color; };
    this.colours = Object.fromEntries(["text", "dim", "line", "sunk", "accent", "bad", "phase-other"].map((name) => [name, hue(name)]));
    for (const { kind, role } of this.series) if (role === "part") this.colours[kind] = hue(`phase-${kind}`);
    this.tip.style.color = "";
  }

  get parts() { return this.series.filter(({ role }) => role === "part"); }
  role(name) { return this.series.find(({ role }) => role === name); }

  // Bars stand in their middle, stacked from the last part, which is drawn first, down to the first; beside them the longest.
  data() {
    const x = this.bars ? this.x.map((first) => first + this.size / 2) : this.x;
    if (!this.bars) return [x, ...["high", "low", "line"].map((name) => this.role(name)?.values ?? x.map(() => null))];
    let floor = x.map(() => 0);
    const tops = this.parts.map(({ values }) => (floor = floor.map((low, i) => (low === null || values[i] === null ? null : low + values[i]))));
    return [x, ...tops.reverse()];
  }

  options() {
    const { y } = this;
    const font = `${this.small ? 10.5 : 11.5}px system-ui, sans-serif`;
    const axis = (more) => ({ stroke: () => this.colours.dim, font, ticks: { show: false }, ...more });
    const grid = { stroke: () => this.colours.line, width: 1 };
    const [first, last] = this.bars ? [this.ends[0], this.ends[1] + 1] : [this.ends[0], this.ends[1] || 1];
    this.reach = [first, last > first ? last : first + 1];
    return {
      ...this.room(),
      legend: { show: false },
      padding: [this.bars ? 42 : this.marks.length ? 26 : 10, 14, 0, 0],
      cursor: { y: false, points: { show: !this.bars, size: 7 }, drag: { x: true, y: false }, ...this.together() },
      scales: { x: { time: false, range: (_, low, high) => (high - low > 0 && this.zoomed ? [low, high] : this.reach) }, y: { range: [0, y.high || 1] } },
      axes: [
        axis({ grid: { show: false }, size: this.small ? 22 : 26, gap: 4, space: 60, ...(this.bars ? { label: "step", labelSize: 16, labelGap: 0, labelFont: font } : {}), values: (_, ticks) => ticks.map((t) => this.at(t)) }),
        axis({ grid, size: this.small ? 62 : 72, gap: 6, space: 34, values: (_, ticks) => ticks.map((t) => `${general.format(t)} ${y.unit}`) }),
      ],
      series: [{}, ...(this.bars ? this.blocks() : this.curve())],
      bands: this.bars ? [] : [{ series: [1, 2], fill: () => faded(this.colours.accent, 0.28) }],
      hooks: { drawClear: [() => this.grounds()], draw: [() => this.signs()], setCursor: [() => this.show()], setSelect: [() => { this.zoomed = true; }], setScale: [() => this.scaled()] },
    };
  }

  blocks() {
    const paths = uPlot.paths.bars({ size: [this.x.length > 150 ? 1 : 0.86, Infinity], align: 0 });
    return this.parts.map(({ kind }) => ({ paths, width: 0, fill: () => this.colours[kind], points: { show: false } })).reverse();
  }

  curve() {
    const hidden = { width: 0, stroke: "transparent", points: { show: false } };
    const stepped = this.marks.length ? uPlot.paths.stepped({ align: 1 }) : undefined;
    return [hidden, hidden, { paths: stepped, width: 1.5, stroke: () => this.colours.accent, fill: () => faded(this.colours.accent, 0.14), points: { show: this.x.length === 1 } }];
  }

  // Charts that share their axis are read and zoomed together.
  together() {
    const group = this.box.dataset.plot.replace(/-\d+$/, "");
    return this.small ? { sync: { key: group } } : {};
  }

  room() {
    return { width: Math.max(this.box.clientWidth, 200), height: this.small ? 150 : this.bars ? 284 : 210 };
  }

  fit() {
    if (this.box.clientWidth && this.box.clientWidth !== this.u.width) this.u.setSize(this.room());
  }

  at(value) {
    if (this.bars) return decimal(value, 0);
    const [factor, unit] = [[1, "s"], [1e3, "ms"], [1e6, "µs"]].find(([f]) => this.reach[1] * f >= 1) ?? [1e9, "ns"];
    return `${general.format(value * factor)} ${unit}`;
  }

  // -- what is drawn beside the values --

  // Within the axes; `part` is given the pen, and a value's places on both axes.
  within(part) {
    const { ctx, bbox } = this.u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    part(ctx, (value) => this.u.valToPos(value, "x", true), (value) => this.u.valToPos(value, "y", true));
    ctx.restore();
  }

  grounds() {
    const { top, height } = this.u.bbox;
    this.within((pen, x) => {
      for (const { kind, start: from, end } of this.zones) {
        pen.fillStyle = kind === "profiled" ? faded(this.colours["phase-other"], 0.35) : this.colours.sunk;
        pen.fillRect(x(from), top, x(end) - x(from), height);
      }
    });
  }

  signs() {
    const ratio = devicePixelRatio || 1;
    const { left, width } = this.u.bbox;
    this.within((pen, x, y) => {
      pen.lineWidth = ratio;
      pen.strokeStyle = this.colours.dim;
      this.longest(pen, x, y);
      if (this.mean === null) return;
      pen.strokeStyle = this.colours.text;
      pen.setLineDash([4 * ratio, 3 * ratio]);
      pen.beginPath();
      pen.moveTo(left, y(this.mean));
      pen.lineTo(left + width, y(this.mean));
      pen.stroke();
    });
    this.words(ratio);
    this.free = -Infinity; // right of it no label stands yet
    for (const mark of this.marks) this.sign(mark, ratio);
  }

  // From the mean of the steps of a bar up to the longest of them.
  longest(pen, x, y) {
    if (!this.bars || !this.role("high")) return;
    pen.beginPath();
    this.role("high").values.forEach((longest, i) => {
      const mean = this.role("told").values[i];
      if (longest === null || mean === null || longest <= mean) return;
      pen.moveTo(x(this.x[i] + this.size / 2), y(mean));
      pen.lineTo(x(this.x[i] + this.size / 2), y(longest));
    });
    pen.stroke();
  }

  words(ratio) {
    const { ctx, bbox } = this.u;
    ctx.save();
    ctx.fillStyle = this.colours.dim;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    for (const { start: from, end, text } of this.zones) {
      const [low, high] = [from, end].map((value) => Math.min(Math.max(this.u.valToPos(value, "x", true), bbox.left), bbox.left + bbox.width));
      if (ctx.measureText(text).width + 10 * ratio < high - low) ctx.fillText(text, low + 5 * ratio, bbox.top + (this.bars ? -30 : 14) * ratio);
    }
    ctx.restore();
  }

  sign({ kind, x, y, label }, ratio) {
    const { ctx, bbox } = this.u;
    const px = this.u.valToPos(x, "x", true);
    if (px < bbox.left - 1 || px > bbox.left + bbox.width + 1) return;
    const py = Math.max(this.u.valToPos(y, "y", true), bbox.top);
    ctx.save();
    ctx.translate(px, py);
    ctx.scale(ratio, ratio);
    ctx.fillStyle = kind.includes("stall") ? this.colours.bad : kind === "peak" ? this.colours.accent : this.colours.dim;
    ctx.fill(new Path2D(kind.includes("cut") ? "M0 -9l5 8h-10z" : kind === "peak" ? "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z" : "M0 -9l3.5 3.5l-3.5 3.5l-3.5 -3.5z"));
    ctx.fillStyle = this.colours.text;
    ctx.font = "11.5px system-ui, sans-serif";
    const half = ctx.measureText(label).width / 2;
    const middle = Math.min(Math.max(px, bbox.left + half * ratio), bbox.left + bbox.width - (half - 10) * ratio);
    if (label && middle - half * ratio > this.free) {
      ctx.textAlign = "center";
      ctx.textBaseline = "alphabetic";
      ctx.fillText(label, (middle - px) / ratio, kind.includes("cut") ? -14 : -9);
      this.free = middle + (half + 6) * ratio;
    }
    ctx.restore();
  }

  // -- reading --

  name(i) {
    const from = this.x[i];
    if (!this.bars) return `after ${this.at(from)}`;
    const to = Math.min(from + this.size - 1, this.ends[1]);
    const within = this.zones.filter((zone) => from >= zone.start && from < zone.end).map((zone) => `, ${zone.text}`);
    return (to > from ? `steps ${decimal(from, 0)} to ${decimal(to, 0)}` : `step ${decimal(from, 0)}`) + within.join("");
  }

  row({ name, kind, values }, i) {
    const shown = values[i] === null ? "unknown" : `${decimal(values[i], this.y.places)} ${this.y.unit}`;
    const label = make("span", { textContent: name });
    if (this.bars && kind) label.prepend(make("i", { className: `swatch ${kind}` }));
    return make("div", { className: "row" }, label, make("span", { textContent: shown }));
  }

  show() {
    const { idx, left, top } = this.u.cursor;
    if (!this.read || idx === null || idx === undefined || left < 0) {
      this.tip.hidden = true;
      return;
    }
    const rows = this.series.filter(({ role, values }) => role !== "part" || values[idx]).map((one) => this.row(one, idx));
    if (this.notes[idx]) rows.push(make("div", { textContent: this.notes[idx] }));
    this.tip.replaceChildren(make("strong", { textContent: this.name(idx) }), ...rows);
    this.tip.hidden = false;
    const area = this.u.over.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = this.tip;
    const x = area.left + left + 14;
    this.tip.style.left = `${Math.max(12, x + offsetWidth > innerWidth - 12 ? x - 28 - offsetWidth : x)}px`;
    this.tip.style.top = `${Math.max(12, Math.min(area.top + Math.max(top, 0) + 14, innerHeight - offsetHeight - 12))}px`;
  }

  hide() {
    this.read = false;
    this.tip.hidden = true;
  }

  key(event) {
    if (event.target !== this.box || event.altKey || event.ctrlKey || event.metaKey) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const times = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (step) this.walk(step);
    else if (times) this.zoom(times);
    else if (event.key === "Escape") this.all();
    else return;
    event.preventDefault();
  }

  walk(step) {
    const { idx } = this.u.cursor;
    const unread = !this.read || idx === null || idx === undefined;
    const next = unread ? (step > 0 ? 0 : this.x.length - 1) : Math.min(Math.max(idx + step, 0), this.x.length - 1);
    const value = this.u.data[0][next];
    const { min, max } = this.u.scales.x;
    if (value < min || value > max) this.range(value - (max - min) / 2, value + (max - min) / 2);
    this.read = true;
    this.u.setCursor({ left: this.u.valToPos(value, "x"), top: this.u.over.clientHeight * 0.3 });
  }

  zoom(times) {
    const { min, max } = this.u.scales.x;
    const { idx } = this.u.cursor;
    const middle = this.read && idx >= 0 ? this.u.data[0][idx] : (min + max) / 2;
    this.range(middle - (times * (max - min)) / 2, middle + (times * (max - min)) / 2);
  }

  range(low, high) {
    const [first, last] = this.reach;
    if (high - low >= last - first) return this.all();
    const shift = Math.max(first - low, 0) + Math.min(last - high, 0);
    this.zoomed = true;
    this.u.batch(() => this.u.setScale("x", { min: low + shift, max: high + shift })); // at once: the next step asks for places
  }

  all() {
    this.hide();
    this.zoomed = false;
    this.u.setScale("x", { min: this.reach[0], max: this.reach[1] });
  }

  scaled() {
    const { min, max } = this.u.scales.x;
    this.whole.hidden = min <= this.reach[0] && max >= this.reach[1];
  }
}

for (const box of every("[data-plot]")) start(`chart ${box.dataset.plot}`, () => { new Chart(box); });
