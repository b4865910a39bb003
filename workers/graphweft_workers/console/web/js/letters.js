// Dead letters: what could not be applied; retry and drop where that is allowed.

import { ask } from "./api.js";
import { announce, button, clock, closing, count, counted, el, failure, field, fill, note, table, tag } from "./dom.js";

export const title = "Dead letters";
export const lead = "Events and mutations that could not be applied, the oldest first.";
const PAGE = 50;

export function show(root, { app, session, signal }) {
  const problem = el("div");
  const body = el("div");
  const detail = el("section", { class: "sheet", "aria-label": "Dead letter", hidden: true });
  const reason = el("select", { on: { change: () => { skip = 0; load(); } } }, el("option", { value: "" }, "every reason"));
  const chosen = new Set();
  let skip = 0;
  const act = (name, label, kind) => button(label, () => change(name), { class: kind, disabled: true, id: `letters-${name}` });
  const actions = session.may_write ? [act("retry", "Retry the chosen ones", "main"), act("drop", "Drop the chosen ones")] : null;
  fill(root, problem, el("div", { class: "row" }, field("Reason", reason), actions),
    !session.may_write && el("p", { class: "quiet" }, "The console is read-only here: mend the cause, then use the command beside a letter where graphweft runs. With GRAPHWEFT_CONSOLE_WRITE=true and a token that has the role admin, this page does the same."), detail, body);

  async function load() {
    chosen.clear();
    mark();
    try {
      const found = await ask("letters", { app, reason: reason.value || null, skip, limit: PAGE }, { signal });
      const kept = reason.value;
      fill(reason, el("option", { value: "" }, "every reason"), found.reasons.map((each) => el("option", { value: each, selected: each === kept }, each)));
      fill(body, el("section", { class: "sheet" }, found.letters.length ? [letters(found), pages(found)] : el("p", {}, "No dead letters."),
        found.hidden > 0 && el("p", { class: "quiet" }, `${count(found.hidden)} dead letters are of workflows that this token may not use.`),
        found.partly && el("p", { class: "quiet" }, `Only the oldest ${count(found.read)} dead letters are read: \`graphweft dlq list\` shows all.`)));
    } catch (error) {
      if (!signal.aborted) fill(problem, failure(error, () => { fill(problem); load(); }));
    }
  }

  function letters(found) {
    return table(`Dead letters ${skip + 1} to ${skip + found.letters.length} of ${count(found.total)}`, [
      ...(session.may_write ? [{ title: el("span", { class: "visually-hidden" }, "Choose"), cell: (row) => el("input", { type: "checkbox", "aria-label": `Choose ${row.id}`, on: { change: (event) => { event.target.checked ? chosen.add(row.id) : chosen.delete(row.id); mark(); } } }) }] : []),
      { title: "Time (UTC)", keep: true, cell: (row) => clock(row.time).slice(0, 19) }, { title: "App", cell: (row) => row.app_id ?? "not known" },
      { title: "Reason", cell: (row) => tag(row.reason, "warn") }, { title: "Events", number: true, cell: (row) => count(row.count) },
      { title: "Rule", cell: (row) => (row.rule ? `${row.rule}/${row.mutation}` : row.workflow ? `workflow ${row.workflow}` : "") },
      { title: "Message", cell: (row) => [row.message, el("div", { class: "quiet mono" }, session.may_write ? row.id : `graphweft dlq retry ${quoted(row.id)}`)] },
      { title: el("span", { class: "visually-hidden" }, "Event"), cell: (row) => button("Show", () => open(row.id), { class: "small", "aria-label": `Show ${row.id}` }) }], found.letters);
  }

  function pages(found) {
    return el("div", { class: "row" },
      button("Earlier", () => { skip = Math.max(0, skip - PAGE); load(); }, { disabled: skip === 0 }),
      button("Later", () => { skip += PAGE; load(); }, { disabled: skip + PAGE >= found.total }));
  }

  function mark() {
    for (const name of ["retry", "drop"]) {
      const each = document.getElementById(`letters-${name}`);
      if (each) each.disabled = chosen.size === 0;
    }
  }

  async function open(id, opener = document.activeElement) {
    try {
      const found = await ask("letters/show", { app, id }, { signal });
      detail.hidden = false;
      const heading = el("h2", { tabindex: "-1" }, found.id);
      fill(detail, heading, closing(detail, opener), el("p", {}, tag(found.reason, "warn"), ` ${found.message}`),
        el("h3", {}, "The event, which may hold personal data"), el("pre", { tabindex: "0" }, Object.entries(found.fields).map(([name, value]) => `${name}: ${value}`).join("\n") || "The event is nowhere any more."),
        correction(found));
      heading.focus();
    } catch (error) {
      if (!signal.aborted) fill(problem, failure(error, () => { fill(problem); open(id, opener); }));
    }
  }

  function correction(letter) {
    const heading = el("h3", {}, "Correct the event");
    if (letter.not_corrected) return [heading, el("p", { class: "quiet" }, `Not possible here: ${letter.not_corrected}.`)];
    if (!session.may_write) return [heading, el("p", { class: "quiet" }, "The console is read-only here. Emit a corrected event with a new id (`graphweft emit FILE`), then drop this letter (`graphweft dlq drop`): all its mutations run for the new event, also those that took effect for this one.")];
    const changes = el("textarea", { name: "changes", class: "low", spellcheck: "false", "aria-label": "Values to replace in the event's data, as JSON", rows: 3, placeholder: '{"name": "value"}' });
    const outcome = el("div");
    return [heading, el("p", { class: "quiet" }, `Write the values of data to replace as JSON; null removes one. An event with a new id takes the place of this one, for ${letter.rule}/${letter.mutation} only, and this letter is dropped.`),
      el("form", { on: { submit: (event) => { event.preventDefault(); correct(letter.id, changes.value, outcome); } } }, changes, el("div", { class: "row" }, el("button", { class: "main" }, "Emit the corrected event"))), outcome];
  }

  async function correct(id, text, outcome) {
    let changes = null;
    try {
      changes = JSON.parse(text);
    } catch {
      // said below
    }
    if (changes === null || typeof changes !== "object" || Array.isArray(changes) || !Object.keys(changes).length) {
      fill(outcome, note('Write a JSON object with the values to replace, such as {"name": "value"}.', "bad"));
      return;
    }
    try {
      const done = await ask("letters/correct", { app, id, changes }, { signal });
      detail.hidden = true;
      const said = `The event ${done.id} is on the bus, and the letter is dropped. If it fails again, it gets a dead letter of its own.`;
      fill(problem, note(said));
      announce(said);
      await load();
    } catch (error) {
      if (!signal.aborted) fill(outcome, note(error.message, "bad"));
    }
  }

  async function change(name) {
    if (name === "drop" && !confirm(`Drop ${chosen.size} dead letters? What they stand for never takes effect, and the reason trimmed accepts a loss.`)) return;
    try {
      const found = await ask(`letters/${name}`, { app, ids: [...chosen] }, { signal });
      const done = name === "retry" ? `${counted(found.retried, "event is", "events are")} back on the bus.` : `${counted(found.dropped, "dead letter is", "dead letters are")} dropped.`;
      const lost = (found.accepted ?? []).map((each) => ` Entries ${each.first} to ${each.last} of partition ${each.partition} are accepted as lost: replays and erasures go on without them.`).join("");
      fill(problem, note(`${done}${lost}${found.kept.length ? ` ${found.kept.length} stay: ${found.kept.map((each) => `${each.id}: ${each.why}`).join("; ")}` : ""}`, found.kept.length ? "warn" : ""));
      announce(done);
      await load();
    } catch (error) {
      if (!signal.aborted) fill(problem, note(error.message, "bad"));
    }
  }
  load();
}

// An id holds names of rules, and a shell must not run them.
function quoted(id) {
  return /^[\w:./-]+$/.test(id) ? id : `'${id.replaceAll("'", "'\\''")}'`;
}
