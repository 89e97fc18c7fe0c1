// Codex CLI, run as `codex exec` with the configuration that the page for users shows.

import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { Client } from "./checks.mjs";
import { makeFolder, makePicture, parseLines, readConfiguration, run } from "./command.mjs";

const client = new Client("Codex CLI", ["@openai/codex"]);
client.lack("streamed", "prints whole items in `codex exec`; its requests are streamed all the same");
client.lack("chain", "sends the whole history over HTTP, and chains by itself over a WebSocket");
client.lack("conversation", "keeps its sessions itself");
client.lack("background", "has no setting for it");
client.lack("resume", "asks again when a stream breaks (see stateless)");
client.lack("cancel", "only stops reading");
client.lack("compact", "compacts its history itself");
client.lack("tokens", "has no command for it");

/** A user of Codex: a home with the configuration, a project folder, and a model. */
class User {
  constructor(target, kind = "plain", baseURL = target.baseURL) {
    this.name = target.model(kind);
    this.home = makeFolder();
    this.project = join(this.home, "project");
    mkdirSync(this.project);
    this.configure(readConfiguration("Codex", this.name, baseURL));
  }

  configure(text) {
    writeFileSync(join(this.home, "config.toml"), text);
  }

  /** Run `codex exec` and return its events. */
  async exec(...args) {
    const env = { CODEX_HOME: this.home, CODEX_API_KEY: "any" };
    const command = ["exec", "--json", "--skip-git-repo-check", ...args];
    const { stdout, stderr } = await run("codex", command, { cwd: this.project, env });
    const events = parseLines(stdout);
    assert.ok(events.length, stderr);
    return events;
  }

  /** Run `codex exec` and return the items that it completed, which must end the turn well. */
  async complete(...args) {
    const events = await this.exec(...args);
    assert.equal(events.at(-1).type, "turn.completed", JSON.stringify(events));
    return events.filter((event) => event.type === "item.completed").map((event) => event.item);
  }

  async ask(...args) {
    return (await this.complete(...args)).at(-1).text;
  }
}

client.check("plain", "`codex exec`: a turn", async (target) => {
  assert.equal(await new User(target).ask("Hello!"), "You said: Hello!");
});

client.check("structured", "`--output-schema`", async (target) => {
  const user = new User(target);
  const schema = join(user.project, "schema.json");
  const properties = { city: { type: "string" }, degrees: { type: "number" } };
  writeFileSync(schema, JSON.stringify({ type: "object", properties, required: ["city", "degrees"], additionalProperties: false }));
  assert.deepEqual(JSON.parse(await user.ask("--output-schema", schema, "Report on Rome.")), { city: "Rome", degrees: 21 });
});

client.check("tools", "a command that the model runs in the project", async (target) => {
  const user = new User(target);
  const items = await user.complete("Run this command: echo marmot > /dev/stdout");
  const commands = items.filter((item) => item.type === "command_execution");
  assert.equal(commands.length, 1);
  assert.match(commands[0].aggregated_output, /marmot/);
  assert.match(items.at(-1).text, /^The tool says: (.|\n)*marmot/);
  assert.equal((await target.requests(user.name)).length, 2);
});

client.check("reasoning", "a `reasoning` item before the answer", async (target) => {
  const items = await new User(target, "thinker").complete("Hello!");
  assert.deepEqual(items.slice(-2).map((item) => [item.type, item.text]), [
    ["reasoning", "They want an answer."],
    ["agent_message", "You said: Hello!"],
  ]);
});

client.check("images", "`--image`", async (target) => {
  const user = new User(target);
  assert.equal(await user.ask("What is this?", "--image", makePicture(user.project)), "I see a picture.");
});

client.check("stateless", "`codex exec resume`: the session goes on, through a tool call", async (target) => {
  const user = new User(target);
  await user.ask("My name is Ada. Run this command: echo marmot");
  assert.equal(await user.ask("resume", "--last", "What is my name?"), "Your name is Ada.");
});

client.check("stateless", "`kill -9` of the server in mid-turn: Codex asks again, and the turn ends well", async (target) => {
  const baseURL = await target.startAnother();
  const user = new User(target, "held", baseURL);
  const asked = user.exec("Hello!");
  await target.crash(baseURL, user.name);
  const events = await asked;
  assert.equal(events.at(-1).type, "turn.completed", JSON.stringify(events));
  const answers = events.filter((event) => event.item?.type === "agent_message").map((event) => event.item.text);
  assert.deepEqual(answers, ["You said: Hello!"]);
  assert.equal((await target.requests(user.name)).length, 2);
});

client.check("websocket", "the built-in provider with `openai_base_url`, through a tool call", async (target) => {
  const user = new User(target);
  user.configure(`model = "${user.name}"\nopenai_base_url = "${target.baseURL}"\n`);
  const items = await user.complete("Run this command: echo marmot");
  // It says so where it has to use HTTP instead.
  assert.deepEqual(items.filter((item) => /WebSocket/.test(item.message)), []);
  assert.match(items.at(-1).text, /^The tool says: (.|\n)*marmot/);
});

client.check("errors", "`turn.failed` with the server's message", async (target) => {
  const events = await new User(target).exec("-c", 'model_reasoning_effort="extreme"', "Hello!");
  assert.equal(events.at(-1).type, "turn.failed");
  assert.match(events.at(-1).error.message, /'reasoning.effort' cannot be 'extreme'/);
});

await client.main();
