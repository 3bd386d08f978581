// The page's behaviour, what all its parts share: finding and making elements, numbers, colours, copying, sections. All data lies in
// blocks of the page; names only ever become text nodes. html.py puts these files behind one another, into one function.
const root = document.documentElement;
const find = (selector, inside = document) => inside.querySelector(selector);
const every = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const block = (id) => JSON.parse(document.getElementById(id).textContent);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const starting = []; // what the parts of the page are still busy with

// One broken part must not take the others with it, nor break in silence.
async function safely(part, work) {
  try {
    await work();
  } catch (error) {
    root.dataset.error = `${part}: ${error.message}`;
    console.error(part, error);
  }
}
const start = (part, work) => starting.push(safely(part, work));

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

root.classList.add("js");
start("colours", colours);
start("copying", copying);
start("sections", sections);
queueMicrotask(async () => { // when the other files have begun, too
  await Promise.all(starting);
  for (const _ of "12") await new Promise(requestAnimationFrame); // behind the next picture of the screen
  root.dataset.ready = Math.round(performance.now());
});
