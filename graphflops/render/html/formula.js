// Formulas of sizes, as docs/report.md describes them: read once into functions of the sizes, never run as code.
// Values are BigInt; a fraction {n, d} or a Number on the way, where a division or a root makes one.

const floorDiv = (a, b) => {
  if (b === 0n) throw new RangeError("division by zero");
  const quotient = a / b;
  return a % b !== 0n && a < 0n !== b < 0n ? quotient - 1n : quotient;
};

const gcd = (a, b) => {
  while (b) [a, b] = [b, a % b];
  return a < 0n ? -a : a;
};

const fraction = (n, d) => {
  if (d === 0n) throw new RangeError("division by zero");
  const common = d < 0n ? -gcd(n, d) : gcd(n, d);
  return d === common ? n / common : { n: n / common, d: d / common };
};

const isWhole = (value) => typeof value === "bigint";
const numerator = (value) => (isWhole(value) ? value : value.n);
const denominator = (value) => (isWhole(value) ? 1n : value.d);

const asNumber = (value) => {
  const number = typeof value === "object" ? Number(value.n) / Number(value.d) : Number(value);
  if (!Number.isFinite(number)) throw new RangeError("no finite value");
  return number;
};

// One operation for each of the three kinds of values; the less exact operand decides.
const operation = (whole, exact, inexact) => (a, b) => {
  if (isWhole(a) && isWhole(b)) return whole(a, b);
  if (typeof a === "number" || typeof b === "number") return inexact(asNumber(a), asNumber(b));
  return exact(numerator(a), denominator(a), numerator(b), denominator(b));
};

const plus = operation(
  (a, b) => a + b,
  (an, ad, bn, bd) => fraction(an * bd + bn * ad, ad * bd),
  (a, b) => a + b,
);
const times = operation(
  (a, b) => a * b,
  (an, ad, bn, bd) => fraction(an * bn, ad * bd),
  (a, b) => a * b,
);
const minus = (a, b) => plus(a, times(-1n, b));
const ratio = operation(
  (a, b) => fraction(a, b),
  (an, ad, bn, bd) => fraction(an * bd, ad * bn),
  (a, b) => {
    if (b === 0) throw new RangeError("division by zero");
    return a / b;
  },
);
const floorOf = (value) => {
  if (typeof value === "number") return BigInt(Math.floor(value));
  return isWhole(value) ? value : floorDiv(value.n, value.d);
};
const quotient = (a, b) => (isWhole(a) && isWhole(b) ? floorDiv(a, b) : floorOf(ratio(a, b)));
const remainder = (a, b) => minus(a, times(b, quotient(a, b)));
const order = operation(
  (a, b) => (a < b ? -1 : a > b ? 1 : 0),
  (an, ad, bn, bd) => (an * bd < bn * ad ? -1 : an * bd > bn * ad ? 1 : 0),
  (a, b) => (a < b ? -1 : a > b ? 1 : 0),
);

const LARGEST_POWER = 4096; // bits

const whole = (value) => {
  if (!isWhole(value)) throw new RangeError("not an integer");
  return value;
};
const bits = (value) => (value < 0n ? -value : value).toString(2).length;
const power = (a, b) => {
  if (!isWhole(a) || !isWhole(b)) return asNumber(asNumber(a) ** asNumber(b));
  if (b < 0n || (a * a > 1n && BigInt(bits(a)) * b > LARGEST_POWER)) throw new RangeError("power too large");
  return a ** b;
};
const squareRoot = (value) => {
  if (!isWhole(value)) return asNumber(Math.sqrt(asNumber(value)));
  if (value < 0n) throw new RangeError("root of a negative number");
  let root = BigInt(Math.floor(Math.sqrt(asNumber(value))));
  while (root * root > value) root = (root + value / root) >> 1n; // Newton's steps, down to the integer root
  while ((root + 1n) * (root + 1n) <= value) root += 1n;
  if (root * root === value) return root;
  return value < 1n << 52n ? Math.sqrt(Number(value)) : { n: 2n * root + 1n, d: 2n }; // between two integers
};
const rounded = (value) => {
  if (typeof value === "number") {
    const below = Math.floor(value);
    const half = value - below;
    return BigInt(half > 0.5 || (half === 0.5 && below % 2 !== 0) ? below + 1 : below);
  }
  const twice = quotient(plus(times(2n, value), 1n), 2n);
  return order(minus(twice, value), fraction(1n, 2n)) === 0 && twice % 2n !== 0n ? twice - 1n : twice;
};
const divisor = (a, b) => (whole(b) ? divisor(b, whole(a) % b) : a < 0n ? -a : a);
const real = (name) => (value) => asNumber(Math[name](asNumber(value)));
const logarithm2 = (value) => {
  if (isWhole(value) && value > 0n && (value & (value - 1n)) === 0n) return BigInt(bits(value) - 1);
  return asNumber(Math.log2(asNumber(value)));
};

const FUNCTIONS = {
  min: (...values) => values.reduce((a, b) => (order(b, a) < 0 ? b : a)),
  max: (...values) => values.reduce((a, b) => (order(b, a) > 0 ? b : a)),
  floor: floorOf,
  sqrt: squareRoot,
  truediv: ratio,
  log2: logarithm2,
  pow: power,
  round: rounded,
  gcd: divisor,
  bitwise_and: (a, b) => whole(a) & whole(b),
  bitwise_or: (a, b) => whole(a) | whole(b),
  bitwise_xor: (a, b) => whole(a) ^ whole(b),
  lshift: (a, b) => {
    if (whole(b) < 0n || b > LARGEST_POWER) throw new RangeError("shift too large");
    return whole(a) << b;
  },
  rshift: (a, b) => {
    if (whole(b) < 0n) throw new RangeError("negative shift");
    return whole(a) >> b;
  },
};
for (const name of "exp log sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh".split(" ")) {
  FUNCTIONS[name] = real(name);
}
const COMPARISONS = {
  "==": (sign) => sign === 0,
  "!=": (sign) => sign !== 0,
  "<": (sign) => sign < 0,
  "<=": (sign) => sign <= 0,
  ">": (sign) => sign > 0,
  ">=": (sign) => sign >= 0,
};

const TOKEN = /\s*(?:(\d+)|([A-Za-z_]\w*)|('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(\*\*|\/\/|[=!<>]=|[-+*%<>(),]))/y;
const ESCAPED = /\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))/g;
const LETTERS = { n: "\n", r: "\r", t: "\t" };

// The text that a quoted name stands for, as Python quotes it.
const unquoted = (text) =>
  text.slice(1, -1).replace(ESCAPED, (_, x, u, long, letter) => {
    const code = x || u || long;
    return code ? String.fromCodePoint(parseInt(code, 16)) : LETTERS[letter] || letter;
  });

const tokens = (text) => {
  const found = [];
  TOKEN.lastIndex = 0;
  const end = text.trimEnd().length;
  while (TOKEN.lastIndex < end) {
    const match = TOKEN.exec(text);
    if (match === null) throw new SyntaxError("not a formula");
    const [, number, name, quoted, sign] = match;
    if (number) found.push({ kind: "number", value: BigInt(number) });
    else if (name) found.push({ kind: "name", value: name });
    else if (quoted) found.push({ kind: "quoted", value: unquoted(quoted) });
    else found.push({ kind: sign });
  }
  found.push({ kind: "end" });
  return found;
};

// A function from a look-up of sizes (name -> BigInt or null) to a value; what it throws means that there is none.
const compiled = (text) => {
  const read = tokens(text);
  let place = 0;
  const next = (kind) => (read[place].kind === kind ? read[place++] : null);
  const expect = (kind) => {
    const token = next(kind);
    if (token === null) throw new SyntaxError(`not a formula: ${kind} expected`);
    return token;
  };
  const list = () => {
    const parts = [comparison()];
    while (next(",")) parts.push(comparison());
    expect(")");
    return parts;
  };
  const size = (name) => (at) => {
    const value = at(name);
    if (value === null || value === undefined) throw new RangeError("a size has no value");
    return value;
  };
  const called = (name) => {
    if (name === "Symbol") {
      const quoted = expect("quoted").value;
      expect(")");
      return size(quoted);
    }
    if (name === "Function") {
      expect("quoted");
      expect(")");
      expect("(");
      list();
      return () => {
        throw new RangeError("a function that is not known");
      };
    }
    const args = list();
    if (name === "where") return (at) => (order(args[0](at), 0n) !== 0 ? args[1](at) : args[2](at));
    if (!Object.hasOwn(FUNCTIONS, name)) throw new SyntaxError("not a formula: a function that is not known");
    return (at) => FUNCTIONS[name](...args.map((arg) => arg(at)));
  };
  const atom = () => {
    const number = next("number");
    if (number) return () => number.value;
    const name = next("name");
    if (name) return next("(") ? called(name.value) : size(name.value);
    expect("(");
    const inner = comparison();
    expect(")");
    return inner;
  };
  const powered = () => {
    const base = atom();
    if (!next("**")) return base;
    const exponent = signed();
    return (at) => power(base(at), exponent(at));
  };
  const signed = () => {
    if (!next("-")) return powered();
    const value = signed();
    return (at) => times(-1n, value(at));
  };
  const chain = (part, actions) => {
    const first = part();
    const links = [];
    for (;;) {
      const sign = Object.keys(actions).find((candidate) => next(candidate));
      if (!sign) break;
      links.push([actions[sign], part()]);
    }
    if (links.length === 0) return first;
    return (at) => links.reduce((value, [action, other]) => action(value, other(at)), first(at));
  };
  const product = () => chain(signed, { "*": times, "//": quotient, "%": remainder });
  const sum = () => chain(product, { "+": plus, "-": minus });
  const comparison = () => {
    const left = sum();
    const sign = Object.keys(COMPARISONS).find((candidate) => next(candidate));
    if (!sign) return left;
    const right = sum();
    return (at) => (COMPARISONS[sign](order(left(at), right(at))) ? 1n : 0n);
  };
  const formula = comparison();
  expect("end");
  return formula;
};

// The integer value of a formula at sizes, rounded down; null where it has none.
const evaluated = (formula, at) => {
  try {
    return floorOf(formula(at));
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
};
