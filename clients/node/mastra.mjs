// Mastra's `Agent`, with a model of `@ai-sdk/openai`, which speaks the Responses API.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { Agent } from "@mastra/core/agent";
import { createTool } from "@mastra/core/tools";
import OpenAI from "openai";
import { z } from "zod";

import { Client, PIXEL, refused } from "./checks.mjs";

const client = new Client("@mastra/core (JavaScript)", ["@mastra/core", "@ai-sdk/openai"]);
client.lack("background", "has no setting for it");
client.lack("resume", "does not resume a broken stream");
client.lack("cancel", "only stops reading");
client.lack("websocket", "speaks HTTP only");
client.lack("compact", "shortens its history itself");
client.lack("tokens", "has no method for it");

function makeAgent(target, kind = "plain", tools = {}) {
  const name = target.model(kind);
  const model = createOpenAI({ baseURL: target.baseURL, apiKey: "any" })(name);
  return { name, agent: new Agent({ id: "helper", name: "Helper", instructions: "You help.", model, tools }) };
}

function forecast() {
  const cities = [];
  const weather = createTool({
    id: "weather",
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return `sunny in ${city}`;
    },
  });
  return { cities, tools: { weather } };
}

client.check("plain", "`generate`", async (target) => {
  assert.equal((await makeAgent(target).agent.generate("Hello!")).text, "You said: Hello!");
});

client.check("streamed", "`stream`: deltas that add up to the answer", async (target) => {
  const answer = await makeAgent(target).agent.stream("One two three.");
  const pieces = [];
  for await (const piece of answer.textStream) pieces.push(piece);
  assert.ok(pieces.length > 3);
  assert.equal(pieces.join(""), "You said: One two three.");
});

client.check("structured", "`structuredOutput`", async (target) => {
  const schema = z.object({ city: z.string(), degrees: z.number() });
  const answer = await makeAgent(target).agent.generate("Report on Rome.", { structuredOutput: { schema } });
  assert.deepEqual(answer.object, { city: "Rome", degrees: 21 });
});

client.check("tools", "two calls in one step, plain and streamed", async (target) => {
  for (const how of ["generate", "stream"]) {
    const { cities, tools } = forecast();
    const answer = await makeAgent(target, "plain", tools).agent[how]("Weather in Rome and weather in Oslo?");
    assert.equal(await answer.text, "The tool says: sunny in Rome and sunny in Oslo.");
    assert.deepEqual(cities.sort(), ["Oslo", "Rome"]);
  }
});

client.check("reasoning", "`reasoningText`, with `reasoningSummary`", async (target) => {
  const providerOptions = { openai: { forceReasoning: true, reasoningSummary: "auto" } };
  const answer = await makeAgent(target, "thinker").agent.generate("Hello!", { providerOptions });
  assert.equal(answer.text, "You said: Hello!");
  assert.equal(answer.reasoningText, "They want an answer.");
});

client.check("images", "an image in the input reaches the model", async (target) => {
  const content = [
    { type: "text", text: "What is this?" },
    { type: "image", image: PIXEL, mediaType: "image/png" },
  ];
  assert.equal((await makeAgent(target).agent.generate([{ role: "user", content }])).text, "I see a picture.");
});

client.check("chain", "`previousResponseId`", async (target) => {
  const { agent, name } = makeAgent(target);
  const first = await agent.generate("My name is Ada.");
  const { responseId } = first.providerMetadata.openai;
  const providerOptions = { openai: { previousResponseId: responseId } };
  assert.equal((await agent.generate("What is my name?", { providerOptions })).text, "Your name is Ada.");
  assert.deepEqual((await target.roles(name)).filter((role) => role !== "system"), ["user", "assistant", "user"]);
});

client.check("conversation", "`conversation`", async (target) => {
  const { id } = await new OpenAI({ baseURL: target.baseURL, apiKey: "any" }).conversations.create();
  const { agent } = makeAgent(target);
  const providerOptions = { openai: { conversation: id } };
  await agent.generate("My name is Ada.", { providerOptions });
  assert.equal((await agent.generate("What is my name?", { providerOptions })).text, "Your name is Ada.");
});

client.check("stateless", "`store: false`, the history sent whole", async (target) => {
  const { agent } = makeAgent(target);
  const messages = [
    { role: "user", content: "My name is Ada." },
    { role: "assistant", content: "Hello, Ada." },
    { role: "user", content: "What is my name?" },
  ];
  const answer = await agent.generate(messages, { providerOptions: { openai: { store: false } } });
  assert.equal(answer.text, "Your name is Ada.");
});

client.check("errors", "the server's refusal, with its status and its message", async (target) => {
  const providerOptions = { openai: { previousResponseId: "resp_gone" } };
  const error = await refused(() => makeAgent(target).agent.generate("Hello!", { providerOptions }));
  assert.match(error.message, /resp_gone/);
  assert.equal(error.statusCode, 400);
});

await client.main();
