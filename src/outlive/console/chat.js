// Chat: conversations on the left, the answer in the middle. An answer belongs to the server: this page only follows it.
import { Fold } from "../outlive.js";
import { RUNNING, announce, everyFrame, formatAge, h, shorten, showState } from "./dom.js";
import { Output, endLine, showItem } from "./items.js";

const OPTIONS = "outlive.chat"; // in this tab's storage
const PAGE = 50;
const REFRESH_MS = 4000;

export default class ChatPage {
  #app;
  #list;
  #log;
  #notices;
  #composer;
  #conversation = null;
  #running = null; // the id of the answer that is followed
  #ended = null; // the id of the answer whose end is shown
  #opened = null; // ends what the open conversation has under way

  constructor(app) {
    this.#app = app;
    this.#list = new ConversationList(app);
    this.#log = h("div", { class: "log", tabIndex: 0, role: "region", "aria-label": "Conversation" });
    this.#notices = h("div", { class: "notices" });
    this.#composer = new Composer(app, { send: (text) => this.#send(text), stop: () => this.#stop(), complain: (error) => this.#complain(error) });
  }

  async start() {
    const thread = h("div", { class: "thread" }, h("h2", { class: "hidden" }, "Conversation"), this.#log, this.#notices, this.#composer.node);
    this.#app.main.replaceChildren(h("h1", { class: "hidden" }, "Chat"), this.#list.node, thread);
    this.#composer.start();
    await Promise.all([this.#list.start(), this.#show(this.#app.id)]);
    // An answer that another tab or program begins here appears by itself.
    const timer = setInterval(() => document.hidden || this.#lookForAnswer().catch(() => {}), REFRESH_MS);
    this.#app.signal.addEventListener("abort", () => {
      clearInterval(timer);
      this.#opened?.abort();
    });
  }

  /** Show another conversation. Called when the address changes. */
  open(id) {
    if (id !== this.#conversation) this.#show(id).catch((error) => this.#complain(error));
    return true;
  }

  async #show(id) {
    this.#opened?.abort();
    this.#opened = new AbortController();
    const { signal } = this.#opened;
    this.#conversation = id;
    this.#running = null;
    this.#ended = null;
    this.#composer.setRunning(false);
    this.#notices.replaceChildren();
    this.#list.select(id);
    showState("");
    this.#log.replaceChildren(...(id === null ? [welcome()] : []));
    if (id === null) {
      this.#composer.focus();
      return;
    }
    await this.#addEarlier(null, signal);
    if (signal.aborted) return;
    this.#scrollToEnd(signal);
    await this.#lookForAnswer();
  }

  /** Add the items before an id, or the newest ones. */
  async #addEarlier(after, signal) {
    const page = await this.#app.outlive.conversations.items(this.#conversation, { limit: PAGE, after: after ?? undefined }, { signal });
    const nodes = page.data.reverse().map((item) => keep(showItem(item, { answer: this.#answer }), item.id));
    const more = h("button", { type: "button", class: "quiet earlier" }, "Show earlier turns");
    more.addEventListener("click", async () => {
      const height = this.#log.scrollHeight;
      await this.#addEarlier(page.last_id, signal);
      more.remove();
      this.#log.scrollTop += this.#log.scrollHeight - height;
    });
    this.#log.prepend(...(page.has_more ? [more] : []), ...nodes);
  }

  /** Follow the answer that runs in this conversation, if there is one; show how the last one ended. */
  async #lookForAnswer() {
    const { signal } = this.#opened;
    const conversation = this.#conversation;
    if (conversation === null || this.#running !== null) return;
    const [last] = (await this.#app.outlive.list({ conversation, limit: 1 }, { signal })).data;
    if (signal.aborted || this.#running !== null || !last) return;
    if (RUNNING.has(last.status)) {
      if (this.#log.querySelector(`[data-response="${CSS.escape(last.id)}"]`)) return;
      await this.#addMissing(signal);
      this.#follow((onState) => this.#app.outlive.follow(last.id, { signal, onState }), signal);
    } else if (this.#ended !== last.id) {
      await this.#addMissing(signal);
      if (!signal.aborted && this.#running === null) this.#showEnd(last);
    }
  }

  /** Add the items that another tab has added meanwhile. */
  async #addMissing(signal) {
    const page = await this.#app.outlive.conversations.items(this.#conversation, { limit: PAGE }, { signal });
    for (const item of page.data.reverse()) {
      if (this.#log.querySelector(`[data-item="${CSS.escape(item.id)}"]`) || this.#isShown(item)) continue;
      this.#log.append(keep(showItem(item, { answer: this.#answer }), item.id));
    }
  }

  /** True for a question of this page, which is shown before it has an id. */
  #isShown(item) {
    const sent = item.role === "user" && this.#log.querySelector(".message[data-role=user]:not([data-item])");
    if (sent) sent.dataset.item = item.id;
    return Boolean(sent);
  }

  // -- asking

  async #send(text) {
    const options = this.#composer.options();
    this.#notices.replaceChildren();
    let conversation = this.#conversation;
    if (conversation === null) {
      const title = text.trim().replace(/\s+/g, " ").slice(0, 80);
      ({ id: conversation } = await this.#app.outlive.conversations.create({ metadata: { title } }));
      this.#conversation = conversation;
      this.#opened = new AbortController();
      this.#log.replaceChildren();
      history.replaceState(null, "", `#/chat/${conversation}`);
      this.#list.add({ id: conversation, created_at: Date.now() / 1000, metadata: { title } });
    }
    const item = { type: "message", role: "user", content: text };
    await this.#ask({ ...options, conversation, input: [item] }, [item]);
  }

  /** Answer a request for approval: the turn goes on in a response of its own, with the same tools. */
  #answer = async (item, approve) => {
    const { outlive } = this.#app;
    const input = [{ type: "mcp_approval_response", approval_request_id: item.id, approve }];
    try {
      const [last] = (await outlive.list({ conversation: this.#conversation, limit: 1 })).data;
      const { tools, instructions } = await outlive.retrieve(last.id);
      await this.#ask({ ...this.#composer.options(), tools, instructions, conversation: this.#conversation, input }, input);
    } catch (error) {
      this.#complain(error);
    }
  };

  /** Create a response and follow it. Returns once it is accepted; throws if it is not. */
  async #ask(body, items) {
    const { signal } = this.#opened;
    const nodes = items.map((item) => showItem(item));
    await new Promise((accept, refuse) => {
      const begin = () => {
        this.#log.append(...nodes);
        accept();
      };
      this.#follow((onState) => this.#app.outlive.stream(body, { signal, onState }), signal, begin, refuse);
    });
  }

  /** Show the events of one answer until it ends. */
  async #follow(open, signal, begin = () => {}, refuse = null) {
    const fold = new Fold();
    const output = new Output({ answer: this.#answer });
    const node = h("section", { class: "answer", "aria-label": "Answer", "aria-busy": "true" }, output.node);
    const wait = h("p", { class: "aside waiting" }, "Waiting for the model");
    node.append(wait);
    const draw = everyFrame(() => {
      if (signal.aborted) return;
      const down = this.#isDown();
      output.draw(fold.output);
      wait.hidden = fold.output.length > 0 || fold.ended;
      wait.textContent = fold.status === "queued" ? "Queued" : "Waiting for the model";
      if (down) this.#scrollDown(true);
    });
    let begun = false;
    try {
      for await (const event of open((state) => this.#showState(state, signal))) {
        if (signal.aborted) return;
        fold.add(event);
        output.mark(event);
        if (!begun) {
          begun = true;
          this.#running = fold.response.id;
          node.dataset.response = fold.response.id;
          begin();
          this.#log.querySelector(".welcome")?.remove();
          this.#log.append(node);
          this.#composer.setRunning(true);
          this.#list.setRunning(this.#conversation, true);
          this.#scrollDown(true);
          announce("The model is answering.");
        }
        draw();
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!begun && refuse) {
        if (this.#running === null) showState("");
        refuse(error);
        return;
      }
      this.#complain(error);
    }
    this.#finish(fold, node, draw);
  }

  #finish(fold, node, draw) {
    draw();
    node.setAttribute("aria-busy", "false");
    this.#running = null;
    this.#composer.setRunning(false);
    this.#list.setRunning(this.#conversation, false);
    showState("");
    if (!fold.ended) return;
    this.#showEnd(fold.response, node);
    announce(`The answer has ended: ${fold.response.status}.`);
  }

  #showEnd(response, node = this.#log) {
    const down = this.#isDown();
    for (const line of this.#log.querySelectorAll(":scope > .end-line")) line.remove();
    this.#ended = response.id;
    node.append(endLine(response));
    if (down) this.#scrollDown(true);
  }

  #showState(state, signal) {
    if (signal.aborted) return;
    if (state === "reconnecting") showState("Reconnecting: the answer goes on without this page", "waiting");
    else if (state === "streaming") showState("Live", "live");
    else if (state === "ended") showState(""); // while this one connects, another answer may be live
  }

  async #stop() {
    if (this.#running === null) return;
    try {
      await this.#app.outlive.cancel(this.#running);
    } catch (error) {
      this.#complain(error);
    }
  }

  /** Say what went wrong; for a conversation that is held, by what, and offer what can be done about it. */
  #complain(error) {
    if (error.name === "AbortError") return;
    const held = error.code === "conversation_locked" ? /resp_\w+/.exec(error.message)?.[0] : null;
    const close = () => notice.remove();
    const stop = async () => {
      close();
      await this.#app.outlive.cancel(held).catch((failure) => this.#complain(failure));
    };
    const notice = h(
      "div",
      { class: "notice", role: "alert" },
      h("p", {}, held ? `Another answer holds this conversation: ${error.message}` : error.message),
      h(
        "div",
        { class: "actions" },
        held && h("a", { class: "button", href: `#/responses/${held}` }, "Look at it"),
        held && h("button", { type: "button", onclick: stop }, "Stop it"),
        h("button", { type: "button", onclick: close }, held ? "Wait for it" : "Close"),
      ),
    );
    this.#notices.replaceChildren(notice);
  }

  #isDown() {
    return this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < 60;
  }

  /** Scroll to the end of a conversation that was just opened: messages get their real heights only once they are in view. */
  #scrollToEnd(signal, frames = 10) {
    if (signal.aborted) return;
    this.#scrollDown(true);
    if (frames > 0) requestAnimationFrame(() => this.#scrollToEnd(signal, frames - 1));
  }

  #scrollDown(really) {
    if (really) this.#log.scrollTop = this.#log.scrollHeight;
  }
}

function keep(node, id) {
  node.dataset.item = id;
  return node;
}

function welcome() {
  return h(
    "div",
    { class: "welcome" },
    h("h2", {}, "Ask something, then close this tab"),
    h("p", {}, "The server keeps the answer going. Open the page again, here or on another device, and it is there, still streaming."),
  );
}

/** The conversations, newest first. */
class ConversationList {
  #app;
  #rows = new Map();
  #selected = null;
  #items = h("ul", { class: "conversations" });
  #more = h("button", { type: "button", class: "quiet", hidden: true }, "Show more");
  #last;

  constructor(app) {
    this.#app = app;
    const fresh = h("a", { class: "button primary", href: "#/chat" }, "New chat");
    const body = h("nav", { "aria-label": "Conversations" }, this.#items, this.#more);
    this.node = h("details", { class: "side", open: innerWidth > 720 }, h("summary", {}, "Conversations"), fresh, body);
    this.#more.addEventListener("click", () => this.#load(this.#last));
  }

  async start() {
    await this.#load();
    const running = await this.#app.outlive.running(undefined, { signal: this.#app.signal });
    for (const response of running) if (response.conversation) this.setRunning(response.conversation.id, true);
  }

  async #load(after) {
    const page = await this.#app.outlive.conversations.list({ limit: 40, after }, { signal: this.#app.signal });
    for (const each of page.data) this.#items.append(this.#row(each));
    this.#last = page.last_id;
    this.#more.hidden = !page.has_more;
    this.select(this.#selected);
  }

  add(conversation) {
    this.#items.prepend(this.#row(conversation));
    this.select(conversation.id);
  }

  select(id) {
    this.#selected = id;
    for (const [key, row] of this.#rows) {
      const anchor = row.firstElementChild;
      if (key === id) anchor.setAttribute("aria-current", "true");
      else anchor.removeAttribute("aria-current");
    }
    if (innerWidth <= 720) this.node.open = false;
  }

  setRunning(id, running) {
    const row = this.#rows.get(id);
    if (row) row.querySelector(".live").hidden = !running;
  }

  #row({ id, created_at, metadata }) {
    const title = metadata?.title || shorten(id);
    const live = h("span", { class: "live", hidden: true }, "answering");
    const anchor = h("a", { href: `#/chat/${id}`, title: id }, h("span", { class: "name" }, title), live, h("time", {}, formatAge(created_at)));
    const remove = h("button", { type: "button", class: "quiet", "aria-label": `Delete ${title}`, onclick: () => this.#delete(id, title) }, "×");
    const row = h("li", {}, anchor, remove);
    this.#rows.set(id, row);
    return row;
  }

  async #delete(id, title) {
    if (!confirm(`Delete the conversation "${title}" and its messages?`)) return;
    await this.#app.outlive.conversations.delete(id);
    this.#rows.get(id).remove();
    this.#rows.delete(id);
    if (this.#selected === id) location.hash = "#/chat";
  }
}

/** The field for a question, and the options that a question is asked with. */
class Composer {
  #app;
  #field = h("textarea", { id: "question", rows: 1, placeholder: "Ask something" });
  #send = h("button", { class: "primary" }, "Send");
  #stop = h("button", { type: "button", hidden: true }, "Stop");
  #model = h("select", { id: "model" });
  #instructions = h("textarea", { id: "instructions", rows: 2 });
  #background = h("input", { type: "checkbox", id: "background" });
  #store = h("input", { type: "checkbox", id: "store", checked: true });
  #sending = false;
  #loading = null; // the list of models

  constructor(app, { send, stop, complain }) {
    this.#app = app;
    const submit = (event) => {
      event.preventDefault();
      this.#submit(send, complain);
    };
    this.node = h(
      "form",
      { class: "composer", onsubmit: submit },
      h("label", { class: "hidden", for: "question" }, "Question"),
      h("div", { class: "ask" }, this.#field, h("div", { class: "actions" }, this.#stop, this.#send)),
      this.#makeOptions(),
    );
    this.#stop.addEventListener("click", stop);
    this.#field.addEventListener("input", () => this.#grow());
    this.#field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    });
  }

  #makeOptions() {
    const option = (control, name, sentence) =>
      h("div", { class: "option" }, h("label", { for: control.id }, name), control, h("p", { class: "aside", id: `${control.id}-help` }, sentence));
    const nodes = [
      option(this.#model, "Model", "The model that answers, as this server lists it."),
      option(this.#instructions, "Instructions", "Sent with each question, and not kept in the conversation."),
      option(this.#background, "Background", "The server answers at once and works when it has room. Other answers continue without this page, too."),
      option(this.#store, "Store", "Keep the question and the answer. Without it nothing is written to disk, and closing the page ends the answer."),
    ];
    for (const control of [this.#model, this.#instructions, this.#background, this.#store]) {
      control.setAttribute("aria-describedby", `${control.id}-help`);
      control.addEventListener("change", () => this.#save());
    }
    return h("details", { class: "options" }, h("summary", {}, "Options ", h("span", { class: "aside", id: "chosen" })), h("div", { class: "grid" }, nodes));
  }

  start() {
    return (this.#loading = this.#load());
  }

  async #load() {
    const saved = JSON.parse(sessionStorage.getItem(OPTIONS) ?? "{}");
    if (saved.model) this.#model.replaceChildren(h("option", {}, saved.model));
    this.#instructions.value = saved.instructions ?? "";
    this.#background.checked = saved.background ?? false;
    this.#store.checked = saved.store ?? true;
    try {
      const { data } = await this.#app.outlive.request("GET", "/models", { signal: this.#app.signal });
      // A model may have been chosen while the list was loaded, and one that no upstream lists may be served all the same.
      const { model } = JSON.parse(sessionStorage.getItem(OPTIONS) ?? "{}");
      const ids = new Set([...data.map(({ id }) => id), ...(model ? [model] : [])]);
      this.#model.replaceChildren(...[...ids].map((id) => h("option", { value: id, selected: id === model }, id)));
    } catch (error) {
      if (error.name !== "AbortError") this.#model.replaceChildren(h("option", {}, saved.model ?? ""));
    }
    this.#save();
  }

  #save() {
    this.#background.disabled = !this.#store.checked;
    if (!this.#store.checked) this.#background.checked = false;
    const { model, instructions, background, store } = this.options();
    sessionStorage.setItem(OPTIONS, JSON.stringify({ model, instructions, background, store }));
    const chosen = [model, background && "background", !store && "not stored", instructions && "with instructions"];
    this.node.querySelector("#chosen").textContent = chosen.filter(Boolean).join(" · ");
  }

  options() {
    return {
      model: this.#model.value,
      instructions: this.#instructions.value.trim() || undefined,
      background: this.#background.checked,
      store: this.#store.checked,
    };
  }

  async #submit(send, complain) {
    const text = this.#field.value;
    if (text.trim() === "" || this.#sending) return;
    this.#sending = true;
    try {
      if (this.#model.value === "") await this.#loading;
      await send(text);
      this.#field.value = "";
      this.#grow();
    } catch (error) {
      complain(error);
    } finally {
      this.#sending = false;
    }
  }

  setRunning(running) {
    this.#stop.hidden = !running;
  }

  focus() {
    if (innerWidth > 720) this.#field.focus();
  }

  #grow() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${Math.min(this.#field.scrollHeight, 240)}px`;
  }
}
