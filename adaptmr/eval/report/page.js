// A click on a column's heading, or Enter on it, sorts a table by that column; printing opens what is folded.
(function () {
  "use strict";
  const number = /^[-+−]?[\d,]*\.?\d+(e[-+]?\d+)?/i;

  function key(row, column) {
    const text = row.cells[column] ? row.cells[column].textContent.trim() : "";
    const found = number.exec(text);
    return found ? Number(found[0].replace("−", "-").replaceAll(",", "")) : text;
  }

  function compare(a, b) {
    const numbers = [a, b].map((value) => typeof value === "number");
    if (numbers[0] && numbers[1]) return a - b;
    if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1;
    return a.localeCompare(b);
  }

  function sort(table, heading, column) {
    const falling = heading.getAttribute("aria-sort") === "descending";
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    const sign = falling ? 1 : -1;
    const known = (value) => typeof value === "number" || (value !== "" && value !== "–");
    rows.sort(([a], [b]) => known(b) - known(a) || sign * compare(a, b));
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", falling ? "ascending" : "descending");
    body.append(...rows.map(([, row]) => row));
  }

  for (const table of document.querySelectorAll("table.wide")) {
    if (!table.tHead || table.tBodies[0].rows.length < 3) continue;
    const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    headings.forEach((heading, column) => {
      heading.tabIndex = 0;
      heading.classList.add("sorts");
      heading.title = "sort by this column";
      heading.addEventListener("click", () => sort(table, heading, column));
      heading.addEventListener("keydown", (event) => {
        if (event.key === "Enter") sort(table, heading, column);
      });
    });
  }

  window.addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
})();
