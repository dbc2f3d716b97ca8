// The icicle: the program on top, its modules below it, operators at the bottom, as wide as what they cost.

const DEEPEST = 14; // levels drawn at once
const NARROWEST = 0.0015; // of the width; what is narrower is not drawn
const COLORS = 7; // kinds of modules with a colour of their own

const icicle = () => {
  let measure = "flops";
  let top = TREE.root;
  let focused = TREE.root;
  let table = null; // amounts of the measure
  const boxes = new Map();

  const drawing = el("div", { class: "icicle", role: "tree", "aria-label": "Modules by cost" });
  const trail = el("nav", { class: "trail", "aria-label": "Modules around the one shown" });
  const detail = el("div", { class: "detail", role: "status" });
  const legend = el("div", { class: "legend" });
  const named = Object.fromEntries(Object.entries(MEASURES).filter(([key]) => (key !== "memory" || SIDES.some((side) => side.memory)) && (key !== "time" || TIMED)).map(([key, { label }]) => [key, label]));
  const tools = choice("Sized by", named, measure, (value) => {
    measure = value;
    update();
  });

  // Width of a node: its amount; of two programs the larger one, taken where nothing is below.
  let widths = [];
  const weigh = () => {
    table = amounts(measure);
    widths = TREE.nodes.map(() => 0);
    for (let id = TREE.nodes.length - 1; id >= 0; id -= 1) {
      const node = TREE.nodes[id];
      const below = BOTH.map((side) => node.children.reduce((total, child) => sum(total, table.values[child.id][side]), 0n));
      const own = BOTH.map((side) => {
        const value = table.values[id][side];
        return value === null || below[side] === null ? 0 : Number(value - below[side]);
      });
      widths[id] = Math.max(...own) + node.children.reduce((total, child) => total + widths[child.id], 0);
    }
  };

  const tones = (() => {
    const counted = new Map();
    for (const node of TREE.nodes) if (node.type && node.id) counted.set(node.type, (counted.get(node.type) || 0) + node.times);
    const rank = new Map();
    return {
      of: (node) => {
        if (!node.type || !node.id) return 0;
        return rank.has(node.type) ? rank.get(node.type) : 0;
      },
      // The types that weigh most get the colours; by the first measure, so that they do not change.
      settle: () => {
        if (rank.size) return;
        const weight = new Map();
        for (const node of TREE.nodes) {
          if (node.type && node.id && node.children.some((child) => child.op)) {
            const own = widths[node.id] - node.children.filter((child) => !child.op).reduce((total, child) => total + widths[child.id], 0);
            weight.set(node.type, (weight.get(node.type) || 0) + own);
          }
        }
        const containers = [...counted.keys()].filter((type) => !weight.has(type));
        const ranked = [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a));
        [...ranked, ...containers].slice(0, COLORS).forEach((type, index) => rank.set(type, index + 1));
      },
      named: () => [...rank],
    };
  })();

  const shown = (node) => {
    const values = table.values[node.id];
    const { text } = MEASURES[measure];
    const least = table.unknown[node.id] && !values.includes(null) ? ">= " : "";
    if (values.every((value) => value === 0n) && table.unknown[node.id]) return "unknown";
    return IS_DIFF ? `${least}${text(values[0])} → ${text(values[1])} (${change(...values)})` : `${least}${text(values[0])}`;
  };

  const titleOf = (node) => (node.op ? `${node.path ? `${node.path} · ` : ""}${node.op}` : node.path || node.label);

  const describe = (node) => {
    const whole = table.values[0];
    const last = whole.length - 1;
    const share = percent(table.values[node.id][last], whole[last]);
    detail.replaceChildren(
      el("strong", {}, titleOf(node)),
      node.type && node.type !== node.label ? el("span", { class: "type" }, node.type) : "",
      el("span", {}, shown(node)),
      share ? el("span", {}, `${share} % of the program`) : "",
      table.unknown[node.id] ? el("span", { class: "unknown" }, `${plural(table.unknown[node.id], "call")} unknown`) : "",
    );
  };

  // Of a change, red is more and blue is less; the deeper the larger.
  const shade = (node) => {
    const [before, after] = table.values[node.id];
    if (before === null || after === null || before === after) return ["same", 0.12];
    const larger = Number(before > after ? before : after);
    const part = Math.abs(Number(after - before)) / larger;
    return [after > before ? "more" : "less", 0.15 + 0.42 * Math.sqrt(part)];
  };

  const box = (node, level, left, width) => {
    const made = el(
      "div",
      {
        class: "box",
        role: "treeitem",
        tabindex: node === focused ? 0 : -1,
        "aria-level": level + 1,
        "aria-expanded": node.children.some((child) => widths[child.id] > 0) ? "true" : null,
        "aria-label": `${titleOf(node)}: ${shown(node)}`,
        css: { left: `${100 * left}%`, width: `${100 * width}%`, top: `calc(${level} * var(--row))` },
        on: {
          mouseenter: () => describe(node),
          focus: () => {
            focused = node;
            describe(node);
          },
          click: () => zoom(node),
        },
      },
      el("span", { class: "label" }, node.label),
      el("span", { class: "amount" }, shown(node)),
    );
    if (IS_DIFF) {
      const [direction, depth] = shade(node);
      made.classList.add(direction);
      made.style.setProperty("--depth", depth);
    } else made.dataset.tone = node.op ? "op" : tones.of(node);
    if (table.unknown[node.id]) made.classList.add("lacking");
    return made;
  };

  const lacking = () => {
    if (measure === "memory" && !SIDES.every((side) => side.memory)) return "Not every report holds when memory is held.";
    if (measure === "time") return "Times are predicted for the sizes of the report only: reset the sizes to see them.";
    return "Some size has no value: give one above to see this.";
  };

  const draw = () => {
    boxes.clear();
    const parts = [];
    let levels = 0;
    const place = (node, level, left, width) => {
      levels = Math.max(levels, level + 1);
      const made = box(node, level, left, width);
      boxes.set(node, made);
      parts.push(made);
      if (level + 1 >= DEEPEST) return;
      let at = left;
      for (const child of node.children) {
        const share = widths[node.id] ? (width * widths[child.id]) / widths[node.id] : 0;
        if (share >= NARROWEST || (table.unknown[child.id] && share > 0)) place(child, level + 1, at, share);
        at += share;
      }
    };
    if (!boxes.has(focused)) focused = top;
    if (table.values[top.id].includes(null)) {
      drawing.replaceChildren(el("p", { class: "empty" }, lacking()));
      drawing.style.setProperty("--levels", 2);
      return;
    }
    if (!widths[top.id]) {
      drawing.replaceChildren(el("p", { class: "empty" }, `Nothing here: ${shown(top)}.`));
      drawing.style.setProperty("--levels", 2);
      return;
    }
    place(top, 0, 0, 1);
    if (!boxes.has(focused)) {
      focused = top;
      boxes.get(top).tabIndex = 0;
    }
    drawing.style.setProperty("--levels", levels);
    drawing.replaceChildren(...parts);
  };

  const drawTrail = () => {
    const above = [];
    for (let node = top; node; node = TREE.nodes[node.parent]) above.unshift(node);
    trail.replaceChildren(
      ...above.flatMap((node, index) => [
        index ? el("span", { "aria-hidden": "true" }, "›") : "",
        node === top
          ? el("span", { "aria-current": "true" }, node.label)
          : el("button", { type: "button", on: { click: () => zoom(node) } }, node.label),
      ]).filter((part) => part),
    );
  };

  const zoom = (node) => {
    top = node.children.some((child) => widths[child.id] > 0) ? node : TREE.nodes[node.parent] || node;
    focused = node;
    drawTrail();
    draw();
    describe(node);
    if (boxes.has(node)) boxes.get(node).focus();
  };

  const step = (node, by) => {
    if (node.parent < 0) return node;
    const beside = TREE.nodes[node.parent].children.filter((child) => boxes.has(child));
    return beside[beside.indexOf(node) + by] || node;
  };
  const MOVES = {
    ArrowUp: (node) => (node === top ? node : TREE.nodes[node.parent]),
    ArrowDown: (node) => node.children.find((child) => boxes.has(child)) || node,
    ArrowLeft: (node) => (node === top ? node : step(node, -1)),
    ArrowRight: (node) => (node === top ? node : step(node, 1)),
    Home: () => top,
  };
  drawing.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") zoom(focused);
    else if (event.key === "Escape" || event.key === "Backspace") zoom(TREE.nodes[top.parent] || top);
    else if (MOVES[event.key]) {
      const there = MOVES[event.key](focused);
      boxes.get(focused).tabIndex = -1;
      boxes.get(there).tabIndex = 0;
      boxes.get(there).focus();
    } else return;
    event.preventDefault();
  });

  const drawLegend = () => {
    if (IS_DIFF) {
      legend.replaceChildren(
        ...[["more", "more than before"], ["less", "less than before"], ["same", "the same"]].map(([name, label]) =>
          el("span", { class: "key" }, el("i", { class: `swatch ${name}` }), label)),
        el("span", { class: "note" }, "as wide as the larger of both; the deeper the colour, the larger the change"),
      );
      return;
    }
    legend.replaceChildren(
      ...tones.named().map(([type, tone]) => el("span", { class: "key" }, el("i", { class: "swatch", "data-tone": tone }), type)),
      el("span", { class: "key" }, el("i", { class: "swatch", "data-tone": "op" }), "operator"),
    );
  };

  const update = () => {
    weigh();
    tones.settle();
    if (!widths[top.id]) top = TREE.root;
    drawTrail();
    draw();
    drawLegend();
    describe(focused);
  };

  const help = "Click a module to look inside it. With the keyboard: arrow keys move, Enter looks inside, Escape goes back out.";
  return { element: section("modules", "Modules", tools, trail, drawing, detail, legend, el("p", { class: "note screen" }, help)), update };
};
