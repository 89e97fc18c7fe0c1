// `@openai/agents`: its runner, its sessions, the server's state, and its WebSocket transport.

import assert from "node:assert/strict";
import {
  Agent,
  MemorySession,
  OpenAIConversationsSession,
  OpenAIResponsesCompactionSession,
  OpenAIResponsesModel,
  run,
  setTracingDisabled,
  tool,
  withResponsesWebSocketSession,
} from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

import { Client, PIXEL, refused } from "./checks.mjs";

const client = new Client("@openai/agents (JavaScript)", ["@openai/agents", "openai"]);
client.lack("background", "has no background mode");
client.lack("resume", "does not resume a broken stream");
client.lack("cancel", "only stops reading");
client.lack("tokens", "has no method for it");

setTracingDisabled(true);

/** An agent on one model, with a tool that notes what it was called with. */
function errand(target, kind = "plain", fields = {}) {
  const sdk = new OpenAI({ baseURL: target.baseURL, apiKey: "any" });
  const name = target.model(kind);
  const cities = [];
  const weather = tool({
    name: "weather",
    description: "The weather in a city.",
    parameters: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return `sunny in ${city}`;
    },
  });
  const agent = new Agent({
    name: "Helper",
    instructions: "Be brief.",
    model: new OpenAIResponsesModel(sdk, name),
    tools: [weather],
    ...fields,
  });
  return { sdk, name, cities, agent, weather };
}

client.check("plain", "`run`", async (target) => {
  const { agent, name } = errand(target);
  assert.equal((await run(agent, "Hello!")).finalOutput, "You said: Hello!");
  assert.deepEqual(await target.roles(name), ["system", "user"]);
});

client.check("streamed", "`run` with `stream: true`, through a tool call", async (target) => {
  const { agent, cities } = errand(target);
  const result = await run(agent, "Weather in Rome?", { stream: true });
  let said = "";
  for await (const event of result) {
    if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") said += event.data.delta;
  }
  await result.completed;
  assert.equal(said, "The tool says: sunny in Rome.");
  assert.equal(result.finalOutput, said);
  assert.deepEqual(cities, ["Rome"]);
});

client.check("structured", "`outputType`", async (target) => {
  const outputType = z.object({ city: z.string(), degrees: z.number() });
  const { agent } = errand(target, "plain", { tools: [], outputType });
  assert.deepEqual((await run(agent, "Report on Rome.")).finalOutput, { city: "Rome", degrees: 21 });
});

client.check("tools", "`tool`, twice in one turn, each called once", async (target) => {
  const { agent, cities } = errand(target);
  const result = await run(agent, "Weather in Rome and weather in Oslo?");
  assert.equal(result.finalOutput, "The tool says: sunny in Rome and sunny in Oslo.");
  assert.deepEqual(cities.sort(), ["Oslo", "Rome"]);
});

client.check("reasoning", "reasoning items with their summary, kept through a tool call", async (target) => {
  const { agent } = errand(target, "thinker", { modelSettings: { reasoning: { summary: "auto" } } });
  const result = await run(agent, "Weather in Rome?");
  const thoughts = result.newItems.filter((item) => item.type === "reasoning_item");
  assert.deepEqual(thoughts.map((item) => item.rawItem.content[0].text), Array(2).fill("They want an answer."));
  assert.equal(result.finalOutput, "The tool says: sunny in Rome.");
});

client.check("images", "an image in the input reaches the model", async (target) => {
  const { agent } = errand(target);
  const content = [
    { type: "input_text", text: "What is this?" },
    { type: "input_image", image: PIXEL },
  ];
  assert.equal((await run(agent, [{ role: "user", content }])).finalOutput, "I see a picture.");
});

client.check("chain", "`previousResponseId`, through a tool call", async (target) => {
  const { agent, name, cities } = errand(target);
  const first = await run(agent, "My name is Ada. Weather in Rome?");
  const second = await run(agent, "What is my name?", { previousResponseId: first.lastResponseId });
  assert.equal(second.finalOutput, "Your name is Ada.");
  assert.deepEqual(cities, ["Rome"]);
  assert.deepEqual(await target.roles(name), ["system", "user", "assistant", "tool", "assistant", "user"]);
});

client.check("conversation", "`conversationId`, through a tool call", async (target) => {
  const { agent, sdk } = errand(target);
  const { id } = await sdk.conversations.create();
  await run(agent, "My name is Ada. Weather in Rome?", { conversationId: id });
  assert.equal((await run(agent, "What is my name?", { conversationId: id })).finalOutput, "Your name is Ada.");
  const kinds = [];
  for await (const item of sdk.conversations.items.list(id, { order: "asc" })) kinds.push(item.type);
  assert.deepEqual(kinds, ["message", "function_call", "function_call_output", "message", "message", "message"]);
});

client.check("conversation", "`OpenAIConversationsSession`: adds, reads, pops and clears", async (target) => {
  const { agent, sdk } = errand(target);
  const session = new OpenAIConversationsSession({ client: sdk });
  await run(agent, "My name is Ada. Weather in Rome?", { session });
  assert.equal((await run(agent, "What is my name?", { session })).finalOutput, "Your name is Ada.");
  assert.equal((await session.getItems()).length, 6);
  assert.equal((await session.popItem()).content[0].text, "Your name is Ada.");
  await session.clearSession();
  assert.equal((await run(agent, "What is my name?", { session })).finalOutput, "You have not told me.");
});

client.check("stateless", "`store: false` with a `MemorySession`, through reasoning and a tool call", async (target) => {
  const { agent } = errand(target, "thinker", { modelSettings: { store: false } });
  const session = new MemorySession();
  await run(agent, "My name is Ada. Weather in Rome?", { session });
  assert.equal((await run(agent, "What is my name?", { session })).finalOutput, "Your name is Ada.");
});

client.check("websocket", "`withResponsesWebSocketSession`: runs, tools and streams on one connection", async (target) => {
  const { agent, cities } = errand(target, "plain", {});
  const name = target.model();
  await withResponsesWebSocketSession(
    async (socket) => {
      const first = await socket.run(agent.clone({ model: name }), "My name is Ada. Weather in Rome?");
      assert.equal(first.finalOutput, "The tool says: sunny in Rome.");
      const how = { previousResponseId: first.lastResponseId, stream: true };
      const second = await socket.run(agent.clone({ model: name }), "What is my name?", how);
      await second.completed;
      assert.equal(second.finalOutput, "Your name is Ada.");
    },
    { providerOptions: { apiKey: "any", baseURL: target.baseURL } },
  );
  assert.deepEqual(cities, ["Rome"]);
});

client.check("websocket", "the same with `store: false`: the chain is kept in the connection's memory", async (target) => {
  const { agent } = errand(target, "plain", { modelSettings: { store: false } });
  const name = target.model();
  await withResponsesWebSocketSession(
    async (socket) => {
      const first = await socket.run(agent.clone({ model: name }), "My name is Ada.");
      const how = { previousResponseId: first.lastResponseId };
      const second = await socket.run(agent.clone({ model: name }), "What is my name?", how);
      assert.equal(second.finalOutput, "Your name is Ada.");
    },
    { providerOptions: { apiKey: "any", baseURL: target.baseURL } },
  );
});

client.check("compact", "`OpenAIResponsesCompactionSession`, from the last response and from its items", async (target) => {
  for (const compactionMode of ["previous_response_id", "input"]) {
    // The session takes no other names than OpenAI's.
    const { agent, sdk, name } = errand(target, "gpt-plain");
    const session = new OpenAIResponsesCompactionSession({
      client: sdk,
      underlyingSession: new MemorySession(),
      model: name,
      compactionMode,
      shouldTriggerCompaction: ({ compactionCandidateItems }) => compactionCandidateItems.length >= 3,
    });
    await run(agent, "My name is Ada. Weather in Rome?", { session });
    assert.equal((await session.getItems()).at(-1).type, "compaction");
    assert.equal((await run(agent, "What is my name?", { session })).finalOutput, "Your name is Ada.");
  }
});

client.check("errors", "the server's 400 arrives as the SDK's `BadRequestError`", async (target) => {
  const { agent } = errand(target, "plain", { modelSettings: { temperature: 9 } });
  const error = await refused(() => run(agent, "Hello!"));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
});

await client.main();
