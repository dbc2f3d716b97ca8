// The page: a heading, totals, then one section for each question.

const heading = () => {
  const programs = SIDES.map((side, index) =>
    el(
      "div",
      { class: "program" },
      IS_DIFF ? el("span", { class: "which" }, SIDE_NAMES[index]) : null,
      el(IS_DIFF ? "strong" : "h1", {}, DATA.titles[index]),
      el("span", { class: "headline" }, side.headline),
    ));
  return el("header", {}, IS_DIFF ? el("h1", {}, "What changed") : null, programs);
};

// What is said first holds at the sizes that the page opened with.
const leadLines = () => {
  const element = el("div", { class: "lead" }, DATA.lead.map((line) => el("p", {}, line)));
  return { element, update: () => { element.hidden = !atInitial(); } };
};

const phases = () => {
  const side = SIDES[SIDES.length - 1];
  if (side.totals.length < 2) return null;
  const least = side.coverage[3] ? ">= " : "";
  const heads = ["phase", "FLOPs", "vector", "transcendental", "read", "written", "peak memory", ...(TIMED ? ["time"] : [])];
  const row = ([name]) => {
    const totals = phaseOf(SIDES.length - 1, name);
    const known = name === "optimizer" ? "" : least; // what an optimizer does follows from the parameters alone
    const figures = ["flops", "vector", "transcendentals"].map((quantity) => `${known}${number(totals[quantity])}`);
    const moved = [totals.read, totals.written, totals.peak].map((bytes, index) => (index === 2 && bytes === 0n ? "" : `${known}${memory(bytes)}`));
    const time = side.device?.times[name];
    const took = TIMED ? [time && timesHold ? `${time.is_lower_bound ? ">= " : ""}${duration(BigInt(time.ends[0]))}` : "?"] : [];
    return el("tr", {}, el("td", { class: "name" }, name), [...figures, ...moved, ...took].map((text) => el("td", { class: "figure" }, text)));
  };
  return el(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": "Phases of a training step" },
    el("table", {}, el("thead", {}, el("tr", {}, heads.map((head, index) => el("th", { scope: "col", class: index ? "figure" : "name" }, head)))), el("tbody", {}, side.totals.map(row))),
  );
};

const diagnostics = () => {
  const found = SIDES.flatMap((side, index) => side.diagnostics.map((text) => (IS_DIFF ? `${SIDE_NAMES[index]}: ${text}` : text)));
  return found.length ? section("diagnostics", "What to know", el("ul", {}, found.map((text) => el("li", {}, text)))) : null;
};

const footer = () =>
  el(
    "footer",
    {},
    el("p", {}, `FLOPs: ${DATA.conventions.flops}. Bytes: ${DATA.conventions.bytes}.`),
    el("p", {}, `${document.querySelector("meta[name=generator]").content}; nothing of the model was run. This page asks nothing of any network.`),
  );

const start = () => {
  const totals = el("div", { id: "totals" });
  sizes = fromAddress();
  const parts = [icicle(), operatorTable(), roofline(), memoryCurve(), leadLines(), IS_DIFF ? changesTable() : moduleTable()];
  const [modules, operators, roof, live, lead, listed] = parts;
  if (!IS_DIFF) modules.element.append(listed.element);
  let waiting = 0;
  const update = () => {
    recalculate();
    const tables = phases();
    totals.replaceChildren(tiles(), ...(tables ? [tables] : []));
    parts.forEach((part) => part.update());
  };
  // Typing and dragging ask for more updates than a screen can show.
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(update);
  };
  document.getElementById("page").append(
    ...[heading(), lead.element, totals, document.querySelector("#sweep, #serving"), formulas(), sizesPanel(soon), diagnostics(), modules.element, IS_DIFF ? listed.element : null, PICTURE, el("div", { class: "pair" }, roof.element, live.element), operators.element, footer()].filter((part) => part),
  );
  update();
  let wide = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== wide) soon();
    wide = innerWidth;
  });
};

start();
