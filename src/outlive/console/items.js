// Shows items (messages, reasoning, tool calls, images), also while they grow.
import { badge, copyButton, h, pretty, textOf } from "./dom.js";
import { Markdown, link, picture } from "./markdown.js";

/** The output of a response as it grows. Only items that were marked since are drawn again. */
export class Output {
  node = h("div", { class: "output" });
  #views = [];
  #marked = new Set();
  #actions;

  /** `actions.answer(item, approve)` answers a request for approval; without it there are no buttons. */
  constructor(actions = {}) {
    this.#actions = actions;
  }

  /** Mark what an event has changed. */
  mark(event) {
    if (event.output_index !== undefined) this.#marked.add(event.output_index);
    else if (event.response?.output) event.response.output.forEach((_, index) => this.#marked.add(index));
  }

  /** Draw the marked items. */
  draw(items) {
    for (const index of [...this.#marked].sort((a, b) => a - b)) {
      const item = items[index];
      if (!item?.type) continue;
      let view = this.#views[index];
      if (view === undefined || view.type !== item.type) {
        const made = makeView(item, this.#actions);
        if (view) view.node.replaceWith(made.node);
        else this.node.append(made.node);
        view = this.#views[index] = made;
      }
      view.update(item);
      if (item.id) view.node.dataset.item = item.id;
    }
    this.#marked.clear();
  }
}

/** Show an item that does not change any more. */
export function showItem(item, actions = {}) {
  const view = makeView(item, actions);
  view.update(item);
  return view.node;
}

function makeView(item, actions) {
  const make = VIEWS[item.type] ?? (item.type.endsWith("_call") ? callView : otherView);
  return { type: item.type, ...make(item, actions) };
}

const VIEWS = {
  message: messageView,
  reasoning: reasoningView,
  function_call: callView,
  mcp_call: callView,
  custom_tool_call: callView,
  function_call_output: resultView,
  custom_tool_call_output: resultView,
  mcp_approval_request: approvalView,
  mcp_approval_response: (item) => still(h("p", { class: "aside" }, item.approve ? "Approved." : "Refused.")),
  mcp_list_tools: listView,
  image_generation_call: imageView,
  compaction: () => still(h("p", { class: "aside" }, "Earlier turns were summarised here.")),
};

function still(node) {
  return { node, update() {} };
}

function messageView(item) {
  const role = item.role ?? "assistant";
  const body = h("div", { class: "body" });
  const note = h("p", { class: "aside" });
  const node = h("article", { class: "message", "data-role": role, "aria-label": role === "user" ? "You asked" : "The model answered" }, body, note);
  const parts = [];
  return {
    node,
    update(now) {
      const content = typeof now.content === "string" ? [{ type: "text", text: now.content }] : (now.content ?? []);
      content.forEach((part, index) => {
        if (!part) return;
        parts[index] ??= addPart(body, part, role);
        parts[index](part);
      });
      note.textContent = now.status === "incomplete" ? "This answer was cut off." : "";
    },
  };
}

/** Add a part of a message; returns the function that updates it. */
function addPart(body, part, role) {
  if (part.type === "input_image") {
    body.append(typeof part.image_url === "string" ? picture(part.image_url, "") : h("p", { class: "aside" }, "An image"));
    return () => {};
  }
  if (part.type === "input_file") {
    body.append(h("p", { class: "aside" }, `File: ${part.filename ?? part.file_url ?? part.file_id ?? "attached"}`));
    return () => {};
  }
  if (role === "user") {
    const text = h("p", { class: "plain" });
    body.append(text);
    return (now) => (text.textContent = textOf([now]));
  }
  const markdown = new Markdown();
  body.append(markdown.node);
  const notes = h("ol", { class: "sources", "aria-label": "Sources" });
  return (now) => {
    markdown.update(now.text ?? now.refusal ?? "");
    const found = (now.annotations ?? []).filter((each) => each.url);
    if (found.length === notes.childElementCount) return;
    notes.replaceChildren(...found.map((each) => h("li", {}, link(each.url, [each.title || each.url]))));
    body.append(notes);
  };
}

/** Something folded: its title, the state beside it, and a place for its content. */
function folded(title, kind) {
  const state = h("span", { class: "aside" });
  const content = h("div", { class: "folded-content" });
  const node = h("details", { class: "folded", "data-kind": kind }, h("summary", {}, h("span", { class: "title" }, title), state), content);
  return { node, state, content };
}

function reasoningView() {
  const view = folded("Reasoning", "reasoning");
  const text = h("p", { class: "plain" });
  view.content.append(text);
  return {
    node: view.node,
    update(item) {
      const whole = [...(item.summary ?? []), ...(item.content ?? [])].map((part) => part?.text ?? "").join("\n\n");
      text.textContent = whole || "The model keeps it to itself.";
      view.state.textContent = whole ? `${whole.length.toLocaleString("en")} characters` : "";
    },
  };
}

function callView(item) {
  const view = folded(`${item.server_label ? `${item.server_label} · ` : ""}${item.name ?? item.type.replaceAll("_", " ")}`, "call");
  const given = h("pre", { tabIndex: 0, "aria-label": "Arguments" });
  const result = h("pre", { tabIndex: 0, "aria-label": "Result" });
  view.content.append(h("h5", {}, "Arguments"), given);
  return {
    node: view.node,
    update(now) {
      const over = now.status === "completed" || now.status === "failed";
      const input = now.arguments ?? now.input ?? now.action ?? now.queries ?? "";
      given.textContent = over ? pretty(input) : typeof input === "string" ? input : pretty(input);
      view.state.textContent = now.status === "in_progress" ? "writing" : (now.status ?? "");
      const outcome = now.error ?? now.output ?? now.results;
      if (outcome == null) return;
      if (!result.isConnected) view.content.append(h("h5", {}, now.error ? "Error" : "Result"), result);
      result.textContent = pretty(outcome);
    },
  };
}

function resultView(item) {
  const view = folded("Result of a tool call", "call");
  view.content.append(h("pre", { tabIndex: 0, "aria-label": "Result" }, pretty(typeof item.output === "string" ? item.output : textOf(item.output))));
  return still(view.node);
}

function listView(item) {
  const view = folded(`Tools of ${item.server_label}`, "call");
  return {
    node: view.node,
    update(now) {
      const tools = now.tools ?? [];
      view.state.textContent = now.error ? "failed" : `${tools.length}`;
      view.content.replaceChildren(h("ul", {}, tools.map((tool) => h("li", {}, h("code", {}, tool.name), ` ${tool.description ?? ""}`))));
      if (now.error) view.content.append(h("p", { class: "error" }, pretty(now.error)));
    },
  };
}

function approvalView(item, actions) {
  const buttons = h("div", { class: "actions" });
  const node = h(
    "section",
    { class: "approval", "aria-label": "Approval" },
    h("p", {}, "The model asks to call ", h("strong", {}, item.name), " of ", h("strong", {}, item.server_label), " with"),
    h("pre", { tabIndex: 0, "aria-label": "Arguments" }, pretty(item.arguments)),
    buttons,
  );
  for (const [label, approve] of [["Approve", true], ["Refuse", false]]) {
    if (!actions.answer) break;
    const press = () => {
      for (const button of buttons.children) button.disabled = true;
      actions.answer(item, approve);
    };
    buttons.append(h("button", { type: "button", class: approve ? "primary" : "", onclick: press }, label));
  }
  return still(node);
}

function imageView() {
  const node = h("figure", {}, h("figcaption", { class: "aside" }, "Making an image"));
  return {
    node,
    update(item) {
      if (!item.result) return;
      const format = ["png", "jpeg", "webp"].includes(item.output_format) ? item.output_format : "png";
      node.replaceChildren(picture(`data:image/${format};base64,${item.result}`, item.revised_prompt ?? "Image made by the model"));
    },
  };
}

function otherView() {
  const view = folded("Item", "other");
  const text = h("pre", { tabIndex: 0, "aria-label": "Item" });
  view.content.append(text);
  return {
    node: view.node,
    update(item) {
      view.state.textContent = item.type;
      text.textContent = pretty(item);
    },
  };
}

/** The line below an answer: how it ended, and what it took. */
export function endLine(response) {
  const usage = response.usage;
  const parts = [badge(response.status)];
  const why = response.error?.message ?? response.incomplete_details?.message ?? response.incomplete_details?.reason;
  if (why) parts.push(h("span", {}, why));
  if (usage) parts.push(h("span", {}, `${usage.output_tokens.toLocaleString("en")} tokens`));
  const attempts = response.outlive?.attempts;
  if (attempts > 1) parts.push(h("span", {}, `${attempts} attempts`));
  parts.push(h("a", { href: `#/responses/${response.id}` }, "Details"));
  const text = (response.output ?? []).filter((item) => item.type === "message").map((item) => textOf(item.content)).join("\n\n");
  if (text) parts.push(copyButton(() => text, "Copy", "Copy answer"));
  return h("p", { class: "end-line" }, parts);
}
