// The official `openai` SDK for JavaScript: every road it has to a response, over HTTP and over a WebSocket.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { ResponsesToolRunner } from "openai/helpers/responses-tool-runner";
import { zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";

import { Client, PIXEL, refused } from "./checks.mjs";

const client = new Client("openai (JavaScript)", ["openai"]);
const Report = z.object({ city: z.string(), degrees: z.number() });
const WEATHER = {
  type: "function",
  name: "weather",
  description: "The weather in a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
  strict: true,
};

const opened = (baseURL) => new OpenAI({ baseURL, apiKey: "any" });
const rest = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

const textOf = (events) =>
  events
    .filter((event) => event.type === "response.output_text.delta")
    .map((event) => event.delta)
    .join("");

client.check("plain", "`responses.create`, `retrieve`, `inputItems.list` and `delete`", async (target) => {
  const sdk = opened(target.baseURL);
  const made = await sdk.responses.create({ model: target.model(), input: "Hello!" });
  assert.equal(made.output_text, "You said: Hello!");
  assert.equal((await sdk.responses.retrieve(made.id)).output_text, made.output_text);
  assert.equal((await collect(sdk.responses.inputItems.list(made.id))).length, 1);
  await sdk.responses.delete(made.id);
  const error = await refused(() => sdk.responses.retrieve(made.id));
  assert.ok(error instanceof OpenAI.NotFoundError);
});

client.check("streamed", "`create({ stream: true })`: numbered events; the deltas add up to the text", async (target) => {
  const events = await collect(
    await opened(target.baseURL).responses.create({ model: target.model(), input: "One two three.", stream: true }),
  );
  assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
  assert.equal(textOf(events), "You said: One two three.");
  assert.equal(events.at(-1).type, "response.completed");
});

client.check("streamed", "the `.stream()` helper and its `finalResponse()`", async (target) => {
  const stream = opened(target.baseURL).responses.stream({ model: target.model(), input: "Hello!" });
  const snapshots = [];
  stream.on("response.output_text.delta", (event) => snapshots.push(event.snapshot));
  assert.equal((await stream.finalResponse()).output_text, "You said: Hello!");
  assert.equal(snapshots.at(-1), "You said: Hello!");
});

client.check("structured", "`.parse()` with `zodTextFormat`, and the same streamed", async (target) => {
  const sdk = opened(target.baseURL);
  const request = { model: target.model(), input: "Report on Rome.", text: { format: zodTextFormat(Report, "report") } };
  const expected = { city: "Rome", degrees: 21 };
  assert.deepEqual((await sdk.responses.parse(request)).output_parsed, expected);
  assert.deepEqual((await sdk.responses.stream(request).finalResponse()).output_parsed, expected);
});

client.check("tools", "two function calls in one turn, answered over `previous_response_id`", async (target) => {
  const sdk = opened(target.baseURL);
  const model = target.model();
  const input = "Weather in Rome and weather in Oslo?";
  const asked = await sdk.responses.create({ model, input, tools: [WEATHER] });
  const calls = asked.output.filter((item) => item.type === "function_call");
  assert.deepEqual(calls.map((call) => JSON.parse(call.arguments)), [{ city: "Rome" }, { city: "Oslo" }]);
  const answered = await sdk.responses.create({
    model,
    previous_response_id: asked.id,
    tools: [WEATHER],
    input: calls.map(({ call_id }) => ({ type: "function_call_output", call_id, output: `sun over ${call_id}` })),
  });
  assert.equal(answered.output_text, "The tool says: sun over call_Rome and sun over call_Oslo.");
});

client.check("tools", "the SDK's `ResponsesToolRunner`, streamed", async (target) => {
  const cities = [];
  const runner = new ResponsesToolRunner({
    functions: [
      {
        tool: WEATHER,
        execute: ({ city }) => {
          cities.push(city);
          return "sunny";
        },
      },
    ],
  });
  const params = { model: target.model(), input: "Weather in Rome?" };
  const answer = await runner.run(opened(target.baseURL), params, { stream: true });
  assert.deepEqual(cities, ["Rome"]);
  assert.equal(answer.output_text, "The tool says: sunny.");
});

client.check("reasoning", "reasoning as an item of its own, streamed, and sent back as input", async (target) => {
  const sdk = opened(target.baseURL);
  const model = target.model("thinker");
  const events = await collect(await sdk.responses.create({ model, input: "Hello!", stream: true }));
  const thoughts = events.filter((event) => event.type === "response.reasoning_text.delta");
  assert.equal(thoughts.map((event) => event.delta).join(""), "They want an answer.");
  const { output } = events.at(-1).response;
  assert.deepEqual(output.map((item) => item.type), ["reasoning", "message"]);
  const input = [{ role: "user", content: "Hello!" }, ...output, { role: "user", content: "And now?" }];
  assert.equal((await sdk.responses.create({ model, input })).output_text, "You said: And now?");
});

client.check("images", "an image in the input reaches the model", async (target) => {
  const content = [
    { type: "input_text", text: "What is this?" },
    { type: "input_image", image_url: PIXEL, detail: "auto" },
  ];
  const seen = await opened(target.baseURL).responses.create({
    model: target.model(),
    input: [{ role: "user", content }],
  });
  assert.equal(seen.output_text, "I see a picture.");
});

client.check("chain", "`previous_response_id`: the model gets the earlier turn", async (target) => {
  const sdk = opened(target.baseURL);
  const model = target.model();
  const first = await sdk.responses.create({ model, input: "My name is Ada." });
  const second = await sdk.responses.create({ model, input: "What is my name?", previous_response_id: first.id });
  assert.equal(second.output_text, "Your name is Ada.");
  assert.deepEqual(await target.roles(model), ["user", "assistant", "user"]);
});

client.check("conversation", "`conversations`: created, used, listed page by page, deleted", async (target) => {
  const sdk = opened(target.baseURL);
  const talk = await sdk.conversations.create({ items: [{ role: "user", content: "My name is Ada." }] });
  const request = { model: target.model(), input: "What is my name?", conversation: talk.id };
  assert.equal((await sdk.responses.create(request)).output_text, "Your name is Ada.");
  const items = await collect(sdk.conversations.items.list(talk.id, { order: "asc", limit: 2 }));
  assert.deepEqual(items.map((item) => item.role), ["user", "user", "assistant"]);
  assert.ok((await sdk.conversations.delete(talk.id)).deleted);
});

client.check("stateless", "`store: false`: an answer that is not stored", async (target) => {
  const sdk = opened(target.baseURL);
  const made = await sdk.responses.create({ model: target.model(), input: "Hello!", store: false });
  assert.equal(made.output_text, "You said: Hello!");
  await refused(() => sdk.responses.retrieve(made.id));
});

client.check("background", "`background: true`, polled with `retrieve` to the end", async (target) => {
  const sdk = opened(target.baseURL);
  const model = target.model("held");
  let response = await sdk.responses.create({ model, input: "Take your time.", background: true });
  assert.equal(response.status, "queued");
  await target.release(model);
  while (response.status === "queued" || response.status === "in_progress") {
    await rest(50);
    response = await sdk.responses.retrieve(response.id);
  }
  assert.equal(response.output_text, "You said: Take your time.");
  assert.equal((await target.requests(model)).length, 1);
});

client.check(
  "resume",
  "a background stream closed after an event resumes with `starting_after`, nothing lost or repeated",
  async (target) => {
    const sdk = opened(target.baseURL);
    const model = target.model("held");
    const request = { model, input: "A long story, please.", background: true, stream: true };
    const seen = [];
    for await (const event of await sdk.responses.create(request)) {
      seen.push(event);
      if (event.type === "response.output_text.delta") break;
    }
    await target.release(model);
    const { id } = seen[0].response;
    const starting_after = seen.at(-1).sequence_number;
    const others = await collect(await sdk.responses.retrieve(id, { stream: true, starting_after }));
    const whole = await collect(await sdk.responses.retrieve(id, { stream: true }));
    assert.deepEqual([...seen, ...others], whole);
    assert.equal((await target.requests(model)).length, 1);
  },
);

client.check("resume", "a stream broken by the network: `retrieve` returns the rest", async (target) => {
  const sdk = opened(await target.makeCutURL(6));
  const model = target.model();
  const seen = [];
  await refused(async () => {
    for await (const event of await sdk.responses.create({ model, input: "A long story, please.", stream: true })) {
      seen.push(event);
    }
  });
  assert.equal(seen.length, 6);
  const starting_after = seen.at(-1).sequence_number;
  seen.push(...(await collect(await sdk.responses.retrieve(seen[0].response.id, { stream: true, starting_after }))));
  assert.equal(textOf(seen), "You said: A long story, please.");
  assert.equal((await target.requests(model)).length, 1);
});

client.check("resume", "the helper `.stream({ response_id, starting_after })`", async (target) => {
  const sdk = opened(target.baseURL);
  const made = await sdk.responses.create({ model: target.model(), input: "Hello!", background: true });
  const stream = sdk.responses.stream({ response_id: made.id, starting_after: 5 });
  const numbers = [];
  stream.on("event", (event) => numbers.push(event.sequence_number));
  assert.equal((await stream.finalResponse()).output_text, "You said: Hello!");
  assert.equal(numbers[0], 6);
});

client.check("cancel", "`responses.cancel` while it runs: the output so far is kept", async (target) => {
  const sdk = opened(target.baseURL);
  const request = { model: target.model("held"), input: "A long story, please.", background: true, stream: true };
  let id;
  for await (const event of await sdk.responses.create(request)) {
    id ??= event.response.id;
    if (event.type === "response.output_text.delta") break;
  }
  assert.equal((await sdk.responses.cancel(id)).status, "cancelled");
  const kept = await sdk.responses.retrieve(id);
  assert.ok(kept.status === "cancelled" && kept.output_text.startsWith("You"));
});

/** The answer to one `response.create` on the socket. */
async function ask(socket, request) {
  const events = socket.stream();
  socket.send({ type: "response.create", ...request });
  for await (const event of events) {
    if (event.type === "error") throw event.error;
    if (event.type === "close") throw new Error("closed");
    if (event.type === "message" && event.message.type === "response.completed") return event.message.response;
  }
  throw new Error("no answer");
}

client.check("websocket", "`ResponsesWS`: turns on one connection, chained with `store: false`", async (target) => {
  const model = target.model();
  const socket = new ResponsesWS(opened(target.baseURL));
  try {
    const first = await ask(socket, { model, input: "My name is Ada.", store: false });
    const request = { model, input: "What is my name?", store: false, previous_response_id: first.id };
    const { output } = await ask(socket, request);
    assert.equal(output[0].content[0].text, "Your name is Ada.");
  } finally {
    socket.close();
  }
});

client.check("compact", "`responses.compact`, and a new chain from its output", async (target) => {
  const sdk = opened(target.baseURL);
  const model = target.model();
  const first = await sdk.responses.create({ model, input: "My name is Ada." });
  const { output } = await sdk.responses.compact({ model, previous_response_id: first.id });
  assert.equal(output.at(-1).type, "compaction");
  const input = [...output, { role: "user", content: "What is my name?" }];
  assert.equal((await sdk.responses.create({ model, input })).output_text, "Your name is Ada.");
});

client.check("tokens", "`responses.inputTokens.count`, also for a chain", async (target) => {
  const sdk = opened(target.baseURL);
  const request = { model: target.model(), input: "What is my name?" };
  const alone = await sdk.responses.inputTokens.count(request);
  const first = await sdk.responses.create({ model: request.model, input: "My name is Ada." });
  const chained = await sdk.responses.inputTokens.count({ ...request, previous_response_id: first.id });
  assert.ok(chained.input_tokens > alone.input_tokens && alone.input_tokens > 0);
});

client.check("errors", "a 400 is `BadRequestError`, with the field's name in `param`", async (target) => {
  const request = { model: target.model(), input: "Hello!", temperature: 9 };
  const error = await refused(() => opened(target.baseURL).responses.create(request));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
});

await client.main();
