// Tables: sorted, filtered, and long names shortened.

const PREVIEW = 12;
const LONG = 180;

// Fills a section with `table_grid`'s elements; once more, with other content, is allowed.
function grid(section, { columns, sort }) {
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
  every("thead, tbody", table).forEach((part) => part.remove());
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

  const filter = find("[data-filter]", section);
  filter.oninput = () => {
    state.words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    fill();
  };
  more.onclick = () => { state.whole = !state.whole; fill(); };
  filter.oninput();
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
  if (isText(column)) return value === null ? unknown("text") : text(value, column.type, column.act && (() => column.act(index)));
  if (value === null && !column.texts?.[index]) return unknown(column.type === "share" ? "" : "n");
  if (column.texts) return make("td", { className: `n ${column.signs ? sign(column.signs[index]) : ""}`, textContent: column.texts[index] });
  if (column.type === "share") {
    const td = make("td", { className: "n share", textContent: percent(value) });
    td.style.setProperty("--part", value);
    return td;
  }
  return make("td", { className: "n", textContent: number(column, value), title: exact(column, value) });
}

// Of what has a sign and no other meaning than that more is worse.
const sign = (value) => (value > 0 ? "grown" : value < 0 ? "shrunk" : "");

const unknown = (className) => make("td", { className }, make("span", { className: "unknown", textContent: "unknown" }));

function number({ type, factor, places }, value) {
  if (type === "id" || typeof value !== "number") return String(value);
  const scaled = value / factor;
  if (places === null) return Number.isInteger(scaled) ? decimal(scaled, 0) : general.format(scaled);
  const least = 10 ** -places;
  return scaled !== 0 && Math.abs(scaled) < least / 2 ? `<${decimal(least, places)}` : decimal(scaled, places);
}

const exact = ({ factor, key }, value) => factor === 1 ? "" : `${value.toLocaleString("en-US")} ${key.endsWith("ns") ? "ns" : "bytes"}`;

// `act`: what the name does as a button.
function text(value, type, act) {
  const td = make("td", { className: `text ${type}` });
  const shown = breakable(middleOut(value));
  const name = act ? make("button", { type: "button", className: "name", onclick: act }, ...shown) : make("span", {}, ...shown);
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

for (const section of every("[data-grid]")) start(`table ${section.id}`, () => grid(section, block(section.dataset.grid)));
