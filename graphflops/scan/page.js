"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z"];
  const MOST = 500; // rows drawn at a time
  const table = document.getElementById("table");
  const state = { column: DATA.heads.findIndex((head) => head[0] === "FLOPs"), down: true, words: [], shown: MOST };

  const scaled = (value, unit) => {
    let step = 0;
    let rest = Math.abs(value);
    while (rest >= 1000 && (step || rest >= 10000) && step < PREFIXES.length - 1) { rest /= 1000; step += 1; }
    const digits = step ? rest.toPrecision(4) : String(rest);
    return `${value < 0 ? "-" : ""}${digits}${step || unit ? " " : ""}${PREFIXES[step]}${unit}`;
  };
  const spelled = (value, kind) => {
    if (value === null || value === undefined) return "";
    if (kind === "s") return value < 0.001 ? `${(value * 1e6).toPrecision(3)} µs` : `${(value * 1e3).toPrecision(4)} ms`;
    const text = kind ? scaled(value, kind === "b" ? "B" : "") : value;
    return kind === "p" ? text.replace(" G", " B") : text;
  };
  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (name) made.className = name;
    return made;
  };

  // `flops>1e12` compares a column that begins so; any other word stands somewhere in the row.
  const condition = (word) => {
    const found = /^([a-z ]+)([<>])([0-9.e+]+)$/i.exec(word);
    const column = found ? DATA.heads.findIndex((head) => head[0].toLowerCase().startsWith(found[1].toLowerCase())) : -1;
    if (column >= 0) {
      const limit = Number(found[3]);
      return (row) => row[column] !== null && (found[2] === ">" ? row[column] > limit : row[column] < limit);
    }
    const wanted = word.toLowerCase();
    return (row) => row.some((cell) => typeof cell === "string" && cell.toLowerCase().includes(wanted));
  };
  const order = (a, b) => {
    const [x, y] = [a[state.column], b[state.column]];
    if (x === y) return 0;
    if (x === null || x === "") return 1;
    if (y === null || y === "") return -1;
    return (x < y ? -1 : 1) * (state.down ? -1 : 1);
  };

  const heads = () => {
    const line = document.createElement("tr");
    DATA.heads.forEach(([name, kind], index) => {
      const cell = element("th", "", kind ? "figure" : "");
      const sorted = index === state.column;
      const button = element("button", name + (sorted ? (state.down ? " ↓" : " ↑") : ""));
      button.tabIndex = 0;
      button.setAttribute("role", "button");
      button.addEventListener("click", () => {
        state.down = sorted ? !state.down : Boolean(kind);
        state.column = index;
        draw();
      });
      cell.setAttribute("aria-sort", sorted ? (state.down ? "descending" : "ascending") : "none");
      cell.append(button);
      line.append(cell);
    });
    table.tHead.replaceChildren(line);
  };
  const draw = () => {
    heads();
    const tests = state.words.map(condition);
    const rows = DATA.rows.filter((row) => tests.every((test) => test(row))).sort(order);
    const status = DATA.heads.findIndex((head) => head[0] === "status");
    const lines = rows.slice(0, state.shown).map((row) => {
      const line = document.createElement("tr");
      const assumed = row[DATA.heads.length]; // columns whose figures follow from assumed sizes
      DATA.heads.forEach(([, kind], index) => {
        const value = row[index];
        const bad = index === status && value !== "ok" ? "bad" : "";
        const mark = assumed.includes(index) ? "~" : "";
        line.append(element("td", mark + spelled(value, kind), kind ? "figure" : bad || (String(value).length > 60 ? "long" : "")));
      });
      return line;
    });
    table.tBodies[0].replaceChildren(...lines);
    const count = document.getElementById("count");
    count.textContent = `${rows.length} of ${DATA.rows.length} rows${rows.length > state.shown ? `, the first ${state.shown} shown` : ""}`;
  };

  document.getElementById("filter").addEventListener("input", (event) => {
    state.words = event.target.value.split(/\s+/).filter((word) => word);
    draw();
  });
  draw();
})();
