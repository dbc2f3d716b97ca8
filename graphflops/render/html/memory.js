// Live activation memory over the program: a curve to walk along, and what is held at the place reached.

const LISTED = 6;
const KINDS = {
  input: "input of the program", value: "", saved: "kept for a gradient", workspace: "workspace", nested: "peak of a nested graph",
  gradient: "gradient",
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
    const call = entry(last, memoryOf.calls[here]);
    const back = memoryOf.gradients_from !== null && here >= memoryOf.gradients_from;
    slider.value = here;
    slider.setAttribute("aria-valuetext", `${call.node || call.op}, ${memory(line.live[here])}`);
    cursor.setAttribute("x1", frame.x(here));
    cursor.setAttribute("x2", frame.x(here));
    detail.replaceChildren(
      el("strong", {}, memory(line.live[here])),
      here === line.peak ? el("span", { class: "tag" }, "peak") : "",
      el("span", {}, `${back ? "gradient of " : ""}${call.node || call.op}`),
      el("span", { class: "type" }, call.op),
      el("span", {}, placeOf(last, memoryOf.calls[here])),
    );
    const all = heldAt(last, here);
    const rest = all.slice(LISTED);
    const rows = all.slice(0, LISTED).map((one) => {
      const maker = one.kind === "input" ? "" : entry(last, one.call);
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
    const most = lines.reduce((top, line) => (line && line.live.length && line.live[line.peak] > top ? line.live[line.peak] : top), 1n);
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
    : null;
  return {
    element: section("memory", "Memory", drawing, el("div", { class: "tools" }, slider, peakButton), legend, detail, held, el("p", { class: "note" }, "Activations by liveness in program order; parameters and buffers come on top.")),
    update,
  };
};
