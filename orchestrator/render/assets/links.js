// Links into the page: what they lead to is opened, and a table shows the row that is meant.

function lead() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  let closed = false;
  for (let around = target.closest("details"); around; around = around.parentElement.closest("details")) {
    closed ||= !around.open;
    around.open = true;
  }
  if (closed) target.scrollIntoView();
}

// The rows that hold all words of the link's row key; all rows where none does.
function pick(link) {
  const table = document.getElementById(link.hash.slice(1));
  const filter = table && find("[data-filter]", table);
  if (!filter) return;
  const show = (words) => { filter.value = words; filter.dispatchEvent(new Event("input", { bubbles: true })); };
  show(link.dataset.row);
  if (!find("tbody tr", table)) show("");
}

start("links", () => {
  addEventListener("hashchange", lead);
  for (const link of every("a[data-row]")) link.addEventListener("click", () => pick(link));
  lead();
});
