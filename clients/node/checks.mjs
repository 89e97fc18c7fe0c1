// The parts of a client program: checks, each of one feature, and a report with one JSON line per check.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";

const SECONDS = 120;
const PROCESS = randomBytes(4).toString("hex");
let numbers = 0;

// One pixel, as an image for models that can see.
export const PIXEL =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk" +
  "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/** The servers that a check runs against: the server's address, and the control server's. */
export class Target {
  constructor(baseURL, controlURL) {
    this.baseURL = baseURL;
    this.controlURL = controlURL;
  }

  /** Return a model name of its own. A `thinker` reasons first, a `held` one stops in the middle of its answer. */
  model(kind = "plain") {
    numbers += 1;
    return `${kind}-${PROCESS}-${numbers}`;
  }

  /** Return every request that the model received, the oldest first. */
  requests(model) {
    return this.#get("requests", { model });
  }

  /** Return the roles of the messages in its last request. */
  async roles(model) {
    return (await this.requests(model)).at(-1).messages.map((message) => message.role);
  }

  /** Wait until the held model is held, and let it go on. */
  release(model) {
    return this.#get("release", { model });
  }

  /** Return a base URL of the server whose first answer is cut after so many events. */
  makeCutURL(frames, how = "reset") {
    return this.#get("cut", { frames, how });
  }

  /** Start another server, which may be crashed, and return its base URL. */
  startAnother() {
    return this.#get("start", {});
  }

  /** Kill that server while the held model is held, start it again, and let the model go on. */
  crash(baseURL, model) {
    return this.#get("crash", { base_url: baseURL, model });
  }

  async #get(path, query) {
    const answer = await fetch(`${this.controlURL}/${path}?${new URLSearchParams(query)}`);
    return answer.json();
  }
}

/** One client of the matrix: its packages, its checks, and the features that it lacks. */
export class Client {
  #checks = [];
  #lacks = {};

  constructor(name, packages) {
    this.name = name;
    this.packages = packages;
  }

  check(feature, sentence, run) {
    this.#checks.push({ feature, sentence, run });
  }

  lack(feature, why) {
    this.#lacks[feature] = why;
  }

  /** The same reason for several features. */
  lackEach(features, why) {
    for (const feature of features) this.lack(feature, why);
  }

  /** Perform every check against the server and the control server named on the command line. */
  async main() {
    const target = new Target(...process.argv.slice(2, 4));
    const packages = Object.fromEntries(this.packages.map((name) => [name, version(name)]));
    this.#report({ packages, lacks: this.#lacks });
    for (const { feature, sentence, run } of this.#checks) {
      let error = "";
      try {
        await withLimit(run(target));
      } catch (caught) {
        error = caught?.stack ?? String(caught);
      }
      this.#report({ feature, sentence, error });
    }
    // Connections that a client keeps open must not keep the process alive.
    process.exit(0);
  }

  #report(fields) {
    // On a line of its own, whatever the client has printed before.
    process.stdout.write(`\n${JSON.stringify({ client: this.name, ...fields })}\n`);
  }
}

/** Return the error that `run` throws, which it must. */
export async function refused(run) {
  try {
    await run();
  } catch (error) {
    return error;
  }
  assert.fail("it was not refused");
}

function version(name) {
  return JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url))).version;
}

async function withLimit(promise) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${SECONDS} s`)), SECONDS * 1000);
  });
  try {
    await Promise.race([promise, limit]);
  } finally {
    clearTimeout(timer);
  }
}
