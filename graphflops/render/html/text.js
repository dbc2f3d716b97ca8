// Numbers as text, as the other formats of graphflops print them.

const PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q"];

const grouped = (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ",");

const scaled = (count) => {
  if (count < 0n) {
    const [figure, prefix] = scaled(-count);
    return [`-${figure}`, prefix];
  }
  if (count < 10000n) return [grouped(count.toString()), ""];
  let length = count.toString().length;
  const unit = 10n ** BigInt(length - 4);
  let digits = ((count + unit / 2n) / unit).toString();
  if (digits === "10000") {
    digits = "1000";
    length += 1;
  }
  const thousands = Math.floor((length - 1) / 3);
  const whole = ((length - 1) % 3) + 1;
  if (thousands >= PREFIXES.length) return [`${digits[0]}.${digits.slice(1)}e${length - 1}`, ""];
  return [`${digits.slice(0, whole)}.${digits.slice(whole)}`, PREFIXES[thousands]];
};

// 9,999 · 10.00 k · 1.412 T; "?" for what is not known.
const number = (count) => {
  if (count === null) return "?";
  const [figure, prefix] = scaled(count);
  return prefix ? `${figure} ${prefix}` : figure;
};

// A number of parameters, billions as B: 205.4 k · 32.76 B.
const parameters = (count) => number(count).replace(" G", " B");

const memory = (count) => {
  if (count === null) return "?";
  const [figure, prefix] = scaled(count);
  return `${figure} ${prefix}B`;
};

// A share of two integers in percent, "<0.1" for a smaller one that is not zero; "" where there is nothing to share.
const percent = (part, whole) => {
  if (part === null || whole === null || whole === 0n) return "";
  const share = (100 * Number(part)) / Number(whole);
  if (share !== 0 && Math.abs(share) < 0.05) return share > 0 ? "<0.1" : "-<0.1";
  return share.toFixed(1);
};

const plural = (count, noun) => `${grouped(String(count))} ${noun}${count === 1 ? "" : "s"}`;

// What a change amounts to: +12.5 %, x 3.20, new, gone.
const change = (before, after) => {
  if (before === null || after === null) return "?";
  if (before === after) return "same";
  if (before === 0n) return "new";
  if (after === 0n) return "gone";
  const factor = Number(after) / Number(before);
  if (factor >= 2) return `× ${factor >= 100 ? factor.toFixed(0) : factor.toPrecision(3)}`;
  const share = 100 * (factor - 1);
  const size = Math.abs(share);
  return `${share > 0 ? "+" : "−"}${size < 0.005 ? "<0.01" : size.toFixed(size < 10 ? 2 : 1)} %`;
};

// A physical quantity that is no integer: three digits and a prefix.
const physical = (value, unit) => {
  if (!Number.isFinite(value)) return "?";
  const up = ["", "k", "M", "G", "T", "P", "E"];
  const down = ["", "m", "µ", "n", "p"];
  if (value === 0) return `0 ${unit}`;
  const step = Math.max(Math.min(Math.floor(Math.log10(Math.abs(value)) / 3), up.length - 1), 1 - down.length);
  const figure = (value / 1000 ** step).toPrecision(3);
  return `${Number(figure) >= 1000 ? Number(figure).toFixed(0) : figure} ${step >= 0 ? up[step] : down[-step]}${unit}`;
};

// A predicted time, in whole picoseconds.
const duration = (picoseconds) => (picoseconds === null ? "?" : physical(Number(picoseconds) / 1e12, "s"));

const intensity = (work, moved) => {
  if (!work || !moved) return "";
  const ratio = Number(work) / Number(moved);
  return ratio >= 100 ? grouped(ratio.toFixed(0)) : String(Number(ratio.toPrecision(3)));
};
