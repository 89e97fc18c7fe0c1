// The coding agent pi, run as `pi -p` with the configuration that the page for users shows.

import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { Client } from "./checks.mjs";
import { makeFolder, makePicture, parseLines, readConfiguration, run } from "./command.mjs";

const client = new Client("pi", ["@earendil-works/pi-coding-agent"]);
client.lack("structured", "has no setting for it");
client.lackEach(["chain", "conversation"], "keeps its sessions itself");
client.lack("background", "has no setting for it");
client.lack("resume", "asks again when a stream breaks (see stateless)");
client.lack("cancel", "only stops reading");
client.lack("websocket", "speaks HTTP only");
client.lack("compact", "compacts its history itself");
client.lack("tokens", "has no command for it");

/** A user of pi: a folder with the configuration, a project folder, and a model. */
class User {
  constructor(target, kind = "plain", baseURL = target.baseURL, fields = {}) {
    this.name = target.model(kind);
    this.home = makeFolder();
    this.project = join(this.home, "project");
    mkdirSync(this.project);
    const configuration = JSON.parse(readConfiguration("pi", this.name, baseURL));
    Object.assign(configuration.providers.outlive.models[0], fields);
    writeFileSync(join(this.home, "models.json"), JSON.stringify(configuration));
  }

  run(...args) {
    const env = { PI_CODING_AGENT_DIR: this.home };
    return run("pi", ["--provider", "outlive", "--model", this.name, ...args], { cwd: this.project, env });
  }

  async ask(...args) {
    const { stdout, stderr } = await this.run("-p", ...args);
    assert.equal(stderr, "");
    return stdout.trimEnd();
  }

  async events(...args) {
    return parseLines((await this.run("-p", "--mode", "json", ...args)).stdout);
  }
}

function deltas(events, type = "text_delta") {
  return events.map((event) => event.assistantMessageEvent).filter((event) => event?.type === type).map((event) => event.delta);
}

client.check("plain", "`pi -p`: a turn", async (target) => {
  assert.equal(await new User(target).ask("Hello!"), "You said: Hello!");
});

client.check("streamed", "`--mode json`: deltas that add up to the answer", async (target) => {
  const pieces = deltas(await new User(target).events("One two three."));
  assert.ok(pieces.length > 3);
  assert.equal(pieces.join(""), "You said: One two three.");
});

client.check("tools", "a command that the model runs in the project", async (target) => {
  const user = new User(target);
  assert.match(await user.ask("Run this command: echo marmot"), /^The tool says: marmot/);
  assert.deepEqual(await target.roles(user.name), ["system", "user", "assistant", "tool"]);
});

client.check("reasoning", "`\"reasoning\": true` and `--thinking high`", async (target) => {
  const user = new User(target, "thinker", target.baseURL, { reasoning: true });
  const events = await user.events("--thinking", "high", "Hello!");
  assert.equal(deltas(events, "thinking_delta").join("").trimEnd(), "They want an answer.");
  assert.equal(deltas(events).join(""), "You said: Hello!");
});

client.check("images", "`@picture.png`", async (target) => {
  const user = new User(target, "plain", target.baseURL, { input: ["text", "image"] });
  makePicture(user.project);
  assert.equal(await user.ask("@picture.png", "What is this?"), "I see a picture.");
});

client.check("stateless", "`pi -c`: the session goes on, through a tool call", async (target) => {
  const user = new User(target);
  await user.ask("My name is Ada. Run this command: echo marmot");
  assert.equal(await user.ask("-c", "What is my name?"), "Your name is Ada.");
});

client.check("stateless", "`kill -9` of the server in mid-turn: pi asks again, and the turn ends well", async (target) => {
  const baseURL = await target.startAnother();
  const user = new User(target, "held", baseURL);
  const asked = user.ask("Hello!");
  await target.crash(baseURL, user.name);
  assert.equal(await asked, "You said: Hello!");
  assert.equal((await target.requests(user.name)).length, 2);
});

client.check("errors", "the server's message", async (target) => {
  const { code, stderr } = await new User(target, "plain", `${target.baseURL}/elsewhere`).run("-p", "Hello!");
  assert.equal(code, 1);
  assert.match(stderr, /There is no POST/);
});

await client.main();
