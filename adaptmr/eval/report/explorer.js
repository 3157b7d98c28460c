// The question explorer of a report: filters, a list of questions, and what two systems found and answered.
// It reads the JSON of #explorer-data and needs nothing else; without JavaScript the section stays hidden.
(function () {
  "use strict";
  const holder = document.getElementById("explorer-data");
  if (!holder) return;
  const data = JSON.parse(holder.textContent);
  const section = document.getElementById("explorer");
  const part = (name) => section.querySelector("." + name);
  const list = part("questions");
  const detail = part("question");

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function fill(select, options) {
    for (const [value, label] of options) {
      const option = element("option", label);
      option.value = value;
      select.append(option);
    }
    select.addEventListener("change", refresh);
  }

  const score = (row) => (measure.value === "f1" ? row[0] : row[1]);
  const isRight = (row) => {
    const value = score(row);
    return value !== null && (measure.value === "f1" ? value >= data.threshold : value >= 0.9999);
  };
  const shown = (value) => (value === null ? "–" : value.toFixed(2));

  const type = part("type");
  const first = part("first");
  const second = part("second");
  const relation = part("relation");
  const cause = part("cause");
  const measure = part("measure");
  const words = part("words");
  const everything = [["", "all"]];
  fill(type, everything.concat(data.types.map((label, i) => [String(i), label])));
  const systems = data.systems.map((name, i) => [String(i), name]);
  fill(first, systems);
  fill(second, systems);
  fill(relation, [
    ["", "all"],
    ["10", "A right, B wrong"],
    ["01", "A wrong, B right"],
    ["00", "both wrong"],
    ["11", "both right"],
  ]);
  fill(measure, [
    ["f1", "the answer (F1 of at least " + data.threshold + ")"],
    ["recall", "the evidence (all gold turns found)"],
  ]);
  fill(cause, everything.concat(data.causes.map((name, i) => [String(i), name])));
  if (!data.causes.length) cause.closest("label").hidden = true;
  words.addEventListener("input", refresh);
  const named = (name, otherwise) => String(Math.max(data.systems.indexOf(name), otherwise));
  first.value = named("adaptmr", 0);
  second.value = named("unified", Math.min(1, data.systems.length - 1));

  function matches(q) {
    const a = q.rows[first.value];
    const b = q.rows[second.value];
    if (type.value && String(q.type) !== type.value) return false;
    if (relation.value && relation.value !== (isRight(a) ? "1" : "0") + (isRight(b) ? "1" : "0")) return false;
    if (cause.value && String(a[5]) !== cause.value) return false;
    const wanted = words.value.trim().toLowerCase();
    return !wanted || (q.id + " " + q.text + " " + q.gold_answers).toLowerCase().includes(wanted);
  }

  function refresh() {
    list.replaceChildren();
    const found = data.questions.filter(matches);
    part("count").textContent = found.length + " of " + data.questions.length + " questions";
    for (const q of found) {
      const button = element("button", null, "pick");
      button.type = "button";
      for (const row of [q.rows[first.value], q.rows[second.value]]) {
        button.append(element("b", shown(score(row)), isRight(row) ? "right" : "wrong"));
      }
      button.append(element("span", q.text || q.id));
      button.addEventListener("click", () => show(q, button));
      const item = element("li");
      item.append(button);
      list.append(item);
    }
    const button = list.querySelector("button");
    if (button) show(found[0], button);
    else detail.replaceChildren(element("p", "No question fits these filters."));
  }

  // the turns that stand behind the derived memories of a row; rows of systems without such memories have none
  const behindOf = (row) => (row[7] === undefined ? [] : data.rankings[row[7]]);

  function turnLine(index, gold, behind) {
    const [source, day, speaker, text] = data.turns[index];
    const item = element("li", null, gold.has(index) ? "gold" : "");
    if (gold.has(index)) item.append(element("mark", "gold"), " ");
    if (behind) item.append(element("span", "behind a derived memory", "badge"), " ");
    item.append(element("code", source), " ");
    if (day) item.append(element("small", day), " ");
    item.append((speaker ? speaker + ": " : "") + text);
    return item;
  }

  function systemCard(letter, index, q, gold) {
    const [f1, recall, answer, abstained, ranking, why, trace] = q.rows[index];
    const hits = data.rankings[ranking];
    const card = element("div", null, "card");
    card.append(element("h4", letter + ": " + data.systems[index]));
    const said = data.answers[answer];
    const line = element("p");
    line.append(element("b", "F1 " + shown(f1) + ", recall " + shown(recall)));
    if (why !== null) line.append(element("span", " " + data.causes[why], "badge"));
    if (said) line.append(element("br"), (abstained ? "abstains: " : "answers: ") + said);
    card.append(line);
    const turns = element("ol");
    for (const hit of hits) turns.append(turnLine(hit, gold));
    const behind = behindOf(q.rows[index]);
    card.append(hits.length || behind.length ? turns : element("p", "returns nothing"));
    if (behind.length) {
      const found = behind.filter((i) => gold.has(i)).length;
      card.append(element("p", behind.length + " turns stand behind derived memories, gold: " + found));
    }
    if (data.traces[trace].length) {
      const more = element("details");
      more.append(element("summary", "steps"));
      const steps = element("ol");
      for (const step of data.traces[trace]) steps.append(element("li", data.steps[step]));
      more.append(steps);
      card.append(more);
    }
    return card;
  }

  function show(q, button) {
    for (const other of list.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
    button.setAttribute("aria-current", "true");
    const gold = new Set(q.gold);
    const about = element("p", q.id + ", " + data.types[q.type] + (q.answerable ? "" : ", can't be answered"));
    const parts = [element("h3", q.text || q.id), about];
    if (q.gold_answers) parts.push(element("p", "Gold answer: " + q.gold_answers));
    const missing = q.gold.filter((i) => !data.rankings[q.rows[first.value][4]].includes(i));
    if (missing.length) {
      parts.push(element("p", "Gold turns that A does not return:"));
      const turns = element("ul");
      const behind = behindOf(q.rows[first.value]);
      for (const turn of missing) turns.append(turnLine(turn, gold, behind.includes(turn)));
      parts.push(turns);
    }
    const cards = element("div", null, "cards");
    cards.append(systemCard("A", Number(first.value), q, gold));
    if (first.value !== second.value) cards.append(systemCard("B", Number(second.value), q, gold));
    detail.replaceChildren(...parts, cards);
  }

  list.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const item = document.activeElement.closest("li");
    const next = item && (event.key === "ArrowDown" ? item.nextElementSibling : item.previousElementSibling);
    if (!next) return;
    event.preventDefault();
    next.firstElementChild.focus();
    next.firstElementChild.click();
  });

  // a cell of a table of systems by question type opens the questions behind it; so does a system's name
  function openQuestions(system, label) {
    first.value = String(system);
    type.value = String(Math.max(data.types.indexOf(label), -1)).replace("-1", "");
    relation.value = "";
    cause.value = "";
    words.value = "";
    refresh();
    section.scrollIntoView();
    const button = list.querySelector("button");
    if (button) button.focus({ preventScroll: true });
  }

  function opens(cell, system, label) {
    cell.tabIndex = 0;
    cell.classList.add("opens");
    cell.title = "show these questions";
    cell.addEventListener("click", () => openQuestions(system, label));
    cell.addEventListener("keydown", (event) => {
      if (event.key === "Enter") openQuestions(system, label);
    });
  }

  const labels = new Set(data.types.concat(["overall"]));
  for (const table of document.querySelectorAll("table.wide")) {
    const heads = [...table.querySelectorAll("thead tr:last-child th")].map((th) =>
      th.textContent.trim().replace(/ \(n=\d+\)$/, "")
    );
    for (const row of table.querySelectorAll("tbody tr")) {
      const system = data.systems.indexOf(row.cells[0].textContent.trim());
      if (system < 0) continue;
      opens(row.cells[0], system, "overall");
      heads.forEach((head, i) => {
        if (i && labels.has(head) && row.cells[i]) opens(row.cells[i], system, head);
      });
    }
  }
  section.hidden = false;
  refresh();
})();
