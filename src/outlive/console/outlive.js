// outlive.js: a client of Outlive's API for browsers, workers, Node 20+, Deno and Bun. No dependencies.
//
//     const outlive = new Outlive({ baseURL: "http://127.0.0.1:7878/v1" });
//     for await (const event of outlive.stream({ model: "demo", input: "Hi" })) fold.add(event);
//
// The rules of following a stream over any number of connections are those of outlive.client (Python):
// every event with a number above the last one is delivered once; only a terminal event (or the server's [DONE]) ends a
// stream; after any other end the stream is followed again from the last event.

export const TERMINAL_EVENTS = new Set(
  ["completed", "incomplete", "failed", "cancelled"].map((status) => `response.${status}`),
);
const EVENTS = "text/event-stream";
const RUNNING = ["queued", "in_progress"];
// Statuses of a proxy without a server behind it, or of a server that shuts down.
const UNAVAILABLE = [502, 503, 504];
const LONGEST_RETRY_AFTER = 60_000;
// Tries of a POST that the server itself answers with 429 or 500, and of a GET that a proxy answers with 404.
const FEW = 3;
// Tries of a first request: there may be no server at that address. They take some 15 seconds.
const FIRST_CONTACT = 7;
// A connection open for this long counts as working even without events: a model may reason for many minutes.
const HEALTHY_MS = 5_000;
// Below the idle limits of common proxies; the server holds a GET for 60 s at most.
const LONG_POLL_SECONDS = 20;

/** An error that the server answered with; `status` is 0 and `cause` is set if there was no answer. */
export class OutliveError extends Error {
  constructor(message, { status = 0, code = null, param = null, type = null, headers = null, cause } = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "OutliveError";
    Object.assign(this, { status, code, param, type });
    this.requestId = headers?.get("x-request-id") ?? null;
    this.retryAfter = Number(headers?.get("retry-after")) || null; // seconds
    // Not part of the interface: they decide about retries.
    Object.defineProperty(this, "own", { value: headers?.has("x-outlive-version") ?? false });
    Object.defineProperty(this, "mayRetry", { value: headers?.get("x-should-retry") !== "false" });
  }
}

export class Outlive {
  #baseURL;
  #apiKey;
  #ticket;
  #headers;
  #fetch;
  #contacted = false;

  constructor({ baseURL = "/v1", apiKey, ticket, headers = {}, fetch = globalThis.fetch, retry = {} } = {}) {
    this.#baseURL = baseURL.replace(/\/+$/, "");
    this.#apiKey = apiKey;
    this.#ticket = ticket;
    this.#headers = headers;
    this.#fetch = (url, options) => fetch(url, options); // a browser's fetch takes no other `this`
    /** Milliseconds before the first retry, of the longest pause and of silence on a stream; retries in a row. */
    this.retry = { first: 250, longest: 8_000, silence: 45_000, tries: 60, ...retry };
    this.conversations = {
      create: (body = {}, options) => this.#post("/conversations", body, options),
      list: (query, options) => this.request("GET", "/conversations", { query, ...options }),
      retrieve: (id, options) => this.request("GET", `/conversations/${encode(id)}`, options),
      delete: (id, options) => this.request("DELETE", `/conversations/${encode(id)}`, options),
      items: (id, query, options) => this.request("GET", `/conversations/${encode(id)}/items`, { query, ...options }),
    };
    /** Tickets of a response or conversation, given by its id: for a server that has the key and a page that has none. */
    const place = (id) => `/${id.startsWith("conv") ? "conversations" : "responses"}/${encode(id)}/tickets`;
    this.tickets = {
      create: (id, { expiresIn, ...options } = {}) =>
        this.request("POST", place(id), { body: expiresIn === undefined ? {} : { expires_in: expiresIn }, ...options }),
      revoke: (id, ticketId, options) => this.request("DELETE", `${place(id)}/${encode(ticketId)}`, options),
    };
  }

  // -- single requests

  /** Send a request to any route, and return its JSON. Nothing is retried. */
  async request(method, path, { body, query, signal, headers } = {}) {
    return readJson(await this.#ask(method, path, { body, query, signal, headers }), signal);
  }

  /** POST a response, plain or in the background. Repeated under its key if the connection breaks. */
  create(body, options) {
    return this.#post("/responses", body, options);
  }

  retrieve(id, options) {
    return this.request("GET", `/responses/${encode(id)}`, options);
  }

  cancel(id, options) {
    return this.request("POST", `/responses/${encode(id)}/cancel`, options);
  }

  delete(id, options) {
    return this.request("DELETE", `/responses/${encode(id)}`, options);
  }

  /** List responses: `status` (one or several), `conversation`, `after`, `limit`, `order`. */
  list(query, options) {
    return this.request("GET", "/responses", { query, ...options });
  }

  /** Return the responses that are queued or running, of one conversation or of all, newest first. */
  async running(conversation, options) {
    return (await this.list({ status: RUNNING, conversation, limit: 100 }, options)).data;
  }

  /** Wait for the end of a response and return it. */
  async poll(target, { signal } = {}) {
    const { id } = parseTarget(target);
    const backoff = new Backoff(this.retry);
    for (;;) {
      const asked = Date.now();
      try {
        const query = { wait: LONG_POLL_SECONDS };
        const answer = await this.#ask("GET", `/responses/${encode(id)}`, { query, signal });
        const response = await readJson(answer, signal);
        backoff.reset();
        if (!RUNNING.includes(response.status)) return response;
        if (Date.now() - asked < LONG_POLL_SECONDS * 900) {
          await sleep(Number(answer.headers.get("openai-poll-after-ms")) || 1_000, signal);
        }
      } catch (error) {
        signal?.throwIfAborted();
        await backoff.wait(error, signal);
      }
    }
  }

  // -- streams

  /** POST a response and iterate over its events; a broken connection is resumed. */
  stream(body, { idempotencyKey, ...options } = {}) {
    const sent = { body: { ...body, stream: true }, headers: { accept: EVENTS, ...keyHeader(body, idempotencyKey) } };
    const submit = (signal) => this.#ask("POST", "/responses", { ...sent, signal });
    return new EventStream(this, { submit, get: this.#get, stored: body.store !== false }, {}, options);
  }

  /** Iterate over the events of a response, from the first or from those after a number. `target`: an id or a token. */
  follow(target, { after, ...options } = {}) {
    const position = { ...parseTarget(target), ...(after == null ? {} : { after }) };
    return new EventStream(this, { get: this.#get, stored: true }, position, options);
  }

  #get = ({ id, after }, signal) => {
    const query = { stream: true, starting_after: after };
    return this.#ask("GET", `/responses/${encode(id)}`, { query, headers: { accept: EVENTS }, signal });
  };

  /** True once any server has answered. */
  get contacted() {
    return this.#contacted;
  }

  // -- requests

  async #post(path, body, { signal, idempotencyKey } = {}) {
    const headers = keyHeader(body, idempotencyKey);
    const backoff = new Backoff(this.retry);
    for (;;) {
      try {
        return await this.request("POST", path, { body, signal, headers });
      } catch (error) {
        signal?.throwIfAborted();
        if (body.store === false) throw error;
        await backoff.wait(error, signal, postTries(error, this));
      }
    }
  }

  async #ask(method, path, { body, query = {}, signal, headers }) {
    for (let again = false; ; again = true) {
      const [ticket, key] = [await read(this.#ticket, again), await read(this.#apiKey, again)];
      const sent = { ...this.#headers, ...headers };
      if (key) sent.authorization = `Bearer ${key}`;
      if (body !== undefined) sent["content-type"] = "application/json";
      const url = this.#baseURL + path + encodeQuery(ticket ? { ...query, ticket } : query);
      const options = { method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body), signal };
      let answer;
      try {
        answer = await this.#fetch(url, options);
        this.#contacted = true;
        if (answer.ok) return answer;
        throw await readError(answer);
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        if (!(error instanceof OutliveError)) throw lost("The server did not answer.", error);
        // A function may have a new key or ticket.
        const renews = typeof this.#ticket === "function" || typeof this.#apiKey === "function";
        if (again || !renews || error.status !== 401) throw error;
      }
    }
  }
}

/**
 * The events of one response over all its connections. `id` and `after` are the position reached, `token` is both as a
 * string with which another process, also one in Python, goes on.
 */
export class EventStream {
  #outlive;
  #source;
  #signal;
  #onState;
  #events;

  constructor(outlive, source, { id = null, after = null, ended = false }, { signal, onState = () => {} }) {
    this.#outlive = outlive;
    this.#source = source;
    this.#signal = signal;
    this.#onState = onState;
    this.id = id;
    this.after = after;
    this.ended = ended;
    this.#events = this.#run();
  }

  get token() {
    return this.id === null ? null : token(this);
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  next() {
    return this.#events.next();
  }

  return(value) {
    return this.#events.return(value);
  }

  async *#run() {
    const backoff = new Backoff(this.#outlive.retry);
    if (!this.ended) this.#onState("connecting");
    while (!this.ended) {
      const before = this.after;
      const since = Date.now();
      let error;
      try {
        yield* this.#read(backoff);
        if (this.ended) break;
        error = lost("The stream ended before the response.");
      } catch (caught) {
        this.#signal?.throwIfAborted();
        error = caught;
      }
      if (!this.#source.stored) throw this.id === null ? error : lost("A stream that is not stored broke.", error);
      if (this.after === before && Date.now() - since >= HEALTHY_MS) backoff.reset();
      const tries = this.id === null ? postTries(error, this.#outlive) : undefined;
      await backoff.wait(error, this.#signal, tries, () => this.#onState("reconnecting"));
    }
    this.#onState("ended");
  }

  /** Yield the new events of one connection. */
  async *#read(backoff) {
    const connection = new Connection(this.#signal, this.#outlive.retry.silence);
    try {
      const { get, submit } = this.#source;
      const answer = await (this.id === null ? submit(connection.signal) : get(this, connection.signal));
      this.#onState("streaming");
      for await (const data of readFrames(answer.body, connection)) {
        if (data === "[DONE]") {
          this.ended = true;
          return;
        }
        const event = parseEvent(data);
        if (!this.#advance(event)) continue;
        backoff.reset();
        yield event;
        if (this.ended) return;
      }
    } finally {
      connection.close();
    }
  }

  /** Move to the event. Return false if it was delivered before. */
  #advance(event) {
    const number = event.sequence_number;
    if (Number.isInteger(number)) {
      const last = this.after ?? -1;
      if (number <= last) return false;
      if (number > last + 1) throw lost(`Event ${last + 1} is missing.`);
      this.after = number;
    }
    this.id ??= event.response?.id ?? null;
    this.ended = TERMINAL_EVENTS.has(event.type);
    return true;
  }
}

/** One connection: aborted by the caller's signal, by silence, and when the device is online again. */
class Connection {
  #controller = new AbortController();
  #outer;
  #silence;
  #last = Date.now();
  #timer;

  constructor(outer, silence) {
    this.#outer = outer;
    this.#silence = silence;
    outer?.throwIfAborted();
    outer?.addEventListener("abort", this.#onAbort);
    globalThis.addEventListener?.("online", this.#onOnline);
    this.#arm(silence);
  }

  get signal() {
    return this.#controller.signal;
  }

  /** Note that bytes have come, comments among them. */
  touch() {
    this.#last = Date.now();
  }

  close() {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.#onAbort);
    globalThis.removeEventListener?.("online", this.#onOnline);
    this.#controller.abort();
  }

  #onAbort = () => this.#controller.abort(this.#outer.reason);
  // The connection may be a dead one of the network before; a new one costs one GET.
  #onOnline = () => this.#controller.abort(lost("The device was offline."));

  #arm(delay) {
    this.#timer = setTimeout(() => {
      const left = this.#last + this.#silence - Date.now();
      if (left > 0) this.#arm(left);
      else this.#controller.abort(lost("The connection was silent for too long."));
    }, delay);
  }
}

/** Pauses after faults, longer each time, until there were too many in a row. */
class Backoff {
  #retry;
  #tries = 0;
  #missing = 0;

  constructor(retry) {
    this.#retry = retry;
  }

  reset() {
    this.#tries = this.#missing = 0;
  }

  /** Sleep before the next try, after a call of `onWait`, or throw the error if another try would not help. */
  async wait(error, signal, tries = this.#retry.tries, onWait = () => {}) {
    if (!this.#isTemporary(error)) throw error;
    // Nothing can come through while the device is offline: that counts as no try.
    const offline = globalThis.navigator?.onLine === false;
    this.#tries += 1;
    if (!offline && this.#tries >= tries) throw error;
    const { first, longest } = this.#retry;
    const pause = Math.min(longest, first * 2 ** Math.min(this.#tries - 1, 30)) * (0.5 + 0.5 * Math.random());
    if (offline) this.#tries -= 1;
    onWait();
    await sleep(Math.max(pause, Math.min(LONGEST_RETRY_AFTER, (error.retryAfter ?? 0) * 1000)), signal);
  }

  #isTemporary(error) {
    if (!(error instanceof OutliveError)) return false;
    const { status } = error;
    // The server's own 404 is final. One without its header may come from a proxy with no server behind it.
    if (status === 404) return !error.own && ++this.#missing < FEW;
    return error.mayRetry && (status === 0 || [408, 409, 425, 429].includes(status) || status >= 500);
  }
}

// -- the fold

const CONTENT = ["content", "content_index"];
const SUMMARY = ["summary", "summary_index"];
// Which event grows which text: its part's list and the field of its position (none: it lies in the item itself), the
// field that holds the text, and the type of its part. The table is that of core/grammar.py.
const TEXTS = Object.entries({
  output_text: [CONTENT, "text", "output_text"],
  refusal: [CONTENT, "refusal", "refusal"],
  reasoning_text: [CONTENT, "text", "reasoning_text"],
  reasoning: [CONTENT, "text", "reasoning_text"], // its name in Open Responses
  reasoning_summary_text: [SUMMARY, "text", "summary_text"],
  function_call_arguments: [null, "arguments"],
  custom_tool_call_input: [null, "input"],
  mcp_call_arguments: [null, "arguments"],
});
const DELTAS = new Map(TEXTS.map(([name, text]) => [`response.${name}.delta`, text]));
const DONES = new Map(TEXTS.map(([name, text]) => [`response.${name}.done`, text]));
const PARTS = new Map(
  [["content_part", CONTENT], ["reasoning_summary_part", SUMMARY]].flatMap(([name, list]) =>
    ["added", "done"].map((end) => [`response.${name}.${end}`, list]),
  ),
);

/** The response so far, from its events in order. Adding event 10,000 costs what event 10 cost. */
export class Fold {
  #header = null;
  #items = [];
  #ended = false;

  /** Add an event. */
  add(event) {
    const { type } = event;
    if (event.response !== undefined && type.startsWith("response.")) {
      this.#header = event.response;
      this.#ended = TERMINAL_EVENTS.has(type);
      if (this.#ended) this.#items = event.response.output ?? [];
    } else if (type === "response.output_item.added" || type === "response.output_item.done") {
      this.#items[event.output_index] = structuredClone(event.item); // it grows in place
    } else if (DELTAS.has(type)) {
      const [place, field] = this.#place(event, DELTAS.get(type));
      place[field] = (place[field] ?? "") + event.delta;
    } else if (DONES.has(type)) {
      const [place, field] = this.#place(event, DONES.get(type));
      place[field] = event[field];
    } else if (PARTS.has(type)) {
      const [list, index] = PARTS.get(type);
      const item = this.#item(event);
      (item[list] ??= [])[event[index]] = structuredClone(event.part);
    } else if (type === "response.output_text.annotation.added") {
      const part = this.#item(event).content?.[event.content_index];
      if (part) (part.annotations ??= []).push(event.annotation);
    } else if (type === "response.mcp_call.in_progress") {
      this.#item(event).status = "calling";
    }
    return this;
  }

  /** The Response object as of the last event; null before the first. Its items grow in place until they are done. */
  get response() {
    if (this.#header === null || this.#ended) return this.#header;
    return { ...this.#header, output: this.#items };
  }

  /** The items so far. */
  get output() {
    return this.#items;
  }

  /** The text of all messages so far. */
  get text() {
    let text = "";
    for (const item of this.#items) {
      if (item?.type !== "message") continue;
      for (const part of item.content ?? []) if (part.type === "output_text") text += part.text;
    }
    return text;
  }

  get status() {
    return this.#header?.status ?? "queued";
  }

  get ended() {
    return this.#ended;
  }

  #item(event) {
    return (this.#items[event.output_index] ??= {});
  }

  #place(event, [list, field, type]) {
    const item = this.#item(event);
    if (list === null) return [item, field];
    const [name, index] = list;
    return [((item[name] ??= [])[event[index]] ??= { type }), field];
  }
}

// -- tokens: those of outlive.client, so that another process, also one in Python, goes on

const PREFIX = "ot1_";

/** Return a position in a stream as one string: letters, digits, `-` and `_`. */
export function token({ id, after = null, ended = false }) {
  const body = new TextEncoder().encode(JSON.stringify([id, after, ended ? 1 : 0]));
  const checked = new Uint8Array(4 + body.length);
  new DataView(checked.buffer).setUint32(0, crc32(body));
  checked.set(body, 4);
  const packed = btoa(String.fromCharCode(...checked));
  return PREFIX + packed.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Return the position that a token holds. Throws a TypeError, with the reason, for anything else. */
export function parseToken(text) {
  text = text.trim();
  if (!text.startsWith(PREFIX)) throw new TypeError(`A continuation token begins with "${PREFIX}".`);
  let checked;
  try {
    const packed = text.slice(PREFIX.length).replaceAll("-", "+").replaceAll("_", "/");
    checked = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  } catch {
    throw new TypeError("This continuation token has characters that no token has.");
  }
  const body = checked.subarray(4);
  if (checked.length < 4 || new DataView(checked.buffer).getUint32(0) !== crc32(body)) {
    throw new TypeError("This continuation token was cut short or changed.");
  }
  const [id, after, ended] = JSON.parse(new TextDecoder().decode(body));
  return { id, after, ended: Boolean(ended) };
}

function parseTarget(target) {
  if (typeof target !== "string" || target.trim() === "") throw new TypeError("The id of the response is missing.");
  return /^\s*ot\d+_/.test(target) ? parseToken(target) : { id: target.trim() };
}

function crc32(bytes) {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

// -- bytes and text

/** Yield the data of each complete frame. Comments only show that the connection lives. */
async function* readFrames(body, connection) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let pieces = []; // of a frame that has not ended: joined once, however many there are
  let last = "";
  for (;;) {
    let step;
    try {
      step = await reader.read();
    } catch (error) {
      throw error instanceof OutliveError ? error : lost("The connection broke.", error);
    }
    if (step.done) return;
    connection.touch();
    const text = decoder.decode(step.value, { stream: true });
    pieces.push(text);
    const ended = (last + text).includes("\n\n");
    last = text.slice(-1) || last;
    if (!ended) continue;
    const frames = pieces.join("").split("\n\n");
    pieces = [frames.pop()];
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n");
    }
  }
}

function parseEvent(data) {
  try {
    return JSON.parse(data);
  } catch (error) {
    throw lost("The stream could not be read.", error);
  }
}

async function readJson(answer, signal) {
  try {
    return await answer.json();
  } catch (error) {
    if (signal?.aborted) throw signal.reason;
    throw lost("The answer broke off.", error);
  }
}

async function readError(answer) {
  const text = await answer.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // It comes from a proxy, in words of its own.
  }
  const { message = `The server answered ${answer.status}.`, code, param, type } = error;
  return new OutliveError(message, { status: answer.status, code, param, type, headers: answer.headers });
}

function lost(message, cause) {
  return new OutliveError(message, { code: "connection_lost", cause });
}

/** Return how often a POST is tried after this error: its key makes a repetition safe, but there may be no server. */
function postTries(error, outlive) {
  if (error.status !== 0 && !UNAVAILABLE.includes(error.status)) return FEW;
  return outlive.contacted ? undefined : FIRST_CONTACT;
}

function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const finish = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", finish);
      globalThis.removeEventListener?.("online", finish);
      if (signal?.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(finish, milliseconds);
    signal?.addEventListener("abort", finish);
    globalThis.addEventListener?.("online", finish);
    if (signal?.aborted) finish();
  });
}

function encodeQuery(query) {
  const pairs = Object.entries(query ?? {}).flatMap(([name, value]) =>
    [value].flat().filter((each) => each != null).map((each) => [name, String(each)]),
  );
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

/** Return the header that makes a repeated POST safe; what is not stored cannot be found again. */
function keyHeader(body, key) {
  if (body.store === false) return {};
  // crypto.randomUUID exists only on pages that came over https or from this machine.
  const bytes = globalThis.crypto.getRandomValues(new Uint8Array(16));
  return { "idempotency-key": key ?? `outlive-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}` };
}

/** Return a key or a ticket; a function is called for it, with true after the server refused the last one. */
const read = (source, refused) => (typeof source === "function" ? source(refused) : source);
const encode = encodeURIComponent;
