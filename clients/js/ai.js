// A transport for useChat of Vercel's `ai`: the chat is a conversation of Outlive, so that an answer goes on while the page
// is reloaded, closed, or opened on another device.
//
//     useChat({ id, resume: true, transport: new OutliveChatTransport({ model: "demo" }) })

import { Outlive, OutliveError } from "./outlive.js";

export class OutliveChatTransport {
  // A stream that is taken up again comes from its first event.
  resumeStreamIsReplay = true;
  #outlive;
  #body;
  #conversation;
  #cancelOnAbort;
  #unread = new Map(); // answers that `messages` has left out, by conversation

  constructor({ outlive, model, body, conversation = storedConversation, cancelOnAbort = true, ...options } = {}) {
    this.#outlive = outlive ?? new Outlive(options);
    this.#body = { ...(model === undefined ? {} : { model }), ...body };
    this.#conversation = conversation;
    this.#cancelOnAbort = cancelOnAbort;
  }

  /** Send what is new in a chat, and return the answer as chunks. */
  async sendMessages({ chatId, messages, trigger, messageId, abortSignal, body }) {
    const conversation = await this.#find(chatId, true);
    const last = messages.at(-1);
    if (trigger === "regenerate-message" || (messageId !== undefined && last.role === "user")) {
      await this.#forget(conversation, messages.filter((message) => message.role === "user").length);
    }
    const input = last.role === "assistant" ? readAnswers(last) : [readMessage(last)];
    const start = (options) => this.#outlive.stream({ ...this.#body, ...body, conversation, input }, options);
    return this.#read(start, abortSignal, last.role === "assistant" ? last.id : undefined);
  }

  /** Return the chunks of the answer that is running in a chat, from its first; null if none is. */
  async reconnectToStream({ chatId, abortSignal }) {
    const conversation = await this.#find(chatId, false);
    if (!conversation) return null;
    const [running] = await this.#outlive.running(conversation, { signal: abortSignal });
    const id = running?.id ?? this.#unread.get(conversation);
    // What is stopped before it was taken up is not cancelled: React may do so while it mounts a component.
    if (!id || abortSignal?.aborted) return null;
    this.#unread.delete(conversation);
    return this.#read((options) => this.#outlive.follow(id, options), abortSignal);
  }

  /** Cancel the answer that is running in a chat, from any page. Returns true if there was one. */
  async stop(chatId) {
    const conversation = await this.#find(chatId, false);
    const running = conversation ? await this.#outlive.running(conversation) : [];
    await Promise.all(running.map(({ id }) => this.#outlive.cancel(id)));
    return running.length > 0;
  }

  /** Return the messages of a chat, for a page that is opened again. The answer that is running comes by `resume`. */
  async messages(chatId) {
    const conversation = await this.#find(chatId, false);
    if (!conversation) return [];
    const items = await this.#items(conversation);
    // An answer that ends before `resume` asks for it is not running any more, and must be shown all the same.
    const last = items.at(-1);
    const [newest] = last ? (await this.#outlive.list({ conversation, limit: 1 })).data : [];
    const query = { limit: 1 };
    const input = newest ? await this.#outlive.request("GET", `/responses/${newest.id}/input_items`, { query }) : null;
    if (input?.data[0]?.id === last?.id && newest) this.#unread.set(conversation, newest.id);
    return makeMessages(items);
  }

  async #find(chatId, create) {
    if (chatId.startsWith("conv_")) return chatId;
    const make = create ? async () => (await this.#outlive.conversations.create()).id : null;
    return this.#conversation(chatId, make);
  }

  async #items(conversation) {
    const items = [];
    for (let page = { has_more: true }; page.has_more; items.push(...page.data)) {
      const query = { order: "asc", limit: 100, after: items.at(-1)?.id };
      page = await this.#outlive.conversations.items(conversation, query);
    }
    return items;
  }

  /** Delete a question, given by its place among all, and what follows it: it is asked again. */
  async #forget(conversation, place) {
    const items = await this.#items(conversation);
    const first = items.findIndex((item) => item.role === "user" && (place -= 1) === 0);
    for (const { id } of first < 0 ? [] : items.slice(first)) {
      const path = `/conversations/${conversation}/items/${encodeURIComponent(id)}`;
      await this.#outlive.request("DELETE", path);
    }
  }

  /** Return the chunks of a stream, once its first event is there: an error before that is thrown. */
  async #read(start, signal, messageId) {
    const reading = new AbortController();
    const stream = start({ signal: reading.signal });
    const onAbort = () => {
      // The id is unknown until the first event; what was begun must be cancelled all the same.
      if (stream.id === null) return;
      if (this.#cancelOnAbort) this.#outlive.cancel(stream.id).catch(() => {});
      reading.abort();
    };
    signal?.addEventListener("abort", onAbort);
    const first = await stream.next();
    if (signal?.aborted) onAbort();
    const chunks = makeChunks(stream, first, messageId);
    return new ReadableStream({
      async pull(controller) {
        const step = await chunks.next().catch((error) => {
          if (!signal?.aborted) throw error;
          return { done: true };
        });
        if (!step.done) return controller.enqueue(step.value);
        signal?.removeEventListener("abort", onAbort);
        controller.close();
      },
      cancel: () => reading.abort(),
    });
  }
}

/** Keep the conversation of each chat in the browser, so that a reload finds it. */
async function storedConversation(chatId, make) {
  const key = `outlive:${chatId}`;
  const storage = globalThis.localStorage;
  const known = storage?.getItem(key);
  if (known || make === null) return known ?? null;
  const made = await make();
  if (!storage) throw new OutliveError("There is no localStorage here: give the transport a `conversation` function.");
  storage.setItem(key, made);
  return made;
}

// -- from messages to items

function readMessage(message) {
  const content = message.parts.flatMap((part) => {
    if (part.type === "text") return [{ type: "input_text", text: part.text }];
    if (part.type !== "file") return [];
    if (part.mediaType.startsWith("image/")) return [{ type: "input_image", image_url: part.url, detail: "auto" }];
    return [{ type: "input_file", filename: part.filename ?? "file", file_data: part.url }];
  });
  return { type: "message", role: message.role, content };
}

/** Return the outputs of tools, and the answers to requests for approval, in the last step of a message. */
function readAnswers(message) {
  const step = message.parts.slice(message.parts.findLastIndex((part) => part.type === "step-start") + 1);
  const answers = step.flatMap((part) => {
    if (part.state === "approval-responded") {
      const { id, approved, reason } = part.approval;
      return [{ type: "mcp_approval_response", approval_request_id: id, approve: approved, ...(reason ? { reason } : {}) }];
    }
    if (part.providerExecuted || !["output-available", "output-error"].includes(part.state)) return [];
    const output = part.state === "output-error" ? part.errorText : part.output;
    const text = typeof output === "string" ? output : JSON.stringify(output ?? null);
    return [{ type: "function_call_output", call_id: part.toolCallId, output: text }];
  });
  if (answers.length === 0) throw new OutliveError("The last message is an answer already.");
  return answers;
}

// -- from items to messages

function makeMessages(items) {
  const messages = [];
  const outputs = new Map(items.filter((item) => item.call_id && "output" in item).map((item) => [item.call_id, item.output]));
  const approvals = new Map(items.filter(isApproval).map((item) => [item.approval_request_id, item]));
  let answered = false; // what follows an answer of the client's is another step
  for (const item of items) {
    if (item.type === "message" && item.role === "user") {
      messages.push({ id: item.id, role: "user", parts: item.content.flatMap(makePart) });
      continue;
    }
    const parts = makeParts(item, outputs, approvals);
    answered ||= isApproval(item) || (item.call_id !== undefined && "output" in item);
    if (parts.length === 0) continue;
    const last = messages.at(-1);
    if (last?.role === "assistant") last.parts.push(...(answered ? [{ type: "step-start" }] : []), ...parts);
    else messages.push({ id: item.id, role: "assistant", parts });
    answered = false;
  }
  return messages;
}

const isApproval = (item) => item.type === "mcp_approval_response";

function makePart(part) {
  if (part.type === "input_image") return [{ type: "file", mediaType: "image/*", url: part.image_url }];
  if (part.type === "input_file") {
    return [{ type: "file", mediaType: "application/octet-stream", filename: part.filename, url: part.file_data }];
  }
  return part.text === undefined ? [] : [{ type: "text", text: part.text, state: "done" }];
}

function makeParts(item, outputs, approvals) {
  if (item.type === "message" && item.role === "assistant") {
    return item.content.map((part) => ({ type: "text", text: part.text ?? part.refusal ?? "", state: "done" }));
  }
  if (item.type === "reasoning") {
    const texts = [...(item.summary ?? []), ...(item.content ?? [])];
    return texts.map(({ text }) => ({ type: "reasoning", text, state: "done" }));
  }
  const call = readCall(item);
  if (call === null) return [];
  const { name, ...shared } = call;
  const output = call.providerExecuted ? call.output : outputs.get(call.toolCallId);
  const kind = call.dynamic ? { type: "dynamic-tool", toolName: name } : { type: `tool-${name}` };
  if (item.type === "mcp_approval_request") {
    const { approve: approved, reason } = approvals.get(item.id) ?? {};
    const approval = { id: item.id, ...(approved === undefined ? {} : { approved }), ...(reason ? { reason } : {}) };
    return [{ ...kind, ...shared, approval, state: approved === undefined ? "approval-requested" : "approval-responded" }];
  }
  if (call.errorText) return [{ ...kind, ...shared, state: "output-error" }];
  if (output === undefined) return [{ ...kind, ...shared, state: "input-available" }];
  return [{ ...kind, ...shared, output, state: "output-available" }];
}

/** Return a call in the words of `ai`: those of the client's tools, and those that the server runs; null for other items. */
function readCall(item) {
  if (item.type === "function_call") return { toolCallId: item.call_id, name: item.name, input: parse(item.arguments) };
  if (item.type === "custom_tool_call") return { toolCallId: item.call_id, name: item.name, input: item.input };
  if (item.type === "mcp_call" || item.type === "mcp_approval_request") {
    const call = { toolCallId: item.id, name: item.name, input: parse(item.arguments), dynamic: true, providerExecuted: true };
    const error = item.error ? (item.error.message ?? JSON.stringify(item.error)) : undefined;
    return { ...call, ...(item.output == null ? {} : { output: item.output }), ...(error ? { errorText: error } : {}) };
  }
  if (!item.type?.endsWith("_call")) return null;
  const { id, type, ...output } = item;
  return { toolCallId: id, name: type.slice(0, -5), input: {}, output, dynamic: true, providerExecuted: true };
}

function parse(text) {
  try {
    return JSON.parse(text || "{}");
  } catch {
    return text;
  }
}

// -- from events to chunks

const TEXTS = new Map([
  ["response.output_text", "text"],
  ["response.refusal", "text"],
  ["response.reasoning_text", "reasoning"],
  ["response.reasoning", "reasoning"],
  ["response.reasoning_summary_text", "reasoning"],
]);
const ARGUMENTS = /^response\.(function_call_arguments|custom_tool_call_input|mcp_call_arguments)\.delta$/;

async function* makeChunks(stream, first, messageId) {
  const open = new Map(); // texts that have begun
  const calls = new Map(); // calls by the ids of their items
  for (let step = first; !step.done; step = await stream.next()) yield* makeChunk(step.value, open, calls, messageId);
}

function* makeChunk(event, open, calls, messageId) {
  const { type } = event;
  const text = TEXTS.get(type.slice(0, type.lastIndexOf(".")));
  if (type === "response.created") {
    const { id } = event.response;
    yield { type: "start", messageId: messageId ?? id, messageMetadata: { responseId: id } };
    yield { type: "start-step" };
  } else if (text !== undefined) {
    const id = `${event.item_id}:${type.includes("summary") ? "s" : ""}${event.summary_index ?? event.content_index}`;
    if (!open.has(id)) {
      open.set(id, text);
      yield { type: `${text}-start`, id };
    }
    if (type.endsWith(".delta")) yield { type: `${text}-delta`, id, delta: event.delta };
    else {
      open.delete(id);
      yield { type: `${text}-end`, id };
    }
  } else if (type === "response.output_item.added") {
    const call = readCall(event.item);
    if (call === null || event.item.type === "mcp_approval_request") return;
    calls.set(event.item.id, call);
    yield { type: "tool-input-start", ...describe(call) };
  } else if (ARGUMENTS.test(type) && calls.has(event.item_id)) {
    yield { type: "tool-input-delta", toolCallId: calls.get(event.item_id).toolCallId, inputTextDelta: event.delta };
  } else if (type === "response.output_item.done") {
    yield* makeCallChunks(event.item);
  } else if (type === "response.output_text.annotation.added" && event.annotation.type === "url_citation") {
    const { url, title } = event.annotation;
    yield { type: "source-url", sourceId: `${event.item_id}:${event.annotation_index}`, url, title };
  } else if (["response.completed", "response.incomplete", "response.cancelled", "response.failed"].includes(type)) {
    yield* makeEnding(type, event.response);
  }
}

function* makeCallChunks(item) {
  const call = readCall(item);
  if (call === null) return;
  const { toolCallId, dynamic, providerExecuted } = call;
  yield { type: "tool-input-available", ...describe(call), input: call.input };
  if (item.type === "mcp_approval_request") yield { type: "tool-approval-request", approvalId: item.id, toolCallId };
  else if (call.errorText) yield { type: "tool-output-error", toolCallId, dynamic, providerExecuted, errorText: call.errorText };
  else if (providerExecuted) {
    yield { type: "tool-output-available", toolCallId, dynamic, providerExecuted, output: call.output ?? null };
  }
}

const describe = ({ toolCallId, name, dynamic, providerExecuted }) => ({
  toolCallId,
  toolName: name,
  ...(dynamic ? { dynamic, providerExecuted } : {}),
});

function* makeEnding(type, { id, status, usage, error, output, incomplete_details: details }) {
  if (type === "response.failed") {
    yield { type: "error", errorText: error?.message ?? "The response failed." };
    return;
  }
  yield { type: "finish-step" };
  if (type === "response.cancelled") {
    yield { type: "abort", reason: "cancelled" };
    return;
  }
  const calls = output.some((item) => ["function_call", "custom_tool_call"].includes(item.type));
  const finishReason = { max_output_tokens: "length", content_filter: "content-filter" }[details?.reason];
  yield {
    type: "finish",
    finishReason: finishReason ?? (type === "response.incomplete" ? "other" : calls ? "tool-calls" : "stop"),
    messageMetadata: { responseId: id, status, usage },
  };
}
