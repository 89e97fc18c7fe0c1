// The console: pages by the address's hash, one client of the API, and the key where the server asks for one.
import { Outlive } from "../outlive.js";
import { announce, h, showState } from "./dom.js";

const KEY = "outlive.key"; // in this tab's storage
const PAGES = {
  chat: () => import("./chat.js"),
  responses: () => import("./responses.js"),
  response: () => import("./response.js"),
  overview: () => import("./overview.js"),
};

let asking = null;
let answered = -Infinity; // when a key was given

/** Return the key of this tab; ask for one if the server has refused the last. */
async function getKey(refused) {
  const known = sessionStorage.getItem(KEY) ?? undefined;
  // Several requests may be refused at once: the key that was given to the first is for the others, too.
  if (!refused || (asking === null && performance.now() - answered < 2000)) return known;
  return askOnce(known !== undefined);
}

function askOnce(wrong) {
  asking ??= askKey(wrong).finally(() => {
    asking = null;
    answered = performance.now();
  });
  return asking;
}

async function askKey(wrong) {
  const dialog = document.getElementById("key");
  const field = document.getElementById("key-field");
  document.getElementById("key-error").textContent = wrong ? "The server does not know that key." : "";
  field.value = "";
  if (!dialog.open) dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  sessionStorage.setItem(KEY, field.value);
  return field.value;
}

const outlive = new Outlive({ baseURL: new URL("v1", document.baseURI).href, apiKey: getKey });
const app = { outlive, getKey, hasKey: () => sessionStorage.getItem(KEY) !== null };
const main = document.getElementById("main");
let page = null;
let leaving = new AbortController();
let shown = 0;

/** Show the page that the address names: #/chat/ID, #/responses, #/responses/ID, #/overview. */
async function show() {
  const turn = ++shown;
  const [, name = "chat", id = null] = location.hash.split("/");
  const kind = name === "responses" && id !== null ? "response" : name in PAGES ? name : "chat";
  for (const each of document.querySelectorAll("nav[aria-label=Pages] a")) {
    const current = each.hash === `#/${name in PAGES ? name : "chat"}`;
    if (current) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  const { default: Page } = await PAGES[kind]();
  if (turn !== shown) return;
  const decoded = id === null ? null : decodeURIComponent(id);
  if (page instanceof Page && page.open?.(decoded)) return;
  leaving.abort();
  leaving = new AbortController();
  showState("");
  page = new Page({ ...app, main, signal: leaving.signal, id: decoded });
  main.dataset.page = kind;
  try {
    await page.start();
  } catch (error) {
    if (error.name === "AbortError" || turn !== shown) return;
    if (error.status !== 401) {
      showProblem(error);
      return;
    }
    await askOnce(true);
    page = null;
    show();
  }
}

/** Show an error that keeps a page from being shown. */
function showProblem(error) {
  const again = h("button", { type: "button", onclick: show }, "Try again");
  main.replaceChildren(h("section", { class: "notice", role: "alert" }, h("p", {}, error.message), again));
  announce(error.message);
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
// A key is asked for until there is one: nothing can be shown without it.
document.getElementById("key").addEventListener("cancel", (event) => event.preventDefault());
window.addEventListener("hashchange", show);
show();
