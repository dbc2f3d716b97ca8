// The panel of sizes: what is typed there counts in every number of the page.

const GIVEN = { user: "given", hint: "from the export", assumption: "assumed", bound: "upper bound", none: "no value in the file" };

const spanOf = (low, high) => {
  if (low !== null && high !== null) return `${grouped(String(low))}..${grouped(String(high))}`;
  if (low !== null) return `at least ${grouped(String(low))}`;
  return high !== null ? `at most ${grouped(String(high))}` : "";
};

// Sizes that were typed stand in the address, so that a link shows what one saw: #ids[1]=4096&batch=8.
const fromAddress = () => {
  const typed = new URLSearchParams(location.hash.slice(1));
  const first = initial();
  return DATA.sizes.map((size, index) => {
    const text = size.open ? typed.get(size.shown) : null;
    const isSize = text !== null && /^\d{1,18}$/.test(text) && isTaken(size, BigInt(text));
    return isSize ? size.symbols.map((_, side) => (hasSide(size, side) ? sizeOf(size, BigInt(text)) : null)) : first[index];
  });
};

const toAddress = () => {
  const first = initial();
  const typed = new URLSearchParams();
  DATA.sizes.forEach((size, index) => {
    const [now, before] = [sizes[index], first[index]].map((values) => values.find((value) => value !== null) ?? null);
    if (now !== null && now !== before) typed.set(size.shown, String(typedAt(size, now)));
  });
  const hash = typed.toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
};

const sizesPanel = (changed) => {
  if (DATA.sizes.length === 0) return null;
  const rows = DATA.sizes.map((size, index) => (size.open ? sizeRow(size, index, changed) : fixedRow(size)));
  const open = DATA.sizes.some((size) => size.open);
  const reset = el("button", { type: "button", on: { click: () => reload() } }, "Reset");
  const show = (values) => {
    sizes = values;
    rows.forEach((row) => row.show());
    changed();
  };
  const reload = () => {
    show(initial());
    toAddress();
  };
  addEventListener("hashchange", () => show(fromAddress()));
  return section(
    "sizes",
    "Sizes",
    open
      ? el("div", { class: "beside" }, el("p", { class: "note" }, TIMED ? "Every number on this page but the times follows: each is worked out again from its formula." : "Every number on this page follows: each is worked out again from its formula."), reset)
      : el("p", { class: "note" }, "Given when the report was made. Analyze the model without them to vary them here."),
    el("div", { class: "sizes" }, rows.map((row) => row.element)),
  );
};

// A size that no formula names: it was given, or nothing depends on it.
const fixedRow = (size) => {
  const own = size.values.filter((_, side) => hasSide(size, side));
  const values = [...new Set(own.map((value) => (value === null ? null : String(typedAt(size, BigInt(value))))))];
  const element = el(
    "div",
    { class: "size" },
    el("span", { class: "name" }, size.shown),
    el("span", { class: "fixed" }, values.map((value) => (value === null ? "?" : value)).join(" → ")),
    el("span", { class: "about" }, aboutSize(size)),
  );
  return { element, show: () => {} };
};

const rangeOf = ({ low, high, scale: [step] }) => `${spanOf(low, high) || "any"}${step > 1 ? ` in steps of ${grouped(String(step))}` : ""}`;
const aboutSize = (size) => {
  const range = size.low === null && size.high === null && size.scale[0] === 1 ? "" : rangeOf(size);
  return [size.where.join(", "), GIVEN[size.given_by || "none"], range].filter((part) => part).join(" · ");
};

const sizeRow = (size, index, changed) => {
  const { low, high } = size;
  const now = () => sizes[index].filter((_, side) => hasSide(size, side)).map((value) => typedAt(size, value));
  const [step, offset] = size.scale;
  const rounded = (value, round) => offset + step * round((value - offset) / step);
  const least = rounded(low === null ? 1 : Math.max(low, 0), Math.ceil);
  const first = now().find((value) => value !== null);
  const reach = high !== null && high <= 2 ** 20 ? high : Math.min(Math.max(16 * Number(first || 64), 4096), 2 ** 20);
  const most = Math.max(rounded(reach, Math.floor), least + step);
  const scale = (value) => Math.log2(Math.max(value, 0) + 1);
  const id = `size-${index}`;
  const warning = el("span", { class: "warning", role: "status" });
  const field = el("input", { id, type: "text", inputmode: "numeric", autocomplete: "off", spellcheck: "false", size: 9, "aria-describedby": `${id}-about` });
  const slider = el("input", { type: "range", min: scale(least), max: scale(most), step: "any", "aria-label": `${size.shown}, on a logarithmic scale` });

  const set = (value) => {
    sizes[index] = size.symbols.map((_, side) => (value === null || !hasSide(size, side) ? null : sizeOf(size, value)));
    const outside = value !== null && ((low !== null && value < low) || (high !== null && value > high));
    toAddress();
    changed();
    const broken = BOTH.flatMap((side) => SIDES[side].requires.filter(([, holds]) => reader(holds)(side) === 0n));
    const limit = outside ? `outside ${spanOf(low, high)}, for which the program was exported` : "";
    warning.textContent = broken.length ? `the program requires ${broken[0][0]}` : limit;
  };
  const show = () => {
    const values = now();
    const same = values.every((value) => value === values[0]);
    field.value = same ? String(values[0] === null ? "" : values[0]) : "";
    field.placeholder = same ? "?" : values.map((value) => (value === null ? "?" : value)).join(" → ");
    slider.value = scale(Number(values[values.length - 1] || least));
    warning.textContent = "";
  };
  field.addEventListener("input", () => {
    const text = field.value.replace(/[\s,_]/g, "");
    if (text !== "" && !/^\d{1,18}$/.test(text)) {
      warning.textContent = "not a number of elements";
      return;
    }
    if (text !== "" && !isTaken(size, BigInt(text))) {
      warning.textContent = `takes ${rangeOf(size)}`;
      return;
    }
    slider.value = scale(Number(text || least));
    set(text === "" ? null : BigInt(text));
  });
  slider.addEventListener("input", () => {
    const value = Math.min(Math.max(rounded(2 ** Number(slider.value) - 1, Math.round), least), most);
    field.value = String(value);
    set(BigInt(value));
  });
  show();
  const element = el(
    "div",
    { class: "size" },
    el("label", { for: id }, size.shown),
    field,
    slider,
    el("span", { class: "about", id: `${id}-about` }, aboutSize(size)),
    warning,
  );
  return { element, show };
};
