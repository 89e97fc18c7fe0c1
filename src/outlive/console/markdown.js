// Renders Markdown as DOM nodes while it grows. HTML in it is text; an address is opened only after a question; an image is
// shown only if it is in the text itself (a data: URI).
import { copyButton, h, offerAddress } from "./dom.js";

const DEEPEST = 8; // levels of lists, quotes and emphasis within each other
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( +)(.*)|$)/;
const TABLE_LINE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const IMAGE_DATA = /^data:image\/(png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=\s]+$/;

/** A text that grows: blocks that are finished are left alone, only those at the end are made anew. */
export class Markdown {
  node = h("div", { class: "prose" });
  #text = "";
  #fixed = 0; // characters whose blocks are finished
  #open = []; // the blocks after them, with their nodes

  update(text) {
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) {
      this.node.replaceChildren();
      this.#fixed = 0;
      this.#open = [];
    }
    this.#text = text;
    const lines = text.slice(this.#fixed).split("\n");
    const blocks = parse(lines);
    const shown = blocks.map((block, number) => this.#show(block, this.#open[number]));
    // The last line may still change what it is: a block is finished once the first line of the next one is.
    let finished = 0;
    while (finished + 1 < blocks.length && blocks[finished + 1].start < lines.length - 1) finished += 1;
    if (finished > 0) {
      for (let line = 0; line < blocks[finished].start; line++) this.#fixed += lines[line].length + 1;
    }
    for (const { node } of this.#open.slice(shown.length)) node.remove();
    this.#open = shown.slice(finished);
  }

  #show(block, open) {
    if (open?.block.kind === "code" && block.kind === "code" && open.block.language === block.language) {
      open.node.querySelector("code").firstChild.data = block.text; // keeps its place and its button
      return { block, node: open.node };
    }
    const node = build(block, 0);
    if (open) open.node.replaceWith(node);
    else this.node.append(node);
    return { block, node };
  }
}

// -- blocks

/** Split lines into blocks; each knows the line that it starts at. */
function parse(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const [block, next] = readBlock(lines, at);
    blocks.push({ ...block, start: at });
    at = next;
  }
  return blocks;
}

/** Read the block that starts at a line; returns it with the line after it. */
function readBlock(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return readCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1].length, text: heading[2] }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (QUOTE.test(line)) return readQuote(lines, at);
  if (ITEM.test(line)) return readList(lines, at);
  if (line.includes("|") && TABLE_LINE.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("-")) {
    return readTable(lines, at);
  }
  return readParagraph(lines, at);
}

function readCode(lines, at, fence) {
  const close = new RegExp(`^ {0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !close.test(lines[end])) end += 1;
  return [{ kind: "code", language: fence[2], text: lines.slice(at + 1, end).join("\n") }, end + 1];
}

function readQuote(lines, at) {
  let end = at;
  while (end < lines.length && lines[end].trim() !== "" && (QUOTE.test(lines[end]) || !startsBlock(lines[end]))) end += 1;
  return [{ kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")) }, end];
}

function readList(lines, at) {
  const ordered = /\d/.test(ITEM.exec(lines[at])[2]);
  const list = { kind: "list", ordered, first: Number.parseInt(lines[at].trim(), 10) || 1, items: [] };
  let end = at;
  let indent = 0;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const depth = line.length - line.trimStart().length;
    if (item && depth < Math.max(indent, 2) && /\d/.test(item[2]) === ordered && !RULE.test(line)) {
      indent = item[1].length + item[2].length + Math.min(item[3]?.length ?? 1, 4);
      list.items.push([item[4] ?? ""]);
    } else if (line.trim() === "") {
      list.items.at(-1).push("");
    } else if (depth >= Math.min(indent, 2)) {
      list.items.at(-1).push(line.slice(Math.min(depth, indent)));
    } else if (lines[end - 1].trim() !== "" && !startsBlock(line)) {
      list.items.at(-1).push(line.trimStart()); // the paragraph goes on without being indented
    } else {
      break;
    }
  }
  return [list, end];
}

function readTable(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  return [{ kind: "table", head: cells(lines[at]), rows: lines.slice(at + 2, end).map(cells) }, end];
}

function readParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !startsBlock(lines[end])) end += 1;
  return [{ kind: "paragraph", text: lines.slice(at, end).join("\n") }, end];
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function build(block, depth) {
  switch (block.kind) {
    case "heading":
      // The page has headings of its own above these.
      return inline(block.text, h(`h${Math.min(block.level + 2, 6)}`));
    case "rule":
      return h("hr");
    case "code":
      return buildCode(block);
    case "quote":
      return h("blockquote", {}, buildAll(block.lines, depth + 1));
    case "list":
      return h(
        block.ordered ? "ol" : "ul",
        block.ordered && block.first !== 1 ? { start: block.first } : {},
        block.items.map((lines) => buildItem(lines, depth + 1)),
      );
    case "table":
      return buildTable(block);
    default:
      return inline(block.text, h("p"));
  }
}

function buildAll(lines, depth) {
  if (depth > DEEPEST) return [h("p", {}, lines.join("\n"))];
  return parse(lines).map((block) => build(block, depth));
}

function buildItem(lines, depth) {
  const nodes = buildAll(lines, depth);
  // A tight item: its text without a paragraph around it.
  if (nodes[0]?.tagName === "P" && !lines.slice(0, -1).includes("")) nodes.splice(0, 1, ...nodes[0].childNodes);
  return h("li", {}, nodes);
}

function buildCode({ language, text }) {
  const code = h("code", {}, document.createTextNode(text));
  const head = h("div", { class: "code-head" }, h("span", {}, language || "text"), copyButton(() => code.textContent, "Copy", "Copy code"));
  return h("div", { class: "code" }, head, h("pre", { tabIndex: 0, role: "region", "aria-label": "Code" }, code));
}

function buildTable({ head, rows }) {
  const row = (tag, cells) => h("tr", {}, head.map((_, number) => inline(cells[number] ?? "", h(tag))));
  const table = h("table", {}, h("thead", {}, row("th", head)), h("tbody", {}, rows.map((cells) => row("td", cells))));
  return h("div", { class: "scrolls", tabIndex: 0, role: "region", "aria-label": "Table" }, table);
}

// -- text within a block

const TOKEN = /\\[!-/:-@[-`{-~]|`+|!?\[|\*\*|__|~~|[*_]|https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_~]|\n/g;
const MARKS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

/** Add the nodes of a text to a parent, and return the parent. */
function inline(text, parent, depth = 0) {
  const absent = new Set(); // marks that do not come again
  const token = new RegExp(TOKEN);
  let at = 0;
  const addText = (end) => end > at && parent.append(text.slice(at, end));
  for (let found = token.exec(text); found; found = token.exec(text)) {
    const [mark] = found;
    const made = depth < DEEPEST && !absent.has(mark) && makeSpan(text, found.index, mark, depth);
    if (!made) {
      if (mark[0] === "`") absent.add(mark);
      continue;
    }
    addText(found.index);
    parent.append(made.node);
    at = token.lastIndex = made.end;
  }
  addText(text.length);
  return parent;
}

/** Make the node of a mark and what it encloses; null if it is only text. */
function makeSpan(text, at, mark, depth) {
  if (mark === "\n") return { node: h("br"), end: at + 1 };
  if (mark[0] === "\\") return { node: document.createTextNode(mark[1]), end: at + 2 };
  if (mark[0] === "`") return makeCodeSpan(text, at, mark);
  if (mark.endsWith("[")) return makeLink(text, at, mark === "![", depth);
  if (mark.startsWith("http")) return { node: link(mark, [mark]), end: at + mark.length };
  return makeEmphasis(text, at, mark, depth);
}

function makeCodeSpan(text, at, ticks) {
  const end = new RegExp(`(?<!\`)${ticks}(?!\`)`, "g");
  end.lastIndex = at + ticks.length;
  const closed = end.exec(text);
  if (!closed) return null;
  const inner = text.slice(at + ticks.length, closed.index).replaceAll("\n", " ");
  const code = /^ .*\S.* $/.test(inner) ? inner.slice(1, -1) : inner;
  return { node: h("code", {}, code), end: closed.index + ticks.length };
}

function makeEmphasis(text, at, mark, depth) {
  const from = at + mark.length;
  const word = mark[0] === "_" && /\w/.test(text[at - 1] ?? "");
  if (word || /\s|^$/.test(text[from] ?? "")) return null;
  for (let end = text.indexOf(mark, from + 1), tries = 0; end >= 0 && tries < 20; end = text.indexOf(mark, end + mark.length), tries++) {
    const inWord = mark[0] === "_" && /\w/.test(text[end + mark.length] ?? "");
    const longer = mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark);
    if (/\s/.test(text[end - 1]) || inWord || longer) continue;
    return { node: inline(text.slice(from, end), h(MARKS[mark]), depth + 1), end: end + mark.length };
  }
  return null;
}

const LINK = /!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\]){0,1000})\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;

function makeLink(text, at, image, depth) {
  LINK.lastIndex = at;
  const found = LINK.exec(text);
  if (!found) return null;
  const [whole, label, address] = found;
  const end = at + whole.length;
  if (image) return { node: picture(address, label), end };
  const inner = inline(label, h("span"), depth + 1).childNodes;
  return { node: link(address, [...inner]), end };
}

/** A link is a button: no address is loaded, and none is opened before the reader has seen it. */
export function link(address, children) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return h("span", {}, ...children, ` (${address})`);
  return h("button", { type: "button", class: "link", title: address, onclick: () => offerAddress(address) }, ...children);
}

/** An image that is in the text itself; any other is named, not loaded. */
export function picture(address, description) {
  if (IMAGE_DATA.test(address)) return h("img", { src: address, alt: description || "Image" });
  return h("span", { class: "left-out" }, "Image not loaded: ", description ? `${description} ` : "", link(address, [address]));
}
