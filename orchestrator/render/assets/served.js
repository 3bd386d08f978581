/* Hands a recording to Perfetto as its maker describes it (ping until it answers, then post the bytes), and gives
   speedscope the address of a profile. Links into the page (#finding-1) reach the page. */
"use strict";
{
  const PING_MS = 50, PATIENCE_MS = 60000;
  const settings = document.documentElement.dataset;
  const [page, trace, button, profile, link] = ["page", "trace", "perfetto", "profile", "speedscope"].map((id) => document.getElementById(id));
  const state = document.getElementById("state");
  const say = (text, bad = false) => { state.textContent = text; state.classList.toggle("bad", bad); };

  page.addEventListener("load", () => page.focus(), { once: true });
  if (location.hash) page.src += location.hash;
  addEventListener("hashchange", () => { page.src = "report/index.html" + location.hash; });

  const bytesOf = async (path) => {
    const address = "report/" + path.split("/").map(encodeURIComponent).join("/");
    const answer = await fetch(address).catch(() => { throw new Error("the server has ended; start it again with: profrun open"); });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}; where the report was built anew, reload this page`);
    return answer.arrayBuffer();
  };

  const answered = (tab, origin) => new Promise((resolve, reject) => {
    const began = performance.now();
    const settle = (end) => { clearInterval(timer); removeEventListener("message", hear); end(); };
    const hear = (event) => {
      if (event.source === tab && event.origin === origin && event.data === "PONG") settle(resolve);
    };
    addEventListener("message", hear);
    const timer = setInterval(() => {
      if (tab.closed) settle(() => reject(new Error("its tab was closed")));
      else if (performance.now() - began > PATIENCE_MS) settle(() => reject(new Error(`${origin} does not answer; without a way there, name a copy of it: profrun open --perfetto-ui URL`)));
      else tab.postMessage("PING", "*");
    }, PING_MS);
  });

  const hand = async () => {
    const ui = new URL(settings.perfetto);
    const name = trace.value.split("/").pop();
    const tab = window.open(ui.href);  // in the click itself: later it would be a pop-up that nobody asked for
    if (!tab) return say("Your browser has not opened a tab: allow pop-ups for this address, and try again.", true);
    button.disabled = true;
    try {
      say(`Reading ${name} ...`);
      const [buffer] = await Promise.all([bytesOf(trace.value), answered(tab, ui.origin)]);
      const title = `${settings.name}: ${name}`;
      tab.postMessage({ perfetto: { buffer, title, fileName: name } }, ui.origin, [buffer]);
      say(`Perfetto has ${name}.`);
    } catch (error) {
      say(`Perfetto has not got ${name}: ${error.message}.`, true);
    } finally {
      button.disabled = false;
    }
  };
  button?.addEventListener("click", hand);

  const point = () => {
    const [path, title] = profile.value.split("&");
    link.href = `${settings.speedscope}#profileURL=${encodeURIComponent(location.origin + path)}&${title}`;
  };
  if (link) { point(); profile.addEventListener("change", point); }

  document.documentElement.dataset.ready = "yes";
}
