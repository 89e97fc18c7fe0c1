// Responses: a live list. Only the rows in sight are in the page, so its length does not matter.
import { RUNNING, badge, everyFrame, formatAge, formatNumber, h, shorten, showState } from "./dom.js";

const ROW = 36; // pixels; also in the style sheet
const PAGE = 100;
const REFRESH_MS = 2000;
const STATUSES = ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"];
const COLUMNS = ["Status", "Id", "Model", "Conversation", "Age", "Tokens", "Events/s", "Attempts", "Node"];

export default class ResponsesPage {
  #app;
  #rows = []; // newest first
  #byId = new Map();
  #more = true;
  #loading = null;
  #rates = new Map(); // by id: the events at the last look, its time, and the rate since the one before
  #turn = 0; // counts changes of the filters: an answer to an older question is dropped
  #body = h("div", { class: "rows", role: "rowgroup" });
  #scroller;
  #count = h("p", { class: "aside", role: "status" });
  #search = h("input", { type: "search", id: "search", placeholder: "resp_… or conv_…" });
  #status = h("select", { id: "status" });
  #conversation = h("input", { id: "conversation", placeholder: "conv_…" });
  #draw = everyFrame(() => this.#drawRows());

  constructor(app) {
    this.#app = app;
    const head = h("div", { class: "row head", role: "row" }, COLUMNS.map((name) => h("span", { role: "columnheader" }, name)));
    const table = h("div", { class: "table", role: "table", "aria-label": "Responses", "aria-colcount": COLUMNS.length }, h("div", { role: "rowgroup" }, head), this.#body);
    this.#scroller = h("div", { class: "scroller", tabIndex: 0, role: "region", "aria-label": "List of responses" }, table);
    this.#scroller.addEventListener("scroll", () => this.#draw());
    this.#status.append(h("option", { value: "" }, "all"), ...STATUSES.map((status) => h("option", { value: status }, status === "in_progress" ? "running" : status)));
    this.#status.addEventListener("change", () => this.#reload());
    this.#conversation.addEventListener("change", () => this.#reload());
    this.#search.addEventListener("input", () => this.#draw());
    this.#search.addEventListener("keydown", (event) => event.key === "Enter" && this.#find());
  }

  async start() {
    const field = (control, name) => h("label", { for: control.id }, name, control);
    const filters = h(
      "form",
      { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      field(this.#search, "Search by id"),
      field(this.#status, "Status"),
      field(this.#conversation, "Conversation"),
      this.#count,
    );
    this.#app.main.replaceChildren(h("h1", {}, "Responses"), filters, this.#scroller);
    const observer = new ResizeObserver(() => this.#draw());
    observer.observe(this.#scroller);
    await this.#reload();
    const timer = setInterval(() => document.hidden || this.#refresh(), REFRESH_MS);
    this.#app.signal.addEventListener("abort", () => {
      clearInterval(timer);
      observer.disconnect();
    });
  }

  // -- reading

  #query() {
    return { details: true, status: this.#status.value || undefined, conversation: this.#conversation.value.trim() || undefined };
  }

  async #reload() {
    this.#turn += 1;
    this.#rows = [];
    this.#byId.clear();
    this.#more = true;
    this.#loading = null;
    this.#scroller.scrollTop = 0;
    await this.#load();
  }

  /** Read the next page at the end of the list. */
  #load() {
    if (!this.#more || this.#loading) return this.#loading;
    const turn = this.#turn;
    const read = async () => {
      try {
        const after = this.#rows.at(-1)?.id;
        const page = await this.#app.outlive.list({ ...this.#query(), limit: PAGE, after }, { signal: this.#app.signal });
        if (turn !== this.#turn) return;
        this.#more = page.has_more;
        for (const response of page.data) this.#put(response, this.#rows.length);
        this.#drawRows();
      } catch (error) {
        if (turn === this.#turn) this.#complain(error);
      } finally {
        if (turn === this.#turn) this.#loading = null;
      }
    };
    this.#loading = read();
    return this.#loading;
  }

  /** Read what is new, and how far the running ones are. */
  async #refresh() {
    const turn = this.#turn;
    const { outlive, signal } = this.#app;
    try {
      const fresh = await outlive.list({ ...this.#query(), limit: PAGE }, { signal });
      if (turn !== this.#turn) return;
      const known = fresh.data.findIndex((response) => this.#byId.has(response.id));
      if (known < 0) {
        if (fresh.data.length + this.#rows.length > 0) await this.#reload(); // more than a page is new, or none is left
        return;
      }
      if (this.#status.value && this.#rows.length <= PAGE) this.#drop(new Set(fresh.data.map((response) => response.id)));
      fresh.data.slice(0, known).reverse().forEach((response) => this.#put(response, 0));
      fresh.data.forEach((response) => this.#put(response, 0));
      const seen = new Set(fresh.data.map((response) => response.id));
      const running = this.#rows.filter((row) => RUNNING.has(row.status) && !seen.has(row.id));
      for (const row of running.slice(0, 20)) await this.#update(row, signal);
      this.#drawRows();
      showState("");
    } catch (error) {
      if (turn === this.#turn && error.name !== "AbortError") showState("Reconnecting", "waiting");
    }
  }

  /** Look at one that is too old for the first page. */
  async #update(row, signal) {
    const response = await this.#app.outlive.retrieve(row.id, { signal }).catch(() => null);
    if (response && !RUNNING.has(response.status)) Object.assign(row, { status: response.status, usage: response.usage });
  }

  /** Put a response into the list, or replace what is known of it. */
  #put(response, index) {
    this.#measure(response);
    const known = this.#byId.get(response.id);
    if (known) {
      Object.assign(known, response);
    } else {
      this.#byId.set(response.id, response);
      this.#rows.splice(index, 0, response);
    }
  }

  /** Drop rows that the filter does not fit any more. */
  #drop(fitting) {
    this.#rows = this.#rows.filter((row) => fitting.has(row.id) || !this.#byId.delete(row.id));
  }

  /** Note the events of a running response: two looks make a rate. */
  #measure({ id, status, outlive }) {
    if (!RUNNING.has(status) || outlive?.events == null) {
      this.#rates.delete(id);
      return;
    }
    const now = performance.now();
    const last = this.#rates.get(id);
    const rate = last && now > last.at ? ((outlive.events - last.events) * 1000) / (now - last.at) : null;
    this.#rates.set(id, { events: outlive.events, at: now, rate });
  }

  #rate(response) {
    const { events, ended_at } = response.outlive ?? {};
    if (RUNNING.has(response.status)) return this.#rates.get(response.id)?.rate ?? null;
    if (events == null || ended_at == null) return null;
    return events / Math.max(ended_at - response.created_at, 0.001);
  }

  /** Open the response or the conversation that was searched for. */
  #find() {
    const wanted = this.#search.value.trim();
    if (wanted.startsWith("resp_")) location.hash = `#/responses/${encodeURIComponent(wanted)}`;
    else if (wanted.startsWith("conv_")) {
      this.#conversation.value = wanted;
      this.#search.value = "";
      this.#reload();
    }
  }

  // -- drawing

  #wanted() {
    const wanted = this.#search.value.trim().toLowerCase();
    if (wanted === "") return this.#rows;
    return this.#rows.filter((row) => `${row.id} ${row.model} ${row.conversation?.id ?? ""}`.toLowerCase().includes(wanted));
  }

  #drawRows() {
    const rows = this.#wanted();
    const first = Math.max(0, Math.floor(this.#scroller.scrollTop / ROW) - 10);
    const last = Math.min(rows.length, Math.ceil((this.#scroller.scrollTop + this.#scroller.clientHeight) / ROW) + 10);
    this.#body.style.height = `${Math.max(rows.length, 1) * ROW}px`;
    this.#body.parentElement.setAttribute("aria-rowcount", this.#more ? -1 : rows.length + 1);
    const focused = document.activeElement?.closest?.(".row")?.dataset.id;
    this.#body.replaceChildren(...rows.slice(first, last).map((row, offset) => this.#row(row, first + offset)));
    if (rows.length === 0 && !this.#loading) this.#body.append(h("p", { class: "aside empty" }, "No responses."));
    if (focused) this.#body.querySelector(`[data-id="${CSS.escape(focused)}"] a`)?.focus({ preventScroll: true });
    const counted = `${rows.length.toLocaleString("en")}${this.#more ? "+" : ""} responses`;
    if (this.#count.textContent !== counted) this.#count.textContent = counted;
    if (this.#more && last >= rows.length - 20) this.#load();
  }

  #row(response, index) {
    const { usage, conversation, outlive = {} } = response;
    const running = RUNNING.has(response.status);
    const cells = [
      badge(response.status),
      h("a", { href: `#/responses/${response.id}`, title: response.id }, shorten(response.id)),
      response.model,
      conversation ? h("a", { href: `#/chat/${conversation.id}`, title: conversation.id }, shorten(conversation.id)) : "–",
      formatAge(response.created_at),
      usage ? `${formatNumber(usage.input_tokens)} + ${formatNumber(usage.output_tokens)}` : "–",
      formatNumber(this.#rate(response)),
      String(outlive.attempts ?? 1),
      outlive.node ?? (outlive.queue ? `place ${outlive.queue.place}` : "–"),
    ];
    const node = h(
      "div",
      { class: `row${running ? " running" : ""}`, role: "row", "aria-rowindex": index + 2, "data-id": response.id },
      cells.map((cell, number) => h("span", { role: "cell", "data-name": COLUMNS[number] }, cell)),
    );
    node.style.top = `${index * ROW}px`;
    return node;
  }

  #complain(error) {
    if (error.name === "AbortError") return;
    this.#more = false;
    this.#body.replaceChildren(h("p", { class: "notice", role: "alert" }, error.message));
  }
}
