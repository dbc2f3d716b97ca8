// Live activation memory over the program: a curve to walk along, and what is held at the place reached.

const LISTED = 6;
const KINDS = {
  input: "input of the program", value: "", saved: "kept for a gradient", workspace: "temporary", nested: "peak of a nested graph",
  gradient: "gradient", weight: "", buffer: "", optimizer: "", temporary: "", library: "workspace of a library",
};

const memoryCurve = () => {
  const drawing = el("div", { class: "chart" });
  const detail = el("div", { class: "detail", role: "status" });
  const held = el("table", { class: "held" });
  const slider = el("input", { type: "range", min: 0, step: 1, "aria-label": "Place in the program" });
  const peakButton = el("button", { type: "button", on: { click: () => go(null) } }, "Go to the peak");
  const last = SIDES.length - 1;
  let moment = null; // null: wherever the peak is
  let cursor = null;
  let frame = null;

  const go = (value) => {
    moment = value;
    if (timeline(last)) show();
  };
  slider.addEventListener("input", () => go(Number(slider.value)));

  const at = () => (moment === null ? timeline(last).peak : Math.min(moment, timeline(last).live.length - 1));

  const show = () => {
    const line = timeline(last);
    const here = at();
    const memoryOf = SIDES[last].memory;
    const index = memoryOf.calls[here];
    const call = index === null ? { node: "the optimizer's step", op: "", module: "" } : entry(last, index);
    const back = index !== null && memoryOf.gradients_from !== null && here >= memoryOf.gradients_from;
    slider.value = here;
    slider.setAttribute("aria-valuetext", `${call.node || call.op}, ${memory(line.live[here])}`);
    cursor.setAttribute("x1", frame.x(here));
    cursor.setAttribute("x2", frame.x(here));
    detail.replaceChildren(
      el("strong", {}, memory(line.live[here])),
      here === line.peak ? el("span", { class: "tag" }, "peak") : "",
      el("span", {}, `${back ? "gradient of " : ""}${call.node || call.op}`),
      el("span", { class: "type" }, call.op),
      el("span", {}, index === null ? "" : placeOf(last, index)),
    );
    const all = heldAt(last, here);
    const rest = all.slice(LISTED);
    const rows = all.slice(0, LISTED).map((one) => {
      const maker = one.kind === "input" || LASTING.includes(one.kind) ? "" : entry(last, one.call);
      const origin = [KINDS[one.kind] || (maker ? maker.op : ""), maker ? maker.module : ""].filter((part) => part);
      return [one.name, origin.join(" · "), memory(one.bytes)];
    });
    if (rest.length) rows.push([`${plural(rest.length, "other")}`, "", memory(rest.reduce((total, one) => total + one.bytes, 0n))]);
    held.replaceChildren(
      el("caption", {}, "held here"),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, index) => el("td", { class: index === 2 ? "figure" : "name" }, cell))))),
    );
  };

  const draw = () => {
    const lines = BOTH.map(timeline);
    const [wide, high] = [drawingWidth(drawing), 300];
    const [left, right, above, below] = [72, 12, 18, 28];
    const segments = BOTH.map(segmentsOf);
    const tops = lines.map((line) => (line && line.live.length ? line.live[line.peak] : 1n));
    const most = [...tops, ...segments.flat().map(([, size]) => BigInt(size))].reduce((top, size) => (size > top ? size : top), 1n);
    const y = (bytes) => high - below - (Number(bytes) / Number(most)) * (high - above - below);
    const across = (count) => (step) => left + ((step + 0.5) / count) * (wide - left - right);
    const picture = drawn("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "Live activation memory along the program" });
    const grid = drawn("g", { class: "grid" });
    for (const part of [0n, 1n, 2n, 3n, 4n]) {
      const bytes = (most * part) / 4n;
      grid.append(drawn("line", { x1: left, x2: wide - right, y1: y(bytes), y2: y(bytes) }), drawn("text", { x: left - 6, y: y(bytes) + 4, "text-anchor": "end" }, memory(bytes)));
    }
    grid.append(drawn("text", { x: left, y: high - 8, class: "axis" }, "first call"), drawn("text", { x: wide - right, y: high - 8, "text-anchor": "end", class: "axis" }, "last"));
    picture.append(grid);
    lines.forEach((line, side) => {
      if (!line || !line.live.length) return;
      const x = across(line.live.length);
      const half = (wide - left - right) / line.live.length / 2;
      if (line.stack && !IS_DIFF) {
        picture.append(...areas(line, x, y, left, wide - right));
        if (segments[side].length) picture.append(drawn("path", { class: "segments", d: stairs(segments[side], line.live.length, x, y) }));
        return;
      }
      // At most two points for each half pixel: the least and the most that is alive there.
      const bins = Math.min(line.live.length, 2 * wide);
      let path = `M${left},${y(0n)}`;
      for (let bin = 0; bin < bins; bin += 1) {
        const from = Math.floor((bin * line.live.length) / bins);
        const to = Math.floor(((bin + 1) * line.live.length) / bins);
        const part = line.live.slice(from, to);
        const top = part.reduce((a, b) => (a > b ? a : b));
        path += `L${(x(from) - half).toFixed(1)},${y(top).toFixed(1)}H${(x(to - 1) + half).toFixed(1)}`;
      }
      path += `L${wide - right},${y(0n)}`;
      picture.append(drawn("path", { d: path, class: `curve ${IS_DIFF ? SIDE_NAMES[side] : ""}` }));
    });
    const line = lines[last];
    frame = { x: across(line.live.length) };
    const turn = SIDES[last].memory.gradients_from;
    if (turn !== null && turn < line.live.length) {
      picture.append(
        drawn("line", { class: "turn", x1: frame.x(turn - 0.5), x2: frame.x(turn - 0.5), y1: above, y2: high - below }),
        drawn("text", { class: "axis", x: frame.x(turn - 0.5) + 4, y: high - 8 }, "gradients"),
      );
    }
    cursor = drawn("line", { class: "cursor", y1: above - 6, y2: high - below });
    const peak = drawn("circle", { class: "peak", cx: frame.x(line.peak), cy: y(line.live[line.peak]), r: 3.5 });
    picture.append(cursor, peak);
    picture.addEventListener("pointermove", (event) => {
      const bounds = picture.getBoundingClientRect();
      const place = ((event.clientX - bounds.left) / bounds.width) * wide;
      const share = (place - left) / (wide - left - right);
      if (share >= 0 && share < 1) go(Math.floor(share * line.live.length));
    });
    slider.max = line.live.length - 1;
    drawing.replaceChildren(picture);
  };

  // What the allocator takes from the device is known for the sizes of the analysis only.
  const segmentsOf = (side) => {
    const { memory: held } = SIDES[side];
    const line = timeline(side);
    if (!line || !held || !held.device || !line.live.length) return [];
    return held.device.peak === String(line.live[line.peak]) ? held.device.segments : [];
  };

  const areas = (line, x, y, start, end) => {
    const count = line.live.length;
    const bins = Math.min(count, 2 * (end - start));
    const tops = [];
    for (let bin = 0; bin < bins; bin += 1) {
      const from = Math.floor((bin * count) / bins);
      const to = Math.floor(((bin + 1) * count) / bins);
      let top = from;
      for (let moment = from; moment < to; moment += 1) if (line.live[moment] > line.live[top]) top = moment;
      tops.push([from, to - 1, top]);
    }
    const half = (end - start) / count / 2;
    const edge = (sums) => tops.map(([from, to, top]) => [x(from) - half, x(to) + half, y(BigInt(Math.round(sums ? sums[top] : 0)))]);
    return line.stack.map((sums, group) => {
      const upper = edge(sums);
      const lower = edge(group ? line.stack[group - 1] : null).reverse();
      const points = upper.flatMap(([a, b, h]) => [[a, h], [b, h]]).concat(lower.flatMap(([a, b, h]) => [[b, h], [a, h]]));
      return drawn("path", { class: `stack s${group}`, d: `M${points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L")}Z` });
    });
  };

  const stairs = (steps, count, x, y) => steps.map(([moment, size], index) => {
    const until = index + 1 < steps.length ? steps[index + 1][0] : count;
    return `${index ? "L" : "M"}${x(moment - 0.5).toFixed(1)},${y(BigInt(size)).toFixed(1)}H${x(until - 0.5).toFixed(1)}`;
  }).join("");

  const update = () => {
    const ready = timeline(last) && timeline(last).live.length > 0;
    for (const part of [detail, held, slider, peakButton]) part.hidden = !ready;
    if (!ready) {
      drawing.replaceChildren(el("p", { class: "empty" }, SIDES[last].memory ? "Some size has no value: give one above to see this." : "This report does not hold when memory is held: analyze the model again."));
      return;
    }
    draw();
    show();
  };

  const legend = IS_DIFF
    ? el("div", { class: "legend" }, SIDE_NAMES.map((name) => el("span", { class: "key" }, el("i", { class: `swatch line ${name}` }), name)))
    : SIDES[last].memory && SIDES[last].memory.device
      ? el("div", { class: "legend" }, GROUPS.map(([name], group) => el("span", { class: "key" }, el("i", { class: `swatch s${group}` }), name)), el("span", { class: "key" }, el("i", { class: "swatch line segments" }), "segments of the allocator"))
      : null;
  const device = SIDES[last].memory && SIDES[last].memory.device;
  const note = device ? `Memory of ${device.phase === "training" ? "a training step" : "inference"}${device.name ? ` on ${device.name}` : ""}; the driver's comes on top.` : "Activations by liveness in program order; parameters and buffers come on top.";
  return {
    element: section("memory", "Memory", drawing, el("div", { class: "tools" }, slider, peakButton), legend, detail, held, el("p", { class: "note" }, note)),
    update,
  };
};
