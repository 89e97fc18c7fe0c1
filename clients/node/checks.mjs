// What a client program is made of: checks, each of one feature, and a report of one JSON line per check.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";

const SECONDS = 60;
const PROCESS = randomBytes(4).toString("hex");
let numbers = 0;

// One pixel, as an image for models that can see.
export const PIXEL =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk" +
  "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/** Where a check takes place: the server's address, and the desk's. */
export class Place {
  constructor(baseURL, desk) {
    this.baseURL = baseURL;
    this.desk = desk;
  }

  /** The name of a model that nobody else asks. A `thinker` reasons first, a `held` one stops half way. */
  model(nature = "plain") {
    numbers += 1;
    return `${nature}-${PROCESS}-${numbers}`;
  }

  /** Every request that the model got, oldest first. */
  asked(model) {
    return this.#get("asked", { model });
  }

  /** The roles of the messages in its last request. */
  async roles(model) {
    return (await this.asked(model)).at(-1).messages.map((message) => message.role);
  }

  /** Wait until the held model is held, and let it go on. */
  open(model) {
    return this.#get("open", { model });
  }

  /** A base URL of the same server whose first answer breaks off after so many events. */
  cut(frames, how = "reset") {
    return this.#get("cut", { frames, how });
  }

  async #get(wish, words) {
    const answer = await fetch(`${this.desk}/${wish}?${new URLSearchParams(words)}`);
    return answer.json();
  }
}

/** One client of the matrix: the packages it is made of, its checks, and what it has no means for. */
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

  /** Perform every check against the server and the desk named on the command line. */
  async main() {
    const place = new Place(...process.argv.slice(2, 4));
    const packages = Object.fromEntries(this.packages.map((name) => [name, version(name)]));
    this.#report({ packages, lacks: this.#lacks });
    for (const { feature, sentence, run } of this.#checks) {
      let error = "";
      try {
        await withLimit(run(place));
      } catch (caught) {
        error = caught?.stack ?? String(caught);
      }
      this.#report({ feature, sentence, error });
    }
    // Whatever a client keeps open must not keep the process.
    process.exit(0);
  }

  #report(fields) {
    // On a line of its own whatever the client has printed meanwhile.
    process.stdout.write(`\n${JSON.stringify({ client: this.name, ...fields })}\n`);
  }
}

/** What is thrown by `run`, which must throw. */
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
