// The roofline: what a machine's peaks allow each operator, by its arithmetic intensity.

const SHOWN_POINTS = 300;

// The peak for matrix work in an element type, null where the vendor publishes none.
const matrixPeak = (device, dtype) => {
  const family = /^float8/.test(dtype) ? "float8" : /^u?int8$/.test(dtype) ? "int8" : { complex64: "float32", complex128: "float64" }[dtype] || dtype;
  return device.matrix[family] || null;
};

const roofline = () => {
  const named = SIDES[SIDES.length - 1].device?.name;
  let device = DEVICES.find(({ name }) => name === named) || DEVICES[0];
  let unsized = false; // whether some call's size has no value
  const about = el("p", { class: "note" });
  const drawing = el("div", { class: "chart" });
  const detail = el("div", { class: "detail", role: "status" });
  let focused = 0; // of the points by intensity, the one that the Tab key reaches; arrow keys move to the others
  const sentence = el("p", { class: "sentence", role: "status" });
  const select = el("select", { id: "device" }, DEVICES.map((one, index) => el("option", { value: index, selected: one === device }, one.name)));
  select.addEventListener("change", () => {
    device = DEVICES[Number(select.value)];
    update();
  });

  // Equal calls as one point: work, traffic and the least time that they take together.
  const gather = (side) => {
    const found = new Map();
    for (const index of entriesOf[side]) {
      const { op, dtype, kind, calls, state } = entry(side, index);
      if (state !== "counted") continue;
      const key = `${op}\n${dtype}\n${kind}`;
      if (!found.has(key)) found.set(key, { side, op, dtype, cost: costOf(side, kind), calls: 0, entries: 0, places: new Set() });
      const point = found.get(key);
      point.calls += calls;
      point.entries += 1; // whose cost is that of one call, or of all of them where light calls share an entry
      point.places.add(entry(side, index).module);
    }
    const points = [...found.values()].map((point) => timed(point));
    unsized ||= points.includes(null);
    return points.filter((point) => point);
  };

  const timed = (point) => {
    const { flops, vector, bytes } = point.cost;
    if (flops === null || vector === null || bytes === null) return null;
    const matrix = flops > 0n;
    const work = Number(matrix ? flops : vector);
    const peak = matrix ? matrixPeak(device, point.dtype) : device.vector || null;
    const times = [Number(bytes) / device.bandwidth];
    if (matrix && peak) times.push(work / peak);
    if (device.vector) times.push(Number(vector) / device.vector);
    const least = Math.max(...times);
    return { ...point, matrix, work, moved: Number(bytes), peak, least: least * point.entries, bound: least === times[0] ? "memory" : "compute", unpublished: !peak && work > 0 };
  };

  const describe = (point) => {
    const where = [...point.places].filter((name) => name);
    const rate = point.work / (point.least / point.entries);
    detail.replaceChildren(
      el("strong", {}, point.op),
      IS_DIFF ? el("span", {}, SIDE_NAMES[point.side]) : "",
      point.calls > 1 ? el("span", {}, `${grouped(String(point.calls))} calls`) : "",
      el("span", { class: "type" }, where.length > 2 ? `${where[0]} and ${grouped(String(where.length - 1))} more modules` : where.join(", ")),
      el("span", {}, `${number(BigInt(point.work) * BigInt(point.entries))} ${point.matrix ? `FLOPs, ${point.dtype}` : "vector FLOPs"}`),
      el("span", {}, `${intensity(BigInt(point.work), BigInt(point.moved))} FLOP/B`),
      el("span", {}, point.unpublished ? "no published peak for this type" : `at most ${physical(rate, "FLOP/s")}, bound by ${point.bound}`),
      el("span", {}, `at least ${physical(point.least, "s")}`),
    );
  };

  const update = () => {
    unsized = false;
    const points = BOTH.map(gather);
    say(points);
    draw(points.flat());
    about.replaceChildren(
      `Published peaks, dense: ${physical(device.bandwidth, "B/s")} of memory bandwidth`,
      ...Object.entries(device.matrix).map(([dtype, peak]) => `, ${physical(peak, "FLOP/s")} ${dtype}`),
      device.vector ? `, ${physical(device.vector, "FLOP/s")} vector. ` : ". ",
      el("a", { href: device.source, rel: "noreferrer noopener" }, "Source"),
    );
    detail.replaceChildren(el("span", { class: "note screen" }, "Point at an operator for its numbers, or move through them with the arrow keys."));
  };

  const say = (points) => {
    const texts = BOTH.map((side) => {
      const total = points[side].reduce((time, point) => time + point.least, 0);
      const bound = points[side].filter((point) => point.bound === "memory").reduce((time, point) => time + point.least, 0);
      return { total, share: total ? (100 * bound) / total : 0 };
    });
    const lacking = [SIDES.some((side) => side.coverage[3]) ? " Unknown nodes come on top." : "", unsized ? " Calls whose size has no value come on top." : ""].join("");
    const [first, second] = texts;
    if (!texts.some(({ total }) => total)) sentence.textContent = "No work is known at these sizes.";
    else if (IS_DIFF) sentence.textContent = `At least ${physical(first.total, "s")} before, ${physical(second.total, "s")} after, each call at its roof; ${first.share.toFixed(0)} % and ${second.share.toFixed(0)} % of that bound by memory.${lacking}`;
    else sentence.textContent = `At least ${physical(first.total, "s")}, each call at its roof; ${first.share.toFixed(0)} % of that is bound by memory bandwidth.${lacking}`;
  };

  const draw = (all) => {
    const points = all.filter((point) => point.work > 0 && point.moved > 0 && point.peak).sort((a, b) => b.work * b.entries - a.work * a.entries).slice(0, SHOWN_POINTS);
    if (!points.length) {
      drawing.replaceChildren(el("p", { class: "empty" }, all.length ? "No operator has a published peak on this machine." : "Some size has no value: give one above to see this."));
      return;
    }
    const [wide, high] = [drawingWidth(drawing), 400];
    const [left, right, above, below] = [64, 16, 16, 44];
    const roofs = new Map();
    for (const point of points) roofs.set(point.matrix ? point.dtype : "vector", point.peak);
    const log = Math.log10;
    const ratios = points.map((point) => log(point.work / point.moved));
    const ridge = [...roofs.values()].map((peak) => log(peak / device.bandwidth));
    const x0 = Math.min(...ratios) - 0.4;
    const x1 = Math.max(...ratios, ...ridge) + 0.6;
    const y1 = log(Math.max(...roofs.values())) + 0.4;
    const y0 = log(device.bandwidth) + x0;
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (wide - left - right);
    const y = (value) => high - below - ((value - y0) / (y1 - y0)) * (high - above - below);
    const most = Math.max(...points.map((point) => point.work * point.entries));
    const picture = drawn("svg", { viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": `Roofline of ${device.name}` });
    const grid = drawn("g", { class: "grid" });
    for (let value = Math.ceil(x0); value <= x1; value += 1) {
      grid.append(drawn("line", { x1: x(value), x2: x(value), y1: above, y2: high - below }), drawn("text", { x: x(value), y: high - below + 16, "text-anchor": "middle" }, tick(value)));
    }
    for (let value = Math.ceil(y0); value <= y1; value += 1) {
      grid.append(drawn("line", { x1: left, x2: wide - right, y1: y(value), y2: y(value) }), drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, rate(value)));
    }
    grid.append(
      drawn("text", { x: (left + wide - right) / 2, y: high - 8, "text-anchor": "middle", class: "axis" }, "arithmetic intensity, FLOP/B"),
      drawn("text", { x: 12, y: (above + high - below) / 2, "text-anchor": "middle", class: "axis", transform: `rotate(-90 12 ${(above + high - below) / 2})` }, "attainable FLOP/s"),
    );
    picture.append(grid);
    const slope = log(device.bandwidth);
    const labels = [];
    const levels = new Map();
    for (const [name, peak] of roofs) levels.set(peak, [...(levels.get(peak) || []), name]);
    for (const [peak, names] of levels) {
      const corner = log(peak / device.bandwidth);
      const level = log(peak);
      picture.append(drawn("polyline", { class: "roof", points: `${x(x0)},${y(y0)} ${x(corner)},${y(level)} ${x(x1)},${y(level)}` }));
      labels.push(drawn("text", { class: "roof-name", x: wide - right - 4, y: y(level) - 6, "text-anchor": "end" }, `${names.join(", ")} ${physical(peak, "FLOP/s")}`));
    }
    const marks = [];
    const byIntensity = [...points].sort((a, b) => a.work / a.moved - b.work / b.moved);
    focused = Math.min(focused, points.length - 1);
    points.forEach((point) => {
      const place = byIntensity.indexOf(point);
      const across = log(point.work / point.moved);
      const up = Math.min(across + slope, log(point.peak));
      const size = 4 + 14 * Math.sqrt((point.work * point.entries) / most);
      marks[place] = drawn("circle", {
          cx: x(across), cy: y(up), r: size, tabindex: place === focused ? 0 : -1, role: "img",
          class: `point ${point.matrix ? "matrix" : "vector"} ${IS_DIFF ? SIDE_NAMES[point.side] : ""}`,
          "aria-label": `${point.op}: ${intensity(BigInt(point.work), BigInt(point.moved))} FLOP/B, bound by ${point.bound}`,
          on: {
            mouseenter: () => describe(point),
            focus: () => {
              marks[focused].setAttribute("tabindex", -1);
              focused = place;
              marks[place].setAttribute("tabindex", 0);
              describe(point);
            },
          },
        });
      picture.append(marks[place]);
    });
    const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -points.length, End: points.length };
    picture.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
      marks[Math.min(Math.max(focused + step, 0), marks.length - 1)].focus();
      event.preventDefault();
    });
    picture.append(...labels);
    drawing.replaceChildren(picture);
  };

  const tick = (power) => (power >= 0 && power < 4 ? grouped(String(10 ** power)) : power < 0 && power > -4 ? (10 ** power).toFixed(-power) : `1e${power}`);
  const rate = (power) => physical(10 ** power, "").replace(/(\d+)(\.\d+)? /, (_, digits) => `${digits} `).trim();

  const keys = IS_DIFF
    ? [["matrix before", "before"], ["matrix after", "after"]]
    : [["matrix", "matrix work"], ["vector", "elementwise"]];
  const legend = el("div", { class: "legend" }, keys.map(([name, label]) =>
    el("span", { class: "key" }, drawn("svg", { viewBox: "0 0 14 14", class: "mark", "aria-hidden": "true" }, drawn("circle", { cx: 7, cy: 7, r: 5, class: `point ${name}` })), label)),
    el("span", { class: "note" }, "as large as their FLOPs"));
  return {
    element: section("roofline", "Roofline", el("div", { class: "tools" }, el("label", { for: "device" }, "Machine ", select)), sentence, drawing, legend, detail, about),
    update,
  };
};
