// Draws the timeline of a response: a bar from its creation to its end, with its milestones.
import { formatDuration, h, svg } from "./dom.js";

const NAMES = {
  queued: "Queued",
  start: "Started",
  takeover: "Taken over",
  first_token: "First token",
  tool_call: "Tool call",
  continuation: "Continued",
  cancel: "Cancelled",
  end: "Ended",
};
const WIDTH = 1000;
const HEIGHT = 46;

/** Show the milestones as a picture, and the same as a list. */
export function showTimeline(timeline) {
  const { created_at, entries } = timeline;
  const end = timeline.ended_at ?? Math.max(Date.now() / 1000, ...entries.map((entry) => entry.at));
  const whole = Math.max(end - created_at, 0.001);
  const x = (at) => (Math.min(Math.max((at - created_at) / whole, 0), 1) * (WIDTH - 12) + 6).toFixed(1);
  return h("div", { class: "timeline" }, draw(timeline, x), list(entries, created_at));
}

function draw(timeline, x) {
  const { entries, first_token_at, ended_at, flushes } = timeline;
  const rows = entries.find((entry) => entry.type === "start")?.at ?? timeline.created_at;
  const last = ended_at ?? flushes.at(-1)?.[1] ?? timeline.created_at;
  const bar = (kind, from, to) => svg("rect", { class: kind, x: x(from), y: 14, width: Math.max(x(to) - x(from), 1), height: 18, rx: 3 });
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  picture.append(bar("waiting", timeline.created_at, rows), bar("asking", rows, first_token_at ?? last));
  if (first_token_at !== null) picture.append(bar("writing", first_token_at, last));
  for (const entry of entries) {
    if (entry.type === "tool_call") picture.append(svg("rect", { class: "tool", x: x(entry.at), y: 34, width: Math.max(x(entry.ended_at ?? last) - x(entry.at), 2), height: 6 }));
    else picture.append(svg("line", { class: entry.type, x1: x(entry.at), x2: x(entry.at), y1: 6, y2: 40 }));
  }
  return picture;
}

function list(entries, created_at) {
  const rows = entries.map((entry) => {
    const about = [
      entry.node && `on ${entry.node}`,
      entry.name,
      entry.item_type === "function_call" && "(by the client)",
      entry.type === "tool_call" && entry.ended_at !== null && `took ${formatDuration(entry.ended_at - entry.at)}`,
      entry.status,
    ];
    return h(
      "tr",
      { "data-type": entry.type },
      h("td", {}, NAMES[entry.type] ?? entry.type),
      h("td", { class: "number", title: new Date(entry.at * 1000).toISOString() }, `+${formatDuration(Math.max(entry.at - created_at, 0))}`),
      h("td", { class: "number" }, entry.sequence_number === null ? "" : `#${entry.sequence_number}`),
      h("td", {}, about.filter(Boolean).join(" ")),
    );
  });
  const head = h("tr", {}, ["Milestone", "After", "Event", ""].map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))));
  return h("table", {}, h("thead", {}, head), h("tbody", {}, rows));
}
