// Elements, made of text only: no markup is ever parsed.

const filled = (element, properties, children) => {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") for (const [event, action] of Object.entries(value)) element.addEventListener(event, action);
    else if (name === "css") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
};

const el = (tag, properties = {}, ...children) => filled(document.createElement(tag), properties, children);

const drawn = (tag, properties = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

const section = (id, title, ...children) =>
  el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);

// A chart is drawn as wide as it stands, so that its text has the size of other text.
const drawingWidth = (element) => Math.round(Math.min(Math.max(element.clientWidth || 600, 320), 760));

// A phone: there the columns that matter most come first.
const isNarrow = () => innerWidth <= 640;

let choices = 0;

// One of several, as buttons beside each other: radio buttons, so that the arrow keys work.
const choice = (legend, options, chosen, act) => {
  const name = `choice-${(choices += 1)}`;
  return el(
    "fieldset",
    { class: "choice" },
    el("legend", {}, legend),
    Object.entries(options).map(([value, label]) =>
      el(
        "label",
        {},
        el("input", { type: "radio", name, value, checked: value === chosen, on: { change: () => act(value) } }),
        el("span", {}, label),
      ),
    ),
  );
};
