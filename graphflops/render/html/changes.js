// What changed between two programs, module by module.

const changesTable = () => {
  const body = el("tbody");
  const head = el("thead");
  const NAMED = ["module", "what changed"];
  const FIGURED = ["FLOPs", "bytes", "parameters"];
  const element = section(
    "changes",
    "Modules that changed",
    el(
      "div",
      { class: "wide", tabindex: 0, role: "region", "aria-label": "Modules that changed" },
      el("table", {}, head, body),
    ),
    DATA.more_changes ? el("p", { class: "note" }, `and ${plural(DATA.more_changes, "other")}`) : null,
  );
  const texts = [number, memory, parameters];
  const cell = ([before, after], index) => {
    const [was, is] = [valueOf(JOINT, before), valueOf(JOINT, after)];
    if (was === is) return el("td", { class: "figure zero" }, was === null ? "?" : "same");
    const direction = was === null || is === null ? "" : was < is ? "more" : "less";
    const moved = was === null || is === null ? "?" : `${is > was ? "+" : "−"}${texts[index](is > was ? is - was : was - is)}`;
    return el("td", { class: `figure ${direction}` }, moved);
  };
  const update = () => {
    // On a phone the words stand below the deltas, which they would push out of sight.
    const narrow = isNarrow();
    const title = (text) => el("th", { scope: "col", class: NAMED.includes(text) ? "name" : "figure" }, text);
    head.replaceChildren(el("tr", {}, title(NAMED[0]), narrow ? null : title(NAMED[1]), FIGURED.map(title)));
    body.replaceChildren(
      ...DATA.changes.flatMap(([status, path, type, facts, figures]) => {
        const words = [status === "changed" && facts.length ? null : el("span", { class: `tag ${status}` }, status), facts.map((fact) => el("div", {}, fact))];
        const module = el("td", { class: "name" }, path, type ? el("div", { class: "type" }, type) : null);
        if (!narrow) return [el("tr", {}, module, el("td", { class: "name" }, words), figures.map(cell))];
        return [el("tr", { class: "above" }, module, figures.map(cell)), el("tr", {}, el("td", { class: "name", colspan: 1 + FIGURED.length }, words))];
      }),
    );
    if (!DATA.changes.length) body.replaceChildren(el("tr", {}, el("td", { class: "name", colspan: NAMED.length + FIGURED.length }, "No module is other than it was.")));
  };
  return { element, update };
};
