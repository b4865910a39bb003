// Rules that cannot be used: said above every page, which otherwise goes on.

import { ask } from "./api.js";
import { count, el, fill } from "./dom.js";

const EVERY_MS = 5000;

export function watchFaults(where, { app, signal }) {
  let said = "";
  let timer = 0;
  async function look() {
    if (signal.aborted) return;
    try {
      const found = document.hidden ? null : await ask("rules/faults", { app }, { signal });
      const text = JSON.stringify(found);
      // What is written again is read out again.
      if (found && text !== said) { said = text; fill(where, faults(found)); }
    } catch {
      // The page itself says that the console does not answer.
    }
    if (!signal.aborted) timer = setTimeout(look, EVERY_MS);
  }
  look();
  signal.addEventListener("abort", () => clearTimeout(timer));
}

function faults(found) {
  const parts = [];
  if (found.folder) parts.push(fault("The rules folder has errors. The rules from before stay active.", [found.folder],
    "Correct the file and save it: `graphweft up` looks again by itself, and this note goes away."));
  for (const each of found.lost) parts.push(fault(`The active rules ${each.rules} ${whose(each)} cannot be loaded, so the workers wait.`, [each.why],
    "Run `graphweft rules push FOLDER` with their folder, or `graphweft rules rollback`."));
  for (const each of found.workflows) parts.push(fault(`The active rules of the workflow ${each.workflow} ${whose(each)} do not compile, so its events become dead letters and its agents get no context.`,
    [...each.errors, each.errors_total > each.errors.length && `and ${count(each.errors_total - each.errors.length)} more`].filter(Boolean),
    "Correct the file, try it with `graphweft lint FOLDER`, and run `graphweft rules push FOLDER`. `graphweft dlq list` shows what waits."));
  const rest = found.workflows_total - found.workflows.length;
  if (rest > 0) parts.push(el("p", { class: "quiet" }, `${count(rest)} more workflows do not compile: the page Rules lists those of an app.`));
  if (found.unknown > 0) parts.push(el("p", { class: "quiet" }, `${count(found.unknown)} workflows are still being checked.`));
  return parts;
}

function fault(what, texts, next) {
  return el("section", { class: "note bad", "aria-label": "Rules that cannot be used" }, el("p", {}, el("strong", {}, what)),
    texts.map((text) => el("pre", { tabindex: "0" }, text)), el("p", {}, next));
}

function whose(each) {
  return each.scope === "*" ? "for all apps" : `for the app ${each.scope}`;
}
