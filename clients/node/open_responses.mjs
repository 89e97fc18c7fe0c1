// Vercel's `ai` with `@ai-sdk/open-responses`, its provider for servers like this one.

import assert from "node:assert/strict";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { APICallError, generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

import { Client, PIXEL, refused } from "./checks.mjs";

const client = new Client("ai with @ai-sdk/open-responses (JavaScript)", ["ai", "@ai-sdk/open-responses"]);
client.lackEach(["chain", "conversation", "background"], "has no setting for it");
client.lack("resume", "does not resume a broken stream");
client.lack("cancel", "only stops reading");
client.lack("websocket", "speaks HTTP only");
client.lackEach(["compact", "tokens"], "has no method for it");

function ask(target, kind = "plain") {
  const name = target.model(kind);
  const provider = createOpenResponses({ name: "outlive", url: `${target.baseURL}/responses`, apiKey: "any" });
  return { name, request: { model: provider(name) } };
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
  const answer = await generateText({ ...ask(target).request, prompt: "Hello!" });
  assert.equal(answer.text, "You said: Hello!");
  assert.equal(answer.usage.totalTokens, 7);
});

client.check("streamed", "`streamText`: deltas that add up to the answer", async (target) => {
  const pieces = [];
  for await (const piece of streamText({ ...ask(target).request, prompt: "One two three." }).textStream) pieces.push(piece);
  assert.ok(pieces.length > 3);
  assert.equal(pieces.join(""), "You said: One two three.");
});

client.check("structured", "`Output.object`", async (target) => {
  const output = Output.object({ schema: z.object({ city: z.string(), degrees: z.number() }) });
  const answer = await generateText({ ...ask(target).request, output, prompt: "Report on Rome." });
  assert.deepEqual(answer.output, { city: "Rome", degrees: 21 });
});

client.check("tools", "two calls in one step, plain and streamed", async (target) => {
  for (const generate of [generateText, streamText]) {
    const { request, name } = ask(target);
    const { cities, how } = forecast();
    const answer = generate({ ...request, ...how, prompt: "Weather in Rome and weather in Oslo?" });
    assert.equal(await (await answer).text, "The tool says: sunny in Rome and sunny in Oslo.");
    assert.deepEqual(cities.sort(), ["Oslo", "Rome"]);
    assert.deepEqual(await target.roles(name), ["user", "assistant", "tool", "tool"]);
  }
});

client.check("reasoning", "`reasoningText`, with `reasoningSummary`", async (target) => {
  const { request } = ask(target, "thinker");
  const providerOptions = { outlive: { reasoningSummary: "auto" } };
  const answer = await generateText({ ...request, providerOptions, prompt: "Hello!" });
  assert.equal(answer.text, "You said: Hello!");
  assert.equal(answer.finalStep?.reasoningText ?? answer.reasoningText, "They want an answer.");
});

client.check("images", "an image in the input reaches the model", async (target) => {
  const content = [
    { type: "text", text: "What is this?" },
    { type: "file", data: PIXEL, mediaType: "image/png" },
  ];
  const answer = await generateText({ ...ask(target).request, messages: [{ role: "user", content }] });
  assert.equal(answer.text, "I see a picture.");
});

client.check("stateless", "the history sent whole, through a tool call", async (target) => {
  const { request, name } = ask(target);
  const { how } = forecast();
  const messages = [{ role: "user", content: "My name is Ada. Weather in Rome?" }];
  const first = await generateText({ ...request, ...how, messages });
  messages.push(...first.responseMessages, { role: "user", content: "What is my name?" });
  assert.equal((await generateText({ ...request, ...how, messages })).text, "Your name is Ada.");
  assert.deepEqual(await target.roles(name), ["user", "assistant", "tool", "assistant", "user"]);
});

client.check("errors", "the server's 400 arrives as `APICallError`, with the server's message", async (target) => {
  const error = await refused(() => generateText({ ...ask(target).request, temperature: 9, prompt: "Hello!" }));
  assert.ok(APICallError.isInstance(error));
  assert.equal(error.statusCode, 400);
  assert.equal(error.message, "'temperature' must be at most 2.");
});

await client.main();
