// The modules as a table: a tree of lines that open, figures of each module with everything in it.

const MOST_LINES = 25; // opened at first: as many levels as fit

const moduleTable = () => {
  const body = el("tbody");
  const heads = ["module", "type", ...(TRAINED ? ["forward FLOPs", "backward FLOPs"] : ["FLOPs"]), "%", "parameters", "bytes", ...(TIMED ? ["time"] : [])];
  const element = el(
    "div",
    { class: "wide", id: "module-table", tabindex: 0, role: "region", "aria-label": "Table of modules" },
    el("table", {}, el("thead", {}, el("tr", {}, heads.map((head, index) => el("th", { scope: "col", class: index > 1 ? "figure" : "name" }, head)))), body),
  );
  const inside = (node) => node.children.filter((child) => !child.op);
  const depths = TREE.places.map(() => 0);
  TREE.places.forEach((node) => { depths[node.id] = node.parent < 0 ? 0 : depths[node.parent] + 1; });
  const opened = (() => {
    let depth = 1;
    while (TREE.places.filter((node) => depths[node.id] <= depth + 1).length <= MOST_LINES && depths.includes(depth + 1)) depth += 1;
    return new Set(TREE.places.filter((node) => depths[node.id] < depth));
  })();

  const measured = () => {
    const sums = TREE.nodes.map(() => ({ ...NOTHING }));
    entriesOf[0].forEach((index) => added(sums[SIDES[0].calls.place[index]], 0, index));
    const own = sums.map((one) => ({ ...one }));
    for (let id = TREE.places.length - 1; id > 0; id -= 1) {
      const up = sums[TREE.places[id].parent];
      up.calls += sums[id].calls;
      up.unknown += sums[id].unknown;
      for (const figure of [...FIGURES, "time"]) up[figure] = sum(up[figure], sums[id][figure]);
    }
    return { sums, own, parameters: amounts("parameters").values };
  };

  const figures = (sums, whole, held) => {
    const nothingKnown = sums.unknown > 0 && FIGURES.every((figure) => sums[figure] === 0n);
    const known = (text) => (nothingKnown ? "unknown" : `${sums.unknown ? ">= " : ""}${text}`);
    const work = (TRAINED ? ["forward", "backward"] : ["flops"]).map((figure) => known(number(sums[figure])));
    return [...work, nothingKnown ? "" : percent(sums.flops, whole.flops), held ? parameters(held) : "", known(memory(sums.bytes)), ...(TIMED ? [known(duration(sums.time))] : [])];
  };

  const line = (label, type, depth, cells, unknown) =>
    el(
      "tr",
      { class: unknown ? "unknown" : null },
      el("td", { class: "name tree", css: { "--depth": depth } }, label),
      el("td", { class: "name type" }, type),
      cells.map((text) => el("td", { class: /^0( B| s|\.0)?$/.test(text) ? "figure zero" : "figure" }, text)),
    );

  const lines = (node, found) => {
    const { sums, own, parameters: held } = found;
    const within = inside(node);
    const isOpen = opened.has(node);
    const label = within.length
      ? el("button", { type: "button", "aria-expanded": String(isOpen), "data-place": node.id, on: { click: () => toggle(node) } }, node.label)
      : node.label;
    const rows = [line(label, node.id ? node.type : "", depths[node.id], figures(sums[node.id], sums[0], held[node.id][0]), sums[node.id].unknown)];
    if (!within.length || !isOpen) return rows;
    if (own[node.id].flops !== 0n || own[node.id].unknown) {
      rows.push(line("(itself)", "", depths[node.id] + 1, figures(own[node.id], sums[0], 0n), own[node.id].unknown));
    }
    return [...rows, ...within.flatMap((child) => lines(child, found))];
  };

  const toggle = (node) => {
    if (!opened.delete(node)) opened.add(node);
    update();
    body.querySelector(`[data-place="${node.id}"]`)?.focus(); // none where a module around it was closed too
  };
  const update = () => body.replaceChildren(...lines(TREE.root, measured()));
  return { element, update };
};
