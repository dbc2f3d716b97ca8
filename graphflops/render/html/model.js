// The data of the page, and every sum over it at the sizes that are set.

const DATA = JSON.parse(document.getElementById("data").textContent);
const DEVICES = JSON.parse(document.getElementById("devices").textContent);
const SIDES = DATA.sides;
const IS_DIFF = SIDES.length === 2;
const BOTH = SIDES.map((_, side) => side);
const NAMES = DATA.names;
const SIDE_NAMES = IS_DIFF ? ["before", "after"] : [""];
const TRAINED = SIDES.some((side) => side.phases);
const TIMED = SIDES.every((side) => side.device);

const sum = (a, b) => (a === null || b === null ? null : a + b);
const nameAt = (index) => (index < 0 ? "" : NAMES[index]);

// Sizes: a value for each side, null where there is none. Each side has symbols of its own, which are a multiple of the size
// and a number; the names that two programs share are those of a third, JOINT. What people read is a multiple too.
const JOINT = SIDES.length;
const given = (text) => (text === null ? null : BigInt(text));
const initial = () => DATA.sizes.map((size) => size.values.map(given));
let sizes = initial();
const atInitial = () => initial().every((values, index) => values.every((value, side) => value === sizes[index][side]));
const places = [...BOTH, JOINT].map((side) => {
  const lines = (size) => Object.entries(side === JOINT ? { [size.joint]: [1, 0] } : size.symbols[side]);
  return new Map(DATA.sizes.flatMap((size, index) => lines(size).map(([name, line]) => [name, [index, ...line]])));
});
const sizeAt = (side, name) => {
  const [index, slope, offset] = places[side].get(name) || [];
  if (index === undefined) return null;
  const values = sizes[index].filter((value) => value !== null);
  const value = side === JOINT ? (values.length ? values[values.length - 1] : null) : sizes[index][side];
  return value === null ? null : BigInt(slope) * value + BigInt(offset);
};
const hasSide = (size, side) => Object.keys(size.symbols[side]).length > 0;
const typedAt = ({ scale: [slope, offset] }, value) => (value === null ? null : BigInt(slope) * value + BigInt(offset));
const isTaken = ({ scale: [slope, offset] }, typed) => (typed - BigInt(offset)) % BigInt(slope) === 0n;
const sizeOf = ({ scale: [slope, offset] }, typed) => (typed - BigInt(offset)) / BigInt(slope);

// Formulas: read when first needed, evaluated once for each side and setting of the sizes.
const readers = new Map();
let known = [];

const reader = (index) => {
  if (!readers.has(index)) {
    const wired = DATA.formulas[index];
    if (typeof wired === "number" || /^(0x[0-9a-f]+|-?\d+)$/.test(wired)) {
      const value = BigInt(wired);
      readers.set(index, () => value);
    } else if (Array.isArray(wired)) {
      // Too long to be here: its value at the first sizes is.
      readers.set(index, () => (wired.length && atInitial() ? BigInt(wired[0]) : null));
    } else {
      const formula = compiled(wired);
      readers.set(index, (side) => evaluated(formula, (name) => sizeAt(side, name)));
    }
  }
  return readers.get(index);
};

const valueOf = (side, index) => {
  known[side] ||= [];
  if (known[side][index] === undefined) known[side][index] = reader(index)(side);
  return known[side][index];
};

// What a call of a kind costs. "flops" and the like are of both phases, "forward" and "backward" matrix FLOPs of one.
// Quantities that parts of the page are about have a short name here; any other has a tile under its own name.
const SHORT = {
  matrix_flops: "flops", vector_flops: "vector", transcendentals: "transcendentals", masked_flops: "masked",
  read_bytes: "read", written_bytes: "written",
};
const QUANTITIES = DATA.quantities.map(([name]) => SHORT[name] || name);
const OTHERS = DATA.quantities.filter(([name]) => !SHORT[name]);
const NOTHING = Object.freeze({
  calls: 0, unknown: 0, forward: 0n, backward: 0n, ...Object.fromEntries(QUANTITIES.map((name) => [name, 0n])), bytes: 0n, time: 0n,
});
let costs = BOTH.map(() => []);

const costOf = (side, kind) => {
  if (costs[side][kind]) return costs[side][kind];
  const [state, forward, backward] = SIDES[side].kinds[kind];
  const cost = { ...NOTHING, unknown: state === "unknown" ? 1 : 0 };
  for (const [phase, formulas] of [["forward", forward], ["backward", backward]]) {
    if (!formulas) continue;
    QUANTITIES.forEach((quantity, index) => {
      const value = valueOf(side, formulas[index]);
      cost[quantity] = sum(cost[quantity], value);
      if (index === 0) cost[phase] = value;
    });
  }
  cost.bytes = sum(cost.read, cost.written);
  costs[side][kind] = cost;
  return cost;
};

// Entries are calls, or several equal or light ones together, whose kind then has the sum of their costs.
const entriesOf = SIDES.map((side) => side.calls.kind.map((_, index) => index));
const callsIn = (side, entry) => SIDES[side].calls.calls[entry];
const entry = (side, index) => {
  const { node, op, module, place, source, dtype, kind } = SIDES[side].calls;
  return {
    node: nameAt(node[index]),
    op: nameAt(op[index]),
    module: nameAt(module[index]),
    source: nameAt(source[index]),
    dtype: nameAt(dtype[index]),
    place: place[index],
    kind: kind[index],
    calls: callsIn(side, index),
    state: SIDES[side].kinds[kind[index]][0],
  };
};

// Predicted picoseconds of an entry. They are no formulas: null at other sizes than those of the report.
let timesHold = true;
const timeOf = (side, index) => (timesHold ? BigInt(SIDES[side].calls.time[index]) : null);

const FIGURES = Object.keys(NOTHING).filter((name) => !["calls", "unknown", "time"].includes(name));
const added = (total, side, index) => {
  const cost = costOf(side, SIDES[side].calls.kind[index]);
  const calls = callsIn(side, index);
  total.calls += calls;
  if (cost.unknown) total.unknown += calls;
  else {
    for (const figure of FIGURES) total[figure] = sum(total[figure], cost[figure]);
    if (TIMED) total.time = sum(total.time, timeOf(side, index));
  }
  return total;
};

// Under a module stand its operators; all as one where those of the two programs cannot be compared.
const leafName = (op) => (DATA.operators || op === INPUTS ? op : "(its operators)");
const INPUTS = SIDES.some((side) => side.memory && side.memory.device) ? "(inputs, parameters, optimizer)" : "(inputs)";

// The program's modules and, in each, its operators: a tree of nodes that know their sums.
const TREE = (() => {
  const nodes = DATA.places.map(([parent, label, path, type, times], id) => ({
    id, parent, label, path, type, times, children: [], op: "", leaves: new Map(),
  }));
  for (const node of nodes) if (node.parent >= 0) nodes[node.parent].children.push(node);
  const leaf = (place, made) => {
    const op = leafName(made);
    const leaves = nodes[place].leaves;
    if (!leaves.has(op)) {
      leaves.set(op, { id: -1, parent: place, label: op, path: nodes[place].path, type: "", times: 1, children: [], op, leaves: new Map() });
    }
    return leaves.get(op);
  };
  SIDES.forEach((side, number) => entriesOf[number].forEach((index) => leaf(side.calls.place[index], nameAt(side.calls.op[index]))));
  if (SIDES.some((side) => side.memory)) leaf(0, INPUTS);
  // Operators stand after modules; nodes of a kind keep the program's order.
  const all = [...nodes];
  for (const node of nodes) {
    for (const one of node.leaves.values()) {
      one.id = all.length;
      all.push(one);
      node.children.push(one);
    }
  }
  return { nodes: all, root: nodes[0], places: nodes, leaf };
})();

// Live memory. A moment is a call, a nested graph in it or a gradient; `live` is what is held at each of them.
let timelines = BOTH.map(() => undefined);

const timeline = (side) => {
  if (timelines[side] !== undefined) return timelines[side];
  const memory = SIDES[side].memory;
  timelines[side] = memory ? measured(side, memory) : null;
  return timelines[side];
};

const measured = (side, memory) => {
  const moments = memory.calls.length;
  const steps = new Array(moments + 1).fill(0n);
  const bytes = (memory.bytes || []).map((formula) => valueOf(side, formula));
  if (bytes.some((value) => value === null)) return null;
  bytes.forEach((size, index) => {
    steps[memory.first[index]] += size;
    steps[memory.last[index] + 1] -= size;
  });
  const live = [];
  let now = 0n;
  let peak = 0;
  for (let moment = 0; moment < moments; moment += 1) {
    now += steps[moment];
    live.push(now);
    if (now > live[peak]) peak = moment;
  }
  return { live, peak, bytes, stack: memory.device ? stacked(memory, bytes) : null };
};

// On a device: what is held at each moment by what it is for, the lasting parts first, as sums from the bottom up.
const GROUPS = [
  ["parameters", ["weight", "buffer"]],
  ["optimizer", ["optimizer"]],
  ["workspaces", ["library"]],
  ["gradients", ["gradient"]],
  ["activations", ["input", "value", "saved", "nested"]],
  ["temporaries", ["workspace", "temporary"]],
];
const LASTING = ["weight", "buffer", "optimizer", "temporary", "library"];

const stacked = (memory, bytes) => {
  const moments = memory.calls.length;
  const sums = new Array(moments).fill(0);
  return GROUPS.map(([, kinds]) => {
    const steps = new Array(moments + 1).fill(0);
    bytes.forEach((size, index) => {
      if (!kinds.includes(memory.kind[index])) return;
      steps[memory.first[index]] += Number(size);
      steps[memory.last[index] + 1] -= Number(size);
    });
    let now = 0;
    for (let moment = 0; moment < moments; moment += 1) {
      now += steps[moment];
      sums[moment] += now;
    }
    return [...sums];
  });
};

// What is held at a moment, the largest first.
const heldAt = (side, moment) => {
  const { memory } = SIDES[side];
  const { bytes } = timeline(side);
  const held = [];
  bytes.forEach((size, index) => {
    if (memory.first[index] <= moment && moment <= memory.last[index]) {
      const call = memory.calls[memory.first[index]];
      held.push({ name: nameAt(memory.name[index]), kind: memory.kind[index], call, bytes: size });
    }
  });
  return held.sort((a, b) => (a.bytes < b.bytes ? 1 : a.bytes > b.bytes ? -1 : 0));
};

// Measures that the tree is drawn by: amounts of each node, itself and all below it.
const MEASURES = {
  flops: { label: "FLOPs", text: number },
  vector: { label: "elementwise", text: number },
  bytes: { label: "bytes moved", text: memory },
  parameters: { label: "parameters", text: parameters },
  memory: { label: "memory at the peak", text: memory },
  time: { label: "time", text: duration },
};

const amounts = (measure) => {
  const own = TREE.nodes.map(() => BOTH.map(() => 0n));
  const unknown = TREE.nodes.map(() => 0);
  const put = (node, side, value) => {
    own[node.id][side] = sum(own[node.id][side], value);
  };
  for (const side of BOTH) {
    if (measure === "parameters") {
      SIDES[side].parameters.forEach((formula, place) => put(TREE.places[place], side, valueOf(side, formula)));
    } else if (measure === "memory") {
      const line = timeline(side);
      if (!line) {
        put(TREE.root, side, null);
        continue;
      }
      if (!line.live.length) continue;
      for (const held of heldAt(side, line.peak)) {
        const resident = held.kind === "input" || LASTING.includes(held.kind);
        const { place, op } = resident ? { place: 0, op: INPUTS } : entry(side, held.call);
        put(TREE.leaf(place, op), side, held.bytes);
      }
    } else {
      for (const index of entriesOf[side]) {
        const { place, op } = { place: SIDES[side].calls.place[index], op: nameAt(SIDES[side].calls.op[index]) };
        const cost = costOf(side, SIDES[side].calls.kind[index]);
        const node = TREE.leaf(place, op);
        if (cost.unknown) unknown[node.id] += callsIn(side, index);
        else put(node, side, measure === "time" ? timeOf(side, index) : cost[measure]);
      }
    }
  }
  for (let id = TREE.nodes.length - 1; id > 0; id -= 1) {
    const up = TREE.nodes[id].parent; // children come after their parent
    own[up] = own[up].map((value, side) => sum(value, own[id][side]));
    unknown[up] += unknown[id];
  }
  return { values: own, unknown };
};

const recalculate = () => {
  known = [];
  costs = BOTH.map(() => []);
  timelines = BOTH.map(() => undefined);
  timesHold = atInitial();
};
