// What changed between two programs, module by module.

const changesTable = () => {
  const body = el("tbody");
  const heads = ["module", "what changed", "FLOPs", "bytes", "parameters"];
  const element = section(
    "changes",
    "Modules that changed",
    el(
      "div",
      { class: "wide", tabindex: 0, role: "region", "aria-label": "Modules that changed" },
      el("table", {}, el("thead", {}, el("tr", {}, heads.map((head, index) => el("th", { scope: "col", class: index > 1 ? "figure" : "name" }, head)))), body),
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
    body.replaceChildren(
      ...DATA.changes.map(([status, path, type, facts, figures]) =>
        el(
          "tr",
          {},
          el("td", { class: "name" }, path, type ? el("div", { class: "type" }, type) : null),
          el("td", { class: "name" }, status === "changed" && facts.length ? null : el("span", { class: `tag ${status}` }, status), facts.map((fact) => el("div", {}, fact))),
          figures.map(cell),
        )),
    );
    if (!DATA.changes.length) body.replaceChildren(el("tr", {}, el("td", { class: "name", colspan: heads.length }, "No module is other than it was.")));
  };
  return { element, update };
};
