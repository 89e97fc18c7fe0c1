// Runs the bodies of functions that a test sends, one per line, and prints their results; in Node, Deno and Bun alike.
import { createInterface } from "node:readline";

const library = await import(process.argv[2]);
const print = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

for await (const line of createInterface({ input: process.stdin })) {
  const { call, body, args } = JSON.parse(line);
  const names = Object.keys(args);
  const run = new Function("library", "emit", ...names, `"use strict"; return (async () => {${body}})()`);
  run(library, (value) => print({ call, emitted: value }), ...Object.values(args)).then(
    (result) => print({ call, result: result ?? null }),
    (error) => print({ call, error: { ...error, name: error.name, message: error.message, stack: String(error.stack) } }),
  );
}
