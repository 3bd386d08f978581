// The flame graph of two runs: one of them is drawn, its frames coloured by what they grew or shrank by from A to B.

const SATURATED = 0.05; // of the whole, from where a colour is at its full
const NOTHING = 0.001; // a smaller change has no colour

class Compared extends Flame {
  // `flame-1:b`: the data, and the run that is drawn.
  async read(id) {
    const [data, side] = id.split(":");
    const stacks = await super.read(data);
    const now = { own: stacks.own, lost: stacks.lost, total: stacks.total, lost_outermost: stacks.lost_outermost };
    const then = { own: stacks.other_own, lost: stacks.other_lost, total: stacks.other_total ??= stacks.sums(stacks.other_own, stacks.other_lost), lost_outermost: stacks.other_lost_outermost };
    const [drawn, beside] = side === "b" ? [now, then] : [then, now];
    const top = [...stacks.within([0, stacks.entries])];
    const whole = top.reduce((sum, i) => sum + then.total[i], then.lost_outermost) || 1; // A's: what all shares are of
    const { per } = this.part("source").selectedOptions[0].dataset;
    return Object.assign(Object.create(stacks), drawn, { side, per, other: beside.total, other_own: beside.own, whole });
  }

  legend() {}

  palette() {
    const colour = (name) => getComputedStyle(find(`.legend .${name}`, this.box)).backgroundColor;
    const parts = (name) => colour(name).match(/[\d.]+/g).map(Number);
    const style = getComputedStyle(this.graph);
    return { ...Object.fromEntries(["same", "more", "less"].map((name) => [name, parts(name)])), group: colour("group"), match: colour("match"), back: style.backgroundColor, ink: style.color };
  }

  // In parts of A's whole: positive where B takes longer.
  growth(node) {
    const [a, b] = this.stacks.side === "b" ? [node.other ?? 0, node.total] : [node.total, node.other ?? 0];
    return (b - a) / this.stacks.whole;
  }

  fill(node) {
    const { paint } = this;
    const grown = this.growth(node);
    const part = Math.abs(grown) < NOTHING ? 0 : Math.min(1, Math.sqrt(Math.abs(grown) / SATURATED));
    const goal = grown > 0 ? paint.more : paint.less;
    return `rgb(${paint.same.map((value, i) => Math.round(value + (goal[i] - value) * part)).join(", ")})`;
  }

  lines(node) {
    if (!node.parent) return [`${this.amount(node.total)} a ${this.stacks.per}`];
    const [a, b] = this.stacks.side === "b" ? [node.other ?? 0, node.total] : [node.total, node.other ?? 0];
    return [`A ${this.amount(a)}, B ${this.amount(b)} a ${this.stacks.per}`, `${signed(this.growth(node))} of A's ${this.stacks.per}`];
  }

  // Function totals of both runs, the largest differences first.
  table(ranges) {
    const { stacks } = this;
    const drawn = stacks.weights(ranges);
    const beside = Object.assign(Object.create(stacks), { own: stacks.other_own, total: stacks.other }).weights(ranges);
    const [a, b] = stacks.side === "b" ? [beside, drawn] : [drawn, beside];
    const grown = (kind) => (i) => (b[kind][i] - a[kind][i]) / stacks.whole;
    const there = [...stacks.functionNames.keys()].filter((i) => a.total[i] || b.total[i]);
    const most = (kind) => [...there].sort((i, k) => Math.abs(grown(kind)(k)) - Math.abs(grown(kind)(i))).slice(0, MOST_FUNCTIONS);
    const rows = [...new Set([...most("own"), ...most("total")])];
    const parts = rows.map((i) => stacks.parts(stacks.functionNames[i], stacks.functionOrigins[i]));
    const largest = Math.max(...rows.map((i) => Math.max(a.total[i], b.total[i])));
    const time = (key, label, weights) => ({ ...this.measure(largest), key: `${key}_ns`, label, meaning: `a ${this.stacks.per}`, values: rows.map((i) => weights[i] * stacks.factor) });
    const difference = (key, label, kind) => {
      const values = rows.map(grown(kind));
      return { key, label, unit: `of A's ${this.stacks.per}`, meaning: "B less A", type: "number", factor: 1, values: values.map(Math.abs), texts: values.map(signed), signs: values };
    };
    const section = this.part("top");
    section.dataset.total = there.length;
    this.part("held").hidden = rows.length >= there.length;
    grid(section, { sort: "self", columns: [
      { key: "function", label: "function", meaning: "its lines added up", type: "code", values: parts.map(([name]) => name), act: (index) => this.look(parts[index][0]) },
      { key: "file", label: "file", meaning: "", type: "code", values: parts.map(([, file]) => file) },
      time("a_own", "A self", a.own), time("b_own", "B self", b.own), difference("self", "self grew by", "own"),
      time("a_total", "A total", a.total), time("b_total", "B total", b.total), difference("total", "total grew by", "total"),
    ] });
  }
}

const signed = (part) => (Math.abs(part) < 0.0005 ? "0.0 %" : `${part > 0 ? "+" : "−"}${decimal(100 * Math.abs(part), 1)} %`);

for (const box of every("[data-compared]")) start("differential flame graph", () => new Compared(box).load());
