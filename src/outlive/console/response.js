// One response: its timeline, output, input and raw events, and what can be done with it.
import { Fold } from "../outlive.js";
import { RUNNING, badge, copyButton, everyFrame, formatDuration, formatNumber, h, pretty, showState } from "./dom.js";
import { Output, endLine, showItem } from "./items.js";
import { showTimeline } from "./timeline.js";

const ROW = 22; // pixels of an event's line; also in the style sheet
const SPEEDS = [["original", 1], ["2 ×", 2], ["10 ×", 10], ["¼ ×", 0.25]];
// Fields of a create that a response repeats.
const REPEATED = ["instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "reasoning", "temperature", "text", "tool_choice", "tools", "top_p", "truncation", "previous_response_id", "background", "store"];

export default class ResponsePage {
  #app;
  #id;
  #response = null;
  #timeline = null;
  #fold = new Fold();
  #events = []; // the raw events, as JSON
  #output = new Output();
  #parts = {};
  #player = null;
  #draw = everyFrame(() => this.#drawAll());

  constructor(app) {
    this.#app = app;
    this.#id = app.id;
  }

  async start() {
    const { outlive, signal, main } = this.#app;
    this.#response = await outlive.retrieve(this.#id, { signal });
    const [timeline, input] = await Promise.all([
      outlive.request("GET", `/responses/${encodeURIComponent(this.#id)}/timeline`, { signal }),
      this.#readInput(),
    ]);
    this.#timeline = timeline;
    this.#build(main, input);
    signal.addEventListener("abort", () => this.#player?.stop());
    await this.#followEvents();
  }

  async #readInput() {
    const items = [];
    let after;
    for (;;) {
      const page = await this.#app.outlive.request("GET", `/responses/${encodeURIComponent(this.#id)}/input_items`, {
        query: { limit: 100, order: "asc", after },
        signal: this.#app.signal,
      });
      items.push(...page.data);
      if (!page.has_more || items.length >= 500) return items;
      after = page.last_id;
    }
  }

  #build(main, input) {
    const parts = this.#parts;
    parts.facts = h("dl", { class: "facts" });
    parts.actions = h("div", { class: "actions" });
    parts.timeline = h("div");
    parts.end = h("div");
    parts.events = new EventLines();
    parts.raw = h("pre", { tabIndex: 0, "aria-label": "Response object" });
    parts.badge = h("span");
    parts.player = h("div", { class: "player" });
    main.replaceChildren(
      h("h1", {}, h("span", { class: "id" }, this.#id), " ", parts.badge),
      parts.actions,
      parts.facts,
      section("Timeline", parts.timeline),
      section("Output", parts.player, this.#output.node, parts.end),
      section("Input", ...input.map((item) => showItem(item))),
      section("Events", parts.events.node),
      h("details", { class: "folded" }, h("summary", {}, h("span", { class: "title" }, "Response object")), parts.raw),
    );
    this.#input = input;
    this.#showState();
  }

  #input = [];

  // -- following

  async #followEvents() {
    const { outlive, signal } = this.#app;
    const onState = (state) => showState(state === "reconnecting" ? "Reconnecting" : state === "streaming" && RUNNING.has(this.#response.status) ? "Live" : "", state === "streaming" ? "live" : "waiting");
    try {
      for await (const event of outlive.follow(this.#id, { signal, onState })) {
        this.#events.push(JSON.stringify(event));
        this.#fold.add(event);
        this.#output.mark(event);
        this.#draw();
      }
    } catch (error) {
      if (signal.aborted) return;
      throw error;
    }
    if (RUNNING.has(this.#response.status)) await this.#refresh();
  }

  /** Read it again: it has ended. */
  async #refresh() {
    const { outlive, signal } = this.#app;
    this.#response = await outlive.retrieve(this.#id, { signal });
    this.#timeline = await outlive.request("GET", `/responses/${encodeURIComponent(this.#id)}/timeline`, { signal });
    this.#showState();
  }

  #drawAll() {
    if (this.#player === null) this.#output.draw(this.#fold.output);
    this.#parts.events.show(this.#events);
  }

  #showState() {
    const response = this.#response;
    const { facts, actions, timeline, end, raw, badge: label } = this.#parts;
    const running = RUNNING.has(response.status);
    label.replaceChildren(badge(response.status));
    timeline.replaceChildren(showTimeline(this.#timeline));
    raw.textContent = pretty(response);
    end.replaceChildren(...(running ? [] : [endLine(response)]));
    const { created_at, first_token_at, ended_at, events, attempts } = this.#timeline;
    const rows = {
      Model: response.model,
      Created: new Date(response.created_at * 1000).toLocaleString(),
      "First token": first_token_at === null ? "–" : `after ${formatDuration(first_token_at - created_at)}`,
      Duration: ended_at === null ? "running" : formatDuration(ended_at - created_at),
      Events: formatNumber(events),
      Attempts: String(attempts),
      Tokens: response.usage ? `${formatNumber(response.usage.input_tokens)} in, ${formatNumber(response.usage.output_tokens)} out` : "–",
    };
    facts.replaceChildren(...Object.entries(rows).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    actions.replaceChildren(
      ...[
        running && h("button", { type: "button", onclick: () => this.#cancel() }, "Cancel"),
        h("button", { type: "button", onclick: () => this.#delete() }, "Delete"),
        copyButton(() => this.#id, "Copy id"),
        copyButton(() => this.#curl(), "Copy as curl"),
        copyButton(() => this.#python(), "Copy as Python"),
        response.conversation && h("a", { class: "button", href: `#/chat/${response.conversation.id}` }, "Open conversation"),
      ].filter(Boolean),
    );
    if (!running) this.#buildPlayer();
  }

  // -- actions

  async #cancel() {
    await this.#app.outlive.cancel(this.#id).catch((error) => showState(error.message, "waiting"));
  }

  async #delete() {
    if (!confirm("Delete this response? One that runs is cancelled first.")) return;
    await this.#app.outlive.delete(this.#id);
    location.hash = "#/responses";
  }

  /** The request that would create the same response again. */
  #request() {
    const response = this.#response;
    const body = { model: response.model, input: this.#input.map(({ id, status, ...item }) => item) };
    if (response.conversation) body.conversation = response.conversation.id;
    for (const name of REPEATED) {
      const value = response[name];
      if (value == null || value === "" || value === false || (typeof value === "object" && Object.keys(value).length === 0)) continue;
      if (JSON.stringify(value) === JSON.stringify(DEFAULTS[name])) continue;
      body[name] = value;
    }
    return body;
  }

  #curl() {
    const quoted = JSON.stringify(this.#request(), null, 2).replaceAll("'", String.raw`'\''`);
    const key = this.#app.hasKey() ? ` \\\n  -H "Authorization: Bearer $OUTLIVE_KEY"` : "";
    return `curl ${new URL("v1", document.baseURI)}/responses${key} \\\n  -H 'Content-Type: application/json' -d '${quoted}'\n`;
  }

  #python() {
    const key = this.#app.hasKey() ? 'os.environ["OUTLIVE_KEY"]' : '"any"';
    const imports = this.#app.hasKey() ? "import json\nimport os\n" : "import json\n";
    const body = JSON.stringify(JSON.stringify(this.#request()));
    return `${imports}
from openai import OpenAI

client = OpenAI(base_url="${new URL("v1", document.baseURI)}", api_key=${key})
response = client.responses.create(**json.loads(${body}))
print(response.output_text)
`;
  }

  // -- replay

  #buildPlayer() {
    const speed = h("select", { "aria-label": "Speed" }, SPEEDS.map(([name, factor]) => h("option", { value: factor }, name)));
    const play = h("button", { type: "button" }, "Replay");
    const place = h("span", { class: "aside number" });
    play.addEventListener("click", () => {
      if (this.#player) {
        this.#player.stop();
        return;
      }
      play.textContent = "Stop replay";
      const output = new Output();
      this.#output.node.replaceWith(output.node);
      const player = new Replay(this.#events, this.#timeline, () => Number(speed.value), output, (text) => (place.textContent = text));
      this.#player = player;
      player.run().then(() => {
        this.#player = null;
        if (output.node.isConnected) output.node.replaceWith(this.#output.node);
        play.textContent = "Replay";
        place.textContent = "";
      });
    });
    this.#parts.player.replaceChildren(play, speed, place);
  }
}

const DEFAULTS = {
  parallel_tool_calls: true,
  temperature: 1,
  top_p: 1,
  tool_choice: "auto",
  truncation: "disabled",
  text: { format: { type: "text" } },
  reasoning: { effort: null, summary: null },
  store: true,
};

function section(title, ...children) {
  return h("section", { "aria-label": title }, h("h2", {}, title), ...children);
}

/** Plays events in the rhythm in which they were committed. */
class Replay {
  #events;
  #times;
  #speed;
  #output;
  #say;
  #stopped = false;

  constructor(events, { flushes, created_at }, speed, output, say) {
    this.#events = events.map((text) => JSON.parse(text));
    this.#times = flushes.map(([first, at]) => [first, at - created_at]);
    this.#speed = speed;
    this.#output = output;
    this.#say = say;
  }

  stop() {
    this.#stopped = true;
  }

  async run() {
    const fold = new Fold();
    let clock = 0;
    let last = performance.now();
    let flush = 0;
    for (let next = 0; next < this.#events.length && !this.#stopped; ) {
      await new Promise((resolve) => (document.hidden ? setTimeout(resolve, 100) : requestAnimationFrame(resolve)));
      const now = performance.now();
      clock += ((now - last) / 1000) * this.#speed();
      last = now;
      while (flush + 1 < this.#times.length && this.#times[flush + 1][1] <= clock) flush += 1;
      const due = flush + 1 < this.#times.length ? this.#times[flush + 1][0] : this.#events.length;
      for (; next < due; next++) {
        fold.add(this.#events[next]);
        this.#output.mark(this.#events[next]);
      }
      this.#output.draw(fold.output);
      this.#say(`${formatDuration(clock)} · event ${next} of ${this.#events.length}`);
    }
  }
}

/** The raw events by number; only the lines in sight are in the page. */
class EventLines {
  #lines = h("ol", { class: "lines" });
  #events = [];
  #wanted; // the number to go to, as soon as its event is there
  #selected = h("pre", { tabIndex: 0, "aria-label": "Event", hidden: true });
  #goto = h("input", { type: "number", min: 0, id: "event-number" });
  #scroller;
  #draw = everyFrame(() => this.#drawLines());

  constructor() {
    this.#scroller = h("div", { class: "scroller", tabIndex: 0, role: "region", "aria-label": "List of events" }, this.#lines);
    this.#scroller.addEventListener("scroll", () => this.#draw());
    this.#goto.addEventListener("change", () => {
      this.#wanted = Number(this.#goto.value);
      this.#draw();
    });
    this.node = h("div", { class: "events" }, h("label", { for: "event-number" }, "Event number ", this.#goto), this.#scroller, this.#selected);
  }

  show(events) {
    this.#events = events;
    this.#draw();
  }

  #open(number) {
    this.#selected.hidden = false;
    this.#selected.textContent = pretty(this.#events[number]);
  }

  #drawLines() {
    this.#lines.style.height = `${this.#events.length * ROW}px`;
    if (this.#events[this.#wanted] !== undefined) {
      this.#scroller.scrollTop = this.#wanted * ROW;
      this.#open(this.#wanted);
      this.#wanted = undefined;
    }
    const { scrollTop, clientHeight } = this.#scroller;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - 10);
    const last = Math.min(this.#events.length, Math.ceil((scrollTop + clientHeight) / ROW) + 10);
    this.#lines.replaceChildren(...this.#events.slice(first, last).map((text, offset) => this.#line(text, first + offset)));
  }

  #line(text, number) {
    const button = h("button", { type: "button", class: "quiet", onclick: () => this.#open(number) }, h("b", {}, String(number)), ` ${text.slice(0, 300)}`);
    const line = h("li", { value: number }, button);
    line.style.top = `${number * ROW}px`;
    return line;
  }
}
