// `@langchain/openai` with the Responses API.

import assert from "node:assert/strict";
import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import OpenAI from "openai";
import { z } from "zod";

import { Client, PIXEL, refused } from "./checks.mjs";

const client = new Client("@langchain/openai (JavaScript)", ["@langchain/openai", "@langchain/core"]);
client.lack("background", "has no setting for it");
client.lack("resume", "does not resume a broken stream");
client.lack("cancel", "only stops reading");
client.lack("websocket", "speaks HTTP only");
client.lack("compact", "has no setting for it");
client.lack("tokens", "counts tokens itself");

function chat(target, kind = "plain", fields = {}) {
  const configuration = { baseURL: target.baseURL };
  return new ChatOpenAI({ model: target.model(kind), apiKey: "any", configuration, useResponsesApi: true, maxRetries: 0, ...fields });
}

function forecast() {
  const cities = [];
  const run = async ({ city }) => {
    cities.push(city);
    return `sunny in ${city}`;
  };
  const description = "The weather in a city.";
  return { cities, weather: tool(run, { name: "weather", description, schema: z.object({ city: z.string() }) }) };
}

client.check("plain", "`invoke`", async (target) => {
  const answer = await chat(target).invoke("Hello!");
  assert.equal(answer.text, "You said: Hello!");
  assert.equal(answer.usage_metadata.total_tokens, 7);
  assert.match(answer.response_metadata.id, /^resp_/);
});

client.check("streamed", "`stream`: chunks that add up to the answer", async (target) => {
  const pieces = [];
  for await (const chunk of await chat(target).stream("One two three.")) if (chunk.text) pieces.push(chunk.text);
  assert.ok(pieces.length > 3);
  assert.equal(pieces.join(""), "You said: One two three.");
});

client.check("structured", "`withStructuredOutput`", async (target) => {
  const schema = z.object({ city: z.string(), degrees: z.number() });
  const answer = await chat(target).withStructuredOutput(schema, { name: "report", method: "jsonSchema" }).invoke("Report on Rome.");
  assert.deepEqual(answer, { city: "Rome", degrees: 21 });
});

client.check("tools", "`bindTools`, with calls streamed in pieces", async (target) => {
  const { weather, cities } = forecast();
  const model = chat(target).bindTools([weather]);
  const question = new HumanMessage("Weather in Rome and weather in Oslo?");
  let whole;
  for await (const chunk of await model.stream([question])) whole = whole === undefined ? chunk : whole.concat(chunk);
  assert.deepEqual(whole.tool_calls.map((call) => call.args), [{ city: "Rome" }, { city: "Oslo" }]);
  const outputs = [];
  for (const call of whole.tool_calls) outputs.push(await weather.invoke({ ...call, type: "tool_call" }));
  const answer = await model.invoke([question, whole, ...outputs]);
  assert.equal(answer.text, "The tool says: sunny in Rome and sunny in Oslo.");
  assert.deepEqual(cities, ["Rome", "Oslo"]);
});

client.check("reasoning", "the summary, for models whose names begin like OpenAI's reasoning models", async (target) => {
  const answer = await chat(target, "gpt-5-thinker", { reasoning: { summary: "auto" } }).invoke("Hello!");
  assert.equal(answer.text, "You said: Hello!");
  assert.equal(answer.additional_kwargs.reasoning.summary[0].text, "They want an answer.");
});

client.check("images", "an image in the input reaches the model", async (target) => {
  const content = [{ type: "text", text: "What is this?" }, { type: "image_url", image_url: { url: PIXEL } }];
  assert.equal((await chat(target).invoke([new HumanMessage({ content })])).text, "I see a picture.");
});

client.check("chain", "`previous_response_id`", async (target) => {
  const model = chat(target);
  const first = await model.invoke("My name is Ada.");
  const second = await model.invoke("What is my name?", { previous_response_id: first.response_metadata.id });
  assert.equal(second.text, "Your name is Ada.");
  assert.deepEqual(await target.roles(model.model), ["user", "assistant", "user"]);
});

client.check("conversation", "`conversation`, in `modelKwargs`", async (target) => {
  const { id } = await new OpenAI({ baseURL: target.baseURL, apiKey: "any" }).conversations.create();
  const model = chat(target, "plain", { modelKwargs: { conversation: id } });
  await model.invoke("My name is Ada.");
  assert.equal((await model.invoke("What is my name?")).text, "Your name is Ada.");
});

client.check("stateless", "`zdrEnabled: true`, the history sent whole", async (target) => {
  const model = chat(target, "plain", { zdrEnabled: true });
  const history = [new HumanMessage("My name is Ada."), new AIMessage("Hello, Ada."), new HumanMessage("What is my name?")];
  assert.equal((await model.invoke(history)).text, "Your name is Ada.");
});

client.check("errors", "the server's 400 arrives with its status and its parameter", async (target) => {
  const error = await refused(() => chat(target, "plain", { temperature: 9 }).invoke("Hello!"));
  assert.equal(error.status, 400);
  assert.equal(error.param, "temperature");
});

await client.main();
