// Overview: what an operator asks, from /metrics. The charts begin when the page is opened; Prometheus keeps what is older.
import { formatBytes, formatDuration, formatNumber, h, showState, svg } from "./dom.js";

const EVERY_MS = 2000;
const KEPT = 300; // samples: ten minutes

export default class OverviewPage {
  #app;
  #samples = [];
  #timer;
  #charts = [];
  #nodes = h("tbody");
  #errors = h("tbody");
  #about = h("p", { class: "aside" });

  constructor(app) {
    this.#app = app;
    const rate = (name) => (now, before) => Math.max(total(now, name) - total(before, name), 0) / (now.at - before.at);
    const gauge = (name) => (now) => now.values.get(name)?.[0]?.value ?? null; // of the database: the same in every process
    const high = (name) => (now, before) => quantile(now, before, name, 0.95);
    this.#charts = [
      new Chart("Running", formatNumber, [["running", (now) => total(now, "outlive_responses_running")], ["queued", gauge("outlive_responses_queued")]]),
      new Chart("Events per second", formatNumber, [["events", rate("outlive_events_total")]]),
      new Chart("Commit latency, 95 %", formatDuration, [["commit", high("outlive_commit_seconds")]]),
      new Chart("Added to first token, 95 %", formatDuration, [["added", high("outlive_first_token_added_seconds")]]),
      new Chart("Takeovers", formatNumber, [["takeovers", (now) => total(now, "outlive_takeovers_total")]]),
      new Chart("Database size", formatBytes, [["bytes", gauge("outlive_database_bytes")]]),
    ];
  }

  async start() {
    const table = (label, head, body) =>
      h("table", {}, h("caption", {}, label), h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), body);
    this.#app.main.replaceChildren(
      h("h1", {}, "Overview"),
      this.#about,
      h("div", { class: "charts" }, this.#charts.map((chart) => chart.node)),
      h(
        "div",
        { class: "tables" },
        table("Nodes", ["Node", "Leases", "Last heartbeat"], this.#nodes),
        table("Ended responses", ["Status", "Code", "Count"], this.#errors),
      ),
    );
    this.#timer = setInterval(() => document.hidden || this.#sample().catch(() => {}), EVERY_MS);
    this.#app.signal.addEventListener("abort", () => clearInterval(this.#timer));
    await this.#sample();
  }

  async #sample() {
    const { signal, getKey, main } = this.#app;
    let answer;
    try {
      const key = await getKey(false);
      answer = await fetch(new URL("metrics", document.baseURI), { signal, headers: key ? { authorization: `Bearer ${key}` } : {} });
    } catch (error) {
      if (error.name !== "AbortError") showState("Reconnecting", "waiting");
      return;
    }
    if (answer.status === 401) {
      await getKey(true);
      return;
    }
    if (!answer.ok) {
      clearInterval(this.#timer); // it will not change its mind
      const problem = (await answer.json().catch(() => null))?.error?.message ?? `The server answered ${answer.status}.`;
      main.replaceChildren(h("h1", {}, "Overview"), h("p", { class: "notice", role: "alert" }, problem));
      return;
    }
    showState("");
    this.#samples.push({ at: performance.now() / 1000, values: parse(await answer.text()) });
    if (this.#samples.length > KEPT) this.#samples.shift();
    this.#show();
  }

  #show() {
    for (const chart of this.#charts) chart.show(this.#samples);
    const { values } = this.#samples.at(-1);
    const info = values.get("outlive_info")?.[0]?.labels;
    this.#about.textContent = info ? `Version ${info.version}, served by ${info.node}. The charts begin when this page is opened.` : "";
    const ages = new Map((values.get("outlive_node_heartbeat_age_seconds") ?? []).map(({ labels, value }) => [labels.node, value]));
    const leases = new Map((values.get("outlive_node_leases") ?? []).map(({ labels, value }) => [labels.node, value]));
    const nodes = [...leases].map(([node, held]) => [
      node,
      formatNumber(held),
      ages.has(node) ? `${formatDuration(Math.max(ages.get(node), 0))} ago` : "needs none",
    ]);
    fill(this.#nodes, nodes);
    const ended = new Map();
    for (const { labels, value } of values.get("outlive_responses_ended_total") ?? []) {
      const key = JSON.stringify([labels.status, labels.code || "–"]);
      ended.set(key, (ended.get(key) ?? 0) + value);
    }
    fill(this.#errors, [...ended].filter(([, count]) => count > 0).map(([key, count]) => [...JSON.parse(key), formatNumber(count)]));
  }
}

function fill(body, rows) {
  const width = body.parentElement.querySelectorAll("th").length;
  const shown = rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell))));
  body.replaceChildren(...(shown.length ? shown : [h("tr", {}, h("td", { colSpan: width, class: "aside" }, "None yet"))]));
}

// -- reading the Prometheus text format

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

function parse(text) {
  const values = new Map();
  for (const line of text.split("\n")) {
    const found = line[0] !== "#" && LINE.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]));
    if (!values.has(found[1])) values.set(found[1], []);
    values.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return values;
}

function total(sample, name) {
  return (sample.values.get(name) ?? []).reduce((sum, { value }) => sum + value, 0);
}

/** The value below which that share of the observations between two samples lies. */
function quantile(now, before, name, share) {
  const counts = (sample) => {
    const sums = new Map(); // over all processes
    for (const { labels, value } of sample.values.get(`${name}_bucket`) ?? []) sums.set(labels.le, (sums.get(labels.le) ?? 0) + value);
    return sums;
  };
  const earlier = counts(before);
  const buckets = [...counts(now)].map(([le, value]) => [le === "+Inf" ? Infinity : Number(le), value - (earlier.get(le) ?? 0)]).sort((a, b) => a[0] - b[0]);
  const all = buckets.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  const rank = all * share;
  let lower = 0;
  let below = 0;
  for (const [upper, count] of buckets) {
    if (count >= rank) return upper === Infinity ? lower : lower + ((upper - lower) * (rank - below)) / Math.max(count - below, 1e-9);
    lower = upper;
    below = count;
  }
  return lower;
}

// -- charts

const WIDTH = 300;
const HEIGHT = 64;

/** One or two lines over time, with the last value in words. */
class Chart {
  #format;
  #series;
  #value = h("p", { class: "value" });
  #picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  #top = h("span", { class: "aside" });

  constructor(title, format, series) {
    this.#format = format;
    this.#series = series;
    this.node = h("figure", { class: "chart" }, h("figcaption", {}, title), this.#value, this.#picture, this.#top);
  }

  show(samples) {
    const start = Math.max(samples[0].at, samples.at(-1).at - (KEPT * EVERY_MS) / 1000);
    const span = Math.max(samples.at(-1).at - start, 20);
    const lines = this.#series.map(([name, read]) => [name, samples.slice(1).map((now, index) => [now.at - start, read(now, samples[index])])]);
    const highest = Math.max(...lines.flatMap(([, points]) => points.map(([, value]) => value ?? 0)), 0);
    const y = (value) => (HEIGHT - 3 - (value / (highest || 1)) * (HEIGHT - 8)).toFixed(1);
    this.#picture.replaceChildren(
      ...lines.map(([name, points]) => {
        const drawn = points.filter(([, value]) => value !== null).map(([at, value]) => `${((at / span) * WIDTH).toFixed(1)},${y(value)}`);
        return svg("polyline", { class: name, points: drawn.join(" ") });
      }),
    );
    const words = lines.map(([name, points]) => {
      const last = points.findLast(([, value]) => value !== null)?.[1] ?? this.#first(name, samples);
      return lines.length > 1 ? `${this.#format(last)} ${name}` : this.#format(last);
    });
    this.#value.textContent = words.join(", ");
    this.#top.textContent = highest > 0 ? `highest ${this.#format(highest)}` : "";
  }

  /** The value of a single sample, which has no earlier one to be compared with. */
  #first(name, samples) {
    const read = this.#series.find(([each]) => each === name)[1];
    const value = read.length === 1 ? read(samples[0]) : null;
    return value;
  }
}
