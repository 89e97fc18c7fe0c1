// Vercel's `ai` with `@ai-sdk/openai`, whose models speak the Responses API.

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, generateText, isStepCount, Output, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

import { Client, PIXEL, refused } from "./checks.mjs";

const client = new Client("ai with @ai-sdk/openai (JavaScript)", ["ai", "@ai-sdk/openai"]);
client.lack("background", "has no setting for it");
client.lack("resume", "does not resume a broken stream; an app resumes its own stream, not the model's");
client.lack("cancel", "only stops reading");
client.lack("websocket", "speaks HTTP only");
client.lack("tokens", "has no method for it");

function ask(target, kind = "plain", openai = {}) {
  const name = target.model(kind);
  const provider = createOpenAI({ baseURL: target.baseURL, apiKey: "any" });
  return { name, request: { model: provider.responses(name), providerOptions: { openai } } };
}

function forecast() {
  const cities = [];
  const weather = tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return `sunny in ${city}`;
    },
  });
  return { cities, how: { tools: { weather }, stopWhen: isStepCount(5) } };
}

client.check("plain", "`generateText`", async (target) => {
  const { request } = ask(target);
  const answer = await generateText({ ...request, prompt: "Hello!" });
  assert.equal(answer.text, "You said: Hello!");
  assert.equal(answer.usage.totalTokens, 7);
  assert.match(answer.providerMetadata.openai.responseId, /^resp_/);
});

client.check("streamed", "`streamText`: deltas that add up to the answer", async (target) => {
  const { request } = ask(target);
  const answer = streamText({ ...request, prompt: "One two three." });
  const pieces = [];
  for await (const piece of answer.textStream) pieces.push(piece);
  assert.ok(pieces.length > 3);
  assert.equal(pieces.join(""), "You said: One two three.");
  assert.equal(await answer.finishReason, "stop");
});

client.check("structured", "`Output.object`, plain and streamed", async (target) => {
  const output = Output.object({ schema: z.object({ city: z.string(), degrees: z.number() }) });
  const { request } = ask(target);
  const expected = { city: "Rome", degrees: 21 };
  assert.deepEqual((await generateText({ ...request, output, prompt: "Report on Rome." })).output, expected);
  assert.deepEqual(await streamText({ ...request, output, prompt: "Report on Rome." }).output, expected);
});

client.check("tools", "two calls in one step, plain and streamed; stored items are sent as references", async (target) => {
  for (const generate of [generateText, streamText]) {
    const { request, name } = ask(target);
    const { cities, how } = forecast();
    const answer = generate({ ...request, ...how, prompt: "Weather in Rome and weather in Oslo?" });
    const text = await (await answer).text;
    assert.equal(text, "The tool says: sunny in Rome and sunny in Oslo.");
    assert.deepEqual(cities.sort(), ["Oslo", "Rome"]);
    assert.deepEqual(await target.roles(name), ["user", "assistant", "tool", "tool"]);
  }
});

client.check("reasoning", "`reasoningText`, with `reasoningSummary`; through a tool call, into the next turn", async (target) => {
  const { request, name } = ask(target, "thinker", { forceReasoning: true, reasoningSummary: "auto" });
  const { cities, how } = forecast();
  const messages = [{ role: "user", content: "Weather in Rome?" }];
  const first = await generateText({ ...request, ...how, messages });
  assert.equal(first.text, "The tool says: sunny in Rome.");
  assert.equal(first.finalStep?.reasoningText ?? first.reasoningText, "They want an answer.");
  assert.deepEqual(cities, ["Rome"]);
  messages.push(...first.responseMessages, { role: "user", content: "And now?" });
  assert.equal((await generateText({ ...request, ...how, messages })).text, "You said: And now?");
  assert.deepEqual(await target.roles(name), ["user", "assistant", "tool", "assistant", "user"]);
});

client.check("images", "an image in the input reaches the model", async (target) => {
  const { request } = ask(target);
  const content = [
    { type: "text", text: "What is this?" },
    { type: "file", data: PIXEL, mediaType: "image/png" },
  ];
  assert.equal((await generateText({ ...request, messages: [{ role: "user", content }] })).text, "I see a picture.");
});

client.check("chain", "`previousResponseId`", async (target) => {
  const { request, name } = ask(target);
  const first = await generateText({ ...request, prompt: "My name is Ada." });
  const previousResponseId = first.providerMetadata.openai.responseId;
  const providerOptions = { openai: { previousResponseId } };
  assert.equal((await generateText({ ...request, providerOptions, prompt: "What is my name?" })).text, "Your name is Ada.");
  assert.deepEqual(await target.roles(name), ["user", "assistant", "user"]);
});

client.check("conversation", "`conversation`, through a tool call", async (target) => {
  const { id } = await new OpenAI({ baseURL: target.baseURL, apiKey: "any" }).conversations.create();
  const { request, name } = ask(target, "plain", { conversation: id });
  const { cities, how } = forecast();
  await generateText({ ...request, ...how, prompt: "My name is Ada. Weather in Rome?" });
  assert.deepEqual(cities, ["Rome"]);
  assert.equal((await generateText({ ...request, prompt: "What is my name?" })).text, "Your name is Ada.");
  assert.deepEqual(await target.roles(name), ["user", "assistant", "tool", "assistant", "user"]);
});

client.check("stateless", "`store: false`, the history sent whole, through reasoning and a tool call", async (target) => {
  const { request, name } = ask(target, "thinker", { store: false, forceReasoning: true });
  const { how } = forecast();
  const messages = [{ role: "user", content: "My name is Ada. Weather in Rome?" }];
  const first = await generateText({ ...request, ...how, messages });
  messages.push(...first.responseMessages, { role: "user", content: "What is my name?" });
  assert.equal((await generateText({ ...request, ...how, messages })).text, "Your name is Ada.");
  assert.deepEqual(await target.roles(name), ["user", "assistant", "tool", "assistant", "user"]);
});

client.check("compact", "`contextManagement`: the compaction is sent back with the history", async (target) => {
  const contextManagement = [{ type: "compaction", compactThreshold: 1000 }];
  const { request } = ask(target, "plain", { contextManagement, store: false });
  const messages = [{ role: "user", content: `My name is Ada. ${"Remember this. ".repeat(500)}` }];
  const first = await generateText({ ...request, messages });
  messages.push(...first.responseMessages, { role: "user", content: "And now?" });
  const second = await generateText({ ...request, messages });
  assert.deepEqual(second.content.map((part) => part.kind ?? part.type), ["openai.compaction", "text"]);
  messages.push(...second.responseMessages, { role: "user", content: "What is my name?" });
  assert.equal((await generateText({ ...request, messages })).text, "Your name is Ada.");
});

client.check("compact", "`compactionTrigger`: a compaction on request", async (target) => {
  const { request } = ask(target, "plain", { store: false });
  const messages = [{ role: "user", content: "My name is Ada." }];
  messages.push(...(await generateText({ ...request, messages })).responseMessages);
  const providerOptions = { openai: { store: false, compactionTrigger: true } };
  const compacted = await generateText({ ...request, providerOptions, messages });
  assert.deepEqual(compacted.content.map((part) => part.kind ?? part.type), ["openai.compaction"]);
  const later = [...compacted.responseMessages, { role: "user", content: "What is my name?" }];
  assert.equal((await generateText({ ...request, messages: later })).text, "Your name is Ada.");
});

client.check("errors", "the server's 400 arrives as `APICallError`, with the server's message", async (target) => {
  const { request } = ask(target);
  const error = await refused(() => generateText({ ...request, temperature: 9, prompt: "Hello!" }));
  assert.ok(APICallError.isInstance(error));
  assert.equal(error.statusCode, 400);
  assert.equal(error.message, "'temperature' must be at most 2.");
});

await client.main();
