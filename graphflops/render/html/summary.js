// Totals: one tile for each thing that a program costs.

const TOTALS = [QUANTITIES[0], "macs", ...QUANTITIES.slice(1), "peak"];

const phaseOf = (side, phase) => {
  const found = SIDES[side].totals.find(([name]) => name === phase);
  if (!found) return null;
  const totals = { formulas: {} };
  TOTALS.forEach((quantity, index) => {
    totals[quantity] = valueOf(side, found[index + 1]);
    totals.formulas[quantity] = DATA.pretty[found[index + 1]] || "";
  });
  return totals;
};

const tile = (label, values, text, ...notes) => {
  const shown = values.map((value, side) => (value === null ? "?" : text(value, side)));
  const figure = IS_DIFF
    ? [el("span", { class: "old" }, shown[0]), el("span", { class: "arrow" }, " → "), el("span", { class: "now" }, shown[1])]
    : shown[0];
  const moved = IS_DIFF ? change(...values) : "";
  const direction = !IS_DIFF || values.includes(null) || values[0] === values[1] ? "" : values[0] < values[1] ? "more" : "less";
  return el(
    "div",
    { class: "tile" },
    el("dt", {}, label),
    el("dd", { class: "figure" }, figure),
    IS_DIFF ? el("dd", { class: `change ${direction}` }, moved) : null,
    notes.filter((note) => note).map((note) => el("dd", { class: note.class || "note" }, note.text || note)),
  );
};

// Time and memory on the device, at the sizes of the report.
const deviceTiles = (phase) => {
  const sides = SIDES.map(({ device }) => device);
  const now = sides[sides.length - 1];
  const times = sides.map((device) => device.times[phase]);
  if (!times.every((time) => time) || !timesHold) return [];
  const [time] = times.slice(-1);
  const [, low, high] = time.ends.map(BigInt);
  const names = { forward: "time", step: "time of a training step" };
  const bytes = sides.map((device) => device.bytes);
  return [
    tile(names[phase], times.map(({ ends }) => BigInt(ends[0])), (value, side) => `${times[side].is_lower_bound ? ">= " : ""}${duration(value)}`,
      high ? `${duration(low)} to ${duration(high)}` : "", `on ${now.name}, ${now.execution}`, time.limited_by ? `limited by ${time.limited_by}` : "",
      ...(phase === "step" || !now.times.step ? now.rates : [])),
    bytes.every((count) => count !== null)
      ? tile("memory on the device", bytes.map(BigInt), (value, side) => `${SIDES[side].coverage[3] ? ">= " : ""}${memory(value)}`, `of ${now.name}, with what the allocator reserves and the driver`)
      : null,
  ];
};

const tiles = () => {
  const last = SIDES.length - 1;
  const phases = BOTH.map((side) => phaseOf(side, "forward"));
  const steps = BOTH.map((side) => phaseOf(side, "step"));
  const now = phases[last];
  const side = SIDES[last];
  const least = BOTH.map((one) => (SIDES[one].coverage[3] ? ">= " : ""));
  const bounded = (text) => (value, side) => `${least[side]}${text(value)}`;
  const moved = phases.map((phase) => sum(phase.read, phase.written));
  const types = new Set(side.calls.dtype.map(nameAt).filter((name) => name));
  const only = types.size === 1 ? `, ${[...types][0]}` : "";
  const visible = now.masked && now.flops !== null ? `${bounded(number)(now.masked, last)} skippable by masks` : "";
  const held = BOTH.map((one) => SIDES[one].held.map((formula) => valueOf(one, formula)));
  const peaks = BOTH.map((one) => (steps[one] || phases[one]).peak);
  const ratio = least[last] ? "" : intensity(now.flops, moved[last]);
  const [nodes, counted, free, unknown] = side.coverage;
  return el(
    "dl",
    { class: IS_DIFF ? "tiles diff" : "tiles" },
    tile(
      steps[last] ? "forward FLOPs" : "FLOPs",
      phases.map((phase) => phase.flops),
      bounded(number),
      `${bounded(number)(now.macs, last)} MACs${only}`,
      visible,
    ),
    steps[last]
      ? tile("FLOPs of a training step", BOTH.map((one) => (steps[one] ? steps[one].flops : null)), bounded(number),
          `${bounded(number)(phaseOf(last, "backward").flops, last)} backward`, `${number(phaseOf(last, "optimizer").vector)} vector in the optimizer`)
      : null,
    tile("elementwise", phases.map((phase) => phase.vector), bounded(number), "vector FLOPs", `${bounded(number)(now.transcendentals, last)} transcendentals`),
    tile(
      "bytes moved",
      moved,
      bounded(memory),
      `${bounded(memory)(now.read, last)} read, ${bounded(memory)(now.written, last)} written`,
      ratio ? `${ratio} FLOP/B` : "",
    ),
    OTHERS.filter(([name]) => phases.some((phase) => phase[name] !== 0n)).map(([name, label, unit]) =>
      tile(label, phases.map((phase) => phase[name]), bounded(unit === "B" ? memory : number))),
    tile(
      steps[last] ? "peak memory of a training step" : "peak memory",
      peaks,
      bounded(memory),
      `activations; beside ${memory(held[last][1])} parameters${held[last][2] ? ` and ${memory(held[last][2])} buffers` : ""}`,
    ),
    TIMED ? deviceTiles(steps[last] ? "step" : "forward") : null,
    tile("parameters", held.map((one) => one[0]), parameters, memory(held[last][1])),
    tile(
      "nodes",
      BOTH.map((one) => BigInt(SIDES[one].coverage[0])),
      number,
      `${grouped(String(counted))} counted, ${grouped(String(free))} free`,
      unknown
        ? { class: "unknown", text: `${plural(unknown, "node")} unknown, in no total: ${side.unknown_ops.slice(0, 8).map(([op, n]) => (n > 1 ? `${op} (x${n})` : op)).join(", ")}` }
        : "none unknown",
    ),
  );
};

// The totals as formulas, and where the peak is: folded, for who looks for them.
const formulas = () => {
  if (IS_DIFF) return null;
  const [side] = SIDES;
  const step = phaseOf(0, "step");
  const lines = DATA.quantities.map(([name, label]) => [label, phaseOf(0, "forward").formulas[SHORT[name] || name]]);
  if (step) lines.push(["FLOPs of a training step", step.formulas.flops]);
  lines.push(["peak memory", (step || phaseOf(0, "forward")).formulas.peak]);
  const known = lines.filter(([, formula]) => formula);
  if (!known.length) return null;
  return el(
    "details",
    { id: "formulas" },
    el("summary", {}, "Totals as formulas"),
    el("dl", {}, known.map(([label, formula]) => [el("dt", {}, label), el("dd", { class: "formula" }, formula)])),
    side.peak_at ? el("p", { class: "note" }, `The peak of memory is at ${side.peak_at}.`) : null,
  );
};

const placeOf = (side, index) => {
  const { module, node, source } = entry(side, index);
  const place = module || node;
  return source ? `${place} (${source})` : place;
};
