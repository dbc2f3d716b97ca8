// The picture of the graph: boxes open where they stand. All positions come with the page; here, room is only made for
// what is open: whatever is right of it or below moves on.

const PICTURE = document.getElementById("picture");

const pictured = () => {
  const svg = PICTURE.querySelector("svg");
  const canvas = PICTURE.querySelector(".canvas");
  const detail = el("div", { class: "detail", "aria-live": "polite" });
  const found = el("span", { class: "note", role: "status" });
  const query = el("input", { type: "search", placeholder: "Find a module or an operator", "aria-label": "Find in the graph" });
  const numbers = (text) => text.match(/-?[\d.]+(e[-+]?\d+)?/g).map(Number);
  const placed = (box) => numbers(box.getAttribute("transform"));
  const opened = new Set();
  let [scale, chosen, whole] = [0, null, null];

  // Sheets by number: size, boxes and lines; the number of the box that a sheet is in.
  const read = (group) => {
    const boxes = [...group.children].filter((one) => one.matches(".node")).map((element) => {
      const [x, top] = placed(element);
      const [width, height] = numbers(element.dataset.size);
      return { element, x, width, height, y: Math.round(10 * (top + height / 2)) / 10, holds: element.dataset.sheet, text: element.querySelector("title").textContent.toLowerCase() };
    });
    const lines = [...group.querySelector(".lines").children].map((element) => {
      const points = [];
      for (const [, letter, rest] of element.getAttribute("d").matchAll(/([MVC])([^MVC]+)/g)) {
        const given = numbers(rest);
        points.push(letter === "V" ? [points[points.length - 1][0], given[0]] : given.slice(-2));
      }
      return { element, points, ends: numbers(element.dataset.ends) };
    });
    return { group, boxes, lines, size: numbers(group.dataset.size) };
  };
  const sheets = { "": read(svg.querySelector(".sheet")) };
  PICTURE.querySelectorAll("template").forEach((one) => { sheets[one.dataset.sheet] = read(one.content.querySelector(".sheet")); });
  const around = {};
  for (const [number, sheet] of Object.entries(sheets)) for (const box of sheet.boxes) if (box.holds) around[box.holds] = number;

  // Places with room for growth: by the middle of what grows, the most that it does.
  const shifted = (growths) => {
    const most = new Map();
    for (const [at, by] of growths) most.set(at, Math.max(most.get(at) ?? 0, by));
    const steps = [...most];
    return (at) => steps.reduce((sum, [middle, by]) => sum + (at > middle ? by : at === middle ? by / 2 : 0), at);
  };
  const resized = (box, width, height) => {
    for (const one of box.element.children) {
      if (one.matches(".ground, .heat, .hatched, .many")) one.setAttribute("width", width);
      if (one.matches("rect")) {
        one.setAttribute("x", -width / 2 + (one.matches(".many") ? 4 : 0));
        one.setAttribute("height", height);
      } else if (one.matches(".sign")) {
        one.setAttribute("x", width / 2 - 9);
        one.textContent = height === box.height ? "+" : "−";
      } else if (one.matches(".out")) one.setAttribute("y", height + 13);
      else if (one.matches(".seal")) one.setAttribute("transform", `translate(${11 - width / 2} ${box.height / 2})`);
      else if (one.matches(".sheet")) one.remove();
    }
  };
  const draw = (sheet) => {
    const sizes = sheet.boxes.map((box) => {
      const isOpen = opened.has(box.holds);
      const [wide, high] = isOpen ? draw(sheets[box.holds]) : [0, 0];
      const [width, height] = isOpen ? [Math.max(box.width, wide + 24), box.height + high + 10] : [box.width, box.height];
      resized(box, width, height);
      box.element.classList.toggle("is-open", isOpen);
      if (box.holds) box.element.setAttribute("aria-expanded", isOpen);
      if (isOpen) {
        sheets[box.holds].group.setAttribute("transform", `translate(${-wide / 2} ${box.height})`);
        box.element.append(sheets[box.holds].group);
      }
      return [width, height];
    });
    const layers = new Map();
    for (const box of sheet.boxes) layers.set(box.y, Math.max(layers.get(box.y) ?? 0, box.height));
    const across = shifted(sheet.boxes.map((box, index) => [box.x, sizes[index][0] - box.width]));
    const down = shifted(sheet.boxes.map((box, index) => [box.y, Math.max(0, sizes[index][1] - layers.get(box.y))]));
    sheet.boxes.forEach((box, index) => box.element.setAttribute("transform", `translate(${across(box.x)} ${down(box.y) - sizes[index][1] / 2})`));
    for (const { element, points, ends } of sheet.lines) {
      const [from, to] = ends.map((end) => sheet.boxes[end]);
      const side = from.y > to.y ? -1 : 1;
      const moved = points.map(([x, y]) => [across(x), down(y)]);
      const last = moved.length - 1;
      const fix = (at, near, box, end, half) => {
        moved[at] = [across(box.x) + points[at][0] - box.x, down(box.y) + half * sizes[ends[end]][1] / 2];
        moved[near][0] = moved[at][0];
      };
      fix(0, 1, from, 0, side);
      fix(last, last - 1, to, 1, -side);
      element.setAttribute("d", moved.reduce((text, [x, y], index) => {
        if (!index) return `M${x} ${y}`;
        const [before, above] = moved[index - 1];
        return `${text}${index % 2 || x === before ? `V${y}` : `C${before} ${(above + y) / 2} ${x} ${(above + y) / 2} ${x} ${y}`}`;
      }, ""));
    }
    return [across(sheet.size[0]), down(sheet.size[1])];
  };
  const zoom = (to) => {
    scale = Math.min(Math.max(to, 0.1), 4);
    svg.setAttribute("width", whole[0] * scale);
    svg.setAttribute("height", whole[1] * scale);
  };
  const fit = (least) => zoom(Math.max(least, Math.min(1, (canvas.clientWidth - 26) / whole[0])));
  const update = () => {
    whole = draw(sheets[""]).map((side) => side + 16);
    svg.setAttribute("viewBox", `-8 -8 ${whole[0]} ${whole[1]}`);
    zoom(scale || 1);
  };
  const choose = (element, isMoved) => {
    chosen?.setAttribute("tabindex", -1);
    chosen = element;
    chosen.setAttribute("tabindex", 0);
    detail.replaceChildren(...chosen.querySelector("title").textContent.split("\n").map((line) => el("span", {}, line)));
    if (!isMoved) return;
    chosen.focus({ preventScroll: true });
    (chosen.querySelector(".label") ?? chosen).scrollIntoView({ block: "center", inline: "center" });
  };
  const toggle = (element) => {
    if (!opened.delete(element.dataset.sheet)) opened.add(element.dataset.sheet);
    const before = element.getBoundingClientRect();
    update();
    const after = element.getBoundingClientRect(); // what was clicked stays under the pointer
    canvas.scrollBy((after.left + after.right - before.left - before.right) / 2, after.top - before.top);
    choose(element, false);
    element.focus({ preventScroll: true });
  };

  let matches = [];
  const search = () => {
    // Equal layers are one box, under the numbers of the first: `layers.7.mlp` is found there, too.
    const words = query.value.trim().toLowerCase();
    const every = Object.entries(sheets).flatMap(([number, sheet]) => sheet.boxes.map((box) => ({ ...box, number })));
    const loose = (text) => text.replace(/\d+/g, "#");
    matches = words ? every.filter((box) => box.text.includes(words)) : [];
    if (words && !matches.length) matches = every.filter((box) => loose(box.text).includes(loose(words)));
    every.forEach((box) => box.element.classList.toggle("found", matches.some((one) => one.element === box.element)));
    found.textContent = words ? `${matches.length} found${matches.length > 1 ? ", Enter shows the next" : ""}` : "";
  };
  const next = () => {
    if (!matches.length) return;
    matches.push(matches.shift());
    const { element, number } = matches[matches.length - 1];
    for (let inside = number; inside; inside = around[inside]) opened.add(inside);
    update();
    choose(element, true);
    query.focus();
  };
  const step = (key) => {
    const middle = (one) => { const r = one.getBoundingClientRect(); return [(r.left + r.right) / 2, (r.top + r.bottom) / 2]; };
    const [x, y] = middle(chosen.querySelector(".label"));
    const [right, down] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key];
    let [best, least] = [null, Infinity];
    svg.querySelectorAll(".node").forEach((box) => {
      const [otherX, otherY] = middle(box.querySelector(".label"));
      const [along, aside] = [(otherX - x) * right + (otherY - y) * down, Math.abs((otherX - x) * down) + Math.abs((otherY - y) * right)];
      if (along > 4 && along + 2 * aside < least) [best, least] = [box, along + 2 * aside];
    });
    if (best) choose(best, true);
  };

  canvas.addEventListener("click", (event) => {
    const box = event.target.closest(".node");
    if (box?.dataset.sheet) toggle(box);
    else if (box) choose(box, false);
  });
  canvas.addEventListener("keydown", (event) => {
    const box = event.target.closest(".node");
    const act = { "+": () => zoom(scale * 1.25), "-": () => zoom(scale / 1.25), 0: () => fit(0), "/": () => query.focus() }[event.key];
    if (act) act();
    else if (box && event.key.startsWith("Arrow")) step(event.key);
    else if (box?.dataset.sheet && (event.key === "Enter" || event.key === " ")) toggle(box);
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(scale * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
  }, { passive: false });
  query.addEventListener("input", search);
  query.addEventListener("keydown", (event) => { if (event.key === "Enter") next(); });
  const button = (label, text, act) => el("button", { type: "button", "aria-label": label, on: { click: act } }, text);
  canvas.before(el("div", { class: "tools" }, query, found, el("span", {}, button("Smaller", "−", () => zoom(scale / 1.25)), " ", button("Larger", "+", () => zoom(scale * 1.25)), " ", button("Fit to the width", "fit", () => fit(0)), " ", button("Close all boxes", "close all", () => { opened.clear(); update(); }))), detail);
  update();
  choose(sheets[""].boxes[0].element, false);
  fit(0.7);
};

if (PICTURE?.querySelector(".node")) pictured();
