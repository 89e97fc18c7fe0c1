// Builds DOM nodes, and formats values. Text only ever becomes text nodes: nothing here or elsewhere parses HTML.

/** Make an element: properties, `on...` listeners and attributes, then children (null and false are left out). */
export function h(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name in node && !name.startsWith("aria")) node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

/** Make an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

/** Read a sentence aloud in screen readers. */
export function announce(sentence) {
  document.getElementById("announcer").textContent = sentence;
}

/** Show in the bar at the top what the page is waiting for; an empty text clears it. */
export function showState(text, kind = "") {
  const node = document.getElementById("state");
  if (node.textContent !== text) node.textContent = text;
  node.dataset.kind = kind;
}

/** Make a button that copies a text and says so. */
export function copyButton(getText, label = "Copy", name = label) {
  const button = h("button", { type: "button", class: "quiet", "aria-label": name }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(await getText());
      button.textContent = "Copied";
      announce("Copied");
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

/** Ask before an address of somebody else's is opened. */
export async function offerAddress(address) {
  const dialog = document.getElementById("leave");
  document.getElementById("leave-address").textContent = address;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue === "copy") await navigator.clipboard.writeText(address).catch(() => {});
  if (dialog.returnValue === "open") window.open(address, "_blank", "noopener,noreferrer");
}

/** Call a function once in the next frame, however often it is asked for. */
export function everyFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    const run = () => {
      asked = false;
      work();
    };
    // A hidden tab has no frames.
    if (document.hidden) setTimeout(run, 250);
    else requestAnimationFrame(run);
  };
}

// -- values as text

export const RUNNING = new Set(["queued", "in_progress"]);
const STATUS_NAMES = { in_progress: "running" };

/** A status as a small label; its meaning is in the word, the colour only repeats it. */
export function badge(status) {
  return h("span", { class: "badge", "data-status": status }, STATUS_NAMES[status] ?? status);
}

export function formatDuration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

export function formatAge(at) {
  const seconds = Math.max(0, Date.now() / 1000 - at);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function formatNumber(value) {
  if (value == null) return "–";
  if (Math.abs(value) >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toPrecision(2);
}

export function formatBytes(value) {
  if (value == null) return "–";
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (value < 1000) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

/** The beginning and the end of an id. */
export function shorten(id) {
  return id.length <= 18 ? id : `${id.slice(0, id.indexOf("_") + 5)}…${id.slice(-6)}`;
}

/** The text of an item or of its output, as far as it has one. */
export function textOf(content) {
  if (typeof content === "string") return content;
  return (content ?? []).map((part) => part.text ?? part.refusal ?? "").join("");
}

/** JSON as people read it; what is not JSON stays as it is. */
export function pretty(value) {
  try {
    return JSON.stringify(typeof value === "string" ? JSON.parse(value) : value, null, 2);
  } catch {
    return String(value);
  }
}
