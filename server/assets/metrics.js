// Reads the metrics of the server, which are in the text format of Prometheus.

// Of the metrics with this name: the labels and the value of each.
export function samples(metrics, name) {
  return metrics.split("\n")
    .filter((line) => line.startsWith(name + "{") || line.startsWith(name + " "))
    .map((line) => [line.slice(name.length, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]);
}

export const sum = (values) => values.reduce((total, [, value]) => total + value, 0);

// Adds the values with the same value of a label.
export function sums(metrics, name, label) {
  const all = new Map();
  for (const [labels, value] of samples(metrics, name)) {
    const found = new RegExp(`[{,]${label}="([^"]*)"`).exec(labels)?.[1] ?? "";
    all.set(found, (all.get(found) ?? 0) + value);
  }
  return all;
}

// The numbers of measured values up to each bound.
export function histogram(metrics, name) {
  const bound = ([text, count]) => [text === "+Inf" ? Infinity : Number(text), count];
  return new Map([...sums(metrics, `${name}_bucket`, "le")].map(bound));
}

// The smallest bound that covers this share of the values recorded between two histograms.
export function quantile(earlier, latest, share) {
  const later = [...latest].map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const sorted = later.sort(([a], [b]) => a - b);
  const all = sorted.at(-1)?.[1] ?? 0;
  return all > 0 ? sorted.find(([, count]) => count >= share * all)[0] : null;
}
