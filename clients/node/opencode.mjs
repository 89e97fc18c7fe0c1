// opencode, run as `opencode run` with the configuration that the page for users shows.

import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { Client } from "./checks.mjs";
import { makeFolder, makePicture, parseLines, readConfiguration, run } from "./command.mjs";

const client = new Client("opencode", ["opencode-ai"]);
client.lack("streamed", "prints whole parts in `opencode run`; its requests are streamed all the same");
client.lack("structured", "has no setting for it");
client.lackEach(["chain", "conversation"], "keeps its sessions itself");
client.lack("background", "has no setting for it");
client.lack("resume", "asks again when a stream breaks (see stateless)");
client.lack("cancel", "only stops reading");
client.lack("websocket", "speaks HTTP only");
client.lack("compact", "compacts its history itself");
client.lack("tokens", "has no command for it");

/** A user of opencode: a home, a project folder with the configuration, and a model. */
class User {
  constructor(target, kind = "plain", baseURL = target.baseURL, fields = {}) {
    this.name = target.model(kind);
    this.home = makeFolder();
    this.project = join(this.home, "project");
    mkdirSync(this.project);
    const configuration = JSON.parse(readConfiguration("opencode", this.name, baseURL));
    Object.assign(configuration.provider.outlive.models[this.name], fields);
    writeFileSync(join(this.project, "opencode.json"), JSON.stringify(configuration));
  }

  /** Run `opencode run` and return its events. */
  async events(...args) {
    const elsewhere = ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"].map((name) => [name, undefined]);
    const env = { HOME: this.home, ...Object.fromEntries(elsewhere) };
    const command = ["run", "--format", "json", "--model", `outlive/${this.name}`, ...args];
    const { stdout, stderr } = await run("opencode", command, { cwd: this.project, env });
    const events = parseLines(stdout);
    assert.ok(events.length, stderr);
    return events;
  }

  async ask(...args) {
    return (await this.events(...args)).filter((event) => event.type === "text").at(-1)?.part.text;
  }
}

client.check("plain", "`opencode run`: a turn", async (target) => {
  assert.equal(await new User(target).ask("Hello!"), "You said: Hello!");
});

client.check("tools", "a command that the model runs in the project", async (target) => {
  const events = await new User(target).events("Run", "this", "command:", "echo", "marmot");
  const calls = events.filter((event) => event.type === "tool_use");
  assert.equal(calls.length, 1);
  assert.match(calls[0].part.state.output, /marmot/);
  assert.match(events.filter((event) => event.type === "text").at(-1).part.text, /^The tool says: marmot/);
});

client.check("reasoning", "`--thinking`: a `reasoning` part before the answer, with `reasoningSummary`", async (target) => {
  const fields = { reasoning: true, options: { reasoningSummary: "auto" } };
  const events = await new User(target, "thinker", target.baseURL, fields).events("--thinking", "Hello!");
  const parts = events.filter((event) => ["reasoning", "text"].includes(event.type)).map((event) => [event.type, event.part.text]);
  assert.deepEqual(parts, [["reasoning", "They want an answer."], ["text", "You said: Hello!"]]);
});

client.check("images", "`--file`", async (target) => {
  const modalities = { input: ["text", "image"], output: ["text"] };
  const user = new User(target, "plain", target.baseURL, { attachment: true, modalities });
  assert.equal(await user.ask("What is this?", "--file", makePicture(user.project)), "I see a picture.");
});

client.check("stateless", "`opencode run --continue`: the session goes on, through a tool call", async (target) => {
  const user = new User(target);
  await user.ask("My", "name", "is", "Ada.", "Run", "this", "command:", "echo", "marmot");
  assert.equal(await user.ask("--continue", "What", "is", "my", "name?"), "Your name is Ada.");
});

client.check("stateless", "`kill -9` of the server in mid-turn: opencode asks again, and the turn ends well", async (target) => {
  const baseURL = await target.startAnother();
  const user = new User(target, "held", baseURL);
  const asked = user.ask("--title", "A turn", "Hello!");
  await target.crash(baseURL, user.name);
  assert.equal(await asked, "You said: Hello!");
});

client.check("errors", "an `error` event with the server's message", async (target) => {
  const events = await new User(target, "plain", `${target.baseURL}/elsewhere`).events("Hello!");
  assert.equal(events.at(-1).type, "error", JSON.stringify(events));
  assert.match(JSON.stringify(events.at(-1).error), /There is no POST/);
});

await client.main();
