// The table of operators, source lines or calls: searched as one types, sorted by any column.

const PAGE = 50; // lines shown at first, and added by each "more"

const GROUPINGS = {
  op: { label: "Operators", head: "operator", key: (one) => one.op, none: "(no operator)" },
  source: { label: "Source lines", head: "source line", key: (one) => one.source, none: "(no source line)" },
  call: { label: "Calls", head: "call", key: null, none: "" },
};

// Figures of a line: what it shows, how it is sorted. `of` takes the sums of one side.
const FIGURE_COLUMNS = [
  { id: "calls", head: "calls", of: (sums) => BigInt(sums.calls), text: (value) => grouped(String(value)) },
  ...(TRAINED
    ? [
        { id: "forward", head: "forward FLOPs", of: (sums) => sums.forward, text: number, known: true },
        { id: "backward", head: "backward FLOPs", of: (sums) => sums.backward, text: number, known: true },
      ]
    : [{ id: "flops", head: "FLOPs", of: (sums) => sums.flops, text: number, known: true }]),
  { id: "share", head: "%", share: true, of: (sums) => sums.flops, text: null },
  { id: "vector", head: "vector", of: (sums) => sums.vector, text: number, known: true },
  { id: "bytes", head: "bytes", of: (sums) => sums.bytes, text: memory, known: true },
  ...(TIMED ? [{ id: "time", head: "time", of: (sums) => sums.time, text: duration, known: true }] : []),
];

const operatorTable = () => {
  let grouping = "op";
  let sorted = TRAINED ? "forward" : "flops";
  if (IS_DIFF) sorted += "-change";
  let descending = true;
  let query = "";
  let limit = PAGE;
  let withIdle = false; // whether lines without cost are shown
  let lines = [];
  let whole = BOTH.map(() => 0n);

  const search = el("input", { type: "search", id: "search", placeholder: "operator, module, source line …", autocomplete: "off", spellcheck: "false" });
  const head = el("thead");
  const body = el("tbody");
  const count = el("p", { class: "note", role: "status" });
  const more = el("button", { type: "button", class: "more", on: { click: () => { limit += 4 * PAGE; draw(); } } }, "Show more");
  const idle = el("button", { type: "button", id: "without-cost", class: "more", on: { click: () => { withIdle = !withIdle; draw(); } } });
  const tools = el(
    "div",
    { class: "tools" },
    choice("Table of", Object.fromEntries(Object.entries(GROUPINGS).map(([key, { label }]) => [key, label])), grouping, (value) => {
      grouping = value;
      limit = PAGE;
      gather();
      draw();
    }),
    el("label", { class: "search", for: "search" }, "Search ", search),
  );
  search.addEventListener("input", () => {
    query = search.value.trim().toLowerCase();
    limit = PAGE;
    gather();
    draw();
  });

  const columns = () => {
    const names = [{ id: "name", head: GROUPINGS[grouping].head, name: true, get: (line) => line.name }];
    if (grouping === "call") {
      for (const [id, label] of [["op", "operator"], ["module", "module"], ["source", "source line"]]) {
        if (SIDES.some((side) => side.calls[id].some((index) => nameAt(index)))) names.push({ id, head: label, name: true, get: (line) => line.first[id] });
      }
    }
    const figures = FIGURE_COLUMNS.filter((column) => grouping !== "call" || column.id !== "calls");
    if (!IS_DIFF) return [...names, ...figures];
    const beside = (id) => {
      const column = figures.find((one) => one.id === id);
      return column
        ? [
            { ...column, side: 0, head: `${column.head} before`, id: `${id}-before` },
            { ...column, side: 1, head: "after", id: `${id}-after` },
            { ...column, head: "change", id: `${id}-change`, delta: true },
          ]
        : [];
    };
    const first = (all) => (isNarrow() ? [...all.filter(({ delta }) => delta), ...all.filter(({ delta }) => !delta)] : all);
    const alone = figures.find(({ id }) => id === "vector");
    const calls = figures.find(({ id }) => id === "calls");
    return [
      ...names,
      ...first([
      ...(calls ? [{ ...calls, head: "calls", id: "calls-change", both: true }] : []),
      ...["flops", "forward", "backward"].flatMap(beside),
      { ...alone, head: "vector change", id: "vector-change", delta: true },
      ...beside("bytes"),
      ...beside("time"),
      ]),
    ];
  };

  const matches = (one) => !query || `${one.op}\n${one.module}\n${one.source}\n${one.node}\n${one.dtype}`.toLowerCase().includes(query);

  const gather = () => {
    const found = new Map();
    whole = BOTH.map(() => 0n);
    for (const side of BOTH) {
      for (const index of entriesOf[side]) {
        const one = entry(side, index);
        const cost = costOf(side, one.kind);
        whole[side] = cost.unknown || cost.flops === null ? whole[side] : whole[side] + cost.flops;
        if (!matches(one)) continue;
        const { key, none } = GROUPINGS[grouping];
        const name = key ? key(one) || none : one.node || `${one.op} (x${grouped(String(one.calls))})`;
        const place = key ? name : one.node ? name : `${side}/${index}`;
        if (!found.has(place)) found.set(place, { name, first: one, sums: BOTH.map(() => ({ ...NOTHING })), sides: new Set() });
        const line = found.get(place);
        line.sides.add(side);
        added(line.sums[side], side, index);
      }
    }
    lines = [...found.values()];
  };

  const figureOf = (column, line) => {
    if (column.delta || column.both) {
      const [before, after] = BOTH.map((side) => column.of(line.sums[side]));
      return before === null || after === null ? null : after - before;
    }
    return column.of(line.sums[column.side || 0]);
  };
  const costsNothing = (line) => line.sums.every((sums) => !sums.unknown && FIGURES.every((figure) => sums[figure] === 0n));
  const lacking = (sums) => sums.unknown > 0;
  const nothingKnown = (sums) => sums.unknown > 0 && FIGURES.every((figure) => sums[figure] === 0n);

  const text = (column, line) => {
    if (column.both) {
      const [before, after] = line.sums.map((sums) => grouped(String(sums.calls)));
      return before === after ? after : `${before} → ${after}`;
    }
    if (column.delta) return change(...BOTH.map((side) => column.of(line.sums[side])));
    const sums = line.sums[column.side || 0];
    if (!sums.calls) return "";
    if (column.share) return nothingKnown(sums) ? "" : percent(sums.flops, whole[0]);
    if (!column.known) return column.text(column.of(sums));
    if (nothingKnown(sums)) return "unknown";
    return `${lacking(sums) ? ">= " : ""}${column.text(column.of(sums))}`;
  };

  const compare = (column) => (a, b) => {
    if (column.name) return column.get(a).localeCompare(column.get(b), "en", { numeric: true });
    const size = (line) => {
      const figure = figureOf(column, line);
      return (column.delta || column.both) && figure !== null && figure < 0n ? -figure : figure; // the larger change first
    };
    const [one, other] = [size(a), size(b)];
    if (one === other) return 0;
    if (one === null || other === null) return one === null ? -1 : 1;
    return one < other ? -1 : 1;
  };

  const order = (shown) => {
    const column = shown.find(({ id }) => id === sorted) || shown.find(({ name }) => !name);
    const by = compare(column);
    const ties = shown.filter(({ id }) => /^(bytes|vector)(-change)?$/.test(id)).map(compare);
    const sign = descending ? -1 : 1;
    const unknownFirst = (a, b) => Number(nothingKnown(b.sums[0])) - Number(nothingKnown(a.sums[0]));
    lines.sort((a, b) => sign * by(a, b) || (column.name ? 0 : unknownFirst(a, b) || -ties.reduce((found, tie) => found || tie(a, b), 0)));
    return column;
  };

  const draw = () => {
    const shown = columns();
    const by = order(shown);
    const worth = query ? lines : lines.filter((line) => !costsNothing(line));
    const rest = lines.length - worth.length;
    const listed = withIdle || !worth.length ? lines : worth;
    head.replaceChildren(
      el("tr", {}, shown.map((column) =>
        el(
          "th",
          { scope: "col", class: column.name ? "name" : "figure", "aria-sort": column === by ? (descending ? "descending" : "ascending") : null },
          el("button", { type: "button", "data-column": column.id, on: { click: () => sortBy(column) } }, column.head),
        ))),
    );
    body.replaceChildren(...listed.slice(0, limit).map((line) => row(line, shown)));
    more.hidden = listed.length <= limit;
    idle.hidden = !rest || !worth.length;
    const what = { op: "operator", source: "source line", call: "call" }[grouping];
    count.textContent = `${plural(lines.length, what)}${query ? ` with “${search.value.trim()}”` : ""}${listed.length > limit ? `, the first ${grouped(String(limit))} shown` : ""}`;
    idle.textContent = withIdle ? "Hide what costs nothing" : `Show ${plural(rest, what)} without cost`;
  };

  const row = (line, shown) => {
    const unknown = line.sums.some(lacking);
    return el("tr", { class: unknown ? "unknown" : null }, shown.map((column) => {
      if (column.name) return el("td", { class: "name" }, column.get(line));
      const written = text(column, line);
      const cell = el("td", { class: column.delta ? `figure ${direction(column, line)}` : "figure" }, written);
      if (/^0( B| s|\.0)?$/.test(written)) cell.classList.add("zero");
      if (column.share && written) {
        cell.classList.add("share");
        cell.style.setProperty("--share", Number(written.replace(/[<>]/, "")) / 100);
      }
      return cell;
    }));
  };

  const direction = (column, line) => {
    const moved = figureOf(column, line);
    return moved === null || moved === 0n ? "" : moved > 0n ? "more" : "less";
  };

  const sortBy = (column) => {
    descending = column.id === sorted ? !descending : !column.name;
    sorted = column.id;
    draw();
    head.querySelector(`[data-column="${column.id}"]`).focus();
  };

  const update = () => {
    gather();
    draw();
  };

  return {
    element: section("operators", "Operators and lines", tools, count, el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table of costs" }, el("table", {}, head, body)), more, idle),
    update,
  };
};
